"""JSON that comes from elsewhere: bounded in size and depth before anything looks at it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.foreign_text import encodable

Document = TypeVar("Document")

LARGEST = 256 * 2**20
"""Bytes of a file: some 20,000 cases with five runs each."""


def read_foreign(path: Path, what: str) -> Any:
    """Return the content of a JSON file.

    Args:
        path: The file.
        what: What it should be, for messages: "results file".

    Raises:
        MlperfError: It cannot be read, is larger than `LARGEST`, or is no JSON.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise MlperfError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > LARGEST:
        raise MlperfError(
            f"{path}: larger than {LARGEST >> 20} MiB, which no {what} is; is it the right file?"
        )
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
