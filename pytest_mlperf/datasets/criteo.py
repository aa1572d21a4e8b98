"""Read the multi-hot Criteo click data of MLPerf's DLRM-v2: samples of many user-item pairs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pytest_mlperf.core.errors import RunError, SuiteError, UnavailableError
from pytest_mlperf.datasets.checksum import check_file, parse_checksum
from pytest_mlperf.datasets.criteo_files import (
    FEATURES,
    VARIANTS,
    Places,
    Tables,
    find_places,
    open_tables,
)
from pytest_mlperf.datasets.criteo_partition import drawn_ends, even_ends, read_ends
from pytest_mlperf.datasets.prompts import check_count

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HOTNESS = (
    *(3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1),
    *(6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1),
)
"""Lookups of each sparse feature, 214 in all, as MLPerf's multi-hot data are made."""


class CriteoDataset:
    """Samples by index; each is a run of user-item pairs, as MLPerf's reference draws them.

    The official files of day 23 have 178,274,637 pairs. The first half of them, rounded up, is the
    validation set: 89,137,319 pairs in 330,067 samples.
    Source: recommendation/dlrm_v2/pytorch/python/multihot_criteo.py of
    https://github.com/mlcommons/inference.

    When the data set is built, shapes, types and lengths of all files are checked, and all labels.
    Dense and sparse values are checked in 1,000 blocks of 8 pairs, spread evenly over those used:
    reading all 80 GB would take many minutes. The digest covers the same.
    """

    libraries = ()

    def __init__(
        self,
        *,
        path: str,
        variant: str = "multihot-criteo",
        rows: int | None = None,
        hotness: Sequence[int] = HOTNESS,
        trace: str | None = None,
        checksum: str | None = None,
        pairs: int | None = None,
        count: int | None = None,
    ) -> None:
        """Open and check the files.

        Args:
            path: Folder with day_23_dense.npy, day_23_labels.npy and day_23_sparse_multi_hot.npz,
                which must not be compressed, or in its place the folder day_23_sparse_multi_hot
                with 0.npy to 25.npy.
            variant: "multihot-criteo"; or "multihot-criteo-sample" or "debug", the reference's
                smaller sets, whose files end in _sample and _debug.
            rows: Use the first `rows` pairs; None uses the half of "multihot-criteo" that MLPerf
                uses, and all of the others.
            hotness: Lookups of each of the 26 sparse features.
            trace: File with a line "START, END, PAIRS" for each sample, as
                dlrm_trace_of_aggregated_samples.txt of MLPerf. None draws the samples as the
                reference does, which gives that very file for the official data.
            checksum: "md5:..." or "sha256:..." of the trace.
            pairs: Each sample has this many pairs, instead of drawing; the last one may have less.
            count: Use the first `count` samples only; None uses all.

        Raises:
            SuiteError: An option is wrong.
            UnavailableError: A file is not here.
            RunError: A file is not as it must be, or has another checksum.
        """
        expected = _check_options(variant, rows, hotness, trace, checksum, pairs, count)
        places = _look(path, variant, trace)
        self._tables: Tables = open_tables(places, hotness)
        used = _used(self._tables.rows, variant, rows, places)
        if trace is not None:
            check_file(Path(trace), expected)
            ends = read_ends(Path(trace), used)
        else:
            ends = drawn_ends(used) if pairs is None else even_ends(used, pairs)
        if count is not None and count > len(ends):
            raise SuiteError(
                f"{path}: count = {count!r}, but the data set has {len(ends)} samples; lower "
                "count, or leave it out to use all"
            )
        self._ends: NDArray[np.int64] = ends[:count]
        self._places = places
        self._digest = self._check_values(hotness)

    @classmethod
    def look(
        cls,
        *,
        path: str,
        variant: str = "multihot-criteo",
        rows: int | None = None,
        hotness: Sequence[int] = HOTNESS,
        trace: str | None = None,
        checksum: str | None = None,
        pairs: int | None = None,
        count: int | None = None,
    ) -> None:
        """Look for the files without reading them.

        Raises:
            SuiteError: An option is wrong.
            UnavailableError: A file is not here; one sentence says what to do.
        """
        _check_options(variant, rows, hotness, trace, checksum, pairs, count)
        _look(path, variant, trace)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._ends)

    def input(self, index: int) -> dict[str, Any]:
        """Read the pairs of one sample.

        Returns:
            "dense": shape (pairs, 13), float32. "sparse": for each of 26 features the rows to look
            up, shape (pairs, lookups), int32 as in the official files, or int64.

        Raises:
            IndexError: There is no such sample.
            RunError: A file was cut since.
        """
        start, stop = self._bounds(index)
        return {
            "dense": self._tables.dense.read(start, stop),
            "sparse": [feature.read(start, stop) for feature in self._tables.sparse],
        }

    def sizes(self, indices: Sequence[int]) -> dict[str, float]:
        """Return the mean number of pairs of these samples, "parts"."""
        bounds = map(self._bounds, indices)
        return {"parts": fmean(stop - start for start, stop in bounds)}

    def reference(self, index: int) -> NDArray[np.float32]:
        """Read the labels of one sample: 1 where an item was clicked, else 0; shape (pairs,).

        Raises:
            IndexError: There is no such sample.
            RunError: A file was cut since.
        """
        import numpy as np

        return self._tables.labels.read(*self._bounds(index)).reshape(-1).astype(np.float32)

    @property
    def digest(self) -> str:
        """Hex SHA-256 over a part of the data that tells other data apart, not over all of it.

        It covers the ends of the samples, the lookups of each feature, all labels, and dense and
        sparse values of 1,000 blocks of 8 pairs, spread evenly over the pairs that are used. A
        change of other values alone leaves it as it is. How files are packed does not count.
        """
        return self._digest

    def _bounds(self, index: int) -> tuple[int, int]:
        """Return the first pair of a sample, and the first one behind it."""
        if not 0 <= index < len(self._ends):
            raise IndexError(f"sample {index!r} of {len(self._ends)}")
        return int(self._ends[index - 1]) if index else 0, int(self._ends[index])

    def _check_values(self, hotness: Sequence[int]) -> str:
        """Check labels and blocks of values, and return the digest of what was read."""
        import numpy as np

        rows = int(self._ends[-1])
        total = hashlib.sha256(b"criteo" + repr(tuple(hotness)).encode())
        total.update(self._ends.astype("<i8").tobytes())
        for start, labels in self._tables.all_labels(rows):
            ones = labels == 1
            if not (known := ones | (labels == 0)).all():
                row = int(np.flatnonzero(~known)[0])
                raise RunError(
                    "dataset",
                    f"{self._places.labels}: row {start + row}: the label is {labels[row]}, not 0 "
                    "or 1; use MLPerf's preprocessed files",
                )
            total.update(ones.tobytes())
        for dense, *sparse in self._tables.blocks(rows):
            if not np.isfinite(dense).all():
                raise RunError(
                    "dataset",
                    f"{self._places.dense}: a dense feature is not finite; use MLPerf's "
                    "preprocessed files",
                )
            total.update(dense.tobytes())
            for feature, lookups in enumerate(sparse):
                if lookups.min() < 0:
                    raise RunError(
                        "dataset",
                        f"{self._places.sparse}: sparse feature {feature} looks up row "
                        f"{lookups.min()}, which is negative; use MLPerf's preprocessed files",
                    )
                total.update(lookups.astype("<i8").tobytes())
        return total.hexdigest()


