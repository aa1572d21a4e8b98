"""Read text files by line and JSONL files by object, with limits on line and file size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_mlperf import RunError
from pytest_mlperf.adapters.datasets.files import wrong

MAX_LINE_BYTES = 2**24
FILE_LIMIT = 2**30
"""Maximum size of a file, in bytes."""


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file with their line ends; raise RunError above a size limit."""
    total = 0
    with path.open("rb") as file:
        for number in range(1, FILE_LIMIT):
            line = file.readline(MAX_LINE_BYTES + 1)
            if not line:
                return
            total += len(line)
            if len(line) > MAX_LINE_BYTES or total > FILE_LIMIT:
                whole = len(line) <= MAX_LINE_BYTES
                most = f"more than {(FILE_LIMIT if whole else MAX_LINE_BYTES) >> 20} MiB"
                defect = f"it has {most}, the maximum length of a line"
                if whole:
                    defect = f"the file up to this line has {most}, the maximum size of a file"
                raise broken_line(path, number, defect)
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise broken_line(path, number, f"it is not UTF-8 ({error.reason})") from error


def objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object) of a JSONL file; raise RunError for any other content."""
    for number, line in enumerate(lines_of(path), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            defect = getattr(error, "msg", str(error))
            raise broken_line(path, number, f"it is not JSON: {defect}") from error
        if not isinstance(record, dict):
            kind = type(record).__name__
            raise broken_line(path, number, f"it is of type {kind}, not a JSON object")
        yield number, record


def broken_line(path: Path, number: int, defect: str) -> RunError:
    """Return the error for an invalid line."""
    return wrong(f"{path}: line {number}", defect, "correct the file, or the data set's path")
