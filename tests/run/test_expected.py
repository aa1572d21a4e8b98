"""A data set that is not what the suite and the round say is refused before an engine is loaded."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.run.protocol import Expected
from pytest_mlperf.run.samples import Samples, check_count, check_digest
from tests.run.harness import error_of, run_to_end, spec

DIGEST = hashlib.sha256(b"synthetic 32 0").hexdigest()


def test_nothing_is_asked_by_default() -> None:
    check_count(Samples([1, 2]), Expected())
    check_digest("abc", Expected())


def test_what_is_asked_for_passes(tmp_path: Path) -> None:
    asked = Expected(samples=32, whose="MLPerf's resnet50", digest=DIGEST)
    events, code = run_to_end(spec(tmp_path, dataset_options={"samples": 32}, expected=asked))

    assert code == 0
    assert {event["event"] for event in events} >= {"loaded", "finished"}


@pytest.mark.parametrize("samples", [49_999, 50_001, 1])
def test_another_size_names_both_numbers(samples: int) -> None:
    asked = Expected(samples=50_000, whose="MLPerf's resnet50")

    with pytest.raises(RunError) as raised:
        check_count(Samples(list(range(samples))), asked)

    assert raised.value.layer == "dataset"
    assert str(raised.value).startswith(
        f"the data set has {samples:,} samples, MLPerf's resnet50 has 50,000: it is another one"
    )


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
