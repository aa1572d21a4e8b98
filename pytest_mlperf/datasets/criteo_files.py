"""The arrays of MLPerf's multi-hot Criteo data: found, checked, and read a few rows at a time."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_mlperf.core.errors import RunError, UnavailableError
from pytest_mlperf.datasets.array_files import StoredArray, damaged, find_npy, find_npz

if TYPE_CHECKING:
    from numpy.typing import NDArray

VARIANTS = {"multihot-criteo": "", "multihot-criteo-sample": "_sample", "debug": "_debug"}
"""Endings of the files' names, by the reference's names of its data sets."""

DENSE = 13
FEATURES = 26

BLOCKS = 1000
"""Blocks of rows whose values are checked and go into the digest, spread evenly."""
BLOCK_ROWS = 8
_LABELS_AT_A_TIME = 2**20


class Rows:
    """Rows of an array on disk.

    They are read, not mapped: of a file that is cut meanwhile a mapping would crash the process,
    and pages of a mapping count as this process's memory.
    """

    def __init__(self, array: StoredArray) -> None:
        """Open the file."""
        self._array = array
        self._width = array.size // array.shape[0]
        self._file = os.open(array.file, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some rows, shape (stop - start, ...); callable from any thread.

        Raises:
            RunError: The file was cut since.
        """
        import numpy as np

        values = np.empty((stop - start, *self._array.shape[1:]), self._array.dtype)
        view, filled = values.reshape(-1).view(np.uint8).data, 0
        offset = self._array.offset + start * self._width
        while filled < len(view):
            count = os.preadv(self._file, [view[filled:]], offset + filled)
            if not count:
                raise damaged(self._array.file, f"{self._array.what} ends before row {stop:,}")
            filled += count
        return values


@dataclass(frozen=True, kw_only=True, slots=True)
class Tables:
    """The user-item pairs.

    Attributes:
        rows: How many there are in the files.
        dense: Shape (rows, 13), float32.
        labels: Shape (rows,) or (rows, 1).
        sparse: For each of 26 features, shape (rows, lookups), int32 or int64.
    """

    rows: int
    dense: Rows
    labels: Rows
    sparse: tuple[Rows, ...]

    def blocks(self, rows: int) -> Iterator[list[NDArray[Any]]]:
        """Yield dense and sparse values of blocks that are spread evenly over the first rows."""
        starts = sorted({block * rows // BLOCKS for block in range(BLOCKS)})
        for start in starts:
            stop = min(start + BLOCK_ROWS, rows)
            yield [table.read(start, stop) for table in (self.dense, *self.sparse)]

    def all_labels(self, rows: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield the labels of the first rows, some at a time, after the number of the first."""
        for start in range(0, rows, _LABELS_AT_A_TIME):
            stop = min(start + _LABELS_AT_A_TIME, rows)
            yield start, self.labels.read(start, stop).reshape(-1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Where the files of a variant lie.

    Attributes:
        dense: day_23_dense.npy.
        labels: day_23_labels.npy.
        sparse: day_23_sparse_multi_hot.npz, or the folder of that name with 0.npy to 25.npy.
    """

    dense: Path
    labels: Path
    sparse: Path


def find_places(folder: Path, variant: str) -> Places:
    """Look for the files without reading them.

    Raises:
        UnavailableError: The folder or a file is not here.
    """
    if not folder.is_dir():
        raise UnavailableError(
            f"{folder}: this folder does not exist; set the data set's path to the folder with "
            "day_23 of the multi-hot Criteo data, as README.md of MLPerf's dlrm_v2 reference says"
        )
    ending = VARIANTS[variant]
    unpacked = folder / f"day_23_sparse_multi_hot{ending}"
    found = Places(
        dense=folder / f"day_23_dense{ending}.npy",
        labels=folder / f"day_23_labels{ending}.npy",
        sparse=unpacked if unpacked.is_dir() else unpacked.with_suffix(".npz"),
    )
    wanted = [found.dense, found.labels]
    wanted += (
        [unpacked / f"{feature}.npy" for feature in range(FEATURES)]
        if unpacked.is_dir()
        else [found.sparse]
    )
    missing = [str(file.relative_to(folder)) for file in wanted if not file.is_file()]
    if missing:
        raise UnavailableError(
            f"{folder}: {', '.join(missing[:3])}{' ...' * (len(missing) > 3)} of the multi-hot "
            "Criteo data not found; get the preprocessed data set as README.md of MLPerf's dlrm_v2 "
            "reference says, or set the data set's path to where it is"
        )
    return found


def open_tables(places: Places, hotness: Sequence[int]) -> Tables:
    """Check shapes, types and lengths of all files, and open them.

    Raises:
        RunError: A file is not as it must be.
    """
    dense, labels = find_npy(places.dense), find_npy(places.labels)
    sparse = _sparse(places.sparse)
    rows = dense.shape[0] if dense.shape else 0
    _require(dense, [(rows, DENSE)], ("<f4",))
    _require(labels, [(rows, 1), (rows,)], ("<f4", "<i4", "<i8", "|u1", "|i1", "|b1"))
    for feature, lookups in enumerate(hotness):
        _require(sparse[feature], [(rows, lookups)], ("<i4", "<i8"))
    if rows == 0:
        raise damaged(places.dense, "it has no rows")
    return Tables(
        rows=rows,
        dense=Rows(dense),
        labels=Rows(labels),
        sparse=tuple(Rows(array) for array in sparse),
    )


def _sparse(path: Path) -> list[StoredArray]:
    if path.is_dir():
        return [find_npy(path / f"{feature}.npy") for feature in range(FEATURES)]
    found: Mapping[str, StoredArray] = find_npz(path)
    missing = [f"{feature}.npy" for feature in range(FEATURES) if str(feature) not in found]
    if missing:
        raise damaged(path, f"it needs the arrays 0.npy to 25.npy, and lacks {missing[0]}")
    for array in found.values():
        if array.packed:
            raise RunError(
                "dataset",
                f"{path}: {array.packed} is compressed, and rows cannot be read from the middle of "
                f"it; unpack it beside (unzip {path.name} -d {path.stem}): that folder is used "
                "instead",
            )
    return [found[str(feature)] for feature in range(FEATURES)]


def _require(array: StoredArray, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> None:
    if array.shape not in shapes:
        raise RunError(
            "dataset",
            f"{array.file}: {array.what} has the shape {array.shape}, not {shapes[0]}: rows as in "
            "the file of dense features, and columns as the option hotness says for lookups; use "
            "files that belong together",
        )
    if array.dtype not in dtypes:
        raise RunError(
            "dataset",
            f"{array.file}: {array.what} has values of type {array.dtype}, not "
            f"{' or '.join(dtypes)}; use MLPerf's preprocessed files",
        )
    if array.fortran:
        raise RunError(
            "dataset",
            f"{array.file}: {array.what} is stored column by column; save it again in C order",
        )
