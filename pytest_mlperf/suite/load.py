"""Read a suite file; a SuiteError lists every defect with file, line, key and fix."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.core.untrusted import parse_toml
from pytest_mlperf.core.untrusted_text import merge_conflict, nearest, quoted, spelling_hint
from pytest_mlperf.stores.foreign import UnfitError, read_regular
from pytest_mlperf.suite.model import Inconsistent, Suite
from pytest_mlperf.suite.values import Defect, KeyPath

MAX_BYTES = 4 * 1024 * 1024


def load_suite(path: Path) -> tuple[Suite, str]:
    """Return a checked suite and its text; raise SuiteError with all defects."""
    text = _read(path)
    try:
        raw = parse_toml(text)
    except ValueError as error:  # wrong syntax, or a number of more than 4300 digits
        if sides := merge_conflict(text):
            line, ours, theirs = sides
            raise SuiteError(
                f"{path}:{line}: a merge conflict of {ours} and {theirs}; keep the right lines, "
                "and delete the markers (<<<<<<<, =======, >>>>>>>)"
            ) from None
        raise SuiteError(f"{path}:{_syntax(str(error), text)}") from None
    if not raw:
        raise SuiteError(f"{path}: the suite is empty; write a first one: pytest-mlperf init")
    try:
        return Suite.model_validate(raw), text
    except ValidationError as error:
        raise all_defects(path, text, defects_in(error)) from None


def all_defects(path: Path, text: str, defects: Sequence[Defect]) -> SuiteError:
    """Return one error that lists all defects, sorted by line."""
    lines = sorted({(line_of(text, where), _dotted(where), what) for where, what in defects})
    return SuiteError("\n".join(f"{path}:{line}: {key}: {what}" for line, key, what in lines))


# --- lines -----------------------------------------------------------------------------------

_QUOTED = r'"(?:[^"\\\n]|\\.)*"' + r"|'[^'\n]*'"
_TOKEN = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}' + rf"|'''.*?'{{3,5}}|{_QUOTED}|#[^\n]*|[\[\]{{}}\n]", re.DOTALL
)
_KEY = re.compile(rf"(?:{_QUOTED}|[^\"'=])*")


def line_of(text: str, where: Sequence[str | int]) -> int:
    """Return the 1-based line of a key path like ("engines", 0), or of the table around it."""
    places = _places(text)
    path = tuple(where)
    return next((places[path[:n]] for n in range(len(path), 0, -1) if path[:n] in places), 1)


@lru_cache(maxsize=2)
def _places(text: str) -> dict[KeyPath, int]:
    places: dict[KeyPath, int] = {}
    table: KeyPath = ()
    last: dict[KeyPath, int] = {}
    for line, statement in _statements(text):
        array = statement.startswith("[[")
        header = statement.startswith("[")
        key = _KEY.match(statement)
        keys = _keys(statement.strip("[]") if header else key[0] if key else "")
        if header and keys:
            table = _indexed(keys, array=array, last=last)
        path = table if header else (*table, *keys)
        for n in range(1, len(path) + 1):
            places.setdefault(path[:n], line)
    return places


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each statement; strings and brackets may span lines."""
    line = first = 1
    begin, end, depth = 0, None, 0
    for token in _TOKEN.finditer(text + "\n"):
        piece = token[0]
        if piece in {"[", "{"}:
            depth += 1
        elif piece in {"]", "}"}:
            depth -= 1
        elif piece.startswith("#") and depth <= 0:
            end = token.start()
        elif piece == "\n" and depth <= 0:
            if statement := text[begin : token.start() if end is None else end].strip():
                yield first, statement
            first, begin, end, depth = line + 1, token.end(), None, 0
        line += piece.count("\n")


@lru_cache(maxsize=256)  # a suite repeats its keys
def _keys(source: str) -> tuple[str, ...]:
    """Return the keys of a dotted key: ("a", "b c") for `a."b c"`; () if it is not one."""
    try:
        value: Any = parse_toml(f"{source.strip()} = 0")
    except ValueError:
        return ()
    keys = []
    while isinstance(value, dict) and len(value) == 1:
        ((key, value),) = value.items()
        keys.append(key)
    return tuple(keys)


