"""Read the multi-hot Criteo click data of MLPerf's DLRM-v2: samples of user-item pairs."""

from __future__ import annotations

import hashlib
import os
import re
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from pytest_mlperf import RunError, SuiteError
from pytest_mlperf.adapters.datasets import files
from pytest_mlperf.adapters.datasets.files.arrays import StoredArray, damaged, find_npy, find_npz
from pytest_mlperf.adapters.lazy import NDArray, np

HOTNESS = (
    *(3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1),
    *(6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1),
)
"""Number of lookups of each sparse feature in MLPerf's multi-hot data, 214 in all."""

TWENTIETH_PAIRS = (100,) * 2 + (200,) * 12 + (300,) * 2 + (400, 500, 600, 700)
"""Number of pairs of a sample; each of the 20 entries has the same probability.

Source: recommendation/dlrm_v2/pytorch/tools/dist_quantile.txt in mlcommons/inference on GitHub.
"""

NUMPY_SEED = 123
"""Seed of NumPy's legacy generator in the reference's main.py."""

PREPROCESSED = "use MLPerf's preprocessed files"

_SIZES_LINE = re.compile(r"(\d{1,12}), (\d{1,12}), (\d{1,12})")

VARIANTS = {"multihot-criteo": "", "multihot-criteo-sample": "_sample", "debug": "_debug"}

DENSE = 13
FEATURES = 26

BLOCKS = 1000
BLOCK_ROWS = 8
LABELS_AT_A_TIME = 2**20


@dataclass(frozen=True, kw_only=True)
class CriteoOptions(files.FileOptions, dataset="criteo"):
    """Options of the data set criteo.

    Attributes:
        path: Folder with day_23_dense.npy, day_23_labels.npy and day_23_sparse_multi_hot.npz, which
            must not be compressed; or, instead of the last file, a folder day_23_sparse_multi_hot
            with 0.npy to 25.npy.
        variant: "multihot-criteo", or one of the reference's smaller sets, "multihot-criteo-sample"
            and "debug", whose files end in _sample and _debug.
        rows: Number of pairs to use, starting from the first. None uses the first half of
            "multihot-criteo", as MLPerf does, and all pairs of the smaller sets.
        hotness: Number of embedding lookups for each of the 26 sparse features.
        trace: File with a line "START, END, PAIRS" per sample, as MLPerf's
            dlrm_trace_of_aggregated_samples.txt. None draws the sizes of samples at random as the
            reference does, which gives the same samples for the official data.
        checksum: "md5:..." or "sha256:..." of the trace.
        pairs: Fixed number of pairs per sample; the last sample may have fewer.
    """

    path: str
    variant: str = "multihot-criteo"
    rows: int | None = None
    hotness: Sequence[int] = HOTNESS
    trace: str | None = None
    checksum: str | None = None
    pairs: int | None = None

    def __post_init__(self) -> None:
        lookups = (
            isinstance(self.hotness, list | tuple)
            and len(self.hotness) == FEATURES
            and all(type(each) is int and each >= 1 for each in self.hotness)
        )
        variants = f"one of {', '.join(VARIANTS)}"
        self.check(
            ("hotness", self.hotness, lookups, f"{FEATURES} numbers, each at least 1"),
            ("variant", self.variant, self.variant in VARIANTS, variants),
            rows="pairs",
            pairs="pairs",
        )
        if self.trace is not None and self.pairs is not None:
            defect = "trace and pairs both define a sample; remove one"
            raise self.wrong(defect, option=("trace", "pairs"))
        if self.checksum is not None and self.trace is None:
            defect = "checksum is for the trace, which is not set; set trace, or remove checksum"
            raise self.wrong(defect, option=("checksum", "trace"))

    def find(self) -> CriteoFiles:
        folder, ending, trace = Path(self.path), VARIANTS[self.variant], self.trace
        unpacked = folder / f"day_23_sparse_multi_hot{ending}"
        packed = unpacked.with_suffix(".npz")
        sparse = [unpacked / f"{feature}.npy" for feature in range(FEATURES)]
        places = CriteoFiles(
            dense=folder / f"day_23_dense{ending}.npy",
            labels=folder / f"day_23_labels{ending}.npy",
            sparse=unpacked if unpacked.is_dir() else packed,
        )
        needed = [places.dense, places.labels, *(sparse if unpacked.is_dir() else [packed])]
        missing = [str(file.relative_to(folder)) for file in needed if not file.is_file()]
        self.require(
            (
                not missing or not folder.is_dir(),
                f"{folder}: this folder lacks {', '.join(missing[:3])}"
                f"{' ...' * (len(missing) > 3)} of the multi-hot Criteo data; get the "
                "preprocessed data set as README.md of MLPerf's dlrm_v2 reference says, or set the "
                "data set's path to its folder",
            ),
            (
                folder.is_dir(),
                f"{folder}: this folder does not exist; set the data set's path to the folder with "
                "day_23 of the multi-hot Criteo data, as README.md of MLPerf's dlrm_v2 reference "
                "says",
            ),
            (
                trace is None or Path(trace).is_file(),
                f"{trace}: this trace does not exist; set trace to a copy of MLPerf's "
                "dlrm_trace_of_aggregated_samples.txt, or leave trace out: then the same samples "
                "are drawn",
            ),
        )
        return places