def _check_options(
    variant: str,
    rows: int | None,
    hotness: Sequence[int],
    trace: str | None,
    checksum: str | None,
    pairs: int | None,
    count: int | None,
) -> tuple[str, str] | None:
    """Return the parsed checksum."""
    check_count("criteo", count)
    what = "data set criteo"
    if variant not in VARIANTS:
        raise SuiteError(
            f"{what}: variant = {variant!r} is unknown; valid are {', '.join(VARIANTS)}"
        )
    for name, value in (("rows", rows), ("pairs", pairs)):
        if value is not None and (type(value) is not int or value < 1):
            raise SuiteError(f"{what}: {name} = {value!r} is not a number of pairs, at least 1")
    if (
        not isinstance(hotness, list | tuple)
        or len(hotness) != FEATURES
        or any(type(lookups) is not int or lookups < 1 for lookups in hotness)
    ):
        raise SuiteError(f"{what}: hotness = {hotness!r} is not {FEATURES} numbers from 1 on")
    if trace is not None and pairs is not None:
        raise SuiteError(f"{what}: trace and pairs both say what a sample is; leave one out")
    if checksum is not None and trace is None:
        raise SuiteError(f"{what}: checksum is that of the trace, which is not set")
    return parse_checksum(what, checksum)


def _look(path: str, variant: str, trace: str | None) -> Places:
    lacks_trace = ""
    if trace is not None and not Path(trace).is_file():
        lacks_trace = (
            f"{trace}: this trace does not exist; set trace to a copy of MLPerf's "
            "dlrm_trace_of_aggregated_samples.txt, or leave it out to draw the same samples"
        )
    try:
        places = find_places(Path(path), variant)
    except UnavailableError as error:
        raise UnavailableError("; also ".join(filter(None, (str(error), lacks_trace)))) from None
    if lacks_trace:
        raise UnavailableError(lacks_trace)
    return places


def _used(there: int, variant: str, rows: int | None, places: Places) -> int:
    """Return how many pairs are used."""
    if rows is None:
        return -(-there // 2) if VARIANTS[variant] == "" else there
    if rows > there:
        raise SuiteError(
            f"{places.dense}: rows = {rows!r}, but there are {there}; lower rows, or leave it out"
        )
    return rows
