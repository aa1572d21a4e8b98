"""Read an image classification set in ImageNet's official layout: images and `val_map.txt`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mlperf.core.errors import RunError, SuiteError, UnavailableError
from pytest_mlperf.datasets.images import check_images, decode, require_images

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

VGG_MEAN = (123.68, 116.78, 103.94)
"""Means of red, green and blue over ImageNet, as MLPerf's ResNet-50 reference subtracts them."""


class ImageNetDataset:
    """Images by index in the order of the map, preprocessed as MLPerf's ResNet-50 reference does.

    Each image becomes RGB, is resized so that its shorter side has `int(size / crop)` pixels,
    cropped at the centre to `size` x `size`, and normalised to `(pixel - mean) / std`.
    Source: pre_process_vgg in vision/classification_and_detection/python/dataset.py of
    https://github.com/mlcommons/inference.
    """

    libraries = ("PIL",)

    def __init__(
        self,
        *,
        path: str,
        map: str = "val_map.txt",  # noqa: A002 - the official file's own name for itself
        size: int = 224,
        crop: float = 0.875,
        mean: Sequence[float] = VGG_MEAN,
        std: Sequence[float] = (1.0, 1.0, 1.0),
        classes: int = 1000,
        count: int | None = None,
    ) -> None:
        """Read the map, and check that every image is there and complete.

        Images are decoded when asked for: of each, only the header and the end are read here.

        Args:
            path: Folder that the map's file names are relative to.
            map: The map, relative to `path`, else to its parent, or absolute: a line per image, its
                file below `path`, a space, and its class, as in
                "ILSVRC2012_val_00000001.JPEG 65". Classes are counted from 0.
            size: Height and width of a sample, in pixels.
            crop: Share of the resized shorter side that the crop keeps; 1 keeps all of it, and
                leaves an image that already is `size` x `size` as it is.
            mean: Subtracted from red, green and blue, in this order, on the pixels' scale of 0 to
                255.
            std: Red, green and blue are then divided by it, on the scale 0 to 255 too; 1 leaves
                them as they are. A model that takes (pixel / 255 - m) / s needs mean = 255 m and
                std = 255 s.
            classes: Number of classes; labels in the map are 0 to `classes - 1`.
            count: Use the first `count` images only; None uses all.

        Raises:
            SuiteError: An option is out of range.
            UnavailableError: The folder, the map or an image is not here.
            EnvironmentFault: Pillow is not installed.
            RunError: A line of the map is malformed or its label is out of range, or an image is
                damaged; bits that flipped inside an image are not seen here.
        """
        _check_options(size=size, crop=crop, mean=mean, std=std, classes=classes, count=count)
        self._folder = Path(path)
        self._size = size
        self._shorter_side = int(size / crop)
        self._mean = tuple(float(value) for value in mean)
        self._std = tuple(float(value) for value in std)
        self._map = _find_map(self._folder, map)
        entries = _read_map(self._map, classes=classes)
        if count is not None and count > len(entries):
            raise SuiteError(
                f"{self._map}: count = {count!r}, but the map lists {len(entries)} images; "
                "lower count, or leave it out to use all"
            )
        self._entries = entries[:count]
        names = [name for name, _ in self._entries]
        require_images(self._folder, names, self._map)
        check_images(self._folder, names)

    @classmethod
    def look(
        cls,
        *,
        path: str,
        map: str = "val_map.txt",  # noqa: A002 - as above
        size: int = 224,
        crop: float = 0.875,
        mean: Sequence[float] = VGG_MEAN,
        std: Sequence[float] = (1.0, 1.0, 1.0),
        classes: int = 1000,
        count: int | None = None,
    ) -> None:
        """Look for the folder and the map; nothing is read.

        Raises:
            SuiteError: An option is out of range.
            UnavailableError: One is not here; says what to put where.
        """
        _check_options(size=size, crop=crop, mean=mean, std=std, classes=classes, count=count)
        _find_map(Path(path), map)

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._entries)

    def input(self, index: int) -> NDArray[np.float32]:
        """Decode and preprocess one image.

        Returns:
            Shape (3, size, size): channels red, green, blue; C-contiguous.

        Raises:
            RunError: The file is no image that Pillow can decode.
        """
        import numpy as np

        pixels = resize_shorter_side(
            decode(self._folder / self._entries[index][0]), self._shorter_side
        )
        height, width, _ = pixels.shape
        top, left = (height - self._size) // 2, (width - self._size) // 2
        cropped = pixels[top : top + self._size, left : left + self._size].astype(np.float32)
        mean, std = np.array([self._mean, self._std], np.float32)
        return np.ascontiguousarray(((cropped - mean) / std).transpose(2, 0, 1))

    def reference(self, index: int) -> int:
        """Return the class of one image."""
        return self._entries[index][1]

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 over the preprocessing, the labels and the bytes of every image file.

        File names do not count: a copy elsewhere has the same digest.
        """
        total = hashlib.sha256(
            repr((self._size, self._shorter_side, self._mean, self._std)).encode()
        )
        for name, label in self._entries:
            with (self._folder / name).open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
            total.update(label.to_bytes(8, "little"))
        return total.hexdigest()


def resize_shorter_side(pixels: NDArray[np.uint8], target: int) -> NDArray[np.uint8]:
    """Resize so that the shorter side has `target` pixels, and keep the aspect ratio.

    Each new pixel is the mean of the area that it covers, also where it is smaller than an old one;
    new lengths are rounded down. Equals OpenCV's INTER_AREA, which the reference uses, up to one
    grey level.

    Args:
        pixels: Shape (height, width, 3).
        target: New length of the shorter side, in pixels.
    """
    import numpy as np

    height, width, _ = pixels.shape
    shorter = min(height, width)
    if shorter == target:
        return pixels
    new_height, new_width = target * height // shorter, target * width // shorter
    rows, columns = _area_weights(height, new_height), _area_weights(width, new_width)
    narrow = np.tensordot(pixels.astype(np.float32), columns, axes=(1, 1))
    resized = np.tensordot(rows, narrow, axes=(1, 0)).transpose(0, 2, 1)
    # OpenCV rounds halves up where it halves an image, which is where most of them arise.
    levels: NDArray[np.uint8] = np.clip(np.floor(resized + 0.5), 0, 255).astype(np.uint8)
    return levels


def _area_weights(old: int, new: int) -> NDArray[np.float32]:
    """Return shape (new, old): the share of new pixel i that old pixel j covers."""
    import numpy as np

    edges = np.arange(new + 1) * (old / new)
    pixel = np.arange(old)
    overlap = np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)
    weights: NDArray[np.float32] = (overlap.clip(min=0) * (new / old)).astype(np.float32)
    return weights


def _find_map(folder: Path, name: str) -> Path:
    if not folder.is_dir():
        raise UnavailableError(
            f"{folder}: this folder of images does not exist; set the data set's path to the "
            "folder with the images"
        )
    places = (folder / name, folder.parent / name)
    for place in places:
        if place.is_file():
            return place
    raise UnavailableError(
        f"{folder}: the list of labels {name!r} is neither there nor in the folder above; put the "
        'official val_map.txt ("FILE LABEL" lines) there, or set the option map to its path'
    )


def _read_map(path: Path, *, classes: int) -> list[tuple[str, int]]:
    """Return file name and label of each line; blank lines do not count."""
    lines = path.read_text(encoding="utf-8").splitlines()
    entries = [
        _parse_line(line, where=f"{path}:{number}", classes=classes)
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not entries:
        raise RunError("dataset", f'{path}: lists no image; each line must read "FILE LABEL"')
    return entries


def _parse_line(line: str, *, where: str, classes: int) -> tuple[str, int]:
    match line.split():
        case [name, label] if label.isascii() and label.isdecimal():
            if int(label) < classes:
                return name, int(label)
            raise RunError(
                "dataset",
                f"{where}: label {label} is out of range, valid are 0 to {classes - 1}; correct "
                "the line, or set the option classes",
            )
    raise RunError("dataset", f'{where}: {line!r} is not "FILE LABEL"; correct the line')


def _check_options(
    *,
    size: int,
    crop: float,
    mean: Sequence[float],
    std: Sequence[float],
    classes: int,
    count: int | None,
) -> None:
    rules = (
        ("size", size, size >= 1, "a number of pixels, at least 1"),
        ("crop", crop, 0 < crop <= 1, "a share above 0, up to 1"),
        ("mean", mean, len(mean) == 3, "three numbers: red, green, blue"),
        ("std", std, len(std) == 3 and 0 not in std, "three numbers other than 0"),
        ("classes", classes, classes >= 1, "a number of classes, at least 1"),
        ("count", count, count is None or count >= 1, "a number of images, at least 1"),
    )
    for name, value, valid, expected in rules:
        if not valid:
            raise SuiteError(f"data set imagenet: {name} = {value!r} is not {expected}")
