"""What the commands say of rates that were found."""

from __future__ import annotations

import dataclasses

from pytest_mlperf.cli.compare import compare_case
from pytest_mlperf.cli.measured import Measured, why_not
from pytest_mlperf.core.baseline import BaselineRun
from pytest_mlperf.core.case import Case
from pytest_mlperf.core.trend import TrendPoint, why_no_ratio
from pytest_mlperf.core.verdict import Outcome
from tests.cli.test_compare import one
from tests.reports.verdicts import SUBJECT

CASE = Case(workload="w", scenario="Server", engine="e", precision="fp8", accelerator="H200")


def measured(find: str | None, *rates: float, offered: float | None = None) -> Measured:
    """Return a side that found these rates, or measured at one that was offered."""
    fingerprint = {"engine": "e", **({"find": find} if find else {})}
    limits = {"throughput": 0.03}
    return one(*rates, case=CASE, fingerprint=fingerprint, rate=offered, limits=limits)


def point(find: str | None) -> TrendPoint:
    return TrendPoint(
        date="2026-11-21",
        commit="",
        reason="",
        case=CASE,
        profile="quick",
        identity=SUBJECT.identity,
        fingerprint={"engine": "e", **({"find": find} if find else {})},
        rate=None,
        means={"throughput": 40.0},
        runs=(
            BaselineRun(
                metrics={"throughput": 40.0},
                within_se={},
                session="s",
                started="2026-11-21T12:00:00+00:00",
                samples=1000,
                duration_s=60.0,
                commit=None,
            ),
        ),
    )


def test_rates_found_under_other_conditions_are_not_compared() -> None:
    a, differs = "ttft_p99 < 1 s", "the condition of the rate differs: ttft_p99 < 1 s →"
    for b, reason in {
        a: "",
        "ttft_p99 < 2 s": f"{differs} ttft_p99 < 2 s",
        None: f"{differs} offered",
    }.items():
        offered = None if b else 40.0
        assert why_not(measured(a, 40.0), measured(b, 40.0, offered=offered)) == reason
        expected = (reason,) if reason else ()
        assert why_no_ratio(point(a), point(b), "throughput") == expected
    bare = dataclasses.replace(point(None), fingerprint={})
    assert why_no_ratio(bare, point(a), "throughput") == ()


def test_rates_found_are_judged_like_any_throughput() -> None:
    find = "ttft_p99 < 1 s"
    a = measured(find, *(40 + 0.1 * (-1) ** n for n in range(8)))
    b = measured(find, *(36.4 + 0.1 * (-1) ** n for n in range(8)))
    found = compare_case(a, b, lambda side, _: side.limits or {})
    assert found.outcome is Outcome.PERF_DROP
    assert [metric.metric for metric in found.metrics] == ["throughput"]
