"""Read a JSON list of objects one by one: as a whole it would take ten times its size."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from pytest_mlperf.core.errors import RunError

CHUNK = 2**20
"""Characters that are read at a time."""

LONGEST = 2**24
"""Characters that one object may have."""

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON list, in order.

    Args:
        path: The file, in UTF-8, with or without its mark.

    Raises:
        RunError: It is no list of objects, damaged or incomplete; so far as it was read.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from _records(path, _Text(file))
    except UnicodeDecodeError as error:
        raise _damaged(path, f"it is no UTF-8 ({error.reason})") from error


def _records(path: Path, text: _Text) -> Iterator[dict[str, Any]]:
    if text.sign() != "[":
        raise _damaged(path, "it is no JSON list of objects")
    sign = text.sign()
    if sign and sign != "]":
        text.back()
    row = 0
    while sign != "]":
        try:
            record = text.value()
        except (ValueError, RecursionError) as error:
            what = getattr(error, "msg", str(error))
            raise _damaged(path, f"record {row}, line {text.line(error)}: {what}") from error
        if not isinstance(record, dict):
            raise _damaged(path, f"record {row} is of type {type(record).__name__}, not an object")
        yield record
        row += 1
        sign = text.sign()
        if sign not in ("]", ","):
            found = repr(sign) if sign else "the end of the file"
            raise _damaged(path, f"after record {row - 1} there is {found}, not ',' or ']'")
    if sign := text.sign():
        raise _damaged(path, f"after the list there is {sign!r}")


def _damaged(path: Path, what: str) -> RunError:
    return RunError(
        "dataset",
        f"{path}: {what}; the file is damaged, incomplete or another one: get it from its source "
        "again, or correct the data set's path",
    )


class _Text:
    """The text of a file, of which a part is in memory."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._buffer = ""
        self._at = 0
        self._lines = 0

    def sign(self) -> str:
        """Take the next character that is no white space; "" at the end."""
        while True:
            found = _SPACE.match(self._buffer, self._at)
            assert found is not None
            self._at = found.end()
            if self._at < len(self._buffer):
                self._at += 1
                return self._buffer[self._at - 1]
            if not self._more():
                return ""

    def back(self) -> None:
        """Give back what `sign` took."""
        self._at -= 1

    def value(self) -> Any:
        """Take the next value.

        Raises:
            ValueError: There is none that is complete.
            RecursionError: It is too deep.
        """
        if self.sign():
            self.back()
        while True:
            try:
                value, self._at = _DECODER.raw_decode(self._buffer, self._at)
            except ValueError:
                if len(self._buffer) - self._at > LONGEST or not self._more():
                    raise
            else:
                return value

    def line(self, error: Exception) -> int:
        """Return the number of the line, from 1 on, of an error that `value` raised."""
        return self._lines + self._buffer.count("\n", 0, getattr(error, "pos", self._at)) + 1

    def _more(self) -> bool:
        self._lines += self._buffer.count("\n", 0, self._at)
        self._buffer = self._buffer[self._at :]
        self._at = 0
        found = self._file.read(CHUNK)
        self._buffer += found
        return bool(found)
