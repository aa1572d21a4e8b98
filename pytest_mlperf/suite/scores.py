"""What the scores of a suite are held against: the gate's bounds, and the margin of each score."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Literal

from pytest_mlperf.core.judge.accuracy import DEFAULT_MARGIN, Margin
from pytest_mlperf.core.judge.bounds import Bounds
from pytest_mlperf.core.metrics import COUNTS
from pytest_mlperf.rounds import RoundMetric, RoundScenario, RoundWorkload
from pytest_mlperf.suite.model import Suite


def score_margin(suite: Suite, metric: str) -> Margin:
    """Return the drop of a score that does not matter: the suite's, the round's, or 0.5 %."""
    if suite.margin is not None:
        return suite.margin
    own = suite.rules.metrics.get(metric) if suite.rules else None
    if own is None or own.margin is None:
        return DEFAULT_MARGIN
    return Margin(value=own.margin, is_share=True)


def score_bounds(
    suite: Suite, scenario: RoundScenario, lower: Collection[str]
) -> Mapping[str, Bounds] | None:
    """Return what each score must keep within, or None where nobody gave a reference.

    A twin's reference takes the place of MLPerf's, with the same shares.

    Args:
        suite: The suite.
        scenario: The round's constants of the scenario; some have gates of their own.
        lower: Metrics that the scorer calls better when lower.
    """
    rules, workload = suite.rules, suite.workload
    if suite.is_mlperf and rules:
        metrics = {**rules.metrics, **scenario.metrics}
        return {name: _bounds(own, rules.targets[0], rules) for name, own in metrics.items()}
    if workload.reference is None:
        return None
    return {
        name: _bounds(
            _own_metric(name, reference, rules, lower=name in lower), workload.target, rules
        )
        for name, reference in workload.reference.items()
    }


def gate_samples(suite: Suite, scenario: RoundScenario) -> int | None:
    """Return the samples that MLPerf's gate is defined on; None: all that the data set has."""
    rules = suite.rules
    if rules is None or not suite.is_mlperf:
        return None
    return scenario.accuracy_samples or rules.accuracy_samples or rules.dataset_samples


def _own_metric(
    name: str, reference: float, rules: RoundWorkload | None, *, lower: bool
) -> RoundMetric:
    """Return a metric with a reference of its own, and the round's windows as shares of it."""
    theirs = rules.metrics.get(name) if rules else None
    if theirs is None:
        better: Literal["higher", "lower"] = "lower" if lower else "higher"
        return RoundMetric(name=name, checker="", reference=reference, better=better)
    share = theirs.share
    if theirs.within:
        low, high = (None if end is None else end / theirs.reference for end in theirs.within)
        share = low, high
    return dataclasses.replace(theirs, reference=reference, share=share, within=None)


def _bounds(metric: RoundMetric, target: float, rules: RoundWorkload | None) -> Bounds:
    low, high = metric.bounds(target)
    return Bounds(reference=metric.reference, low=low, high=high, most=_most(metric, rules))


def _most(metric: RoundMetric, rules: RoundWorkload | None) -> float | None:
    """Return the highest score that a sample can have: tokens are limited, scores are 0 to 100."""
    if metric.name == "tokens_per_sample":
        return rules.max_output_tokens if rules else None
    return None if metric.name in COUNTS or metric.reference > 100 else 100.0
