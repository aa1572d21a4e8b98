"""State the error guarantees (false alarms, misses) of verdicts against a baseline."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass

from pytest_mlperf.core.baseline import Record
from pytest_mlperf.core.measurement import day_of
from pytest_mlperf.core.numbers import Count, NotNegative, Number
from pytest_mlperf.judge.formulas import scatter
from pytest_mlperf.judge.inputs import DAYS, better_known
from pytest_mlperf.judge.robustness import Why, final_until
from pytest_mlperf.judge.rule_r import RuleR, Value, by_session, log_scale

MISSING_OPTION = "--mlperf-update=missing"

REPLACE_OPTIONS = '--mlperf-update=replace --mlperf-reason "..."'

ACCEPT_OPTIONS = '--mlperf-update=replace --mlperf-accept-regression --mlperf-reason "..."'

APPEND_OPTIONS = '--mlperf-update=append --mlperf-reason "..."'


@dataclass(frozen=True, kw_only=True, slots=True)
class Guarantee:
    """Hold the error guarantee of verdicts against a baseline, and the data behind it.

    Attributes:
        lacks: Why the between-session variance is unknown: "few sessions", or only "old" ones; None
            if it is known. A verdict that depends on the unknown variance is PROVISIONAL.
        runs: Number of runs of the baseline.
        sessions: Number of pytest sessions with these runs.
        days: Number of days with sessions; each machine counts its days separately.
        age_days: Days since the last session; None if unknown.
        run_sd: Relative standard deviation of runs within a session; None if no run has the metric.
        calibrated: Whether `run_sd` was measured on this machine.
        final_until: Last day (UTC) on which a verdict can be final; None if unknown or never final.
    """

    lacks: Why | None
    runs: Count
    sessions: Count
    days: Count
    age_days: Number | None
    run_sd: NotNegative | None
    calibrated: bool = False
    final_until: str | None = None


def guarantee(
    record: Record, rule: RuleR, *, metric: str | None = None, calibrated: bool, now: dt.datetime
) -> Guarantee:
    """Return the error guarantee of verdicts on `metric` (None: the first) against a baseline."""
    gated = metric or next(iter(record.minimum_detectable_change), None)
    values = [math.log(run.metrics.get(gated or "", 1.0)) for run in record.runs]
    days = [day_of(run.started) for run in record.runs]
    until, today = final_until(zip(days, values, strict=True)), now.timestamp() / 86_400
    last = max((day for day in days if day is not None), default=None)
    noise = better_known(record.noise_of(gated), rule.session_noise)
    seen = max(record.days - 1.0, noise.df if noise else 0.0)
    old = until is not None and today >= until + 1
    lacks: Why | None = "few sessions" if seen < DAYS - 1 else "old" if old else None
    ends = until is not None and lacks != "few sessions" and record.days > 1
    return Guarantee(
        lacks=lacks,
        runs=len(record.runs),
        sessions=len(record.sessions),
        days=record.days,
        age_days=None if last is None else round(max(today - last, 0.0), 1),
        run_sd=run_sd(record, gated, rule) if gated else None,
        calibrated=calibrated,
        final_until=f"{dt.date(1970, 1, 1) + dt.timedelta(days=until or 0)}" if ends else None,
    )


def run_sd(record: Record, metric: str, rule: RuleR) -> float | None:
    """Return the sd of log metric in sessions, moderated by rule R's prior; None without runs."""
    there = [run for run in record.runs if metric in run.metrics]
    if not there:
        return None
    runs = [Value(value=run.metrics[metric], session=run.session) for run in there]
    spread = scatter(by_session(runs, log_scale()))
    return math.sqrt(rule.inside_sessions(spread.inside, spread.run_df)[0])
