"""Read MLPerf's subset of the COCO 2017 validation images, preprocessed for YOLO."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from pytest_mlperf.adapters.datasets.files.annotated import AnnotatedImages, AnnotatedOptions
from pytest_mlperf.adapters.datasets.files.images import decode, neighbours
from pytest_mlperf.adapters.lazy import NDArray, np

ANNOTATIONS = "annotations/instances_val2017.json"
IMAGES = "val2017_safe"
"""Paths in MLPerf's archive coco_safe, whose annotation file lists its 1,525 images only."""

GREY = 114
"""Grey level of the padding around an image."""

STRIDE = 32
"""Stride of YOLO's coarsest level, in pixels: sides of a rectangle are multiples of it."""

FIXED_POINT_ONE = 2048
"""Fixed-point value of 1 in OpenCV's 8-bit resize."""


@dataclass(frozen=True, kw_only=True)
class CocoOptions(AnnotatedOptions, dataset="coco", noun="images"):
    """Options of the data set coco; defaults are MLPerf's.

    Attributes:
        annotations: Annotation file, relative to `path` or absolute.
        images: Folder of the images, relative to `path` or absolute.
        size: Longer side of a resized image, in pixels.
        square: Whether to pad images to size x size, as exported models need. False pads both sides
            to multiples of 32, as MLPerf's reference does for its PyTorch model.
    """

    title: ClassVar[str] = "COCO"
    advice: ClassVar[str] = (
        "put MLPerf's data set coco_safe there (https://inference.mlcommons-storage.org), or make "
        "it from COCO's 2017 validation images with the scripts in "
        "vision/classification_and_detection/yolo of the repository mlcommons/inference"
    )

    annotations: str = ANNOTATIONS
    images: str = IMAGES
    size: int = 640
    square: bool = True

    def __post_init__(self) -> None:
        sides = f"a multiple of {STRIDE}, which square = false requires"
        rule = ("size", self.size, self.square or not self.size % STRIDE, sides)
        self.check(rule, size="pixels")


class CocoDataset(AnnotatedImages):
    """Images in the order of the annotation file, letterboxed for YOLO.

    Each image becomes RGB, is resized to a longer side of `size`, padded in grey and divided by
    255. Use MLPerf's annotation file: COCO's own lists images that are not in the archive.
    """

    options = CocoOptions

    @property
    def _preparation(self) -> str:
        return repr((self._asked.size, self._asked.square))

    def input(self, index: int) -> dict[str, NDArray[Any]]:
        """Return arrays by name.

        `images`: RGB from 0 to 1, shape (3, height, width), C-contiguous. `frame`: left and top
        padding, scale, and original width and height, in pixels, float32. `categories`: category id
        of each of the model's classes, in ascending order.
        """
        pixels = decode(self._folder / self._sample(index)[0])
        pixels, frame = letterbox(pixels, self._asked.size, square=self._asked.square)
        images = (pixels / np.float32(255)).transpose(2, 0, 1)
        return {
            "images": np.ascontiguousarray(images),
            "frame": frame,
            "categories": self._category_ids,
        }

    @cached_property
    def _category_ids(self) -> NDArray[np.int64]:
        return np.array(sorted(self._categories), np.int64)


def letterbox(
    pixels: NDArray[np.uint8], size: int, *, square: bool
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Resize and pad an image; return it, and [left, top, scale, old width, old height].

    Left and top are padding [pixels]. `square` pads to size x size, else to a multiple of STRIDE.
    """
    height, width, _ = pixels.shape
    scale = min(size / height, size / width)
    inner = max(round(width * scale), 1), max(round(height * scale), 1)
    spare = [size - side if square else (size - side) % STRIDE for side in inner]
    # The odd pixel of the padding goes to the right or the bottom.
    left, top = (round(each / 2 - 0.1) for each in spare)
    framed = np.full((inner[1] + spare[1], inner[0] + spare[0], 3), GREY, np.uint8)
    framed[top : top + inner[1], left : left + inner[0]] = resize(pixels, *inner)
    return framed, np.array([left, top, scale, width, height], np.float32)


def resize(pixels: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """Resize an image with exactly the results of OpenCV's INTER_LINEAR for uint8."""
    if pixels.shape[:2] == (height, width):
        return pixels
    left, right, along = neighbours(pixels.shape[1], width, single=True)
    top, bottom, down = neighbours(pixels.shape[0], height, single=True)
    whole = pixels.astype(np.int32)
    share = np.rint(along * FIXED_POINT_ONE).astype(np.int32)[None, :, None]
    narrow = (whole[:, left] * (FIXED_POINT_ONE - share) + whole[:, right] * share) >> 4
    share = np.rint(down * FIXED_POINT_ONE).astype(np.int32)[:, None, None]
    mixed = (narrow[top] * (FIXED_POINT_ONE - share) >> 16) + (narrow[bottom] * share >> 16)
    return ((mixed + 2) >> 2).astype(np.uint8)
