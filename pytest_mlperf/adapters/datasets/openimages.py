"""Read MLPerf's validation set of Open Images: annotations in COCO's JSON, and the images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pytest_mlperf.adapters.datasets.files.annotated import AnnotatedImages, AnnotatedOptions
from pytest_mlperf.adapters.datasets.files.images import decode, neighbours
from pytest_mlperf.adapters.lazy import NDArray, np

ANNOTATIONS = "annotations/openimages-mlperf.json"
IMAGES = "validation/data"
"""Paths in the output of MLPerf's tools/openimages_mlperf.sh."""


@dataclass(frozen=True, kw_only=True)
class OpenImagesOptions(AnnotatedOptions, dataset="openimages", noun="images"):
    """Options of the data set openimages; defaults are MLPerf's.

    Attributes:
        annotations: Annotation file, relative to `path` or absolute.
        images: Folder of the images, relative to `path` or absolute.
        size: Height and width of a sample, in pixels.
    """

    title: ClassVar[str] = "Open Images"
    advice: ClassVar[str] = (
        "put the output of tools/openimages_mlperf.sh there (MLPerf's repository inference, "
        "folder vision/classification_and_detection)"
    )

    annotations: str = ANNOTATIONS
    images: str = IMAGES
    size: int = 800


class OpenImagesDataset(AnnotatedImages):
    """Images in the order of the annotation file, preprocessed for RetinaNet.

    Each image becomes RGB, is stretched to `size` x `size` and divided by 255, as by
    pre_process_openimages_retinanet of MLPerf's
    vision/classification_and_detection/python/dataset.py.
    """

    options = OpenImagesOptions

    def input(self, index: int) -> NDArray[np.float32]:
        """Return one image as RGB from 0 to 1, shape (3, size, size), C-contiguous."""
        pixels = stretch(decode(self._folder / self._sample(index)[0]), self._asked.size)
        return np.ascontiguousarray((pixels / np.float32(255)).transpose(2, 0, 1))


def stretch(pixels: NDArray[np.uint8], size: int) -> NDArray[np.float32]:
    """Resize (height, width, 3) to (size, size, 3) by bilinear interpolation.

    The result equals OpenCV's float32 INTER_LINEAR up to rounding: positions are in double
    precision, rows are resized first, and a shrinking image is not smoothed. Values keep their
    range.
    """
    height, width, _ = pixels.shape
    top, bottom, down = neighbours(height, size)
    left, right, along = neighbours(width, size)
    along = along[None, :, None]
    levels = pixels.astype(np.float32)
    narrow = levels[:, left] * (1 - along) + levels[:, right] * along
    down = down[:, None, None]
    return np.asarray(narrow[top] * (1 - down) + narrow[bottom] * down, np.float32)
