"""Read and check images with bounding boxes, listed in a COCO JSON file."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from pytest_mlperf import RunError, UnavailableError
from pytest_mlperf.adapters.datasets.files import ChecksumOptions, FileDataset, wrong
from pytest_mlperf.adapters.datasets.files.images import check_images, hash_of_images

Test = Callable[[Any], bool]

Image = tuple[str, dict[str, Any]]
"""File name of an image, and its reference."""


def read_annotations(file: Path) -> tuple[list[Image], frozenset[int]]:
    """Read and check a file; return its images, with or without boxes, and its category ids."""
    content = _parse(file)
    for name, fields in RECORD_TESTS.items():
        for row, record in enumerate(content[name]):
            _check_record(file, name, row, record, fields)
    images: dict[int, Image] = {}
    for row, record in enumerate(content["images"]):
        identity, sides = record["id"], {side: int(record[side]) for side in ("height", "width")}
        if identity in images:
            raise _wrong(file, "images", row, f"has the id {identity} of an earlier image")
        images[identity] = (
            record["file_name"],
            {"index": row, "image_id": identity, **sides, "annotations": []},
        )
    categories = frozenset(record["id"] for record in content["categories"])
    for row, record in enumerate(content["annotations"]):
        for field, identities in (("image_id", images.keys()), ("category_id", categories)):
            if record[field] not in identities:
                owners = "images" if field == "image_id" else "categories"
                defect = (
                    f"has {field} {record[field]}, but none of the {len(identities)} {owners} in "
                    "the file has this id"
                )
                raise _wrong(file, "annotations", row, defect)
        _, reference = images[record.pop("image_id")]
        reference["annotations"].append({key: record[key] for key in BOX_FIELDS})
    return list(images.values()), categories


def _wrong(file: Path, name: str, row: int, defect: str) -> RunError:
    return RunError(
        "dataset",
        f"{file}: {name}[{row}] {defect}; the file is damaged or the wrong one: get it from its "
        "source again, or correct the option annotations",
    )


def _parse(file: Path) -> dict[str, list[Any]]:
    try:
        with file.open("rb") as opened:
            content = json.load(opened, object_hook=_keep)
    except (ValueError, RecursionError) as error:
        raise wrong(
            file, f"this is not JSON, or it is incomplete ({error})", "get it from its source again"
        ) from error
    for name in RECORD_TESTS:
        records = content.get(name) if isinstance(content, dict) else None
        if not isinstance(records, list) or not records:
            raise wrong(
                file,
                f"its list {name!r} is missing or empty",
                "set the option annotations to a file in COCO's format with images, annotations "
                "and categories, such as openimages-mlperf.json",
            )
    lists: dict[str, list[Any]] = content
    return lists


def _keep(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key in KEPT_FIELDS}


def _check_record(
    file: Path, name: str, row: int, record: Any, fields: Mapping[str, tuple[Test, str]]
) -> None:
    if not isinstance(record, dict):
        raise _wrong(file, name, row, f"is {record!r:.60}, not an object")
    for field, (valid, expected) in fields.items():
        if field not in record:
            raise _wrong(file, name, row, f"lacks {field!r}, {expected}")
        if not valid(record[field]):
            raise _wrong(file, name, row, f"has {field} = {record[field]!r:.60}, not {expected}")


def _from(lowest: float) -> Test:
    return lambda value: type(value) in (int, float) and math.isfinite(value) and value >= lowest


_is_number, _is_length = _from(-math.inf), _from(0)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value


def _is_box(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 4:
        return False
    return all(map(_is_number, value[:2])) and all(map(_is_length, value[2:]))


_WHOLE: tuple[Test, str] = (lambda value: type(value) is int, "a whole number")
_LENGTH = (_from(1), "a number of pixels")

RECORD_TESTS: Mapping[str, Mapping[str, tuple[Test, str]]] = {
    "images": {
        "id": _WHOLE,
        "file_name": (_is_name, "a file name"),
        "height": _LENGTH,
        "width": _LENGTH,
    },
    "annotations": {
        "image_id": _WHOLE,
        "category_id": _WHOLE,
        "bbox": (_is_box, "[left, top, width, height] with width and height of at least 0"),
        "area": (_is_length, "a number of at least 0"),
        "iscrowd": _WHOLE,
    },
    "categories": {"id": _WHOLE},
}
"""Tests of the records of each list: by key a test, and the expected value in words."""

BOX_FIELDS = ("category_id", "bbox", "area", "iscrowd")

KEPT_FIELDS = frozenset(RECORD_TESTS) | {
    field for fields in RECORD_TESTS.values() for field in fields
}


@dataclass(frozen=True, kw_only=True)
class AnnotatedOptions(ChecksumOptions):
    """Options of a data set of annotated images.

    Attributes:
        path: Folder of the data set.
        checksum: "md5:" or "sha256:" and the hex digits of the annotation file; None skips the
            check.
    """

    title: ClassVar[str]
    advice: ClassVar[str]

    annotations: str
    images: str
    size: int

    def __post_init__(self) -> None:
        self.check(size="pixels")

    def find(self) -> tuple[Path, Path]:
        folder = Path(self.path)
        file, images = folder / self.annotations, folder / self.images
        if not folder.is_dir():
            raise UnavailableError(
                f"{folder}: the folder of {self.title} does not exist; {self.advice}, or set the "
                "data set's path to the folder that has it"
            )
        self.require(
            (
                file.is_file(),
                f"{file}: the annotation file {file.name} is not here; {self.advice}, or set the "
                "option annotations to its path",
            ),
            (
                images.is_dir(),
                f"{images}: the folder of images does not exist; {self.advice}, or set the option "
                "images to its path",
            ),
        )
        return file, images


class AnnotatedImages(FileDataset[Image]):
    """Images in the order of the annotation file.

    All listed images must exist: MLPerf's references skip missing images, which changes the indices
    of the others. Before a run, only the header and the last bytes of each image file are checked.
    """

    libraries = ("PIL",)

    def _read(self, options: Any, files: tuple[Path, Path]) -> None:
        file, self._folder = files
        listed, self._categories = read_annotations(file)
        self._keep(listed, options.count, file)
        names = [name for name, _ in self._samples]
        _check_sizes(file, self._samples, check_images(self._folder, names, file))

    def reference(self, index: int) -> dict[str, Any]:
        """Return `index`, `image_id`, `height` and `width` in pixels, and `annotations`.

        An annotation has `category_id`, `bbox` (left, top, width, height in pixels), `area` (square
        pixels) and `iscrowd` (1 for a box around a group, else 0). Do not modify it.
        """
        return self._sample(index)[1]

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 over preprocessing, annotations and image files, without the files' names."""
        texts = ((name, json.dumps(each, sort_keys=True).encode()) for name, each in self._samples)
        references = ((name, hashlib.sha256(text).digest()) for name, text in texts)
        return hash_of_images(self._preparation.encode(), self._folder, references)

    @property
    def _preparation(self) -> str:
        return repr(self._asked.size)


def _check_sizes(file: Path, images: Sequence[Image], sizes: Sequence[tuple[int, int]]) -> None:
    """Raise RunError if an image's size is not as annotated; width and height may be swapped."""
    for row, ((name, image), stored) in enumerate(zip(images, sizes, strict=True)):
        width, height = image["width"], image["height"]
        if sorted(stored) != sorted((width, height)):
            raise wrong(
                file,
                f"images[{row}] has {width} x {height} pixels, but {name} has {stored[0]} x "
                f"{stored[1]}",
                "set the options images and annotations to the two parts of one data set",
            )
