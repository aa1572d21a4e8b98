"""Determine which runs have a value of a metric, and report runs without a value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from pytest_mlperf.core.baseline import BaselineRun, Record, geometric_means
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.metrics import METRICS, point_of
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.reason import SignKey
from pytest_mlperf.core.verdict import MetricBaseline, MetricVerdict, Outcome
from pytest_mlperf.judge.rule_r import GATING_RUNS, RuleR

Judge = Callable[[Sequence[Run]], tuple[MetricVerdict, bool]]
"""Returns the verdict on runs that all have a metric, and whether one more could decide it."""

ZEROS_PROVE = 2
"""Runs of 0, the worst result without a logarithm, that prove a drop; one run alone never does."""


def absent(runs: Sequence[Run], metric: str) -> list[int]:
    """Return the numbers (from 1) of the runs without a value of a metric; 0 is a value."""
    return [
        place
        for place, run in enumerate(runs, start=1)
        if metric not in run.metrics and metric not in run.zero
    ]


def missing(runs: Sequence[Run], metric: str) -> Note | None:
    """Return a note on the runs that lack a metric; None if all runs have the metric."""
    if not (lacking := absent(runs, metric)):
        return None
    held = buffered(runs, metric)
    return Note.of("missing", runs=tuple(lacking), of=len(runs), buffered=held)


def buffered(runs: Sequence[Run], metric: str) -> bool:
    """Check whether a run lacks a metric because streamed tokens arrived all at once."""
    lacking = [runs[place - 1] for place in absent(runs, metric)]
    return any(sign.key is SignKey.ANSWERS_BUFFERED for run in lacking for sign in run.signs)


def ungated(runs: Sequence[Run], limits: Collection[str], record: Record | None) -> set[str]:
    """Return gated metrics that `runs` (tokens came at once) and `record` lack; empty if all do."""
    recorded = {name for run in (record.runs if record else ()) for name in run.metrics}
    held = {name for name in limits if name not in recorded and buffered(runs, name)}
    return held if len(held) < len(limits) else set()


def zero_note(runs: Sequence[Run], metric: str, baseline: float | None = None) -> Note | None:
    """Return a note on how many runs measured 0, with the `baseline` value; None if none did."""
    count = sum(metric in run.zero for run in runs)
    values = {"metric": metric, "count": count, "of": len(runs), "baseline": baseline}
    return Note.of("zero", **values) if count else None


def countable(
    runs: Sequence[Run], limits: Mapping[str, float], record: Record | None = None
) -> dict[str, float]:
    """Return `limits` with enough queries in `runs` or `record`, without the `ungated` metrics."""
    counted = {
        name: limit
        for name, limit in limits.items()
        if fewest_queries(runs, name) >= METRICS[name].min_queries or _stays(runs, name, record)
    }
    held = ungated(runs, counted, record)
    return {name: limit for name, limit in counted.items() if name not in held}


def too_few(runs: Sequence[Run], metric: str, record: Record | None) -> Note | None:
    """Return a note if runs have too few queries for a metric, or None."""
    count, needed = fewest_queries(runs, metric), METRICS[metric].min_queries
    if count >= needed:
        return None
    if record is None or not _stays(runs, metric, record):
        return Note.of("few_queries", needed=needed)
    recorded = _baseline_queries(runs, metric, record)
    return Note.of("fewer_queries", count=count, needed=needed, baseline=recorded)


def only_reported(
    runs: Sequence[Run], limits: Mapping[str, float], record: Record | None = None
) -> tuple[Note, ...]:
    """Return notes on limits not gated because of too few queries or of buffered answers."""
    gated = countable(runs, limits, record)
    left_out = [name for name in limits if name not in gated]
    held = tuple(name for name in left_out if buffered(runs, name))
    few = (
        Note.of("only_reported", metric=name, needed=METRICS[name].min_queries)
        for name in left_out
        if name not in held
    )
    return (*([Note.of("not_gated", metrics=held)] if held else []), *few)


def unrecordable(
    runs: Sequence[Run], limits: Mapping[str, float], record: Record | None
) -> Note | None:
    """Return why runs cannot be a baseline for the gated metrics; None if they can."""
    for name in countable(runs, limits, record):
        counted = record is not None and _baseline_queries(runs, name, record) is not None
        few = too_few(runs, name, record) if counted else None
        if reason := missing(runs, name) or few or zero_note(runs, name):
            return Note.of("of_metric", metric=name, note=reason)
    return None


def partial_metric_notes(record: Record | None, limits: Mapping[str, float]) -> tuple[Note, ...]:
    """Return a note for each gated metric that only some runs of a baseline record have."""
    runs = record.runs if record else ()
    counts = {name: sum(name in run.metrics for run in runs) for name in limits}
    return tuple(
        Note.of("in_part", metric=name, count=count, of=len(runs))
        for name, count in counts.items()
        if 0 < count < len(runs)
    )


def remedies(
    runs: Sequence[Run], limits: Mapping[str, float], record: Record | None
) -> tuple[Note, ...]:
    """Return advice for each gated metric that these runs lack or have too few queries for."""
    notes, gated = [], countable(runs, limits, record)
    if held := tuple(name for name in gated if buffered(runs, name)):
        notes.append(Note.of("gated_buffered", metrics=held))
    for name in limits:
        if buffered(runs, name):  # reported above, or not gated
            continue
        if lacking := absent(runs, name):
            values = {"note": missing(runs, name), "folder": runs[lacking[0] - 1].folder}
            notes.append(Note.of("gated_missing", metric=name, **values))
        elif _stays(runs, name, record) and (few := too_few(runs, name, record)):
            notes.append(Note.of("left_out", metric=name, note=few))
    return tuple(notes)


# --- verdicts ------------------------------------------------------------------------------------


def unmeasured(metric: str, limit: float, note: Note) -> MetricVerdict:
    """Return an INVALID verdict on a metric that some runs lack."""
    return MetricVerdict(metric=metric, outcome=Outcome.INVALID, now=None, limit=limit, note=note)


def adjust_for_few_queries(
    verdict: MetricVerdict, note: Note, drop_outcome: Outcome
) -> MetricVerdict:
    """Add `note` on too few queries; set all but (likely) drops to INVALID or INCONCLUSIVE."""
    if verdict.outcome is drop_outcome or verdict.direction == "drop":
        return replace(verdict, note=verdict.note or note)
    gates = verdict.baseline.runs >= GATING_RUNS
    outcome = Outcome.INVALID if gates else Outcome.INCONCLUSIVE
    return replace(verdict, outcome=outcome, low=None, high=None, direction=None, note=note, p=None)


def judge_zeros(
    metric: str,
    limit: float,
    runs: Sequence[Run],
    record: Record,
    judge: Judge,
    failing: Outcome,
    max_runs: int,
) -> tuple[MetricVerdict, bool]:
    """Judge a metric that is 0 in some runs (two prove a drop); return (verdict, one more run?)."""
    first = next(index for index, run in enumerate(runs) if metric in run.zero)
    others = [run for run in runs if metric in run.metrics]
    count = len(runs) - len(others)
    if first > 0 and count == 1:
        decided, more = judge(runs[:first])
        if not more:
            return decided, False
    dropped = count >= ZEROS_PROVE or (bool(others) and judge(others)[0].outcome is failing)
    having = sum(metric in run.metrics for run in record.runs)
    more = not dropped and len(runs) < max_runs
    unproven = Outcome.INCONCLUSIVE if more or having < GATING_RUNS else Outcome.INVALID
    baseline = geometric_means(record.runs)[metric]
    verdict = MetricVerdict(
        metric=metric,
        outcome=failing if dropped and having >= GATING_RUNS else unproven,
        baseline=MetricBaseline(value=baseline, runs=having),
        now=0.0,
        change=-1.0,
        limit=limit,
        runs=len(runs),
        note=zero_note(runs, metric, baseline),
        p=0.0 if dropped else 1.0,
    )
    return verdict, more


# --- queries -------------------------------------------------------------------------------------


def _stays(runs: Sequence[Run], metric: str, record: Record | None) -> bool:
    if record is None or metric not in record.minimum_detectable_change:
        return False
    recorded = _baseline_queries(runs, metric, record)
    return recorded is None or recorded >= METRICS[metric].min_queries


def _baseline_queries(runs: Sequence[Run], metric: str, record: Record) -> int | None:
    """Return the fewest queries of a baseline run; an estimate for old records, None if unknown."""
    counts = [count for run in record.runs if (count := _queries(run, metric)) is not None]
    if counts or any(run.serving.requests for run in runs):
        return min(counts, default=None)
    least = min(runs, key=lambda run: run.queries, default=None)
    samples = min(run.samples for run in record.runs)
    return 0 if least is None else round(samples * least.queries / max(1, least.samples))


def _queries(run: Run | BaselineRun, metric: str) -> int | None:
    if run.serving.requests:
        return run.serving.requests.get(
            metric.partition("@")[2], min(run.serving.requests.values())
        )
    return run.queries if isinstance(run, Run) else None


def fewest_queries(runs: Sequence[Run], metric: str) -> int:
    """Return the smallest number of queries that any of the runs has for a metric."""
    return min((_queries(run, metric) or 0 for run in runs), default=0)


def curve_rule(rule: RuleR, metric: str, limits: Collection[str]) -> RuleR:
    """Return the rule for one metric of a curve, which fails by its mean or any of its points.

    The mean gets half of the false-alarm probability; the points share the other half equally.
    """
    points = [name for name in limits if point_of(name) is not None]
    if not points:
        return rule
    alike = len(points) if point_of(metric) is not None else len(limits) - len(points)
    return rule.shared(2 * alike)
