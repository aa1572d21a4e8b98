"""Find the columns of a table by name, and read tables in CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pytest_mlperf.adapters.datasets.files import json_lines, wrong
from pytest_mlperf.extension import some

ADVICE = "Rename its columns, or set the data set's path to another table"


def csv_records(
    path: Path, columns: Sequence[str], *, delimiter: str = ",", advice: str = ADVICE
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line, cells by column) of a table in CSV; raise RunError for an invalid one."""
    csv.field_size_limit(json_lines.MAX_LINE_BYTES)
    reader = csv.reader(json_lines.lines_of(path), delimiter=delimiter, strict=True)
    try:
        header = next(reader, None)
        if header is None:
            raise wrong(path, "the file has no lines", "get it from its source again")
        column_positions(path, header, columns, advice)
        for cells in filter(None, reader):
            if len(cells) != len(header):
                defect = f"it has {len(cells)} cells, but the header has {len(header)}"
                raise json_lines.broken_line(path, reader.line_num, defect)
            yield reader.line_num, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        defect = f"it is not CSV: {error}"
        raise json_lines.broken_line(path, reader.line_num, defect) from error


def column_positions(
    path: object,
    labels: Sequence[Any],
    columns: Sequence[str],
    advice: str = ADVICE,
    noun: str = "table",
) -> dict[str, int]:
    """Return each column's position in `labels`; raise RunError for a missing or repeated one."""
    named = [label if isinstance(label, str) else repr(label) for label in labels]
    for name in columns:
        if named.count(name) == 1:
            continue
        near = get_close_matches(name, named, n=1, cutoff=0)
        defect = f"more than one column {name!r}" if name in named else f"no column {name!r}"
        hint = f", the nearest is {_shown(near[0])}" if near and name not in named else ""
        raise wrong(
            path,
            f"the {noun} has {defect}{hint}",
            f"it needs {_listing(columns)}, and has {_listing(named)}. {advice}",
        )
    return {name: named.index(name) for name in columns}


def _listing(names: Sequence[str]) -> str:
    return some([*map(_shown, names)], 20) or "none"


def _shown(name: str) -> str:
    return repr(name) if len(name) <= 80 else f"{name[:80]!r}…"
