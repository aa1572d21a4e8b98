"""Make baseline records from runs, and say what changed since."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

from pytest_mlperf.core.accuracy_baseline import Accepted
from pytest_mlperf.core.baseline import (
    Baseline,
    BaselineRun,
    HistoryEntry,
    Record,
    append_runs,
    geometric_means,
)
from pytest_mlperf.core.case import Case
from pytest_mlperf.core.judge.rule_r import RuleR, minimum_detectable_change
from pytest_mlperf.core.judge.ruling import values
from pytest_mlperf.core.measurement import Run, Subject
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.numbers import percent
from pytest_mlperf.core.verdict import MetricVerdict, Outcome

Action = Literal["record", "append", "replace"]


def baseline_run(run: Run) -> BaselineRun:
    """Return what a baseline keeps of a run: no energy that may not be judged."""
    return BaselineRun(
        metrics={name: value for name, value in run.metrics.items() if run.may_judge(name)},
        within_se=dict(run.within_se),
        session=run.session,
        started=run.started,
        samples=run.samples,
        duration_s=run.duration_s,
        commit=run.commit,
        control=dict(run.control),
        state=dict(run.state),
    )


def empty_baseline(case: Case, *, round_name: str, profile: str) -> Baseline:
    """Return a baseline file of a case that holds no record yet."""
    return Baseline(
        round=round_name,
        profile=profile,
        workload=case.workload,
        scenario=case.scenario,
        engine=case.engine,
        precision=case.precision,
        accelerator=case.accelerator,
        records=(),
    )


def new_record(
    fresh: Sequence[BaselineRun],
    old: Record | None,
    *,
    action: Action,
    reason: str,
    subject: Subject,
    target_qps: float | None,
    qps_source: Literal["suite", "probe"] | None,
    limits: Mapping[str, float],
    rule: RuleR,
) -> Record:
    """Return the record that these runs make, with its history and what it can prove.

    Args:
        fresh: The runs to keep, oldest first.
        old: The record they replace or are appended to.
        action: "append" keeps the old runs.
        reason: Why, in the user's words.
        subject: Machine, engine and data of the fresh runs.
        target_qps: The rate they were offered or sized by.
        qps_source: Where that rate comes from.
        limits: Gated metrics; what can be proven is computed for these.
        rule: Settings of rule R.

    Raises:
        BaselineError: Runs of another engine, weights, options or data cannot be appended.
    """
    base = Record(
        identity=dict(subject.identity),
        target_qps=target_qps,
        qps_source=qps_source,
        fingerprint=dict(subject.fingerprint),
        runs=tuple(fresh),
        minimum_detectable_change={},
        history=old.history if old else (),
        surroundings=dict(subject.surroundings),
    )
    if action == "append" and old:
        base = append_runs(old, tuple(fresh), subject.fingerprint)
    entry = HistoryEntry(
        date=fresh[-1].started[:10],
        commit=fresh[-1].commit,
        reason=reason,
        action=action,
        runs=len(base.runs),
        old=geometric_means(old.runs) if old else {},
        new=geometric_means(base.runs),
    )
    return dataclasses.replace(
        base,
        minimum_detectable_change={
            metric: minimum_detectable_change(values(base.runs, metric), rule=rule)
            for metric in limits
            if values(base.runs, metric)
        },
        history=(*base.history, entry),
    )


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """Return what differs from the baseline's fingerprint: "engine.version 1.2.0 → 1.2.1"."""
    return tuple(
        f"{key} {before.get(key, 'absent')} → {now.get(key, 'absent')}"
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key)
    )


def set_by(history: Sequence[HistoryEntry | Accepted]) -> str | None:
    """Return where a baseline comes from: date, commit and reason of its last entry."""
    if not history:
        return None
    last = history[-1]
    return f"set {last.date}" + (f" at {last.commit}" if last.commit else "") + f': "{last.reason}"'


def recorded(record: Record, limits: Mapping[str, float], runs: int) -> tuple[MetricVerdict, ...]:
    """Return one entry per gated metric of a record that was just written.

    Args:
        record: The record.
        limits: Gated metrics with their limits.
        runs: Runs made for it in this session.
    """
    means = geometric_means(record.runs)
    return tuple(
        MetricVerdict(
            metric=name,
            outcome=Outcome.RECORDED,
            now=means[name],
            limit=limit,
            detectable=record.minimum_detectable_change.get(name),
            runs=runs,
            runs_baseline=len(record.runs),
        )
        for name, limit in limits.items()
        if name in means
    )


def provable(record: Record) -> str:
    """Return what a record can prove: "can prove changes of 4.1 % in samples/s"."""
    shares = record.minimum_detectable_change.items()
    shown = ", ".join(f"{percent(share)} in {METRICS[name].title}" for name, share in shares)
    return f"can prove changes of {shown}"


def detectable_notes(metrics: Sequence[MetricVerdict]) -> tuple[str, ...]:
    """Return a sentence for each metric whose baseline cannot prove its own limit."""
    return tuple(filter(None, map(detectable_note, metrics)))


def detectable_note(metric: MetricVerdict) -> str | None:
    """Say when a baseline cannot prove its own limit."""
    if metric.detectable is None or not metric.limit or metric.detectable <= metric.limit:
        return None
    return (
        f"{metric.metric}: can prove changes of {percent(metric.detectable)} and more, "
        f"the limit is {percent(metric.limit)}: record a longer baseline "
        "(--mlperf-update=append) or widen it"
    )
