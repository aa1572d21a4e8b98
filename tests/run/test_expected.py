"""A data set that is not what the suite and the round say is refused before an engine is loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_mlperf.core.errors import RunError, SuiteError
from pytest_mlperf.core.extension import Dataset
from pytest_mlperf.core.job import Expected
from pytest_mlperf.run.worker.samples import check_count, check_digest, count, require_same, sizes
from tests.run.harness import error_of, run_to_end, spec

DIGEST = hashlib.sha256(b"synthetic 32 0").hexdigest()


def test_nothing_is_asked_by_default() -> None:
    check_count(2, Expected())
    assert check_digest("abc", Expected()) == "abc"


@pytest.mark.process
def test_what_is_asked_for_passes(tmp_path: Path) -> None:
    asked = Expected(samples=32, whose="MLPerf's resnet50", digest=DIGEST)
    events, code = run_to_end(spec(tmp_path, dataset_options={"samples": 32}, expected=asked))

    assert code == 0
    assert {event["event"] for event in events} >= {"loaded", "finished"}


@pytest.mark.parametrize("samples", [49_999, 50_001, 1])
def test_another_size_names_both_numbers(samples: int) -> None:
    asked = Expected(samples=50_000, whose="MLPerf's resnet50")

    with pytest.raises(RunError) as raised:
        check_count(samples, asked)

    assert raised.value.layer == "dataset"
    assert str(raised.value).startswith(
        f"the data set has {samples:,} samples, MLPerf's resnet50 has 50,000: it is another one"
    )


@pytest.mark.process
@pytest.mark.parametrize(
    ("expected", "message"),
    [
        (Expected(samples=50_000, whose="MLPerf's resnet50"), "has 32 samples, MLPerf's resnet50"),
        (Expected(digest="0" * 64), f"digest is {DIGEST}, the suite asks for {'0' * 64}"),
    ],
)
def test_a_wrong_data_set_ends_the_worker_before_the_engine(
    tmp_path: Path, expected: Expected, message: str
) -> None:
    # The engine does not exist: whoever came to it would say so.
    events, _ = run_to_end(
        spec(
            tmp_path,
            engine="no.such:Engine",
            dataset_options={"samples": 32},
            expected=expected,
        )
    )

    error = error_of(events)
    assert error["layer"] == "dataset"
    assert message in error["message"]


class Odd:
    """A data set of which one thing is not what it must be."""

    def __init__(self, length: int = 4, **sizes: Any) -> None:
        self.length = length
        self.given = sizes

    def __len__(self) -> int:
        return self.length

    def sizes(self, indices: Sequence[int]) -> dict[str, Any]:
        return self.given


def as_data(odd: Odd) -> Dataset:
    return cast("Dataset", odd)


@pytest.mark.parametrize(
    ("length", "message"),
    [(0, "the data set is empty; at least one sample is needed"), (2**40, "1,099,511,627,776 sam")],
)
def test_none_and_impossibly_many_samples_are_refused(length: int, message: str) -> None:
    with pytest.raises(RunError, match=message) as raised:
        count(as_data(Odd(length)))

    assert raised.value.layer == "dataset"


def test_as_many_as_any_benchmark_has_are_measured() -> None:
    assert count(as_data(Odd(89_137_319))) == 89_137_319


@pytest.mark.parametrize("now", [3, 5])
def test_a_length_that_changes_is_refused_with_both(now: int) -> None:
    odd = Odd(4)
    require_same(as_data(odd), 4)
    odd.length = now

    with pytest.raises(RunError, match=f"had 4 samples, and has {now} now"):
        require_same(as_data(odd), 4)


@pytest.mark.parametrize("digest", [None, "", 5, b"ab", ["a"]])
def test_a_digest_that_is_no_text_is_refused(digest: object) -> None:
    with pytest.raises(RunError, match=r"digest is .*; it must be a text that changes"):
        check_digest(digest, Expected())


@pytest.mark.parametrize(
    "size", [float("nan"), float("inf"), -1, -0.5, True, None, "5", 10**400, [5.0]]
)
def test_a_size_that_no_sample_has_is_refused(size: object) -> None:
    with pytest.raises(SuiteError, match="finite numbers from 0 on, by name, are needed"):
        sizes(as_data(Odd(4, tokens=size)), 4)


@pytest.mark.parametrize("size", [0, 5, 77.5])
def test_sizes_are_numbers_by_name(size: float) -> None:
    assert sizes(as_data(Odd(4, tokens=size)), 4) == {"tokens": float(size)}


@pytest.mark.process
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": [0]}, "the data set is empty"),
        ({"lengths": [64, 65]}, "the data set had 64 samples, and has 65 now"),
        ({"digest": None}, "the data set's digest is None"),
    ],
)
def test_a_data_set_that_cannot_be_is_the_workers_error(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    """LoadGen dies of an empty one, without a word that says why."""
    target = "tests.run.engines_that_fail:OddDataset"
    events, code = run_to_end(spec(tmp_path, dataset=target, dataset_options=options))

    error = error_of(events)
    assert (code, error["layer"]) == (70, "dataset")
    assert error["message"].startswith(message)
