"""Test that a metric that gets twice as bad fails, so that a wrong direction is detected.

The bad direction is written down a second time, by the quantity of a metric: a metric whose
direction is wrong in its table would still fail a worsening that is derived from that table.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest_mlperf.adapters.scorers
from pytest_mlperf.core.measurement import Accuracy, Scored
from pytest_mlperf.core.metrics import COUNTS, METRICS, Dimension, Metric
from pytest_mlperf.core.rulings.gate import GateWindow, Pass, gate
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.judge.rule_r import RuleR, Value, judge
from pytest_mlperf.rounds import ROUNDS, RoundMetric, load_round
from tests.core.rulings.test_accuracy import ruled

TWICE_AS_BAD = {
    Dimension.TIME: 2.0,
    Dimension.SAMPLES_PER_TIME: 0.5,
    Dimension.TOKENS_PER_TIME: 0.5,
    Dimension.ENERGY_PER_SAMPLE: 2.0,
    Dimension.SHARE: 0.5,
    Dimension.TOKENS_PER_STEP: 0.5,
    Dimension.SAMPLES_PER_ENERGY: 0.5,
    Dimension.TOKENS_PER_ENERGY: 0.5,
    Dimension.MEMORY: 2.0,
    Dimension.START: 2.0,
    Dimension.REQUESTS: 0.5,
}
"""What a value is multiplied by when it gets twice as bad."""

SCORES = {
    **dict.fromkeys(("top1", "rouge1", "rouge2", "rougeL", "f1", "exact_match", "gsm8k"), 0.5),
    **dict.fromkeys(("mbxp", "map", "dice", "auc", "clip"), 0.5),
    **dict.fromkeys(("fid", "normalized_entropy"), 2.0),
}
"""The same for the scores of the scorers that are shipped."""


def called_lower() -> Iterator[str]:
    """Yield the scores that scorers call better when lower."""
    for path in Path(pytest_mlperf.adapters.scorers.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Scores":
                values = [keyword.value for keyword in call.keywords if keyword.arg == "lower"]
                for node in (node for value in values for node in ast.walk(value)):
                    if isinstance(node, ast.Constant):
                        yield str(node.value)


LOWER = frozenset(called_lower())


def fault(metric: Metric) -> str | None:
    """Return an error if a metric that got twice as bad does not fail, or None."""
    if metric.dimension not in TWICE_AS_BAD:
        return f"{metric.name}: nobody wrote down what is worse for {metric.dimension}"
    sessions = "aabbccdd"
    baseline = [Value(value=3.0, session=name) for name in sessions]
    new_values = [Value(value=3.0 * TWICE_AS_BAD[metric.dimension], session="now")] * 2
    outcome = judge(
        baseline, new_values, direction=metric.direction, limit=metric.limit, rule=RuleR()
    ).outcome
    return None if outcome is Answer.FAIL else f"{metric.name}: twice as bad, and {outcome}"


def score_fault(name: str, *, lower: bool) -> str | None:
    baseline_scores = [20.0 + index % 7 * 2 for index in range(64)]
    new_scores = [value * SCORES[name] for value in baseline_scores]
    outcome = ruled(
        {name: baseline_scores}, {name: new_scores}, total=64, lower=(name,) if lower else ()
    ).outcome
    return None if outcome is Outcome.ACC_DROP else f"{name}: twice as bad, and {outcome}"


def faults() -> Iterator[str]:
    for metric in METRICS.values():
        if metric.name not in COUNTS and (message := fault(metric)):
            yield message
    for name in SCORES:
        if message := score_fault(name, lower=name in LOWER):
            yield message


ROUND_METRICS = {
    (name, workload, metric.name, target): metric
    for name in ROUNDS
    for workload, rules in load_round(name).workloads.items()
    for target in rules.targets
    for metric in (
        *rules.metrics.values(),
        *(own for scenario in rules.scenarios.values() for own in scenario.metrics.values()),
    )
}


def test_a_metric_or_score_with_the_other_direction_is_found_out() -> None:
    """With their own no worsening is hidden."""
    hidden = []
    for name in METRICS.keys() - COUNTS:
        metric = METRICS[name]
        other = Direction.LOWER if metric.direction is Direction.HIGHER else Direction.HIGHER
        hidden += [] if fault(dataclasses.replace(metric, direction=other)) else [name]
    hidden += [name for name in SCORES if not score_fault(name, lower=name not in LOWER)]

    assert (hidden, list(faults())) == ([], [])


def test_the_gate_of_a_round_fails_a_score_that_is_twice_as_bad() -> None:
    kept = [key for key, metric in ROUND_METRICS.items() if not fails(metric, key[3])]

    assert kept == []


def fails(metric: RoundMetric, target: float) -> bool:
    low, high = metric.bounds(target)
    # Of a count the round says which side it bounds: too short answers, or too long ones.
    count = 2.0 if low is None else 0.5
    worse = {"higher": 0.5, "lower": 2.0, "neither": count}[metric.better]
    if metric.name in SCORES and metric.better != "neither":
        assert worse == SCORES[metric.name]

    accuracy = Accuracy(
        scores={metric.name: metric.reference * worse}, samples=1, total=1, full=True, folder=""
    )
    ruling = gate(
        Pass(accuracy=accuracy, scored=Scored(indices=(), per_sample={}), order=(), total=1),
        {metric.name: GateWindow(reference=metric.reference, low=low, high=high)},
        whose="MLPerf's",
        complete=True,
    )
    return ruling.outcome is Outcome.GATE_FAIL
