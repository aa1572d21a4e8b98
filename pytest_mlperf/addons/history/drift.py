"""Judge drift: the sum of all accepted changes, each of which was within its limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pytest_mlperf import MlperfError, Outcome, Verdict
from pytest_mlperf.addons.history.trend import ratio_of
from pytest_mlperf.bench.policy import rule_for
from pytest_mlperf.core.numbers import change, interval, limit
from pytest_mlperf.core.rulings.multiplicity import DROP_OUTCOMES
from pytest_mlperf.core.trend import TrendPoint
from pytest_mlperf.extension import METRICS, Criterion, MetricVerdict
from pytest_mlperf.judge import RuleR
from pytest_mlperf.judge.formulas import bound_of, to_relative_change


def accepted_drop(points: Sequence[TrendPoint], metric: MetricVerdict, rule: RuleR) -> str | None:
    """Return a sentence on the sum of accepted changes and this session's, if it is a drop.

        total = log(pinned / first) + log(now / pinned)
        bounds: those of both parts, as independent ones add up: √(a² + b²)

    The parts share the pinned runs with opposite signs, so the true interval is not wider. The sum
    is a drop if its bound at rule R's alpha excludes 0 and the sum itself exceeds the limit.

    Args:
        points: Accepted baselines of one machine, oldest first; the last one is pinned.
        metric: Verdict of this session on a gated metric against the pinned one.
    """
    sides = (metric.limit, metric.change, metric.low, metric.high)
    if len(points) < 2 or None in sides or metric.metric not in METRICS:
        return None
    most, share, low, high = (float(side or 0.0) for side in sides)
    definition = METRICS[metric.metric]
    direction = definition.direction
    if most <= 0 or definition.is_neutral or min(share, low) <= -1:
        return None
    last = points[-1]
    steps = ((point, ratio_of(point, last, metric.metric, rule)) for point in points[:-1])
    first, step = next((pair for pair in steps if pair[1]), (last, None))
    if step is None:
        return None
    sign = -1 if definition.falls else 1
    recent = sign * math.log1p(share)
    ends = sorted(sign * math.log1p(end) for end in (low, high))
    total = sign * step.change + recent
    up = math.hypot(step.reach(rule.alpha), max(ends[1] - recent, 0.0))
    down = math.hypot(step.reach(rule.beta), max(recent - ends[0], 0.0))
    if total + up >= 0 or total > bound_of(direction, most):
        return None
    low, mean, high = sorted(
        to_relative_change(x, direction) for x in (total - down, total, total + up)
    )
    return (
        f"{definition.title} {change(mean)} ({interval(low, high)}) over "
        f"{len(points) - points.index(first)} accepted baselines since {first.date[:10]}; "
        f"limit {limit(metric.metric, most)} exceeded"
    )


PASSING = {Outcome.OK, Outcome.IMPROVED, Outcome.INCONCLUSIVE, Outcome.PROVISIONAL, Outcome.SUSPECT}
"""Outcomes that drift replaces; for other outcomes it is a note."""


def drift_of(
    verdict: Verdict,
    baselines: Sequence[TrendPoint],
    mode: Literal["fail", "warn"],
    since: str,
) -> Criterion | None:
    """Judge the total change over accepted baselines as an additional criterion of a verdict.

    `baselines` are those of this machine, oldest first; those before the day `since` are ignored.
    With mode "warn" the criterion cannot fail the test. Returns None if no metric drifted.
    """
    if verdict.kind not in DROP_OUTCOMES:
        return None
    try:
        accepted = [point for point in baselines if point.date[:10] >= since]
    except MlperfError as error:
        return Criterion(headline=f"drift unknown: {error}", fails=False)
    rule = rule_for(verdict.case.accelerator)
    drops = (accepted_drop(accepted, metric, rule) for metric in verdict.metrics)
    drifted = [text for text in drops if text]
    if not drifted:
        return None
    first, *others = drifted
    more = tuple(f"drift: {text}" for text in others)
    if mode == "warn" or verdict.outcome not in PASSING:
        return Criterion(headline=f"drift: {first}", notes=more, fails=False)
    cure = (
        "each step was accepted, but their total exceeds the limit: find the cause, or ignore "
        "earlier baselines with mlperf_drift_since = DAY in the ini file, which a review sees"
    )
    return Criterion(headline=first, outcome=DROP_OUTCOMES[verdict.kind], notes=(*more, cure))
