from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.baseline import (
    Baseline,
    BaselineRun,
    Difference,
    Property,
    Record,
    append_runs,
    find,
    geometric_means,
    nearest,
    with_record,
)
from pytest_mlperf.core.errors import BaselineError
from tests.core.made import make_baseline_run, make_record


def run(**metrics: float) -> BaselineRun:
    return make_baseline_run(metrics=metrics)


def record(identity: dict[str, Property], *runs: BaselineRun) -> Record:
    return make_record(
        *(runs or (run(throughput=1.0),)),
        identity=identity,
        fingerprint={"engine": "1.2.0", "weights": "sha256:ab"},
    )


def baseline(*records: Record) -> Baseline:
    return Baseline(
        round="v4.1",
        profile="quick",
        workload="resnet50",
        scenario="Offline",
        engine="ort",
        precision="fp32",
        accelerator="H200",
        records=records,
    )


H200: dict[str, Property] = {"name": "H200", "memory_gb": 141, "mig": False, "power_limit_w": 700}
CAPPED: dict[str, Property] = {**H200, "power_limit_w": 500}
MIG: dict[str, Property] = {**CAPPED, "mig": True}


def test_a_record_is_found_by_equal_hardware() -> None:
    """A property that one side does not name is unknown."""
    theirs, capped = record(H200), record(CAPPED)

    assert find(baseline(theirs, capped), dict(CAPPED)) is capped
    assert find(baseline(theirs, capped), MIG) is None
    assert find(baseline(), H200) is None
    assert find(baseline(theirs), {**H200, "cooling": None}) is theirs
    assert find(baseline(theirs), {**H200, "cooling": "water"}) is None


def test_the_nearest_record_differs_in_the_fewest_properties() -> None:
    capped = record(CAPPED)
    mig = Difference(name="mig", theirs=False, ours=True)
    cooling = Difference(name="cooling", theirs=None, ours="water")
    limit = Difference(name="power_limit_w", theirs=500, ours=700)

    assert nearest(baseline(record(H200), capped), MIG) == (capped, [mig])
    found = nearest(baseline(capped), {**H200, "cooling": "water"})
    assert found == (capped, [cooling, limit])
    assert nearest(baseline(), H200) is None


def test_a_record_replaces_the_one_of_its_hardware_in_place_or_is_added() -> None:
    first, second = record(H200), record(CAPPED)
    new = record(dict(H200), run(throughput=2.0))

    assert with_record(baseline(first, second), new).records == (new, second)
    assert with_record(baseline(first), second).records == (first, second)


def test_appended_runs_come_last_and_the_rest_stays() -> None:
    old = record(H200, run(throughput=1.0))

    grown = append_runs(old, [run(throughput=2.0)], dict(old.fingerprint))

    assert grown == replace(old, runs=(run(throughput=1.0), run(throughput=2.0)))


def test_runs_of_something_else_are_never_appended() -> None:
    for fingerprint, difference in (
        ({"engine": "1.2.1", "weights": "sha256:ab"}, "engine ('1.2.0' → '1.2.1') differ "),
        ({"engine": "1.2.0"}, "weights ('sha256:ab' → 'absent') differ "),
        ({"engine": "1.2.0", "weights": "sha256:ab", "tp": "2"}, "tp ('absent' → '2') differ "),
        ({"engine": "2"}, "engine ('1.2.0' → '2'), weights ('sha256:ab' → 'absent') "),
    ):
        with pytest.raises(BaselineError) as refusal:
            append_runs(record(H200), [run(throughput=1.0)], fingerprint)
        assert difference in str(refusal.value)
        assert "--mlperf-update=replace" in str(refusal.value)


def test_means_are_geometric_over_the_runs_that_have_the_metric() -> None:
    runs = [run(throughput=1.0, latency_p50=3.0), run(throughput=4.0)]

    assert geometric_means(runs) == pytest.approx({"latency_p50": 3.0, "throughput": 2.0})
    assert geometric_means([]) == {}


@given(st.lists(st.floats(1e-6, 1e6), min_size=1))
def test_a_mean_lies_among_its_values(values: list[float]) -> None:
    mean = geometric_means([run(throughput=value) for value in values])["throughput"]

    assert min(values) * (1 - 1e-9) <= mean <= max(values) * (1 + 1e-9)


def test_a_value_that_cannot_be_judged_is_no_baseline_run() -> None:
    for value in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"metric 'throughput' is {value!r}; must be positive"):
            run(throughput=value)
    for within_se in (-0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"within_se of 'throughput' is {within_se!r}; must"):
            replace(run(throughput=1.0), within_se={"throughput": within_se})


def test_a_record_without_runs_and_two_of_the_same_hardware_are_refused() -> None:
    with pytest.raises(ValueError, match="a record needs at least one run"):
        replace(record(H200), runs=())
    with pytest.raises(ValueError, match=r"records\[0\] and records\[2\] are of the same identity"):
        baseline(record(H200), record(CAPPED), record({**H200, "cooling": None}))
