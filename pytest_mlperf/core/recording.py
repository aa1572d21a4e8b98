"""Create baseline records from runs, and report changes since a record."""

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
from pytest_mlperf.core.notes import Note, NoteKey
from pytest_mlperf.core.rulings.ruling import is_worse, rule_values
from pytest_mlperf.core.rulings.sample import curve_rule
from pytest_mlperf.core.verdict import GateState, MetricBaseline, MetricVerdict, Outcome, Verdict
from pytest_mlperf.judge import rule_r
from pytest_mlperf.judge.formulas import to_relative_change
from pytest_mlperf.judge.inputs import DAYS


def same_day_note(record: Record) -> Note | None:
    """Return a note if the record's last session shares its day with another one; else None."""
    groups, last = record.groups, record.runs[-1]
    if list(groups.values()).count(groups[last.session]) < 2:
        return None
    return Note.of("same_day", day=last.started[:10])


def missing_days_advice(record: Record) -> Note | None:
    """Return advice if a record's sessions are on fewer than `DAYS` days; else None."""
    has = record.days
    if has >= DAYS:
        return None
    commit = record.runs[-1].commit
    if commit is not None and commit.endswith("+"):
        return Note.of("days_uncommitted", days=has, needed=DAYS, commit=commit)
    return Note.of("days_missing", days=has, needed=DAYS, more=DAYS - has)


def one_day_note(
    record: Record, limits: Mapping[str, float], rule: rule_r.RuleR, *, interleaves: bool
) -> Note | None:
    """Return a note on the drops that fail even on a baseline of one day; None for more days.

    `interleaves`: the note says that interleaved runs, not more days, decide smaller drops.
    """
    if record.days > 1 or len(record.runs) < rule_r.GATING_RUNS:
        return None
    drops = []
    for name in filter(record.minimum_detectable_change.__contains__, limits):
        sample = rule_values(record.runs, name, rule.tolerated)
        drop = -rule_r.drop_final_at_once(sample, rule=curve_rule(rule, name, limits))
        moved = to_relative_change(drop, METRICS[name].direction)
        drops.append(Note.of("change_in", change=moved, metric=name))
    smaller: NoteKey = "smaller_interleaved" if interleaves else "smaller_days"
    note = Note.of(smaller, needed=DAYS)
    return Note.of("fails_today", drops=tuple(drops), note=note) if drops else None


Action = Literal["record", "append", "replace"]

APPEND_RUNS = 2
"""Runs of a session that is added to a baseline (a baseline of 8 is 4 sessions x 2)."""


def baseline_run(run: Run) -> BaselineRun:
    """Convert a run to a baseline run, without energy metrics that may not be judged."""
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
    """Return a baseline file of a case, without records."""
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
    """Return a baseline record of `fresh` runs; with action "append", `old` with them added."""
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
                rule_values(base.runs, metric, rule.tolerated), rule=rule
            )
            for metric in limits
            if rule_values(base.runs, metric)
        },
        history=(*base.history, entry),
    )


MIN_STEP_SHARE = 0.1
"""A step of a smaller share of its limit is not called worse."""


def value_change(metric: str, before: float | None, after: float) -> Note:
    """Return a note on the change of a baseline value; `before` is None if there was no value."""
    return Note.of("step", metric=metric, old=before, new=after)


def worsened(
    old: Sequence[BaselineRun], new: Sequence[BaselineRun], limits: Mapping[str, float]
) -> list[Note]:
    """Return a note per metric in `limits` that `new` lacks, or whose geometric mean got worse."""
    before, after = geometric_means(old), geometric_means(new)
    worse = []
    for metric in filter(before.__contains__, limits):
        if metric not in after:
            worse.append(Note.of("metric_lost", metric=metric))
            continue
        counts = abs(after[metric] / before[metric] - 1) > limits[metric] * MIN_STEP_SHARE
        if counts and is_worse(metric, before[metric], after[metric]):
            worse.append(value_change(metric, before[metric], after[metric]))
    return worse


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, ...]:
    """Return the changes since the baseline's fingerprint: "engine.version 1.2.0 → 1.2.1"."""
    return tuple(
        f"{key} {old.get(key, 'absent')} → {new.get(key, 'absent')}"
        for key in changed_keys(old, new)
    )


def first_run_change(
    current_runs: Sequence[Run], baseline_runs: Sequence[BaselineRun]
) -> tuple[str, ...]:
    """Return a note, or (), if tests ran before the first run only now or only in the baseline."""
    first = {run.session: run.hardware.warmed for run in reversed(baseline_runs)}
    ours, theirs = None, set(first.values())
    if current_runs:  # for a session that is already recorded: its first recorded run
        ours = first.get(current_runs[0].session, current_runs[0].hardware.warmed)
    if ours is None or None in theirs or ours in theirs or not theirs:
        return ()
    words = {True: "after other tests", False: "at session start"}
    return (f"machine.first_run {words[not ours]} → {words[ours]}",)


def acceptance_text(history: Sequence[HistoryEntry | Accepted]) -> str | None:
    """Return text on the last acceptance: date, commit and reason; None without acceptances."""
    if not history:
        return None
    last = history[-1]
    return f"set {last.date}" + (f" at {last.commit}" if last.commit else "") + f': "{last.reason}"'


def recorded_verdicts(
    record: Record, limits: Mapping[str, float], new_runs: int
) -> tuple[MetricVerdict, ...]:
    """Return RECORDED for each metric in `limits`, after `new_runs` runs were added to `record`."""
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
            runs=new_runs,
        )
        for name, limit in limits.items()
        if name in means
    )


def detectable_effects(record: Record) -> Note:
    """Return a note on the smallest drop of each metric that the record can prove."""
    shares = record.minimum_detectable_change.items()
    parts = [Note.of("detectable", share=s, metric=name, limit=None) for name, s in shares]
    return Note.of("provable", shares=tuple(parts)) if parts else Note.of("nothing_provable")


def detectable_notes(metrics: Sequence[MetricVerdict]) -> tuple[Note, ...]:
    """Return a note on metrics whose limit is below the minimum detectable effect."""
    unprovable = tuple(
        Note.of("detectable", share=m.baseline.detectable, metric=m.metric, limit=m.limit)
        for m in metrics
        if m.baseline.detectable is not None and m.limit and m.baseline.detectable > m.limit
    )
    return (Note.of("not_provable", shares=unprovable),) if unprovable else ()


MISSES = 2
"""Runs that miss their latency limit before the rate counts as too high; one may be chance."""


def recording_obstacle(verdict: Verdict) -> Note | None:
    """Return why a verdict's scores and speed may not be recorded, or None if they may."""
    if verdict.gate is not None and verdict.gate.state is GateState.FAILED:
        return verdict.gate.note
    missed = sum(run.limit_missed for run in verdict.runs)
    if missed >= MISSES:
        return Note.of("limit_missed", count=missed, of=len(verdict.runs))
    return None
