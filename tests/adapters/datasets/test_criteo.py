"""The files of MLPerf's Criteo data, the samples they are cut into, and every way to be wrong."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pytest_mlperf.adapters.datasets.criteo import (
    HOTNESS,
    TWENTIETH_PAIRS,
    CriteoDataset,
    drawn_ends,
    even_ends,
    read_ends,
)
from pytest_mlperf.core.errors import RunError, SuiteError, UnavailableError
from tests.adapters.datasets.refusals import not_refused

ROWS = 1001
USED = 501
"""The first half of them, rounded up."""

DENSE, LABELS, SPARSE = "day_23_dense.npy", "day_23_labels.npy", "day_23_sparse_multi_hot.npz"

Build = Callable[..., CriteoDataset]
Change = Callable[[Any], Any]


class Data:
    """What the files hold."""

    def __init__(self) -> None:
        rng = np.random.default_rng(7)
        self.dense = rng.normal(size=(ROWS, 13)).astype(np.float32)
        self.labels: NDArray[Any] = (rng.random((ROWS, 1)) < 0.1).astype(np.int32)
        self.sparse: list[NDArray[Any]] = [
            rng.integers(0, 40_000_000, (ROWS, lookups), np.int32) for lookups in HOTNESS
        ]

    def write(self, folder: Path, ending: str = "", *, compressed: bool = False) -> Path:
        folder.mkdir(exist_ok=True)
        np.save(folder / f"day_23_dense{ending}.npy", self.dense)
        np.save(folder / f"day_23_labels{ending}.npy", self.labels)
        save: Any = np.savez_compressed if compressed else np.savez
        named = {str(feature): array for feature, array in enumerate(self.sparse)}
        save(folder / f"day_23_sparse_multi_hot{ending}.npz", **named)
        return folder


def tiny(folder: Path) -> dict[str, Any]:
    Data().write(folder)
    return {"path": str(folder)}


@pytest.fixture
def data() -> Data:
    return Data()


@pytest.fixture
def folder(data: Data, tmp_path: Path) -> Path:
    return data.write(tmp_path / "criteo")


@pytest.fixture
def build(folder: Path) -> Build:
    return lambda **options: CriteoDataset(**{"path": str(folder), **options})


def same(dataset: CriteoDataset, data: Data, ends: list[int]) -> None:
    """Require the samples that lie between these ends."""
    assert len(dataset) == len(ends) - 1
    for index, (start, stop) in enumerate(pairwise(ends)):
        sample, labels = dataset.input(index), dataset.reference(index)
        np.testing.assert_array_equal(sample["dense"], data.dense[start:stop])
        assert sample["dense"].dtype == labels.dtype == np.float32
        assert len(sample["sparse"]) == 26
        for column, source_column in zip(sample["sparse"], data.sparse, strict=True):
            np.testing.assert_array_equal(column, source_column[start:stop])
            assert column.dtype == np.int32
        np.testing.assert_array_equal(labels, data.labels[start:stop].ravel())


def test_options_choose_rows_and_samples(build: Build, data: Data, tmp_path: Path) -> None:
    """By default the first half; the reference's own list starts 200, 200, 200, ..."""
    whole = [*range(0, 801, 200), ROWS]
    rows: list[tuple[dict[str, Any], list[int]]] = [
        ({}, [0, 200, 400, USED]),
        ({"rows": 100}, [0, 100]),
        ({"rows": ROWS}, whole),
        ({"pairs": 250}, [0, 250, 500, USED]),
        ({"pairs": USED}, [0, USED]),
        ({"pairs": 1000}, [0, USED]),
        ({"count": 2}, [0, 200, 400]),
        ({"pairs": 1, "count": 1}, [0, 1]),
    ]
    for options, ends in rows:
        same(build(**options), data, ends)
    for variant, ending in (("multihot-criteo-sample", "_sample"), ("debug", "_debug")):
        folder = data.write(tmp_path / variant, ending)
        same(CriteoDataset(path=str(folder), variant=variant), data, whole)


def test_the_samples_of_the_official_rows_are_those_of_the_published_trace() -> None:
    """MLPerf publishes the MD5 of dlrm_trace_of_aggregated_samples.txt."""
    ends = drawn_ends(89_137_319)

    starts = np.concatenate([[0], ends[:-1]])
    lines = zip(starts.tolist(), ends.tolist(), strict=True)
    trace = "".join(f"{start}, {end}, {end - start}\n" for start, end in lines)
    assert len(ends) == 330_067
    assert hashlib.md5(trace.encode()).hexdigest() == "3db90209564316f2506c99cc994ad0b2"
    assert (len(HOTNESS), sum(HOTNESS)) == (26, 214)


@given(st.integers(1, 30_000))
def test_samples_are_drawn_until_the_rows_are_used(rows: int) -> None:
    generator = np.random.RandomState(123)
    ends, end = [], 0
    while end < rows:
        end = min(end + TWENTIETH_PAIRS[generator.randint(low=0, high=20)], rows)
        ends.append(end)

    assert drawn_ends(rows).tolist() == ends


