"""Read columns of a table: a pandas DataFrame in a pickle, which is never executed, or Parquet."""

from __future__ import annotations

import contextlib
import difflib
import gzip
import importlib.util
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import EnvironmentFault, RunError, UnavailableError
from pytest_mlperf.datasets.files import find_file, wrong

UNPACKED_LIMIT = 4 * 2**30
"""Bytes that any pickle may have when unpacked."""

TABLE_LIMIT = 2**30
"""Bytes of a table of prompts when unpacked; MLPerf's 24,576 prompts and answers have 0.15e9."""


PARQUET = b"PAR1"
"""How a Parquet file begins."""


def read_frame(
    path: Path, *, columns: Sequence[str | Sequence[str]], max_bytes: int = UNPACKED_LIMIT
) -> Mapping[str, Sequence[Any]]:
    """Read some columns of a table: a DataFrame pickled by pandas, also with gzip, or Parquet.

    Neither pandas nor, for pickles, anything else that is not always installed is needed. The
    table must have each column once; of several names of one column the first that is there is
    taken, and the column is called by the first of all. Cells are text, numbers, bytes, None where
    the value is missing, arrays of shape (numbers,) of what is a list of whole numbers or a NumPy
    array, or other lists. A pickle has at most `max_bytes` when unpacked.
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


def find_table(path: Path, *, official: Sequence[str], lacks: str, advice: str) -> Path:
    """Return a file as `find_file`, of a kind that `read_frame` reads, if its library is here."""
    table = find_file(
        path,
        official=official,
        endings=(".pkl", ".pkl.gz", ".parquet"),
        lacks=lacks,
        whole="table",
        advice=advice,
    )
    if table.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise no_pyarrow(table)
    return table


def no_pyarrow(path: Path) -> EnvironmentFault:
    """Return the error of a Parquet file that nothing here can read."""
    return EnvironmentFault(
        f"{path}: Parquet is read with pyarrow, which is not installed; try: pip install pyarrow"
    )


def read_records(path: Path) -> list[Any]:
    """Read a pickled list of tables of plain values and NumPy's arrays; nothing is executed."""
    from pytest_mlperf.datasets.files import pickled

    with _opened(path, compressed=False) as file:
        return pickled.read_records(file, max_bytes=UNPACKED_LIMIT)


@contextlib.contextmanager
def _opened(path: Path, *, compressed: bool) -> Iterator[Any]:
    """Open a pickle, and say what is wrong with it while it is read."""
    from pytest_mlperf.datasets.files.pickles import PickleError

    try:
        with gzip.open(path) if compressed else path.open("rb") as file:
            yield file
    except PickleError as error:
        raise _unreadable(path, str(error)) from error
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, f"the file is damaged ({error})") from error
    except MemoryError:
        raise _unreadable(path, "there is no memory for what it unpacks to") from None


def _read_pickle(
    path: Path, columns: Sequence[Sequence[str]], *, compressed: bool, max_bytes: int
) -> dict[str, list[Any]]:
    from pytest_mlperf.datasets.files import pickled

    with _opened(path, compressed=compressed) as file:
        frame = pickled.PickledFrame(file, max_bytes=max_bytes)
        at = _places(path, frame.labels, columns)
        by_name = {name: frame.column(place) for name, place in at.items()}
    if len({len(cells) for cells in by_name.values()}) > 1:
        raise _unreadable(path, "its columns differ in length")
    return by_name


def _unreadable(path: Path, reason: str) -> RunError:
    return wrong(
        path, reason, "get the table from its source again, or correct the data set's path"
    )


def places(
    path: object,
    labels: Sequence[Any],
    columns: Sequence[str],
    advice: str = "Rename its columns, or set the data set's path to another table",
    whole: str = "table",
) -> dict[str, int]:
    """Return the position of each wanted column, which must be there once."""
    named = [label if isinstance(label, str) else repr(label) for label in labels]
    for name in columns:
        if named.count(name) == 1:
            continue
        near = difflib.get_close_matches(name, named, n=1, cutoff=0)
        defect = f"more than one column {name!r}" if name in named else f"no column {name!r}"
        hint = f", the nearest is {_shown(near[0])}" if near and name not in named else ""
        raise wrong(
            path,
            f"the {whole} has {defect}{hint}",
            f"needed are {_listing(columns)}, it has {_listing(named)}. {advice}",
        )
    return {name: named.index(name) for name in columns}


def _places(path: Path, labels: Sequence[Any], columns: Sequence[Sequence[str]]) -> dict[str, int]:
    """Return the position of each column by the first of its names."""
    there = [next((name for name in names if name in labels), names[0]) for names in columns]
    at = places(path, labels, there)
    return {names[0]: at[name] for names, name in zip(columns, there, strict=True)}


def _listing(names: Sequence[str]) -> str:
    listed = ", ".join(map(_shown, names[:20])) or "none"
    return listed + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def _shown(name: str) -> str:
    """Return a name as it may be shown: a file may call its columns anything."""
    return repr(name) if len(name) <= 80 else f"{name[:80]!r}…"


def _read_parquet(path: Path, columns: Sequence[Sequence[str]]) -> dict[str, list[Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise no_pyarrow(path) from error
    try:
        with parquet.ParquetFile(path) as file:
            labels = file.schema_arrow.names
            at = _places(path, labels, columns)
            table = file.read(columns=[labels[place] for place in at.values()])
        return {name: _parquet_cells(table.column(labels[place])) for name, place in at.items()}
    except MemoryError:
        raise _unreadable(path, "there is no memory for what it unpacks to") from None
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, f"the Parquet file is damaged ({error})") from error


def _parquet_cells(column: Any) -> list[Any]:
    from pyarrow import types

    from pytest_mlperf.datasets.files.pickled import pack

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
