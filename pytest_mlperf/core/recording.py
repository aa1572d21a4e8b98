"""Make baseline records from runs, and say what changed since."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

from pytest_mlperf.core.baseline import (
    Accepted,
    Baseline,
    BaselineRun,
    HistoryEntry,
    Record,
    append_runs,
    changed_keys,
    geometric_means,
)
from pytest_mlperf.core.case import Case
from pytest_mlperf.core.contention import late_share
from pytest_mlperf.core.measurement import Run, Subject
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.numbers import change, percent, plural
from pytest_mlperf.core.rulings.ruling import values
from pytest_mlperf.core.rulings.sample import sharing
from pytest_mlperf.core.verdict import GateState, MetricBaseline, MetricVerdict, Outcome, Verdict
from pytest_mlperf.judge import rule_r
from pytest_mlperf.judge.formulas import raw
from pytest_mlperf.judge.inputs import DAYS


def same_day(record: Record) -> str | None:
    """Return that the last session adds no day, as another is of its day and machine, or None."""
    groups, last = record.groups, record.runs[-1]
    if list(groups.values()).count(groups[last.session]) < 2:
        return None
    return f"not counted as a new day: the baseline already has a session of {last.started[:10]}"


def lacking(record: Record) -> str | None:
    """Return what a record of too few days lacks, and how it gets it; None: nothing."""
    has = record.days
    if has >= DAYS:
        return None
    commit = record.runs[-1].commit
    if commit is not None and commit.endswith("+"):
        return (
            f"{has} of {DAYS} days; no session can be added to uncommitted changes ({commit}): "
            "commit them, then record again"
        )
    return (
        f"{has} of {DAYS} days: run the same build with --mlperf-update=missing on "
        f"{plural(DAYS - has, 'more day')}"
    )


def failing_today(
    record: Record, limits: Mapping[str, float], rule: rule_r.RuleR, *, interleaves: bool
) -> str | None:
    """Return how large a drop fails against a record of one day; None if it has more days.

    Args:
        interleaves: The suite names the build of the baseline.
    """
    if record.days > 1 or len(record.runs) < rule_r.GATING_RUNS:
        return None
    drops = []
    for name in filter(record.minimum_detectable_change.__contains__, limits):
        sample = values(record.runs, name, rule.tolerated)
        drop = -rule_r.drop_final_at_once(sample, rule=sharing(rule, name, limits))
        drops.append(f"{change(raw(drop, METRICS[name].direction))} in {METRICS[name].title}")
    smaller = f"a smaller one needs {DAYS} days, or baseline_engine in the suite"
    if interleaves:
        smaller = "a smaller one is measured again, interleaved with the baseline's build"
    return f"today a change of {' or '.join(drops)} fails; {smaller}" if drops else None


Action = Literal["record", "append", "replace"]

APPEND_RUNS = 2
"""A session that is added to a baseline has so many runs (a baseline of 8 is 4 sessions x 2)."""


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
        control=dict(run.hardware.control),
        state=dict(run.hardware.state),
        busy=run.load.contention.share if run.load.contention else None,
        late={
            name: share
            for name, value in run.metrics.items()
            if (share := late_share(name, value, run.load.client))
        },
        warmed=run.hardware.warmed,
        server=dict(run.serving.server),
        requests=dict(run.serving.requests),
        lengths=dict(run.serving.lengths),
        machine=run.hardware.ids,
    )


def empty_baseline(case: Case, *, round_name: str, profile: str) -> Baseline:
    """Return a baseline file of a case that holds no record yet."""
    return Baseline(round=round_name, profile=profile, records=(), **dataclasses.asdict(case))


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
    rule: rule_r.RuleR,
    skips_first_run: bool = False,
) -> Record:
    """Return the record that these runs make, or extend by "append", and what it can prove.

    Where first runs do not count, those of an older record that has them are left out.
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
        skips_first_run=skips_first_run,
    )
    if action == "append" and old:
        base = append_runs(old, tuple(fresh), subject.fingerprint)
        if skips_first_run and not old.skips_first_run:
            first = {run.session: run for run in reversed(old.runs)}
            later = tuple(run for run in old.runs if run is not first[run.session])
            base = dataclasses.replace(base, runs=(*later, *fresh), skips_first_run=True)
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
            metric: rule_r.minimum_detectable_change(
                values(base.runs, metric, rule.tolerated), rule=rule
            )
            for metric in limits
            if values(base.runs, metric)
        },
        history=(*base.history, entry),
    )


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """Return what differs from the baseline's fingerprint: "engine.version 1.2.0 → 1.2.1"."""
    return tuple(
        f"{key} {before.get(key, 'absent')} → {now.get(key, 'absent')}"
        for key in changed_keys(before, now)
    )


