"""Read records of a JSONL, CSV or Parquet file one by one, each with its place for messages."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.datasets.files import wrong
from pytest_mlperf.datasets.files.frames import TABLE_LIMIT, places, read_frame
from pytest_mlperf.datasets.prompts import SampleFile

LONGEST = 2**24
"""Bytes that one line may have."""

ADVICE = "Name the columns in columns, or set the data set's path to another file"

Record = tuple[int, Mapping[str, Any]]
"""The place of a record, and its values by column."""


def read(path: Path, columns: Sequence[str]) -> tuple[SampleFile, Iterator[Record]]:
    """Return what a file's records are called, and the records: some columns of each.

    Lines count from 1 as editors do, rows of Parquet from 0. Of CSV all values are text.

    Raises:
        RunError: While records are read: a column that is not there, a line that is no record.
    """
    if path.suffix == ".parquet":
        return SampleFile(file=path), _rows(path, columns)
    source = SampleFile(file=path, row="line", whole="file")
    read_lines = _csv if path.suffix == ".csv" else _jsonl
    return source, read_lines(source, columns)


def _rows(path: Path, columns: Sequence[str]) -> Iterator[Record]:
    cells = read_frame(path, columns=columns)
    for row, values in enumerate(zip(*(cells[name] for name in columns), strict=True)):
        yield row, dict(zip(columns, values, strict=True))


def _lines(path: Path) -> Iterator[str]:
    """Yield lines with their ends; neither a line nor a file without an end fills the memory."""
    total = 0
    with path.open("rb") as file:
        for number in range(1, TABLE_LIMIT):
            line = file.readline(LONGEST + 1)
            if not line:
                return
            total += len(line)
            if len(line) > LONGEST or total > TABLE_LIMIT:
                whole = len(line) <= LONGEST
                most = f"{(TABLE_LIMIT if whole else LONGEST) >> 20} MiB"
                subject = "the file up to here" if whole else "it"
                raise _broken(path, number, f"{subject} has more than {most}")
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise _broken(path, number, f"it is no UTF-8 ({error.reason})") from error


def _jsonl(source: SampleFile, columns: Sequence[str]) -> Iterator[Record]:
    for number, line in enumerate(_lines(source.file), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            defect = getattr(error, "msg", str(error))
            raise _broken(source.file, number, f"it is no JSON: {defect}") from error
        if not isinstance(record, dict):
            kind = type(record).__name__
            raise _broken(source.file, number, f"it is of type {kind}, not a JSON object")
        if not record.keys() >= set(columns):
            places(f"{source.file}: line {number}", list(record), columns, ADVICE, "object")
        yield number, {name: record[name] for name in columns}


def _csv(source: SampleFile, columns: Sequence[str]) -> Iterator[Record]:
    csv.field_size_limit(LONGEST)
    reader = csv.reader(_lines(source.file), strict=True)
    try:
        header = next(reader, [])
        if not header:
            return
        at = places(source.file, header, columns, ADVICE)
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                defect = f"it has {len(cells)} cells, and the header {len(header)}"
                raise _broken(source.file, reader.line_num, defect)
            yield reader.line_num, {name: cells[place] for name, place in at.items()}
    except csv.Error as error:
        raise _broken(source.file, reader.line_num, f"it is no CSV: {error}") from error


def _broken(path: Path, number: int, defect: str) -> RunError:
    return wrong(f"{path}: line {number}", defect, "correct the file, or the data set's path")
