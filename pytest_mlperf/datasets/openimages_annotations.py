"""Read annotations of images in COCO's JSON, as MLPerf's script for Open Images writes them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import RunError

Box = tuple[int, tuple[float, ...], float, int]
"""Category, bbox, area and whether it is a crowd."""

Test = Callable[[Any], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Annotated:
    """An image and its boxes.

    Attributes:
        name: File name.
        identity: Its id in the file.
        height: In pixels.
        width: In pixels.
        boxes: In the order of the file; bbox is left, top, width and height in pixels.
    """

    name: str
    identity: int
    height: int
    width: int
    boxes: Sequence[Box]


def read_annotations(file: Path) -> list[Annotated]:
    """Read and check an annotation file.

    Returns:
        Images in the order of the file, also those without a box.

    Raises:
        RunError: It is no such JSON, a record lacks a key or has a wrong value, an id is there
            twice, or a box is of an unknown image or category; records are counted from 0.
    """
    content = _parse(file)
    for name, fields in FIELDS.items():
        for row, record in enumerate(content[name]):
            _check_record(file, name, row, record, fields)
    boxes: dict[int, list[Box]] = {}
    for row, record in enumerate(content["images"]):
        if record["id"] in boxes:
            raise wrong(file, "images", row, f"has the id {record['id']} of an image before it")
        boxes[record["id"]] = []
    categories = {record["id"] for record in content["categories"]}
    for row, record in enumerate(content["annotations"]):
        for field, known in (("image_id", boxes.keys()), ("category_id", categories)):
            if record[field] not in known:
                what = f"has {field} {record[field]}, which is none of the {len(known)} ids"
                raise wrong(file, "annotations", row, what)
        boxes[record["image_id"]].append(
            (record["category_id"], tuple(record["bbox"]), record["area"], record["iscrowd"])
        )
    return [
        Annotated(
            name=record["file_name"],
            identity=record["id"],
            height=int(record["height"]),
            width=int(record["width"]),
            boxes=boxes[record["id"]],
        )
        for record in content["images"]
    ]


def wrong(file: Path, name: str, row: int, what: str) -> RunError:
    """Return the error about one record of a list in the file."""
    return RunError(
        "dataset",
        f"{file}: {name}[{row}] {what}; the file is damaged or another one: get it from its source "
        "again, or correct the option annotations",
    )


def _parse(file: Path) -> dict[str, list[Any]]:
    """Return the lists of the file; of their records only what is needed is kept in memory."""
    try:
        with file.open("rb") as opened:
            content = json.load(opened, object_hook=_keep)
    except (ValueError, RecursionError) as error:
        raise RunError(
            "dataset",
            f"{file}: this is no JSON or not all of it ({error}); get it from its source again",
        ) from error
    for name in FIELDS:
        found = content.get(name) if isinstance(content, dict) else None
        if not isinstance(found, list) or not found:
            raise RunError(
                "dataset",
                f"{file}: it has no list {name!r}, or an empty one; set the option annotations to "
                "a file in COCO's format, such as openimages-mlperf.json",
            )
    lists: dict[str, list[Any]] = content
    return lists


def _keep(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key in KEPT}


def _check_record(
    file: Path, name: str, row: int, record: Any, fields: Mapping[str, tuple[Test, str]]
) -> None:
    if not isinstance(record, dict):
        raise wrong(file, name, row, f"is {record!r:.60}, not an object")
    for field, (valid, expected) in fields.items():
        if field not in record:
            raise wrong(file, name, row, f"lacks {field!r}, {expected}")
        if not valid(record[field]):
            raise wrong(file, name, row, f"has {field} = {record[field]!r:.60}, not {expected}")


def _is_whole(value: Any) -> bool:
    return type(value) is int


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_area(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _is_length(value: Any) -> bool:
    return _is_number(value) and value >= 1


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value


def _is_box(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 4 or not all(map(_is_number, value)):
        return False
    return bool(value[2] >= 0 and value[3] >= 0)


_WHOLE = (_is_whole, "a whole number")
_LENGTH = (_is_length, "a number of pixels")

FIELDS: Mapping[str, Mapping[str, tuple[Test, str]]] = {
    "images": {
        "id": _WHOLE,
        "file_name": (_is_name, "a file name"),
        "height": _LENGTH,
        "width": _LENGTH,
    },
    "annotations": {
        "image_id": _WHOLE,
        "category_id": _WHOLE,
        "bbox": (_is_box, "left, top, width and height, the last two not below 0"),
        "area": (_is_area, "a number, 0 or more"),
        "iscrowd": _WHOLE,
    },
    "categories": {"id": _WHOLE},
}
"""Lists of the file, and what is needed of each record: key, test, and what is expected."""

KEPT = frozenset(FIELDS) | {field for fields in FIELDS.values() for field in fields}
