"""Test that error guarantees are fields, with their text in one place."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_mlperf.core.baseline import Record
from pytest_mlperf.core.guarantees import APPEND_OPTIONS, Guarantee, guarantee
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.numbers import percent
from pytest_mlperf.core.recording import missing_days_advice as lacks_sessions
from pytest_mlperf.core.recording import same_day_note
from pytest_mlperf.core.verdict import MetricBaseline, MetricVerdict, Outcome
from pytest_mlperf.judge.inputs import SessionNoise
from pytest_mlperf.judge.robustness import Why
from pytest_mlperf.judge.rule_r import RuleR
from pytest_mlperf.reports.promises import (
    guarantee_of,
    guarantee_text,
    renewal,
    short_guarantee,
)
from tests.core.made import make_baseline_run, make_record

RULE = RuleR(prior_sd=0.005, session_share=0.0)
NOW = dt.datetime(2026, 11, 22, 12, tzinfo=dt.UTC)

RED = "false alarms at most 1 %"

KEPT = "false alarms at most 1 %, misses of a regression as large as the limit at most 5 %"

BETWEEN = f"{KEPT}; a smaller regression may pass or fail"


def record(*days: str, runs: int = 2, commit: str | None = None) -> Record:
    return make_record(
        *(
            make_baseline_run(
                metrics={"throughput": 100.0 * (1 + 0.01 * (-1) ** number)},
                session=f"{session} of {day}",
                started=f"{day}T12:00:00+00:00",
                commit=commit,
            )
            for session, day in enumerate(days)
            for number in range(runs)
        ),
        minimum_detectable_change={"throughput": 0.02},
    )


def of(record_of_baseline: Record) -> Guarantee:
    return guarantee(record_of_baseline, RULE, calibrated=False, now=NOW)


MONDAYS = ("2026-10-26", "2026-11-02", "2026-11-09", "2026-11-16")


def test_four_days_give_the_guarantee_of_rule_r_and_fewer_a_provisional_one() -> None:
    """What stored sessions show counts as days do; sessions of one day are of one."""
    guarantee_found, few = of(record(*MONDAYS)), record(MONDAYS[-1], runs=8)
    noise = SessionNoise(ratio=0.5, df=3.0)
    calibrated = replace(RULE, session_noise=noise)

    assert (
        guarantee_found.lacks,
        guarantee_found.runs,
        guarantee_found.sessions,
        guarantee_found.days,
    ) == (None, 8, 4, 4)
    assert (guarantee_found.age_days, guarantee_found.final_until) == (6.0, "2026-12-07")
    assert short_guarantee(guarantee_found) == "8 runs on 4 days, final until 2026-12-07"
    assert renewal(guarantee_found) == f", final until 2026-12-07 (then renew it: {APPEND_OPTIONS})"
    assert guarantee_text(guarantee_found) == BETWEEN + renewal(guarantee_found)
    for days, runs, brief, cure in (
        (MONDAYS[-1:], 8, "8 runs on 1 day", "3 more days"),
        (MONDAYS[-1:] * 4, 2, "8 runs on 1 day", "3 more days"),
        (MONDAYS[2:] * 2, 2, "8 runs on 2 days", "2 more days"),
        (MONDAYS[1:], 2, "6 runs on 3 days", "1 more day"),
    ):
        guarantee_found = of(record(*days, runs=runs))
        assert (guarantee_found.lacks, short_guarantee(guarantee_found)) == ("few sessions", brief)
        assert guarantee_text(guarantee_found) == (
            f"{RED}; an ok is provisional: it holds if day-to-day variation is below "
            f"{percent(0.8 * (guarantee_found.run_sd or 0))}; to measure it, run on {cure} with "
            "--mlperf-update=missing"
        )
    two = record(*MONDAYS[2:])
    for lacks, made in (("old", few), (None, two)):  # one day speaks for no other
        assert of(replace(made, session_noise={"throughput": noise})).lacks == lacks
        assert guarantee(made, calibrated, calibrated=True, now=NOW).lacks == lacks


BEARS = "if day-to-day variation is below 1.2 %"
MORE = "to measure it, run on 3 more days with --mlperf-update=missing"


def test_a_verdict_names_the_variance_of_sessions_that_it_is_robust_to() -> None:
    """A drop may want more than four sessions, and one of runs in turns none."""

    def words(
        days: Sequence[str], *, provisional: bool = False, lacks: Why | None = None, **fields: Any
    ) -> str:
        usual: dict[str, Any] = {"outcome": Outcome.OK, "now": 1.0, "robust_to": 0.012}
        judged = MetricVerdict(
            metric="throughput", baseline=MetricBaseline(lacks=lacks), **{**usual, **fields}
        )
        guarantee_found = of(record(*days))
        return guarantee_of(guarantee_found, judged, provisional=provisional)

    few: dict[str, Any] = {"lacks": "few sessions"}
    drop = {**few, "outcome": Outcome.PERF_DROP}
    last = MONDAYS[-1:]
    assert words(last, lacks=None) == BETWEEN
    assert words(last, **few, provisional=True) == f"{RED}; provisional: true {BEARS}"
    assert words(last, **few) == f"{KEPT}, {BEARS}; {MORE}"
    assert words(last, lacks="old", provisional=True).endswith(f"provisional: true {BEARS}")
    four = words(MONDAYS, **drop)
    assert four.endswith("; to measure it, run on several other days: pytest-mlperf calibrate")
    assert words(last, **drop, confirmed=True) == BETWEEN


def test_a_baseline_is_old_relative_to_the_span_of_its_sessions() -> None:
    """What runs differ by is that of runs of one session, or unknown."""
    for days, lacks in (
        (["2026-11-13", "2026-11-14", "2026-11-15", "2026-11-16"], None),
        (["2026-11-12", "2026-11-13", "2026-11-14", "2026-11-15"], "old"),
        (["2026-11-07"] * 4, "few sessions"),
        (["2026-09-17", "2026-09-28", "2026-10-14", "2026-10-20"], None),
        (["2026-09-16", "2026-09-28", "2026-10-13", "2026-10-19"], "old"),
        (["2025-08-03"], "few sessions"),
    ):
        guarantee_found = of(record(*days))
        is_old = (
            short_guarantee(guarantee_found).endswith(", too old"),
            APPEND_OPTIONS in guarantee_text(guarantee_found),
        )
        assert (guarantee_found.lacks, is_old) == (lacks, (lacks == "old", lacks != "few sessions"))

    mondays = record(*MONDAYS)
    undated = replace(mondays, runs=tuple(replace(run, started="then") for run in mondays.runs))
    pooled = ((4 * 0.005**2 + 4 * 2 * 0.01**2) / 8) ** 0.5

    assert of(record(*MONDAYS, runs=1)).run_sd == pytest.approx(0.005, rel=1e-3)
    assert of(mondays).run_sd == pytest.approx(pooled, rel=1e-3)
    assert of(undated).age_days is None
    assert guarantee(mondays, RULE, metric="latency_p50", calibrated=True, now=NOW).run_sd is None


def test_sessions_of_one_day_and_few_days_are_named_as_such() -> None:
    two, dirty = record(MONDAYS[0], MONDAYS[0]), record(MONDAYS[0], commit="0123456789ab+")

    assert same_day_note(record(*MONDAYS)) is lacks_sessions(record(*MONDAYS)) is None
    assert same_day_note(record(MONDAYS[0], MONDAYS[0], MONDAYS[1])) is None
    days: dict[str, Any] = {"days": 1, "needed": 4}
    assert same_day_note(two) == Note.of("same_day", day="2026-10-26")
    assert lacks_sessions(record(MONDAYS[0])) == Note.of("days_missing", **days, more=3)
    assert lacks_sessions(dirty) == Note.of("days_uncommitted", **days, commit="0123456789ab+")
