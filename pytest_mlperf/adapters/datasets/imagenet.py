"""Read an image classification set in ImageNet's official layout: images, `val_map.txt`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pytest_mlperf import UnavailableError
from pytest_mlperf.adapters.datasets.files import FileDataset, FileOptions, first_file, wrong
from pytest_mlperf.adapters.datasets.files.images import check_images, decode, hash_of_images
from pytest_mlperf.adapters.datasets.files.json_lines import lines_of
from pytest_mlperf.adapters.lazy import NDArray, np

VGG_MEAN = (123.68, 116.78, 103.94)
"""Mean of red, green and blue over ImageNet in MLPerf's ResNet-50 reference."""


@dataclass(frozen=True, kw_only=True)
class ImageNetOptions(FileOptions, dataset="imagenet", noun="images"):
    """Options of the data set imagenet.

    Attributes:
        path: Folder of the images.
        map: Label file, relative to `path` or its parent, or absolute. Each line has a file name
            relative to `path` and a class counted from 0, as in "ILSVRC2012_val_00000001.JPEG 65".
        size: Height and width of a sample, in pixels.
        crop: Side of the centre crop, as a share of the resized image's shorter side. With 1, an
            image of `size` x `size` stays unchanged.
        mean: Values to subtract from red, green and blue, in this order, for pixels from 0 to 255.
        std: Values by which to divide red, green and blue, for pixels from 0 to 255. A model that
            expects (pixel / 255 - m) / s needs mean = 255 m and std = 255 s.
        classes: Number of classes; labels are 0 to `classes - 1`.
    """

    path: str
    map: str = "val_map.txt"
    size: int = 224
    crop: float = 0.875
    mean: Sequence[float] = VGG_MEAN
    std: Sequence[float] = (1.0, 1.0, 1.0)
    classes: int = 1000

    def __post_init__(self) -> None:
        scales = len(self.std) == 3 and 0 not in self.std
        rules = (
            ("crop", self.crop, 0 < self.crop <= 1, "a number above 0 and at most 1"),
            ("mean", self.mean, len(self.mean) == 3, "a list of three numbers: red, green, blue"),
            ("std", self.std, scales, "a list of three numbers other than 0"),
        )
        self.check(*rules, size="pixels", classes="classes")

    def find(self) -> Path:
        folder = Path(self.path)
        if not folder.is_dir():
            raise UnavailableError(
                f"{folder}: this folder of images does not exist; set the data set's path to the "
                "folder with the images"
            )
        file = first_file([folder / self.map, folder.parent / self.map])
        if file is None:
            raise UnavailableError(
                f"{folder}: the list of labels {self.map!r} is neither in this folder nor in its "
                'parent; put the official val_map.txt ("FILE LABEL" lines) there, or set map to '
                "its path"
            )
        return file


class ImageNetDataset(FileDataset[tuple[str, int]]):
    """Images in the order of the label file, preprocessed as in MLPerf's ResNet-50 reference.

    Each image becomes RGB, is resized to a shorter side of `int(size / crop)` pixels, cropped at
    the centre to `size` x `size`, and normalised to `(pixel - mean) / std`, as by pre_process_vgg
    of MLPerf's vision/classification_and_detection/python/dataset.py. Images are decoded on each
    access. When the data set is built, only their headers and last bytes are checked.
    """

    libraries = ("PIL",)
    options = ImageNetOptions

    def _read(self, options: ImageNetOptions, file: Path) -> None:
        self._folder = Path(options.path)
        self._shorter_side = int(options.size / options.crop)
        self._mean = tuple(float(value) for value in options.mean)
        self._std = tuple(float(value) for value in options.std)
        samples = _read_map(file, classes=options.classes)
        self._keep(samples, options.count, file)
        check_images(self._folder, [name for name, _ in self._samples], file)

    def input(self, index: int) -> NDArray[np.float32]:
        """Return one image as RGB, shape (3, size, size), C-contiguous."""
        pixels = resize_shorter_side(
            decode(self._folder / self._sample(index)[0]), self._shorter_side
        )
        height, width, _ = pixels.shape
        size = self._asked.size
        top, left = (height - size) // 2, (width - size) // 2
        cropped = pixels[top : top + size, left : left + size].astype(np.float32)
        mean, std = np.array([self._mean, self._std], np.float32)
        return np.ascontiguousarray(((cropped - mean) / std).transpose(2, 0, 1))

    def reference(self, index: int) -> int:
        return self._sample(index)[1]

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 over preprocessing, labels and image files, without the files' names."""
        settings = repr((self._asked.size, self._shorter_side, self._mean, self._std)).encode()
        labels = ((name, label.to_bytes(8, "little")) for name, label in self._samples)
        return hash_of_images(settings, self._folder, labels)


def resize_shorter_side(pixels: NDArray[np.uint8], target: int) -> NDArray[np.uint8]:
    """Resize (height, width, 3) to a shorter side of `target` pixels; keep the aspect ratio.

    Each new pixel is the mean of the area that it covers, also when the image is enlarged. The
    longer side is rounded down. The result equals the reference's OpenCV INTER_AREA to within one
    grey level.
    """
    height, width, _ = pixels.shape
    shorter = min(height, width)
    if shorter == target:
        return pixels
    new_height, new_width = target * height // shorter, target * width // shorter
    rows, columns = _area_weights(height, new_height), _area_weights(width, new_width)
    narrow = np.tensordot(pixels.astype(np.float32), columns, axes=(1, 1))
    resized = np.tensordot(rows, narrow, axes=(1, 0)).transpose(0, 2, 1)
    # OpenCV rounds halves up if it halves an image, the case in which most of them arise.
    levels: NDArray[np.uint8] = np.clip(np.floor(resized + 0.5), 0, 255).astype(np.uint8)
    return levels


def _area_weights(old: int, new: int) -> NDArray[np.float32]:
    """Return the share of new pixel i that old pixel j covers, shape (new, old)."""
    edges = np.arange(new + 1) * (old / new)
    pixel = np.arange(old)
    overlap = np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)
    weights: NDArray[np.float32] = (overlap.clip(min=0) * (new / old)).astype(np.float32)
    return weights


def _read_map(path: Path, *, classes: int) -> list[tuple[str, int]]:
    entries: list[tuple[str, int]] = []
    for number, line in enumerate(lines_of(path), start=1):
        where = f"{path}:{number}"
        match line.split():
            case [name, label] if re.fullmatch(r"[0-9]{1,9}", label):
                if int(label) >= classes:
                    raise wrong(
                        where,
                        f"label {label} is out of range, valid are 0 to {classes - 1}",
                        "correct the line, or set the option classes",
                    )
                entries.append((name, int(label)))
            case [_, *_]:
                raise wrong(
                    where, f'{line.rstrip()[:80]!r} is not "FILE LABEL"', "correct the line"
                )
    return entries
