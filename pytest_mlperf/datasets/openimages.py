"""Read MLPerf's validation set of Open Images: annotations in COCO's JSON, and the images."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_mlperf.core.errors import SuiteError, UnavailableError
from pytest_mlperf.datasets.checksum import check_file, parse_checksum
from pytest_mlperf.datasets.images import check_images, decode, require_images
from pytest_mlperf.datasets.openimages_annotations import Annotated, read_annotations, wrong

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ANNOTATIONS = "annotations/openimages-mlperf.json"
IMAGES = "validation/data"
"""Where MLPerf's tools/openimages_mlperf.sh puts them."""


class OpenImagesDataset:
    """Images by index in the order of the annotation file, preprocessed as for RetinaNet.

    Each image becomes RGB, is stretched to `size` x `size` and divided by 255.
    Source: pre_process_openimages_retinanet in vision/classification_and_detection/python/
    dataset.py of https://github.com/mlcommons/inference. Unlike the reference, which leaves out
    images that are not here and so gives others their numbers, this data set must be complete.
    """

    libraries = ("PIL",)

    def __init__(
        self,
        *,
        path: str,
        annotations: str = ANNOTATIONS,
        images: str = IMAGES,
        size: int = 800,
        count: int | None = None,
        checksum: str | None = None,
    ) -> None:
        """Read the annotations, and check that every image is there and complete.

        Args:
            path: Folder of the data set.
            annotations: The annotation file, relative to `path` or absolute.
            images: Folder of the images, relative to `path` or absolute.
            size: Height and width of a sample, in pixels.
            count: Use the first `count` images only; None uses all.
            checksum: "md5:" or "sha256:" and the hex digits that the annotation file must have.

        Raises:
            SuiteError: An option is wrong.
            UnavailableError: The folder, the annotations or an image is not here.
            EnvironmentFault: Pillow is not installed.
            RunError: The annotations are not as expected, or an image is damaged or has another
                size than they say; bits that flipped inside an image are not seen here.
        """
        expected = _check_options(size=size, count=count, checksum=checksum)
        self._size = size
        file, self._folder = _find(path, annotations, images)
        check_file(file, expected)
        listed = read_annotations(file)
        if count is not None and count > len(listed):
            raise SuiteError(
                f"{file}: count = {count!r}, but it lists {len(listed)} images; "
                "lower count, or leave it out to use all"
            )
        self._images = listed[:count]
        names = [image.name for image in self._images]
        require_images(self._folder, names, file)
        _check_sizes(file, self._images, check_images(self._folder, names))

    @classmethod
    def look(
        cls,
        *,
        path: str,
        annotations: str = ANNOTATIONS,
        images: str = IMAGES,
        size: int = 800,
        count: int | None = None,
        checksum: str | None = None,
    ) -> None:
        """Look for the annotation file and the folder of images; nothing is read.

        Raises:
            SuiteError: An option is wrong.
            UnavailableError: One is not here; says what to put where.
        """
        _check_options(size=size, count=count, checksum=checksum)
        _find(path, annotations, images)

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._images)

    def input(self, index: int) -> NDArray[np.float32]:
        """Decode and preprocess one image.

        Returns:
            Shape (3, size, size): channels red, green, blue, from 0 to 1; C-contiguous.

        Raises:
            RunError: The file is no image that Pillow can decode.
        """
        import numpy as np

        pixels = stretch(decode(self._folder / self._images[index].name), self._size)
        return np.ascontiguousarray((pixels / np.float32(255)).transpose(2, 0, 1))

    def reference(self, index: int) -> dict[str, Any]:
        """Return what is known of one image.

        Returns:
            `index`; `image_id`; `height` and `width` in pixels; and `annotations`, a list of
            objects with `category_id`, `bbox` (left, top, width, height in pixels), `area` (square
            pixels) and `iscrowd` (1 for a box around a group, else 0).
        """
        image = self._images[index]
        return {
            "index": index,
            "image_id": image.identity,
            "height": image.height,
            "width": image.width,
            "annotations": [
                {"category_id": category, "bbox": list(bbox), "area": area, "iscrowd": crowd}
                for category, bbox, area, crowd in image.boxes
            ],
        }

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 over the size, the references and the bytes of every image file.

        File names do not count: a copy elsewhere has the same digest.
        """
        total = hashlib.sha256(repr(self._size).encode())
        for index, image in enumerate(self._images):
            with (self._folder / image.name).open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
            reference = json.dumps(self.reference(index), sort_keys=True).encode()
            total.update(hashlib.sha256(reference).digest())
        return total.hexdigest()


def stretch(pixels: NDArray[np.uint8], size: int) -> NDArray[np.float32]:
    """Resize to `size` x `size`, each new pixel a mix of the four old ones around its centre.

    Equals OpenCV's resize of float32 with INTER_LINEAR up to rounding: positions in double
    precision, mixed along rows first, nothing is smoothed where the image shrinks.

    Args:
        pixels: Shape (height, width, 3).
        size: New height and width, in pixels.

    Returns:
        Shape (size, size, 3), on the scale of `pixels`.
    """
    import numpy as np

    height, width, _ = pixels.shape
    top, bottom, down = _neighbours(height, size)
    left, right, along = _neighbours(width, size)
    along = along[None, :, None]
    levels = pixels.astype(np.float32)
    narrow = levels[:, left] * (1 - along) + levels[:, right] * along
    down = down[:, None, None]
    return np.asarray(narrow[top] * (1 - down) + narrow[bottom] * down, np.float32)


def _neighbours(
    old: int, new: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Return the old pixels before and after each new one's centre, and the latter's share."""
    import numpy as np

    place = (np.arange(new) + 0.5) * (old / new) - 0.5
    before = np.floor(place).astype(np.int64)
    share = (place - before).astype(np.float32)
    share[(before < 0) | (before >= old - 1)] = 0
    return before.clip(0, old - 1), (before + 1).clip(0, old - 1), share