@given(st.integers(1, 500), st.integers(1, 600))
def test_even_samples_cover_the_rows(rows: int, pairs: int) -> None:
    assert even_ends(rows, pairs).tolist() == [*range(pairs, rows, pairs), rows]


def test_a_trace_says_where_samples_end(build: Build, data: Data, tmp_path: Path) -> None:
    trace = tmp_path / "trace.txt"
    trace.write_bytes(b"0, 7, 7\r\n7, 8, 1\n8, 500, 492\n")
    md5 = hashlib.md5(trace.read_bytes()).hexdigest()

    same(build(trace=str(trace), checksum=f"md5:{md5}"), data, [0, 7, 8, 500])
    with pytest.raises(
        RunError,
        match=(
            "md5 is 875986bd620cd1a4812ec8f815cb223c, expected "
            "00000000000000000000000000000000: the file is damaged,"
        ),
    ):
        build(trace=str(trace), checksum="md5:" + "0" * 32)


def test_a_wrong_trace_names_its_line(tmp_path: Path) -> None:
    rows = [
        ("", "the trace lists no sample"),
        ("0, 5, 5\n6, 8, 2\n", r":2: '6, 8, 2' is not \"START, END, PAIRS\" with START = 5"),
        ("0, 5, 4\n", ":1: '0, 5, 4' is not "),
        ("0, 0, 0\n", ":1: '0, 0, 0' is not "),
        ("0, 5\n", ":1: '0, 5' is not "),
        ("[0, 5, 5]\n", "is not "),
        ("ü\n", ":1: .* is not "),
        (
            "0, 5, 5\n5, 502, 497\n",
            ":2: the sample ends at pair 502, but the data set has only 501",
        ),
    ]
    trace = tmp_path / "trace.txt"

    def read(text: str) -> None:
        trace.write_text(text, "utf-8")
        read_ends(trace, USED)

    assert not_refused(RunError, rows, read) == []


def test_labels_and_lookups_may_be_of_other_types(data: Data, tmp_path: Path) -> None:
    """Labels as numbers or a column of numbers; the digest is the same."""
    digest = CriteoDataset(path=str(data.write(tmp_path / "a"))).digest
    data.labels = data.labels.ravel().astype(np.float32)
    data.sparse = [array.astype(np.int64) for array in data.sparse]

    dataset = CriteoDataset(path=str(data.write(tmp_path / "b")))

    assert dataset.digest == digest
    assert dataset.input(0)["sparse"][0].dtype == np.int64
    assert dataset.reference(2).tolist() == data.labels[400:USED].tolist()


def test_an_unpacked_folder_takes_the_place_of_the_archive(
    build: Build, folder: Path, data: Data
) -> None:
    digest = build().digest
    shutil.unpack_archive(folder / SPARSE, folder / "day_23_sparse_multi_hot", "zip")
    (folder / SPARSE).unlink()

    assert build().digest == digest
    same(build(), data, [0, 200, 400, USED])


def test_a_compressed_or_empty_file_is_refused(data: Data, tmp_path: Path) -> None:
    folder = data.write(tmp_path / "packed", compressed=True)
    with pytest.raises(RunError) as caught:
        CriteoDataset(path=str(folder))

    assert str(caught.value) == (
        f"{folder / SPARSE}: 0.npy is compressed, so single rows cannot be read; unpack the "
        f"archive in its folder (unzip {SPARSE} -d day_23_sparse_multi_hot): the unpacked "
        "files are then read instead"
    )
    data.dense, data.labels = data.dense[:0], data.labels[:0]
    data.sparse = [array[:0] for array in data.sparse]
    with pytest.raises(RunError, match=f"{DENSE}: it has no rows"):
        CriteoDataset(path=str(data.write(tmp_path / "empty")))


def test_the_digest_covers_what_is_used(build: Build, data: Data, tmp_path: Path) -> None:
    """Another partition or value is another data set; rows behind those used are not."""
    digests = [build(**options).digest for options in ({}, {"pairs": 250})]

    def digest() -> str:
        return CriteoDataset(path=str(data.write(tmp_path / "data"))).digest

    data.dense[USED:] = 0
    data.labels[USED:] = 5
    assert digest() == digests[0]
    data.labels[100] = 1 - data.labels[100]
    digests.append(digest())
    data.dense[100, 12] += 1
    digests.append(digest())
    data.sparse[25][100, 0] += 1
    digests.append(digest())

    assert len(set(digests)) == 5


def with_feature(number: int, change: Change) -> Change:
    """Return a change of all features that changes one of them."""
    return lambda arrays: [change(x) if n == number else x for n, x in enumerate(arrays)]


def with_value(index: Any, value: float) -> Change:
    def change(values: NDArray[Any]) -> NDArray[Any]:
        changed = values.copy()
        changed[index] = value
        return changed

    return change


