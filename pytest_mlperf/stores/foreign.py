"""JSON that comes from elsewhere: bounded in size and depth before anything looks at it."""

from __future__ import annotations

import json
import os
import reprlib
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.foreign_text import encodable


def first_defect(raw: Any, error: ValidationError, title: str) -> str:
    """Return "records[0].runs[2].samples: must be a valid integer, not '3'"."""
    defects = error.errors(include_url=False)
    path, value = _resolve(raw, defects[0]["loc"][1:])
    match defects[0]["type"]:
        case "missing":
            text = "is missing"
        case "unexpected_keyword_argument":
            text = f"is no key of the {title}"
        case "value_error":
            text = str(defects[0]["ctx"]["error"])
        case "greater_than_equal":
            text = f"must be at least {defects[0]['ctx']['ge']:g}, not {reprlib.repr(value)}"
        case "less_than_equal":
            text = f"must be at most {defects[0]['ctx']['le']:g}, not {reprlib.repr(value)}"
        case _:
            # A value of none of several types has one entry for each.
            here = [d["msg"] for d in defects if _resolve(raw, d["loc"][1:])[0] == path]
            expected = ", ".join(msg.removeprefix("Input should be ") for msg in here)
            text = f"must be {expected}, not {reprlib.repr(value)}"
    return f"{path}: {text}" if path else text


def _resolve(raw: Any, location: tuple[int | str, ...]) -> tuple[str, Any]:
    """Follow pydantic's location of an error to the key path and the value there."""
    path = ""
    for part in location:
        if isinstance(raw, list) and isinstance(part, int):
            path += f"[{part}]"
            raw = raw[part]
        elif isinstance(raw, dict) and isinstance(part, str):
            path += f".{part}" if part.isidentifier() else f"[{part!r}]"
            raw = raw.get(part)
        else:
            break  # what follows names members of a union
    return path.removeprefix("."), raw


Document = TypeVar("Document")

LARGEST = 256 * 2**20
"""Bytes of a file: some 20,000 cases with five runs each."""

PIECE = 2**20  # bytes read at a time: a limit shall not take the memory that it allows


class UnfitError(Exception):
    """What lies there is not what is read here; its text says what it is: "a pipe"."""


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read_regular(path: Path, largest: int) -> bytes:
    """Return the content of a regular file of so many bytes at most; links are followed.

    A pipe or a device is not waited for: it is an UnfitError, as is a larger file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
        if kind != stat.S_IFREG:
            raise UnfitError(_KINDS.get(kind, "no file"))
        content = bytearray()
        while piece := os.read(descriptor, PIECE):
            content += piece
            if len(content) > largest:
                raise UnfitError(f"larger than {largest >> 20} MiB")
    finally:
        os.close(descriptor)
    return bytes(content)


def shape_of(
    kind: type[Document], *, extra: Literal["forbid", "ignore"] = "ignore"
) -> TypeAdapter[tuple[Document]]:
    """Return what checks documents of a kind: no value is taken for another, no number is none.

    A dataclass takes its configuration from the type around it, hence the tuple: the pure domain
    need not know how its files are checked.
    """
    config = ConfigDict(strict=True, extra=extra, allow_inf_nan=False, defer_build=True)
    shape: Any = tuple[kind]  # type: ignore[valid-type]
    return TypeAdapter(shape, config=config)


def read_foreign(path: Path, title: str) -> Any:
    """Return the content of a JSON file of at most `LARGEST` bytes."""
    try:
        content = read_regular(path, LARGEST)
    except UnfitError as error:
        raise MlperfError(f"{path}: {error}, which no {title} is; is it the right file?") from None
    except OSError as error:
        raise MlperfError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        return encodable(json.loads(content))
    except (ValueError, RecursionError) as error:
        raise MlperfError(f"{path}: not a {title}: {error}") from None


Migration = Callable[[dict[str, Any]], dict[str, Any]]


def migrated(
    raw: dict[str, Any], schema: int, newest: int, migrations: Mapping[int, Migration]
) -> dict[str, Any]:
    """Return the content of an older file as the newest schema has it.

    Args:
        raw: The content.
        schema: Its schema.
        newest: The schema that is read.
        migrations: For each older schema, what turns its content into that of the next one.

    Raises:
        ValueError: A step is missing.
    """
    for older in range(schema, newest):
        if older not in migrations:
            raise ValueError(f"schema {older} is unknown; this release reads up to {newest}")
        raw = {**migrations[older](raw), "schema": older + 1}
    return raw


def as_document(
    path: Path | str,
    raw: Any,
    title: str,
    shape: TypeAdapter[tuple[Document]],
    newest: int,
    cure: str,
    migrations: Mapping[int, Migration] = MappingProxyType({}),
) -> Document:
    """Return what a JSON document says, if it has the shape and its schema is known here.

    Args:
        path: Where it lies, for messages.
        title: What it should be, for messages: "results file".
        newest: The newest schema that is known here.
        cure: What to do about one that is something else, for messages.
        migrations: What turns an older one into the next, see `migrated`.
    """
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if isinstance(schema, int) and schema > newest:
        raise MlperfError(
            f"{path}: written by a newer pytest-mlperf (schema {schema}; this one reads up to "
            f"{newest}): upgrade"
        )
    try:
        if isinstance(schema, int) and schema > 0:
            raw = migrated(raw, schema, newest, migrations)
        # As JSON: strict checks take a JSON list for a tuple, a Python list not.
        return shape.validate_json(json.dumps([raw]))[0]
    except ValidationError as error:
        defect = first_defect(raw, error, title)
    except (ValueError, RecursionError) as error:
        defect = str(error)
    raise MlperfError(f"{path}: not a {title}: {defect}; {cure}")
