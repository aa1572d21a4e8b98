"""Judge the runs of a case against its baseline record: every metric, then the case."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_mlperf.core.baseline import BaselineRun, Record
from pytest_mlperf.core.judge.rule_r import GATING_RUNS, Decision, Judged, RuleR, Value, judge
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.metrics import EFFICIENCY, METRICS, Direction
from pytest_mlperf.core.numbers import change, interval, limit
from pytest_mlperf.core.verdict import MetricVerdict, Outcome, worst


@dataclass(frozen=True, kw_only=True)
class Ruling:
    """What the runs so far say.

    Attributes:
        outcome: The word for the case.
        metrics: Gated metrics first, then what is only reported.
        more: One more run could decide; the outcome is then not final.
        deciding: The metric that made the outcome, or None.
    """

    outcome: Outcome
    metrics: tuple[MetricVerdict, ...]
    more: bool
    deciding: MetricVerdict | None

    @property
    def headline(self) -> str:
        """What follows the outcome word: metric, change, interval, what is not excluded."""
        metric = self.deciding
        if metric is None:
            return "nothing is gated"
        title = METRICS[metric.metric].title
        if metric.change is None or metric.low is None or metric.high is None or not metric.limit:
            return f"{title}: {metric.note or 'no record of this machine'}"
        shown = f"{title} {change(metric.change)} ({interval(metric.low, metric.high)})"
        bound = limit(metric.metric, metric.limit)
        if self.outcome in {Outcome.OK, Outcome.IMPROVED}:
            why = f"inside {bound}"
        elif self.outcome is Outcome.INCONCLUSIVE:
            why = metric.note or f"{bound} undecided"
        else:
            beyond = _beyond(metric.metric, metric.limit, metric.low, metric.high)
            why = f"{bound} exceeded" if beyond else f"{bound} not excluded"
        return f"{shown}; {why}"


def rule_on(
    runs: Sequence[Run],
    record: Record | None,
    limits: Mapping[str, float],
    rule: RuleR,
    failing: Outcome = Outcome.PERF_DROP,
) -> Ruling:
    """Judge valid runs of one case, oldest first.

    Args:
        runs: At least one run; all valid.
        record: The accepted measurement, or None.
        limits: Gated metrics with their limits, as shares.
        rule: Settings of rule R.
        failing: The word for a proven drop.
    """
    measured = [name for name in METRICS if name in runs[0].metrics and name not in EFFICIENCY]
    gated = [_gated(name, limit, runs, record, rule, failing) for name, limit in limits.items()]
    reported = [_reported(name, runs, record) for name in measured if name not in limits]
    verdicts = [metric for metric, _ in gated]
    outcomes = [metric.outcome for metric in verdicts if metric.outcome is not None]
    # Metrics with too few queries are only reported; a case with no other was not judged.
    outcome = worst(outcomes) if outcomes else Outcome.INCONCLUSIVE
    if outcome is Outcome.OK and Outcome.IMPROVED in outcomes:
        outcome = Outcome.IMPROVED
    own = outcome if outcomes else None
    deciding = next((metric for metric in verdicts if metric.outcome is own), None)
    return Ruling(
        outcome=outcome,
        metrics=(*verdicts, *reported),
        more=any(more for _, more in gated),
        deciding=deciding,
    )


def countable(runs: Sequence[Run], limits: Mapping[str, float]) -> dict[str, float]:
    """Return the limits of the metrics that these runs have enough queries for."""
    fewest = min((run.queries for run in runs), default=0)
    return {name: limit for name, limit in limits.items() if fewest >= METRICS[name].min_queries}


def only_reported(runs: Sequence[Run], limits: Mapping[str, float]) -> tuple[str, ...]:
    """Return a sentence for each limit that these runs have too few queries for."""
    gated = countable(runs, limits)
    return tuple(
        f"{METRICS[name].title} is only reported: to be gated it needs "
        f"{METRICS[name].min_queries:,} queries a run"
        for name in limits
        if name not in gated
    )


def values(runs: Sequence[Run | BaselineRun], metric: str) -> list[Value]:
    """Return what rule R needs of each run, measured or kept, that has the metric."""
    return [
        Value(
            value=run.metrics[metric],
            within_se=run.within_se.get(metric, 0.0),
            session=run.session,
        )
        for run in runs
        if metric in run.metrics
    ]


def _gated(
    name: str,
    limit: float,
    runs: Sequence[Run],
    record: Record | None,
    rule: RuleR,
    failing: Outcome,
) -> tuple[MetricVerdict, bool]:
    """Return the metric's verdict and whether another run could decide it."""
    now = values(runs, name)
    if not now:
        missing = MetricVerdict(
            metric=name, outcome=Outcome.INVALID, now=None, limit=limit, note="not measured"
        )
        return missing, False
    fewest = METRICS[name].min_queries
    if min(run.queries for run in runs) < fewest:
        note = f"under {fewest:,} queries a run, only reported"
        return _reported(name, runs, record, note=note), False
    before = values(record.runs, name) if record else []
    if not before:
        note = "the baseline has no such metric" if record else ""
        new = MetricVerdict(
            metric=name,
            outcome=Outcome.NO_BASELINE,
            now=_mean(now),
            limit=limit,
            runs=len(now),
            note=note,
        )
        return new, False
    judged = judge(before, now, direction=METRICS[name].direction, limit=limit, rule=rule)
    outcome, note = _word(judged, failing)
    verdict = MetricVerdict(
        metric=name,
        outcome=outcome,
        baseline=_mean(before),
        now=_mean(now[: judged.runs_used]),
        change=judged.change,
        low=judged.low,
        high=judged.high,
        limit=limit,
        detectable=judged.mde,
        runs=judged.runs_used,
        runs_baseline=len(before),
        note=note,
    )
    return verdict, judged.decision is Decision.MORE


def _word(judged: Judged, failing: Outcome) -> tuple[Outcome, str]:
    advice = f"advisory: {judged.runs_baseline} of {GATING_RUNS} baseline runs"
    note = advice if judged.advisory else ""
    match judged.decision:
        case Decision.PASS:
            return Outcome.IMPROVED if judged.improved else Outcome.OK, note
        case Decision.FAIL:
            return Outcome.INCONCLUSIVE if judged.advisory else failing, note
        case _:
            return Outcome.INCONCLUSIVE, note


def _reported(
    name: str, runs: Sequence[Run], record: Record | None, note: str = ""
) -> MetricVerdict:
    now = values(runs, name)
    before = values(record.runs, name) if record else []
    mean, old = _mean(now), _mean(before) if before else None
    return MetricVerdict(
        metric=name,
        outcome=None,
        baseline=old,
        now=mean,
        change=mean / old - 1 if old else None,
        runs=len(now),
        runs_baseline=len(before),
        note=note,
    )


def _mean(sample: Sequence[Value]) -> float:
    """Return the geometric mean: rule R works on logarithms."""
    return math.exp(math.fsum(math.log(v.value) for v in sample) / len(sample))


def _beyond(metric: str, limit: float, low: float, high: float) -> bool:
    """Whether the whole interval of a change lies beyond the limit."""
    if METRICS[metric].direction is Direction.HIGHER:
        return high < -limit
    return low > limit


def is_worse(metric: str, old: float, new: float) -> bool:
    """Whether `new` is worse than `old` by the metric's direction."""
    return new < old if METRICS[metric].direction is Direction.HIGHER else new > old
