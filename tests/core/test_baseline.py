from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pytest_mlperf.core.baseline import (
    Baseline,
    BaselineRun,
    Difference,
    Property,
    Record,
    append_runs,
    find_record,
    geometric_means,
    nearest,
    with_record,
)
from pytest_mlperf.core.case import Scenario
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
        scenario=Scenario.OFFLINE,
        engine="ort",
        precision="fp32",
        accelerator="H200",
        records=records,
    )


H200: dict[str, Property] = {"name": "H200", "memory_gb": 141, "mig": False, "power_limit_w": 700}
CAPPED: dict[str, Property] = {**H200, "power_limit_w": 500}
MIG: dict[str, Property] = {**CAPPED, "mig": True}


def test_a_record_is_found_by_equal_hardware_or_differs_in_the_fewest_properties() -> None:
    """A property that one side does not name is unknown."""
    theirs, capped = record(H200), record(CAPPED)
    mig = Difference(name="mig", theirs=False, ours=True)
    cooling = Difference(name="cooling", theirs=None, ours="water")
    limit = Difference(name="power_limit_w", theirs=500, ours=700)
    wet: dict[str, Property] = {**H200, "cooling": "water"}

    assert find_record(baseline(theirs, capped), dict(CAPPED)) is capped
    assert find_record(baseline(theirs, capped), MIG) is find_record(baseline(), H200) is None
    assert find_record(baseline(theirs), {**H200, "cooling": None}) is theirs
    assert find_record(baseline(theirs), wet) is None
    assert nearest(baseline(theirs, capped), MIG) == (capped, [mig])
    assert nearest(baseline(capped), wet) == (capped, [cooling, limit])
    assert nearest(baseline(), H200) is None


def test_a_record_replaces_the_one_of_its_hardware_in_place_or_is_added() -> None:
    """Appended runs come last, and the rest stays."""
    first, second = record(H200, run(throughput=1.0)), record(CAPPED)
    new = record(dict(H200), run(throughput=2.0))

    grown = append_runs(first, [run(throughput=2.0)], dict(first.fingerprint))

    assert with_record(baseline(first, second), new).records == (new, second)
    assert with_record(baseline(first), second).records == (first, second)
    assert grown == replace(first, runs=(run(throughput=1.0), run(throughput=2.0)))


def test_runs_of_something_else_are_never_appended() -> None:
    """Means are geometric over the runs that have the metric."""
    for fingerprint, difference in (
        ({"engine": "1.2.1", "weights": "sha256:ab"}, "engine ('1.2.0' → '1.2.1') changed "),
        ({"engine": "1.2.0"}, "weights ('sha256:ab' → 'absent') changed "),
        ({"engine": "1.2.0", "weights": "sha256:ab", "tp": "2"}, "tp ('absent' → '2') changed "),
        ({"engine": "2"}, "engine ('1.2.0' → '2'), weights ('sha256:ab' → 'absent') "),
    ):
        with pytest.raises(BaselineError) as refusal:
            append_runs(record(H200), [run(throughput=1.0)], fingerprint)
        assert difference in str(refusal.value)
        assert "--mlperf-update=replace" in str(refusal.value)

    runs = [run(throughput=1.0, latency_p50=3.0), run(throughput=4.0)]

    assert geometric_means(runs) == pytest.approx({"latency_p50": 3.0, "throughput": 2.0})
    assert geometric_means([]) == {}


def test_a_value_that_cannot_be_judged_is_no_baseline_run_and_a_record_needs_one() -> None:
    for value in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"metric 'throughput' is {value!r}; must be positive"):
            run(throughput=value)
    for within_se in (-0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"within_se of 'throughput' is {within_se!r}; must"):
            replace(run(throughput=1.0), within_se={"throughput": within_se})
    with pytest.raises(ValueError, match="a record needs at least one run"):
        replace(record(H200), runs=())
    with pytest.raises(ValueError, match=r"records\[0\] and records\[2\] are of the same machine"):
        baseline(record(H200), record(CAPPED), record({**H200, "cooling": None}))