def _check_sizes(file: Path, images: Sequence[Annotated], sizes: Sequence[tuple[int, int]]) -> None:
    """Refuse images of other sizes than annotated; one that EXIF data turns is stored lying."""
    for row, (image, found) in enumerate(zip(images, sizes, strict=True)):
        if sorted(found) != sorted((image.width, image.height)):
            raise wrong(
                file,
                "images",
                row,
                f"is said to have {image.width} x {image.height} pixels, but {image.name} has "
                f"{found[0]} x {found[1]}: these are not the images that were annotated",
            )


def _check_options(*, size: int, count: int | None, checksum: str | None) -> tuple[str, str] | None:
    """Check options without a look at files; return the checksum, parsed."""
    rules = (
        ("size", size, type(size) is int and size >= 1, "a number of pixels, at least 1"),
        (
            "count",
            count,
            count is None or (type(count) is int and count >= 1),
            "a number of images, at least 1",
        ),
    )
    for name, value, valid, expected in rules:
        if not valid:
            raise SuiteError(f"data set openimages: {name} = {value!r} is not {expected}")
    return parse_checksum("data set openimages", checksum)


def _find(path: str, annotations: str, images: str) -> tuple[Path, Path]:
    """Return the annotation file and the folder of images."""
    folder = Path(path)
    file, pictures = folder / annotations, folder / images
    told = (
        "put the output of tools/openimages_mlperf.sh there (MLPerf's repository inference, "
        "folder vision/classification_and_detection)"
    )
    if not folder.is_dir():
        raise UnavailableError(
            f"{folder}: the folder of Open Images does not exist; {told}, or set the data set's "
            "path to where it is"
        )
    missing = []
    if not file.is_file():
        missing.append(
            f"{file}: the annotation file openimages-mlperf.json is not here; {told}, or set the "
            "option annotations to its path"
        )
    if not pictures.is_dir():
        missing.append(
            f"{pictures}: the folder of images does not exist; {told}, or set the option images "
            "to its path"
        )
    if missing:
        raise UnavailableError("; also ".join(missing))
    return file, pictures
