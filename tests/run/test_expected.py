"""Test that a data set other than the suite's is refused before an engine is loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_mlperf.core.errors import RunError, SuiteError
from pytest_mlperf.core.extension import Dataset
from pytest_mlperf.core.job import Expected
from pytest_mlperf.run.worker.samples import (
    check_count,
    check_digest,
    count,
    require_same_length,
    sizes,
)
from tests.run.harness import error_of, run_to_end, spec

DIGEST = hashlib.sha256(b"synthetic 32 0").hexdigest()


@pytest.mark.process
def test_the_expected_digest_passes_and_another_one_ends_the_worker(tmp_path: Path) -> None:
    expected_inputs = Expected(samples=32, whose="MLPerf's resnet50", digest=DIGEST)
    events, code = run_to_end(
        spec(tmp_path, dataset_options={"samples": 32}, expected=expected_inputs)
    )
    assert code == 0
    assert {event["event"] for event in events} >= {"loaded", "finished"}

    # The engine does not exist: who loads it first says so.
    expected, data = Expected(digest="0" * 64), {"samples": 32}
    events, _ = run_to_end(
        spec(tmp_path, engine="no.such:Engine", dataset_options=data, expected=expected)
    )
    error = error_of(events)
    assert error["layer"] == "dataset"
    assert f"digest is {DIGEST}, the suite asks for {'0' * 64}" in error["message"]


def test_another_size_or_a_length_that_changes_names_both_numbers() -> None:
    check_count(2, Expected())
    for samples in (49_999, 50_001, 1):
        with pytest.raises(RunError, match=f"has {samples:,} samples, .* has 50,000") as raised:
            check_count(samples, Expected(samples=50_000, whose="MLPerf's resnet50"))
        assert raised.value.layer == "dataset"

    for length, message in ((0, "at least one sample is needed"), (2**40, "1,099,511,627,776 sam")):
        with pytest.raises(RunError, match=message) as raised:
            count(as_data(Odd(length)))
        assert raised.value.layer == "dataset"
    as_many_as_any_benchmark = 89_137_319
    assert count(as_data(Odd(as_many_as_any_benchmark))) == as_many_as_any_benchmark

    odd = Odd(4)
    require_same_length(as_data(odd), 4)
    for odd.length in (3, 5):
        with pytest.raises(RunError, match=f"had 4 samples, and has {odd.length} now"):
            require_same_length(as_data(odd), 4)


class Odd:
    """A data set with one wrong property."""

    def __init__(self, length: int = 4, **sizes: Any) -> None:
        self.length = length
        self.given = sizes

    def __len__(self) -> int:
        return self.length

    def sizes(self, indices: Sequence[int]) -> dict[str, Any]:
        return self.given


def as_data(odd: Odd) -> Dataset:
    return cast("Dataset", odd)


def test_a_digest_is_a_text_and_sizes_are_finite_numbers_from_0() -> None:
    assert check_digest("abc", Expected()) == "abc"
    for digest in (None, "", 5, b"ab", ["a"]):
        with pytest.raises(RunError, match=r"digest is .*; it must be a text that changes"):
            check_digest(digest, Expected())

    for size in (0, 5, 77.5):
        assert sizes(as_data(Odd(4, tokens=size)), 4) == {"tokens": float(size)}
    for wrong in (float("nan"), float("inf"), -1, -0.5, True, None, "5", 10**400, [5.0]):
        with pytest.raises(SuiteError, match="they must be a table of finite numbers of at least"):
            sizes(as_data(Odd(4, tokens=wrong)), 4)


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