def as_type(kind: Any) -> Change:
    return lambda array: array.astype(kind)


WRONG_FILES: list[tuple[str, Change, str]] = [
    ("dense", lambda array: array[:, :12], r"array has shape \(1001, 12\), not \(1001, 13\)"),
    ("dense", as_type(np.float64), "the array has values of type <f8, not <f4; use MLPerf's"),
    ("dense", np.asfortranarray, "the array is stored column by column; save it again in C order"),
    ("dense", as_type(object), "the array has values of type object; only"),
    ("dense", as_type(">f4"), "the array has values of type >f4; only"),
    ("dense", with_value((5, 5), np.nan), "a dense feature is not finite; use MLPerf's prep"),
    ("labels", lambda array: array[:-1], r"the array has shape \(1000, 1\), not \(1001, 1\)"),
    ("labels", with_value(77, 3), "row 77: the label is 3, not 0 or 1; use MLPerf's preproc"),
    ("sparse", with_feature(20, lambda array: array[:, :99]), r"20.npy has shape \(1001, 99\)"),
    ("sparse", lambda arrays: [array[:, :1] for array in arrays], r"0.npy .* not \(1001, 3\)"),
    ("sparse", lambda arrays: arrays[:-1], "the arrays 0.npy to 25.npy, but lacks 25.npy"),
    ("sparse", with_feature(3, as_type(np.float32)), "3.npy has values of type <f4, not <i4 or"),
    ("sparse", with_feature(9, with_value((5, 1), -4)), "feature 9 looks up row -4, which is neg"),
]


def test_wrong_files_are_refused_before_a_sample_is_read(data: Data, tmp_path: Path) -> None:
    files = {"dense": DENSE, "labels": LABELS, "sparse": SPARSE}
    whole = {name: getattr(data, name) for name in files}

    def read(name: str, change: Change) -> None:
        vars(data).update({**whole, name: change(whole[name])})
        CriteoDataset(path=str(data.write(tmp_path / "wrong")))

    rows = [(name, change, f"{files[name]}: .*{part}") for name, change, part in WRONG_FILES]
    assert not_refused(RunError, rows, read) == []


def test_a_file_that_is_cut_later_is_an_error_of_the_sample(build: Build, folder: Path) -> None:
    dataset = build()
    with (folder / DENSE).open("rb+") as file:
        file.truncate(128 + 300 * 52)

    assert dataset.input(0)["dense"].shape == (200, 13)
    with pytest.raises(RunError, match="the array ends before row 400"):
        dataset.input(1)


def test_an_incomplete_archive_or_folder_of_features_is_refused(build: Build, folder: Path) -> None:
    with zipfile.ZipFile(folder / SPARSE) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["4.npy"] = members["4.npy"][:-4]
    with zipfile.ZipFile(folder / SPARSE, "w") as archive:
        for name, raw in members.items():
            archive.writestr(name, raw)
    with pytest.raises(RunError, match=r"4\.npy of shape .* needs 24,024 bytes after its"):
        build()

    (folder / "day_23_sparse_multi_hot").mkdir()
    with pytest.raises(UnavailableError, match=r"_hot/0.npy, .*_hot/1.npy, .*/2.npy \.\.\. of"):
        build()


def test_files_and_trace_that_are_missing_are_named_together(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError) as caught:
        CriteoDataset.look(path=str(tmp_path), trace=str(tmp_path / "no.txt"))

    files, trace = str(caught.value).split("; also ")
    assert files.startswith(f"{tmp_path}: this folder lacks {DENSE}, {LABELS}, {SPARSE} of the")
    assert trace == (
        f"{tmp_path}/no.txt: this trace does not exist; set trace to a copy of MLPerf's "
        "dlrm_trace_of_aggregated_samples.txt, or leave trace out: then the same samples are drawn"
    )


def test_wrong_options_are_refused(build: Build) -> None:
    rows: list[Any] = [
        (
            {"variant": "terabyte"},
            "variant = 'terabyte' is not one of multihot-criteo, mul",
        ),
        ({"rows": 0}, "rows = 0 is not a number of pairs, at least 1"),
        ({"rows": 1002}, "rows = 1002, but the file has 1001 rows; lower rows"),
        ({"pairs": 0}, "pairs = 0 is not a number of pairs, at least 1"),
        ({"pairs": 2.5}, "pairs = 2.5 is not a number of pairs"),
        ({"hotness": [1] * 25}, "hotness = .* is not 26 numbers, each at least 1"),
        ({"hotness": [0] * 26}, "hotness = .* is not 26 numbers, each at least 1"),
        (
            {"trace": "t.txt", "pairs": 5},
            "trace and pairs both define a sample; remove one",
        ),
        ({"checksum": "md5:" + "0" * 32}, "checksum is for the trace, which is not set; set"),
        ({"trace": "t.txt", "checksum": "abc"}, "checksum = 'abc' must be"),
    ]
    assert not_refused(SuiteError, rows, lambda options: build(**options)) == []
