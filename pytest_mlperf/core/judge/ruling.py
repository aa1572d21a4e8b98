"""Judge the runs of a case against its baseline record: every metric, then the case."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_mlperf.core.baseline import BaselineRun, Record
from pytest_mlperf.core.judge.exact import compare
from pytest_mlperf.core.judge.many import FEW, rule_among
from pytest_mlperf.core.judge.quantiles import t_isf
from pytest_mlperf.core.judge.rule_r import (
    GATING_RUNS,
    Decision,
    Judged,
    RuleR,
    Value,
    judge,
    minimum_detectable_change,
    outlier,
)
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.metrics import COUNTS, EFFICIENCY, METRICS, Direction
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
            why = metric.note or (f"{bound} exceeded" if beyond else f"{bound} not excluded")
        return f"{shown}; {why}"


def rule_on(
    runs: Sequence[Run],
    record: Record | None,
    limits: Mapping[str, float],
    rule: RuleR,
    failing: Outcome = Outcome.PERF_DROP,
    pairs: int = 1,
) -> Ruling:
    """Judge valid runs of one case, oldest first.

    Args:
        runs: At least one run; all valid.
        record: The accepted measurement, or None.
        limits: Gated metrics with their limits, as shares.
        rule: Settings of rule R.
        failing: The word for a proven drop.
        pairs: Gated pairs of the session. With many, a drop is only proven here where it would be
            whatever the others say; `together.settle` has the last word on what is INCONCLUSIVE.
    """
    judging = _Judging(rule=rule, among=rule_among(rule, pairs), pairs=pairs, failing=failing)
    measured = [name for name in METRICS if name in runs[0].metrics and name not in EFFICIENCY]
    believed = [n for n in measured if all(r.may_judge(n) for r in runs if n in r.metrics)]
    gated = [_gated(name, limit, runs, record, judging) for name, limit in limits.items()]
    reported = [
        _reported(name, runs, record, note=_work(name, runs, record))
        for name in believed
        if name not in limits
    ]
    more = any(more for _, more in gated)
    return ruling_of([metric for metric, _ in gated], reported, more=more)


def ruling_of(
    metrics: Sequence[MetricVerdict], reported: Sequence[MetricVerdict] = (), *, more: bool = False
) -> Ruling:
    """Return what the verdicts on all metrics of a case say together.

    Args:
        metrics: Gated metrics.
        reported: The others.
        more: One more run could decide.
    """
    outcomes = [metric.outcome for metric in metrics if metric.outcome is not None]
    # Metrics with too few queries are only reported; a case with no other was not judged.
    outcome = worst(outcomes) if outcomes else Outcome.INCONCLUSIVE
    if outcome is Outcome.OK and Outcome.IMPROVED in outcomes:
        outcome = Outcome.IMPROVED
    own = outcome if outcomes else None
    deciding = next((metric for metric in metrics if metric.outcome is own), None)
    every = (*metrics, *reported)
    return Ruling(outcome=outcome, metrics=every, more=more, deciding=deciding)


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


def outlying(runs: Sequence[Run], limits: Mapping[str, float], rule: RuleR) -> str | None:
    """Return which run the leave-one-out screen rejects, in words.

    A metric that is only reported, for want of queries, rejects none.
    """
    for metric in countable(runs, limits):
        sample = values(runs, metric)
        index = outlier(sample, rule=rule) if len(sample) > 2 else None
        if index is not None:
            return f"run {index + 1} of {len(sample)} is an outlier in {METRICS[metric].title}"
    return None


@dataclass(frozen=True, kw_only=True)
class _Judging:
    """How metrics are judged: the rule for one alone, the one that measures it among all pairs."""

    rule: RuleR
    among: RuleR
    pairs: int
    failing: Outcome


def _gated(
    name: str, limit: float, runs: Sequence[Run], record: Record | None, judging: _Judging
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
    direction = METRICS[name].direction
    judged = judge(before, now, direction=direction, limit=limit, rule=judging.among)
    if judging.among != judging.rule:
        judged = _as_alone(judged, before, direction, judging)
    outcome, note = _word(judged, judging)
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
        p=judged.p_value,
    )
    return verdict, judged.decision is Decision.MORE


def _as_alone(
    judged: Judged, baseline: Sequence[Value], direction: Direction, judging: _Judging
) -> Judged:
    """Return a decision among many with the interval that people know: that of a pair alone.

    The better end of the interval is the one that proves a drop, t(α/(K-1), ν) standard errors off
    the change; among many it lies farther off.
    """
    rule, looks = judging.rule, judging.rule.max_runs - 1
    higher = direction is Direction.HIGHER
    middle, end = (math.log1p(x) for x in (judged.change, judged.high if higher else judged.low))
    se = abs(end - middle) / t_isf(judging.among.alpha / looks, judged.df)
    away = t_isf(rule.alpha / looks, judged.df) * se
    better = math.expm1(middle + (away if higher else -away))
    gain = middle if higher else -middle
    return replace(
        judged,
        improved=judged.decision is Decision.PASS and gain > t_isf(rule.alpha, judged.df) * se,
        low=judged.low if higher else better,
        high=better if higher else judged.high,
        mde=minimum_detectable_change(baseline, rule=rule),
    )


def _word(judged: Judged, judging: _Judging) -> tuple[Outcome, str]:
    advice = f"advisory: {judged.runs_baseline} of {GATING_RUNS} baseline runs"
    note = advice if judged.advisory else ""
    match judged.decision:
        case Decision.PASS:
            return Outcome.IMPROVED if judged.improved else Outcome.OK, note
        case Decision.FAIL:
            if judged.advisory:
                return Outcome.INCONCLUSIVE, note
            return judging.failing, _beside(judged, judging.pairs)
        case _:
            return Outcome.INCONCLUSIVE, note


def _beside(judged: Judged, pairs: int) -> str:
    """Return what makes a drop one among many: nothing where it is judged alone."""
    if pairs <= FEW:
        return ""
    return f"a drop whatever the other {pairs - 1} pairs judged with it do, p={judged.p_value:.1g}"


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


def _work(name: str, runs: Sequence[Run], record: Record | None) -> str:
    """Return how a count of output differs from the baseline's: counts are compared, not tested."""
    before = [v.value for v in values(record.runs, name)] if record else []
    if name not in COUNTS or not before:
        return ""
    now = [v.value for v in values(runs, name)]
    return compare(before, now, tolerance=0.02).in_words(METRICS[name].title) or ""


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
