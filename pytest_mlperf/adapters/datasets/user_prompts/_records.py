"""Read records of a JSONL, CSV or Parquet file one by one."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_mlperf.adapters.datasets.files import json_lines
from pytest_mlperf.adapters.datasets.files.columns import places
from pytest_mlperf.adapters.datasets.files.frames import read_frame
from pytest_mlperf.adapters.datasets.prompts import SampleFile

ADVICE = "Name the columns in columns, or set the data set's path to another file"

Record = tuple[int, Mapping[str, Any]]


def read(path: Path, columns: Sequence[str]) -> tuple[SampleFile, Iterator[Record]]:
    """Return the source of a file for messages, and some columns of its records, one by one.

    Lines count from 1, Parquet rows from 0. CSV values are text. A bad record raises RunError.
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


def _jsonl(source: SampleFile, columns: Sequence[str]) -> Iterator[Record]:
    for number, record in json_lines.objects(source.file):
        if not record.keys() >= set(columns):
            places(f"{source.file}: line {number}", list(record), columns, ADVICE, "object")
        yield number, {name: record[name] for name in columns}


def _csv(source: SampleFile, columns: Sequence[str]) -> Iterator[Record]:
    csv.field_size_limit(json_lines.MAX_LINE_BYTES)
    reader = csv.reader(json_lines.lines_of(source.file), strict=True)
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
                raise json_lines.broken_line(source.file, reader.line_num, defect)
            yield reader.line_num, {name: cells[place] for name, place in at.items()}
    except csv.Error as error:
        raise json_lines.broken_line(
            source.file, reader.line_num, f"it is no CSV: {error}"
        ) from error
