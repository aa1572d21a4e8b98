"""Read MLPerf's part of COCO's validation images of 2017, as YOLO takes them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_mlperf.adapters.datasets.files.annotated import AnnotatedImages, AnnotatedOptions
from pytest_mlperf.adapters.datasets.files.images import decode, neighbours

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ANNOTATIONS = "annotations/instances_val2017.json"
IMAGES = "val2017_safe"
"""As in the archive coco_safe that MLPerf distributes; its file lists these 1,525 images alone."""

GREY = 114
"""Of what is around an image that fills no square."""

STRIDE = 32
"""Of YOLO's coarsest level: what sides of a rectangle are multiples of."""

FIXED_POINT_ONE = 2048
"""What OpenCV's 8-bit resize takes for 1, as it mixes in whole numbers."""


@dataclass(frozen=True, kw_only=True)
class CocoOptions(AnnotatedOptions):
    """As its base, and how images are framed; defaults are MLPerf's.

    Attributes:
        annotations: The annotation file, relative to `path` or absolute.
        images: Folder of the images, relative to `path` or absolute.
        size: Of the frame in pixels: the longer side of an image.
        square: Frame images in size x size, as exported models take them; False: as little as
            makes both sides multiples of 32, as the reference's model of PyTorch takes them.
    """

    dataset: ClassVar[str] = "coco"
    title: ClassVar[str] = "COCO"
    advice: ClassVar[str] = (
        "put MLPerf's coco_safe there (https://inference.mlcommons-storage.org), or what the "
        "scripts in vision/classification_and_detection/yolo of MLPerf's repository inference "
        "make of COCO's 2017 validation images"
    )

    annotations: str = ANNOTATIONS
    images: str = IMAGES
    size: int = 640
    square: bool = True

    def __post_init__(self) -> None:
        sides = f"a multiple of {STRIDE} where square is false"
        self.check(
            self.dataset,
            ("size", self.size, self.square or not self.size % STRIDE, sides),
            size="pixels",
            count="images",
        )


class CocoDataset(AnnotatedImages):
    """Images by index in the order of the annotation file, letterboxed as for YOLO.

    Each image becomes RGB, is resized until one side is `size`, framed in grey and divided by 255.
    Use the annotation file that was reduced to MLPerf's images: with COCO's whole one, images would
    be missing here, and the reference would give the others wrong numbers.
    """

    options = CocoOptions

    def _read(self, asked: Any, files: tuple[Path, Path]) -> None:
        self._square = asked.square
        super()._read(asked, files)

    @property
    def _preparation(self) -> str:
        return repr((self._size, self._square))

    def input(self, index: int) -> dict[str, NDArray[Any]]:
        """Return arrays by name.

        `images`: RGB from 0 to 1, shape (3, height, width), C-contiguous. `frame`: what is left and
        above of the image there, its scale, and its old width and height, all in pixels, float32.
        `categories`: the id of each of a model's classes, which are in the ids' order.
        """
        import numpy as np

        pixels, frame = letterbox(
            decode(self._folder / self._sample(index)[0]), self._size, square=self._square
        )
        images = (pixels / np.float32(255)).transpose(2, 0, 1)
        return {
            "images": np.ascontiguousarray(images),
            "frame": frame,
            "categories": self._category_ids,
        }

    @cached_property
    def _category_ids(self) -> NDArray[np.int64]:
        import numpy as np

        return np.array(sorted(self._categories), np.int64)


def letterbox(
    pixels: NDArray[np.uint8], size: int, *, square: bool
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return an image in its frame, and what undoes it: left, top, scale, old width and height."""
    import numpy as np

    height, width, _ = pixels.shape
    scale = min(size / height, size / width)
    inner = max(round(width * scale), 1), max(round(height * scale), 1)
    spare = [size - side if square else (size - side) % STRIDE for side in inner]
    # A spare pixel that cannot be halved goes to the right or below.
    left, top = (round(each / 2 - 0.1) for each in spare)
    framed = np.full((inner[1] + spare[1], inner[0] + spare[0], 3), GREY, np.uint8)
    framed[top : top + inner[1], left : left + inner[0]] = resize(pixels, *inner)
    return framed, np.array([left, top, scale, width, height], np.float32)


def resize(pixels: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """Resize an image, bit for bit as OpenCV's uint8 INTER_LINEAR: weights are whole 2048ths."""
    import numpy as np

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
