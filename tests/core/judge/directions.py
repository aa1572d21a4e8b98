"""What is worse for each metric, written down a second time, by what it counts.

A metric whose direction is wrong in its table would still fail a worsening that is derived from
that table: so nothing here asks the table for a direction.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_mlperf.core.baseline import steps_per_point
from pytest_mlperf.core.judge.accuracy import DEFAULT_MARGIN, rule_on_scores
from pytest_mlperf.core.judge.rule_r import RuleR, Value, judge
from pytest_mlperf.core.judge.standing import Decision
from pytest_mlperf.core.measurement import Accuracy, Scored
from pytest_mlperf.core.metrics import COUNTS, METRICS, Dimension, Metric
from pytest_mlperf.core.verdict import Outcome
from tests.core.made import make_accuracy_baseline

TWICE_AS_BAD = {
    Dimension.TIME: 2.0,
    Dimension.SAMPLES_PER_TIME: 0.5,
    Dimension.TOKENS_PER_TIME: 0.5,
    Dimension.ENERGY_PER_SAMPLE: 2.0,
    Dimension.SHARE: 0.5,
    Dimension.SAMPLES_PER_ENERGY: 0.5,
    Dimension.TOKENS_PER_ENERGY: 0.5,
    Dimension.MEMORY: 2.0,
    Dimension.START: 2.0,
}
"""What a value is multiplied by when it gets twice as bad."""

SCORES = {
    **dict.fromkeys(("top1", "rouge1", "rouge2", "rougeL", "f1", "exact_match", "gsm8k"), 0.5),
    **dict.fromkeys(("mbxp", "map", "dice", "auc", "clip"), 0.5),
    **dict.fromkeys(("fid", "normalized_entropy"), 2.0),
}
"""The same for the scores of the scorers that are shipped."""

LOWER = frozenset({"fid", "normalized_entropy"})
"""Scores that are better when lower, as scorers say it."""


def fault(metric: Metric) -> str | None:
    """Return what is wrong when a metric that got twice as bad does not fail, or None."""
    if metric.dimension not in TWICE_AS_BAD:
        return f"{metric.name}: nobody wrote down what is worse for {metric.dimension}"
    sessions = "aabbccdd"
    baseline = [Value(value=3.0, session=name) for name in sessions]
    now = [Value(value=3.0 * TWICE_AS_BAD[metric.dimension], session="now")] * 2
    found = judge(
        baseline, now, direction=metric.direction, limit=metric.limit, rule=RuleR()
    ).decision
    return None if found is Decision.FAIL else f"{metric.name}: twice as bad, and {found}"


def score_fault(name: str, *, lower: bool) -> str | None:
    """Return what is wrong when a score that got twice as bad is no drop, or None."""
    before = {name: [0.2 + index % 7 / 50 for index in range(64)]}
    now = {name: [value * SCORES[name] for value in before[name]]}
    baseline = make_accuracy_baseline(
        samples=64,
        scores={name: sum(before[name]) / 64},
        steps={name: steps_per_point(before[name])},
    )
    accuracy = Accuracy(
        scores={name: sum(now[name]) / 64},
        samples=64,
        total=64,
        full=True,
        folder="",
        lower=(name,) if lower else (),
    )
    found = rule_on_scores(
        baseline,
        before,
        accuracy,
        Scored(indices=tuple(range(64)), per_sample=now),
        range(64),
        margin=lambda _: DEFAULT_MARGIN,
        sequential=False,
    ).outcome
    return None if found is Outcome.ACC_DROP else f"{name}: twice as bad, and {found}"


def faults() -> Iterator[str]:
    """Yield what is wrong with any registered metric or score."""
    for metric in METRICS.values():
        if metric.name not in COUNTS and (found := fault(metric)):
            yield found
    for name in SCORES:
        if found := score_fault(name, lower=name in LOWER):
            yield found
