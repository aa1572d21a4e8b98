"""Read columns of a table: a pandas DataFrame in a pickle, which is never executed, or Parquet."""

from __future__ import annotations

import difflib
import gzip
import importlib.util
import zlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import EnvironmentFault, RunError, UnavailableError

UNPACKED_LIMIT = 4 * 2**30
"""Bytes that any pickle may have when unpacked."""

TABLE_LIMIT = 2**30
"""Bytes of a table of prompts when unpacked; MLPerf's 24,576 prompts and answers have 0.15e9."""


PARQUET = b"PAR1"
"""How a Parquet file begins."""


def read_frame(
    path: Path, *, columns: Sequence[str], max_bytes: int = UNPACKED_LIMIT
) -> Mapping[str, Sequence[Any]]:
    """Read some columns of a table: a DataFrame pickled by pandas, also with gzip, or Parquet.

    Neither pandas nor, for pickles, anything else that is not always installed is needed.

    Args:
        path: The file; its first bytes tell its kind.
        columns: Names of the columns to read; the table must have each of them once.
        max_bytes: Limit on the size of a pickle, when unpacked.

    Returns:
        For each column its cells, as many as the table has rows: text, a number, bytes, None where
        the value is missing, an array of shape (numbers,) where a cell is a list of whole numbers
        or a NumPy array, or another list.

    Raises:
        UnavailableError: There is no such file.
        EnvironmentFault: It is Parquet, and pyarrow is not installed.
        RunError: It is no such table, damaged, too large, or lacks a column, or its pickle wants to
            call what a table does not need.
    """
    if not path.is_file():
        raise UnavailableError(
            f"{path}: this table does not exist; set the data set's path to the file"
        )
    with path.open("rb") as file:
        start = file.read(len(PARQUET))
    if start == PARQUET:
        return _read_parquet(path, columns)
    return _read_pickle(path, columns, compressed=start[:2] == b"\x1f\x8b", max_bytes=max_bytes)


def require_reader(path: Path) -> None:
    """Look for the library that reads a table, by its name; the file is not opened.

    Raises:
        EnvironmentFault: It is not installed.
    """
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise _no_pyarrow(path)


def _no_pyarrow(path: Path) -> EnvironmentFault:
    return EnvironmentFault(
        f"{path}: Parquet is read with pyarrow, which is not installed; try: pip install pyarrow"
    )


def _read_pickle(
    path: Path, columns: Sequence[str], *, compressed: bool, max_bytes: int
) -> dict[str, list[Any]]:
    from pytest_mlperf.datasets.pickled_frames import PickledFrame
    from pytest_mlperf.datasets.pickles import PickleError

    try:
        with gzip.open(path) if compressed else path.open("rb") as file:
            frame = PickledFrame(file, max_bytes=max_bytes)
        places = _places(path, frame.labels, columns)
        found = {name: frame.column(place) for name, place in places.items()}
    except PickleError as error:
        raise _unreadable(path, str(error)) from error
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, f"the file is damaged ({error})") from error
    except MemoryError:
        raise _unreadable(path, "there is no memory for what it unpacks to") from None
    if len({len(cells) for cells in found.values()}) > 1:
        raise _unreadable(path, "its columns differ in length")
    return found


def _unreadable(path: Path, reason: str) -> RunError:
    return RunError(
        "dataset",
        f"{path}: {reason}; get the table from its source again, or correct the data set's path",
    )


def _places(path: Path, labels: Sequence[Any], columns: Sequence[str]) -> dict[str, int]:
    """Return the position of each wanted column, which must be there once."""
    named = [label if isinstance(label, str) else repr(label) for label in labels]
    for name in columns:
        if named.count(name) == 1:
            continue
        near = difflib.get_close_matches(name, named, n=1, cutoff=0)
        what = f"more than one column {name!r}" if name in named else f"no column {name!r}"
        hint = f", the nearest is {near[0]!r}" if near and name not in named else ""
        raise RunError(
            "dataset",
            f"{path}: the table has {what}{hint}; needed are {_listing(columns)}, it has "
            f"{_listing(named)}. Rename its columns, or set the data set's path to another table",
        )
    return {name: named.index(name) for name in columns}


def _listing(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:20]) or "none"
    return shown + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def _read_parquet(path: Path, columns: Sequence[str]) -> dict[str, list[Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise _no_pyarrow(path) from error
    try:
        with parquet.ParquetFile(path) as file:
            places = _places(path, file.schema_arrow.names, columns)
            table = file.read(columns=list(places))
    except MemoryError:
        raise _unreadable(path, "there is no memory for what it unpacks to") from None
    except (ArrowException, OSError) as error:
        raise _unreadable(path, f"the Parquet file is damaged ({error})") from error
    return {name: _parquet_cells(table.column(name)) for name in places}


def _parquet_cells(column: Any) -> list[Any]:
    from pyarrow import types

    from pytest_mlperf.datasets.pickled_frames import pack

    kind = column.type
    if not types.is_list(kind) or not types.is_integer(kind.value_type):
        return [pack(cell) if isinstance(cell, list) else cell for cell in column.to_pylist()]
    cells: list[Any] = []
    for chunk in column.chunks:
        # As Python objects the tokens of a large data set would take gigabytes.
        numbers, bounds = chunk.values.to_numpy(zero_copy_only=False), chunk.offsets.tolist()
        cells += [
            numbers[start:end] if there else None
            for (start, end), there in zip(
                pairwise(bounds), chunk.is_valid().to_pylist(), strict=True
            )
        ]
    return cells