def first_runs(now: Sequence[Run], before: Sequence[BaselineRun]) -> tuple[str, ...]:
    """Return how the first run of now is unlike the first ones of the baseline's sessions, if so.

    One on an accelerator that had not worked yet in its session is not like the later ones. Runs
    are oldest first.
    """
    first = {run.session: run.hardware.warmed for run in reversed(before)}
    ours, theirs = None, set(first.values())
    if now:  # of a session that is recorded already, the first run that it kept
        ours = first.get(now[0].session, now[0].hardware.warmed)
    if ours is None or None in theirs or ours in theirs or not theirs:
        return ()
    words = {True: "after other work", False: "of a session"}
    return (f"machine.first_run {words[not ours]} → {words[ours]}",)


def set_by(history: Sequence[HistoryEntry | Accepted]) -> str | None:
    """Return where a baseline comes from: date, commit and reason of its last entry."""
    if not history:
        return None
    last = history[-1]
    return f"set {last.date}" + (f" at {last.commit}" if last.commit else "") + f': "{last.reason}"'


def recorded(record: Record, limits: Mapping[str, float], runs: int) -> tuple[MetricVerdict, ...]:
    """Return one entry per gated metric of a record that was just written."""
    means = geometric_means(record.runs)
    return tuple(
        MetricVerdict(
            metric=name,
            outcome=Outcome.RECORDED,
            now=means[name],
            limit=limit,
            baseline=MetricBaseline(
                detectable=record.minimum_detectable_change.get(name), runs=len(record.runs)
            ),
            runs=runs,
        )
        for name, limit in limits.items()
        if name in means
    )


def provable(record: Record) -> str:
    """Return the minimum detectable effect of a record: "... regression 4.1 % in samples/s"."""
    shares = record.minimum_detectable_change.items()
    if not shares:
        return "no regression can be detected: too few queries a run for every gated metric"
    shown = ", ".join(f"{percent(share)} in {METRICS[name].title}" for name, share in shares)
    return f"smallest detectable regression {shown}"


def detectable_notes(metrics: Sequence[MetricVerdict]) -> tuple[str, ...]:
    """Return one sentence about the metrics whose baseline cannot prove their limit, if any."""
    unprovable = [
        f"{percent(m.baseline.detectable)} in {METRICS[m.metric].title} (limit {percent(m.limit)})"
        for m in metrics
        if m.baseline.detectable is not None and m.limit and m.baseline.detectable > m.limit
    ]
    if not unprovable:
        return ()
    advice = "add runs (--mlperf-update=append) or widen the limit"
    regression = "the smallest detectable regression is above the limit"
    return (f"{regression}: {', '.join(unprovable)}: {advice}",)


MISSES = 2
"""Runs that miss their latency limit before the rate does not hold; one may be chance."""


def why_never(verdict: Verdict) -> str | None:
    """Return why neither scores nor speed of a verdict may be recorded, or None.

    An expected failure lets a test pass; what it excuses is no baseline all the same.
    """
    if verdict.gate is not None and verdict.gate.state is GateState.FAILED:
        return f"accuracy: {verdict.gate.in_words}"
    missed = sum(run.limit_missed for run in verdict.runs)
    if missed >= MISSES:
        return f"{missed} of {len(verdict.runs)} runs missed their latency limit"
    return None
