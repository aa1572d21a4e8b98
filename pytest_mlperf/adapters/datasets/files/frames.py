"""Read columns of a table: Parquet, or a pickled pandas DataFrame, whose code is not executed."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pytest_mlperf import UnavailableError
from pytest_mlperf.adapters.conventions import not_installed
from pytest_mlperf.adapters.datasets.files import find_file
from pytest_mlperf.adapters.datasets.files.columns import column_positions
from pytest_mlperf.adapters.datasets.files.pickle_files import (
    UNPACKED_LIMIT,
    opened,
    too_large,
    unreadable,
)

TABLE_LIMIT = 2**30
"""Maximum bytes of an unpacked table of prompts; MLPerf's 24,576 prompts have 0.15e9."""

PARQUET = b"PAR1"


def read_frame(
    path: Path, *, columns: Sequence[str | Sequence[str]], max_bytes: int = UNPACKED_LIMIT
) -> Mapping[str, Sequence[Any]]:
    """Read columns of a table: a pickled pandas DataFrame, optionally with gzip, or Parquet.

    Parquet needs pyarrow; pickles need no library. Each column must occur once in the table. If a
    column is given as several alternative names, the first name that the table has is read, and the
    result uses the first alternative as key. A cell is text, a number, bytes, None if missing, an
    array of shape (numbers,) for a list of whole numbers or a NumPy array, or another list. An
    unpacked pickle may have at most `max_bytes`.
    """
    if not path.is_file():
        raise UnavailableError(
            f"{path}: this table does not exist; set the data set's path to the file"
        )
    with path.open("rb") as file:
        start = file.read(len(PARQUET))
    names = [(one,) if isinstance(one, str) else tuple(one) for one in columns]
    if start == PARQUET:
        return _read_parquet(path, names)
    return _read_pickle(path, names, compressed=start[:2] == b"\x1f\x8b", max_bytes=max_bytes)


def find_table(path: Path, **options: Any) -> Path:
    """Find a table as `find_file` does; raise EnvironmentFault if it is Parquet without pyarrow."""
    endings = (".pkl", ".pkl.gz", ".parquet")
    table = find_file(path, endings=endings, whole="table", **options)
    require_pyarrow(table)
    return table


def require_pyarrow(path: Path) -> None:
    """Raise EnvironmentFault for a Parquet file if pyarrow is not installed."""
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise not_installed(f"{path}: the data set", "pyarrow", "parquet")


def _read_pickle(
    path: Path, columns: Sequence[Sequence[str]], *, compressed: bool, max_bytes: int
) -> dict[str, list[Any]]:
    from pytest_mlperf.adapters.datasets.files import pickled

    with opened(path, compressed=compressed) as file:
        frame = pickled.PickledFrame(file, max_bytes=max_bytes)
        positions = _places(path, frame.labels, columns)
        by_name = {name: frame.column(place) for name, place in positions.items()}
    if len({len(cells) for cells in by_name.values()}) > 1:
        raise unreadable(path, "its columns differ in length")
    return by_name


def _places(path: Path, labels: Sequence[Any], columns: Sequence[Sequence[str]]) -> dict[str, int]:
    chosen = [next((name for name in names if name in labels), names[0]) for names in columns]
    positions = column_positions(path, labels, chosen)
    return {names[0]: positions[name] for names, name in zip(columns, chosen, strict=True)}


def _read_parquet(path: Path, columns: Sequence[Sequence[str]]) -> dict[str, list[Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise not_installed(f"{path}: the data set", "pyarrow", "parquet") from error
    try:
        with parquet.ParquetFile(path) as file:
            labels = file.schema_arrow.names
            positions = _places(path, labels, columns)
            table = file.read(columns=[labels[place] for place in positions.values()])
        return {
            name: _parquet_cells(table.column(labels[place])) for name, place in positions.items()
        }
    except MemoryError:
        raise too_large(path) from None
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        raise unreadable(path, f"the Parquet file is damaged ({error})") from error


def _parquet_cells(column: Any) -> list[Any]:
    from pyarrow import types

    from pytest_mlperf.adapters.datasets.files.pickled import pack

    kind = column.type
    if not types.is_list(kind) or not types.is_integer(kind.value_type):
        return [pack(cell) if isinstance(cell, list) else cell for cell in column.to_pylist()]
    cells: list[Any] = []
    for chunk in column.chunks:
        # Python objects for the tokens of a large data set would take gigabytes.
        numbers, bounds = chunk.values.to_numpy(zero_copy_only=False), chunk.offsets.tolist()
        cells += [
            numbers[start:end] if there else None
            for (start, end), there in zip(
                pairwise(bounds), chunk.is_valid().to_pylist(), strict=True
            )
        ]
    return cells
