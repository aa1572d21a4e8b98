"""JSON that comes from elsewhere: bounded in size and depth before anything looks at it."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.foreign_text import encodable
from pytest_mlperf.stores.defects import first_defect

Document = TypeVar("Document")

LARGEST = 256 * 2**20
"""Bytes of a file: some 20,000 cases with five runs each."""

PIECE = 2**20
"""Bytes read at a time: a limit shall not take the memory that it allows."""


class UnfitError(Exception):
    """What lies there is not what is read here; its text says what it is: "a pipe"."""


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read_regular(path: Path, largest: int) -> bytes:
    """Return the content of a regular file; a pipe or a device is not waited for.

    Args:
        path: The file; links are followed.
        largest: Bytes at most.

    Raises:
        UnfitError: It is something else, or larger.
        OSError: It cannot be read.
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


def shape_of(kind: type[Document]) -> TypeAdapter[tuple[Document]]:
    """Return what checks documents of a kind: no value is taken for another, no number is none.

    Args:
        kind: A dataclass. It takes its configuration from the type around it, hence the tuple.
    """
    config = ConfigDict(strict=True, allow_inf_nan=False)
    shape: Any = tuple[kind]  # type: ignore[valid-type]
    return TypeAdapter(shape, config=config)


def read_foreign(path: Path, what: str) -> Any:
    """Return the content of a JSON file.

    Args:
        path: The file.
        what: What it should be, for messages: "results file".

    Raises:
        MlperfError: It cannot be read, is no regular file, is larger than `LARGEST`, or no JSON.
    """
    try:
        content = read_regular(path, LARGEST)
    except UnfitError as error:
        raise MlperfError(f"{path}: {error}, which no {what} is; is it the right file?") from None
    except OSError as error:
        raise MlperfError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        return encodable(json.loads(content))
    except (ValueError, RecursionError) as error:
        raise MlperfError(f"{path}: not a {what}: {error}") from None


def as_document(
    path: Path, raw: Any, what: str, shape: TypeAdapter[tuple[Document]], newest: int, cure: str
) -> Document:
    """Return what a JSON document says.

    Args:
        path: Where it was read, for messages.
        raw: Its content.
        what: What it should be, for messages: "results file".
        shape: What it must look like, see `shape_of`.
        newest: The newest schema that is known here.
        cure: What to do about one that is something else, for messages.

    Raises:
        MlperfError: It is of a newer schema, or something else.
    """
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if isinstance(schema, int) and schema > newest:
        raise MlperfError(
            f"{path}: written by a newer pytest-mlperf (schema {schema}; this one reads up to "
            f"{newest}): upgrade"
        )
    try:
        # As JSON: strict checks take a JSON list for a tuple, a Python list not.
        return shape.validate_json(json.dumps([raw]))[0]
    except ValidationError as error:
        why = first_defect(raw, error, what)
    except (ValueError, RecursionError) as error:
        why = str(error)
    raise MlperfError(f"{path}: not a {what}: {why}; {cure}")