def _indexed(keys: Sequence[str], *, array: bool, last: dict[KeyPath, int]) -> KeyPath:
    """Return a table header's key path, with indices for `[[table]]`, counted in `last`."""
    path: KeyPath = ()
    for depth, key in enumerate(keys, start=1):
        path = (*path, key)
        if array and depth == len(keys):
            last[path] = last.get(path, -1) + 1
        if path in last:
            path = (*path, last[path])
    return path


def _dotted(where: KeyPath) -> str:
    text = ""
    for part in where:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            key = part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else repr(part)
            text += f".{key}" if text else key
    return text or "suite"


# --- errors ----------------------------------------------------------------------------------

_WORDS = {
    "missing": "is missing",
    "string_type": "must be a string",
    "int_type": "must be a whole number",
    "list_type": "must be an array",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
}
"""Pydantic's types of errors, in TOML's terms."""

_ARRAYS = {("engines",), ("scenarios",), ("expected_failures",), ("pairs",)}


def _read(path: Path) -> str:
    try:
        data = read_regular(path, MAX_BYTES)
    except OSError as error:
        raise SuiteError(f"{path}: cannot be read: {error.strerror}") from None
    except UnfitError as error:
        raise SuiteError(
            f"{path}: this is {error}; a suite is a TOML file for one workload"
        ) from None
    if b"\0" in data and not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise SuiteError(f"{path}: this is a binary file, not a suite in TOML")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SuiteError(
            f"{path}:{line}: not UTF-8 (byte {data[error.start]:#04x}); save the file as UTF-8"
        ) from None


def _syntax(message: str, text: str) -> str:
    reason, _, location = message.removesuffix(")").partition(" (at ")
    line = re.match(r"line (\d+)", location)
    if line or location == "end of document":
        number = int(line[1]) if line else text.rstrip().count("\n") + 1
        content = f"{text}\n".split("\n")[number - 1].strip()
        return f"{number}: not TOML: {reason}: {quoted(content)}"
    return f" not TOML: {message.partition(';')[0]}"


def defects_in(error: ValidationError) -> list[Defect]:
    """Return pydantic's errors as key paths and messages."""
    defects: list[Defect] = []
    for defect in error.errors(include_url=False):
        # Pydantic adds this to the location if a key of a free table is wrong.
        where = tuple(part for part in defect["loc"] if part != "[key]")
        cause = defect.get("ctx", {}).get("error")
        if isinstance(cause, Inconsistent):
            defects += cause.defects
        else:
            # Our own checks raise `cause`, which has the message.
            message = defect["msg"] if cause is None else str(cause)
            defects.append((where, _message(where, defect["type"], message, defect["input"])))
    return defects


def _message(where: KeyPath, kind: str, message: str, value: object) -> str:
    if kind == "extra_forbidden":
        key = str(where[-1])
        return f"unknown key {key!r}{nearest(key, _sibling_keys(where))}"
    if kind == "value_error":
        return message
    if kind == "list_type" and (where in _ARRAYS or isinstance(value, str)):
        array = f"{where[-1]} = {json.dumps(str(value).split())}"
        noun, example = ("tables", f"[[{where[0]}]]") if where in _ARRAYS else ("strings", array)
        return f"must be an array of {noun}: write {example}"
    if kind == "missing" and where in _ARRAYS:
        return f"is missing: write [[{where[0]}]]"
    words = _WORDS.get(kind) or message.replace("Input should be", "must be")
    if kind in {"literal_error", "enum"}:
        choices = re.findall("'([^']*)'", message)
        return f"{words}, not {quoted(value)}{spelling_hint(str(value), choices)}"
    return words if "not" in words or kind == "missing" else f"{words}, not {quoted(value)}"


def _sibling_keys(where: KeyPath) -> list[str]:
    model: type[BaseModel] = Suite
    for part in where[:-1]:
        if isinstance(part, str) and part in _fields(model):
            model = _model_in(_fields(model)[part]) or model
    return list(_fields(model))


def _fields(model: type[BaseModel]) -> dict[str, Any]:
    return {f.alias or name: f.annotation for name, f in model.model_fields.items()}


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)
