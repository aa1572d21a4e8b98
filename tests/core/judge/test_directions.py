"""A metric that gets twice as bad fails, and one whose direction is wrong is found out."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest_mlperf.scorers
from pytest_mlperf.core.judge.gate import GateWindow, Pass, gate
from pytest_mlperf.core.measurement import Accuracy, Scored
from pytest_mlperf.core.metrics import COUNTS, METRICS, Direction
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.rounds import ROUNDS, RoundMetric, load_round
from tests.core.judge.directions import (
    LOWER,
    SCORES,
    fault,
    faults,
    score_fault,
)

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
    """With their own no worsening is hidden, as the fixture of all these tests has seen."""
    hidden = []
    for name in METRICS.keys() - COUNTS:
        metric = METRICS[name]
        other = Direction.LOWER if metric.direction is Direction.HIGHER else Direction.HIGHER
        hidden += [] if fault(dataclasses.replace(metric, direction=other)) else [name]
    hidden += [name for name in SCORES if not score_fault(name, lower=name not in LOWER)]

    assert (hidden, list(faults())) == ([], [])


def test_scorers_call_lower_what_is_better_when_lower() -> None:
    said = set()
    for path in Path(pytest_mlperf.scorers.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Scores":
                for keyword in call.keywords:
                    if keyword.arg == "lower":
                        names = ast.walk(keyword.value)
                        said |= {n.value for n in names if isinstance(n, ast.Constant)}

    assert said == LOWER


def test_the_gate_of_a_round_fails_a_score_that_is_twice_as_bad() -> None:
    kept = [key for key, metric in ROUND_METRICS.items() if not fails(metric, key[3])]

    assert kept == []


def fails(metric: RoundMetric, target: float) -> bool:
    """Tell whether the gate of a round fails a score that is twice as bad as its reference."""
    low, high = metric.bounds(target)
    # Of a count the round says which side it bounds: too short answers, or too long ones.
    count = 2.0 if low is None else 0.5
    worse = {"higher": 0.5, "lower": 2.0, "neither": count}[metric.better]
    if metric.name in SCORES and metric.better != "neither":
        assert worse == SCORES[metric.name]

    accuracy = Accuracy(
        scores={metric.name: metric.reference * worse}, samples=1, total=1, full=True, folder=""
    )
    found = gate(
        Pass(accuracy=accuracy, scored=Scored(indices=(), per_sample={}), order=(), total=1),
        {metric.name: GateWindow(reference=metric.reference, low=low, high=high)},
        whose="MLPerf's",
        complete=True,
    )
    return found.outcome is Outcome.GATE_FAIL
