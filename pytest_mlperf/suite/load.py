"""Read a suite file; every defect is one SuiteError with file, line, key and what to write."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.suite.model import Misplaced, Suite, nearest

MAX_BYTES = 4 * 1024 * 1024
"""A larger file is no suite written by hand; it is refused before it is parsed."""

KeyPath = tuple[str | int, ...]


def load_suite(path: Path) -> tuple[Suite, str]:
    """Read and check a suite file.

    Returns:
        The suite and its text (for line numbers).

    Raises:
        SuiteError: Anything is wrong with the file; all defects are listed, one a line.
    """
    text = _read(path)
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        where = f"{path}:{found[1]}" if found else f"{path}"
        reason = re.sub(r" \(at .*\)$", "", str(error))
        raise SuiteError(f"{where}: not TOML: {reason}") from None
    if not raw:
        raise SuiteError(
            f"{path}: the suite is empty; `pytest-mlperf init` writes one to start from"
        )
    try:
        return Suite.model_validate(raw), text
    except ValidationError as error:
        raise SuiteError("\n".join(_describe(path, text, error))) from None


def line_of(text: str, where: Sequence[str | int]) -> int:
    """Return the 1-based line on which a key path stands, or its nearest enclosing table.

    Args:
        text: The TOML text.
        where: E.g. ("engines", 0, "precision").
    """
    table: KeyPath = ()
    counts: dict[KeyPath, int] = {}
    best_line, best_depth = 1, 0
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*(\[\[?)\s*([^\]#]+?)\s*\]", line)
        if header:
            table = _header_path(header[2], array=header[1] == "[[", counts=counts)
            found = table
        else:
            key = re.match(r"\s*([A-Za-z0-9_\"'.\-]+)\s*=", line)
            if not key:
                continue
            found = table + tuple(part.strip("\"' ") for part in key[1].split("."))
        if len(found) > best_depth and tuple(where[: len(found)]) == found:
            best_line, best_depth = number, len(found)
    return best_line


def lines_of_tables(text: str, name: str) -> list[int]:
    """Return the 1-based line of every `[[name]]` header, in one pass."""
    header = re.compile(rf"\s*\[\[\s*{re.escape(name)}\s*\]\]")
    return [n for n, line in enumerate(text.splitlines(), start=1) if header.match(line)]


def _header_path(name: str, *, array: bool, counts: dict[KeyPath, int]) -> KeyPath:
    """Return the key path of a table header, with the index of arrays of tables."""
    path: KeyPath = ()
    parts = [part.strip("\"' ") for part in name.split(".")]
    for depth, part in enumerate(parts):
        path = (*path, part)
        if array and depth == len(parts) - 1:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, counts[path])
    return path


def _read(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SuiteError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise SuiteError(
            f"{path}: {len(data) / 2**20:.1f} MiB is too large for a suite "
            f"(at most {MAX_BYTES // 2**20} MiB); split it, one workload a file"
        )
    if b"\0" in data:
        raise SuiteError(f"{path}: this is a binary file, not a suite in TOML")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SuiteError(
            f"{path}:{line}: not UTF-8 (byte {data[error.start]:#04x}); save the file as UTF-8"
        ) from None


def _describe(path: Path, text: str, error: ValidationError) -> list[str]:
    lines = []
    for defect in error.errors(include_url=False):
        where: KeyPath = tuple(defect["loc"])
        cause = defect.get("ctx", {}).get("error")
        if isinstance(cause, Misplaced):
            where, message = cause.where, str(cause)
        else:
            message = _message(where, defect["type"], defect["msg"], defect.get("input"))
        where = _without_union_tags(where)
        lines.append((line_of(text, where), f"{_dotted(where)}: {message}"))
    return [f"{path}:{number}: {message}" for number, message in dict.fromkeys(sorted(lines))]


def _message(where: KeyPath, kind: str, message: str, given: object) -> str:
    if kind == "extra_forbidden":
        key = str(where[-1])
        return f"unknown key {key!r}{nearest(key, _keys_beside(where))}"
    if kind == "missing":
        return "is missing"
    text = message.removeprefix("Value error, ")
    return text if kind == "value_error" else f"{text}, not {given!r}"


def _keys_beside(where: KeyPath) -> list[str]:
    """Return the keys that the table around a key path may have."""
    model: type[BaseModel] = Suite
    for part in where[:-1]:
        if isinstance(part, str) and part in _fields(model):
            model = _model_in(_fields(model)[part]) or model
    return list(_fields(model))


def _fields(model: type[BaseModel]) -> dict[str, Any]:
    return {f.alias or name: f.annotation for name, f in model.model_fields.items()}


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the first model inside an annotation such as `list[Model] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def _without_union_tags(where: KeyPath) -> KeyPath:
    """Drop what pydantic adds for the branches of a union ("float", "dict[...]")."""
    return tuple(p for p in where if isinstance(p, int) or re.fullmatch(r"[\w.\-+ ]+", p))


def _dotted(where: KeyPath) -> str:
    text = ""
    for part in where:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "suite"