class CriteoDataset(files.FileDataset[int]):
    """Samples of consecutive user-item pairs, of random sizes as in MLPerf's reference.

    The official files of day 23 have 178,274,637 pairs. The first half, rounded up, is the
    validation set: 89,137,319 pairs in 330,067 samples.
    Source: recommendation/dlrm_v2/pytorch/python/multihot_criteo.py in mlcommons/inference on
    GitHub.

    When the data set is built, all shapes, types and labels are checked, but dense and sparse
    values only in 1,000 evenly spaced blocks of 8 pairs: reading all 80 GB would take many minutes.
    """

    options = CriteoOptions

    def _read(self, options: CriteoOptions, places: CriteoFiles) -> None:
        self._dense, self._labels, *self._sparse = open_tables(places, options.hotness)
        used = _used_rows(self._dense.count, options, places)
        if options.trace is not None:
            files.check_file(Path(options.trace), options.checksum)
            ends = read_ends(Path(options.trace), used)
        else:
            ends = drawn_ends(used) if options.pairs is None else even_ends(used, options.pairs)
        files.require_enough(options.path, options.count, len(ends), options.noun)
        self._ends: NDArray[np.int64] = ends[: options.count]
        self._places = places
        self.digest = self._check_values(options.hotness)

    def __len__(self) -> int:
        return len(self._ends)

    def input(self, index: int) -> dict[str, Any]:
        """Read the pairs of one sample.

        "dense": float32, shape (pairs, 13). "sparse": for each of 26 features the embedding rows to
        look up, shape (pairs, lookups); int32 in the official files, else int64.
        """
        start, stop = self._bounds(index)
        return {
            "dense": self._dense.read(start, stop),
            "sparse": [feature.read(start, stop) for feature in self._sparse],
        }

    def sizes(self, indices: Sequence[int]) -> dict[str, float]:
        """Return {"parts": mean number of user-item pairs per sample}."""
        return {"parts": fmean(stop - start for start, stop in map(self._bounds, indices))}

    def reference(self, index: int) -> NDArray[np.float32]:
        """Read the labels of one sample: 1 for a clicked item, else 0; shape (pairs,)."""
        return self._labels.read(*self._bounds(index)).reshape(-1).astype(np.float32)

    def _bounds(self, index: int) -> tuple[int, int]:
        end = int(self._ends[self._checked(index)])
        return int(self._ends[index - 1]) if index else 0, end

    def _check_values(self, hotness: Sequence[int]) -> str:
        rows = int(self._ends[-1])
        total = hashlib.sha256(b"criteo" + repr(tuple(hotness)).encode())
        total.update(self._ends.astype("<i8").tobytes())
        for start in range(0, rows, LABELS_AT_A_TIME):
            labels = self._labels.read(start, min(start + LABELS_AT_A_TIME, rows)).reshape(-1)
            ones = labels == 1
            if not (valid := ones | (labels == 0)).all():
                row = int(np.flatnonzero(~valid)[0])
                raise files.wrong(
                    f"{self._places.labels}: row {start + row}",
                    f"the label is {labels[row]}, not 0 or 1",
                    PREPROCESSED,
                )
            total.update(ones.tobytes())
        for start in sorted({block * rows // BLOCKS for block in range(BLOCKS)}):
            self._check_block(start, min(start + BLOCK_ROWS, rows), total)
        return total.hexdigest()

    def _check_block(self, start: int, stop: int, total: hashlib._Hash) -> None:
        dense = self._dense.read(start, stop)
        if not np.isfinite(dense).all():
            raise files.wrong(self._places.dense, "a dense feature is not finite", PREPROCESSED)
        total.update(dense.tobytes())
        for feature, table in enumerate(self._sparse):
            lookups = table.read(start, stop)
            if lookups.min() < 0:
                raise files.wrong(
                    self._places.sparse,
                    f"sparse feature {feature} looks up row {lookups.min()}, which is negative",
                    PREPROCESSED,
                )
            total.update(lookups.astype("<i8").tobytes())


def _used_rows(total: int, options: CriteoOptions, places: CriteoFiles) -> int:
    if options.rows is None:
        return -(-total // 2) if VARIANTS[options.variant] == "" else total
    if options.rows > total:
        raise SuiteError(
            f"{places.dense}: rows = {options.rows!r}, but the file has {total} rows; lower rows, "
            "or leave it out",
            option="rows",
        )
    return options.rows


def drawn_ends(rows: int) -> NDArray[np.int64]:
    """Draw sample sizes as MLPerf's reference does; return each sample's end row, exclusive.

    The 89,137,319 official rows give 330,067 samples; MLPerf publishes the MD5 of their trace,
    3db90209564316f2506c99cc994ad0b2.
    """
    # NumPy never changes the numbers of this generator (NEP 19).
    draws = np.random.RandomState(NUMPY_SEED).randint(
        0, len(TWENTIETH_PAIRS), -(-rows // TWENTIETH_PAIRS[0])
    )
    ends = np.cumsum(np.array(TWENTIETH_PAIRS, np.int64)[draws])
    return ends[: int(np.searchsorted(ends, rows)) + 1].clip(max=rows)


def even_ends(rows: int, pairs: int) -> NDArray[np.int64]:
    """Return the end row, exclusive, of each sample of `pairs` pairs; the last may have fewer."""
    return np.arange(pairs, rows + pairs, pairs, dtype=np.int64).clip(max=rows)


def read_ends(path: Path, rows: int) -> NDArray[np.int64]:
    """Read the end row, exclusive, of each sample from a trace of lines "START, END, PAIRS"."""
    ends, last = [], 0
    with path.open(encoding="ascii", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            parsed = _SIZES_LINE.fullmatch(line.rstrip("\r\n"))
            start, end, pairs = map(int, parsed.groups()) if parsed else (-1, -1, -1)
            if start != last or end - start != pairs or pairs < 1:
                raise files.wrong(
                    f"{path}:{number}",
                    f'{line[:80].rstrip()!r} is not "START, END, PAIRS" with START = {last} (where '
                    "the previous sample ends) and PAIRS = END - START",
                    "get the trace from its source again",
                )
            if end > rows:
                raise files.wrong(
                    f"{path}:{number}",
                    f"the sample ends at pair {end:,}, but the data set has only {rows:,} pairs",
                    "set trace to the trace of this data set",
                )
            last = end
            ends.append(end)
    if not ends:
        raise files.wrong(path, "the trace lists no sample", "get it from its source again")
    return np.array(ends, np.int64)


class Rows:
    """Read rows of an array on disk.

    The file is read, not memory-mapped: a mapping crashes the process if the file is truncated, and
    its pages count as the process's memory.
    """

    def __init__(self, array: StoredArray) -> None:
        self.count = array.shape[0]
        self._array = array
        self._width = array.size // self.count
        self._file = os.open(array.file, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the rows `start` to `stop` - 1, shape (stop - start, ...); thread-safe."""
        values = np.empty((stop - start, *self._array.shape[1:]), self._array.dtype)
        left = values.reshape(-1).view(np.uint8).data
        offset = self._array.offset + start * self._width
        while left:
            count = os.preadv(self._file, [left], offset)
            if not count:
                raise damaged(self._array.file, f"{self._array.name} ends before row {stop:,}")
            left, offset = left[count:], offset + count
        return values


class CriteoFiles(NamedTuple):
    """Hold paths of the data set's files; `sparse`: a .npz archive, or a folder 0.npy to 25.npy."""

    dense: Path
    labels: Path
    sparse: Path


def open_tables(places: CriteoFiles, hotness: Sequence[int]) -> list[Rows]:
    """Check and open dense, label and sparse tables, in order; `hotness`: lookups by feature."""
    dense, labels = find_npy(places.dense), find_npy(places.labels)
    sparse = _sparse(places.sparse)
    rows = dense.shape[0] if dense.shape else 0
    _require(dense, [(rows, DENSE)], ("<f4",))
    _require(labels, [(rows, 1), (rows,)], ("<f4", "<i4", "<i8", "|u1", "|i1", "|b1"))
    for feature, lookups in enumerate(hotness):
        _require(sparse[feature], [(rows, lookups)], ("<i4", "<i8"))
    if rows == 0:
        raise damaged(places.dense, "it has no rows")
    return [Rows(array) for array in (dense, labels, *sparse)]


def _sparse(path: Path) -> list[StoredArray]:
    if path.is_dir():
        return [find_npy(path / f"{feature}.npy") for feature in range(FEATURES)]
    arrays = find_npz(path)
    missing = [f"{feature}.npy" for feature in range(FEATURES) if str(feature) not in arrays]
    if missing:
        raise damaged(path, f"it must have the arrays 0.npy to 25.npy, but lacks {missing[0]}")
    for array in arrays.values():
        if array.packed:
            raise files.wrong(
                path,
                f"{array.packed} is compressed, so single rows cannot be read",
                f"unpack the archive in its folder (unzip {path.name} -d {path.stem}): the "
                "unpacked files are then read instead",
            )
    return [arrays[str(feature)] for feature in range(FEATURES)]


def _require(array: StoredArray, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> None:
    where = f"{array.file}: {array.name}"
    if array.shape not in shapes:
        raise files.wrong(
            f"{where} has shape {array.shape}, not {shapes[0]}",
            "every file needs as many rows as the file of dense features, and a sparse feature as "
            "many columns as hotness says",
            "use files of one data set, or correct hotness",
        )
    if array.dtype not in dtypes:
        raise RunError(
            "dataset",
            f"{where} has values of type {array.dtype}, not {' or '.join(dtypes)}; {PREPROCESSED}",
        )
    if array.fortran:
        raise RunError("dataset", f"{where} is stored column by column; save it again in C order")
