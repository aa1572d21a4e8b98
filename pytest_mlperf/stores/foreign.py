"""JSON that comes from elsewhere: bounded in size and depth before anything looks at it."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.foreign_text import encodable

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


def read_foreign(path: Path, what: str) -> Any:
    """Return the content of a JSON file.

    Args:
        path: The file.
        what: What it should be, for messages: "results file".

    Raises:
        MlperfError: It cannot be read, is larger than `LARGEST`, or is no JSON.
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
    path: Path, raw: Any, what: str, shape: TypeAdapter[Document], newest: int
) -> Document:
    """Return what a JSON document says.

    Args:
        path: Where it was read, for messages.
        raw: Its content.
        what: What it should be, for messages: "a results file".
        shape: What it must look like.
        newest: The newest schema that is known here.

    Raises:
        MlperfError: It is of a newer schema, or something else.
    """
    found = raw.get("schema") if isinstance(raw, dict) else None
    if isinstance(found, int) and found > newest:
        raise MlperfError(
            f"{path}: written by a newer pytest-mlperf (schema {found}; this one reads up to "
            f"{newest}): upgrade"
        )
    try:
        return shape.validate_python(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise MlperfError(f"{path}: not {what}: {place}: {first['msg']}") from None
