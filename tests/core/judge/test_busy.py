"""When a drop is the machine's load: what it took is given back, at most."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.baseline import BaselineRun
from pytest_mlperf.core.contention import Contention
from pytest_mlperf.core.judge.disturbance import busy_drop, busy_miss, excess, explains, usual_share
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.verdict import MetricVerdict, Outcome
from tests.core.made import make_baseline_run, make_run


def run(share: float | None, **metrics: float) -> Run:
    seen = Contention(window_s=10.0, cores=2, foreign_s=4.0, share=share)
    return make_run(metrics=metrics or {"throughput": 100.0}, contention=seen)


def kept(busy: float | None) -> BaselineRun:
    return make_baseline_run(busy=busy)


def fell(
    change: float, low: float, high: float, name: str = "throughput", p: float | None = None
) -> MetricVerdict:
    outcome = Outcome.PERF_DROP if p is None else Outcome.INCONCLUSIVE
    return MetricVerdict(
        metric=name, outcome=outcome, now=1.0, baseline=1.0, change=change, low=low, high=high,
        limit=0.1, runs_baseline=8, p=p,
    )  # fmt: skip


def test_what_is_given_back() -> None:
    """Only what is beyond the baseline's own load."""
    drop, slower = (-0.12, -0.14, -0.10), (0.3, 0.24, 0.4)
    for metric, share, expected in (
        (fell(*drop), 0.11, True),
        (fell(*drop), 0.09, False),
        (fell(*drop), 0.0, False),
        (fell(-0.50, -0.55, -0.45), 0.20, False),
        # A latency that grew by 25 % is 20 % of the speed.
        (fell(*slower, "tpot_p50"), 0.20, True),
        (fell(*slower, "ttft_p99"), 0.005, True),
        (fell(*slower, "ttft_p99"), 0.002, False),
        (fell(*slower, "ttft_p90"), 0.03, True),
        (fell(*slower, "ttft_p90"), 0.02, False),
        # One that others may make a drop is measured by the narrower interval they use.
        (fell(-0.03, -0.07, 0.01, p=0.01), 0.003, False),
        (fell(-0.03, -0.07, 0.01, p=0.01), 0.007, True),
    ):
        assert explains(metric, share) is expected, (metric, share)

    beyond = excess([run(0.1), run(0.2)], [kept(0.04), kept(0.05), kept(None)])

    assert beyond == pytest.approx(0.105)
    assert excess([run(0.1)], [kept(0.3)]) == 0
    assert excess([run(None)], []) == 0
    assert usual_share([kept(None)]) == 0


def test_a_drop_that_the_load_explains_is_none_and_a_limit_made_late_is_not_missed() -> None:
    small, large = fell(-0.12, -0.14, -0.10), fell(-0.5, -0.6, -0.4)
    late = run(0.01, latency_p99=0.15)

    said = busy_drop([small], [run(0.11), run(0.13)], [])
    assert said == ("the machine was busy, which explains up to 12 %: others used 0.4 of 2 cores")
    assert busy_drop([small, large], [run(0.12)], []) is None  # one stays whatever the load took
    assert busy_drop([small], [run(0.12)], [kept(0.1)]) is None
    assert busy_drop([], [run(0.12)], []) is None
    assert busy_drop([small], [], []) is None
    assert busy_miss([late, late], {"latency_p99": 0.1}, [])
    assert busy_miss([late], {"latency_p99": 0.05}, []) is None
    assert busy_miss([run(0.0, latency_p99=0.15)], {"latency_p99": 0.1}, []) is None
    assert busy_miss([late], {}, []) is None


@given(st.floats(-0.9, -0.001), st.floats(0, 1), st.floats(0, 0.5))
def test_more_load_explains_more(change: float, share: float, more: float) -> None:
    metric = fell(change, change * 1.1, change * 0.9)
    if explains(metric, share):
        assert explains(metric, min(1.0, share + more))
