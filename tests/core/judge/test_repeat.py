"""Two passes of one build say how far a score moves by itself."""

from __future__ import annotations

import math
import random
from statistics import fmean, stdev

import pytest

from pytest_mlperf.core.baseline import AccuracyBaseline, Rerun
from pytest_mlperf.core.judge.accuracy import apart, pooled
from pytest_mlperf.core.measurement import Scored
from tests.core.made import make_accuracy_baseline

N = 400


def baseline(**steps: int) -> AccuracyBaseline:
    return make_accuracy_baseline(samples=N, steps=steps)


def passes(rng: random.Random, count: int, own: float) -> list[list[float]]:
    """Return scores of passes of one build: a spread of 22 that they share, and their own."""
    common = [44 + 22 * rng.gauss(0, 1) for _ in range(N)]
    return [[value + own * rng.gauss(0, 1) for value in common] for _ in range(count)]


def scored(**values: list[float | None] | list[float]) -> Scored:
    return Scored(indices=tuple(range(N)), per_sample=values)


def test_the_spread_of_a_score_is_estimated_from_two_passes() -> None:
    rng = random.Random(1)
    before, now, *more = passes(rng, 300, own=5.0)

    found = apart(baseline(s=100), {"s": before}, scored(s=now))["s"]

    assert found.correlation is not None
    true = stdev(fmean(values) for values in more)
    assert found.sd == pytest.approx(true, rel=0.15)
    assert found.correlation == pytest.approx(22**2 / (22**2 + 5**2), abs=0.02)
    assert found.sd == pytest.approx(
        stdev(before) * math.sqrt((1 - found.correlation) / N), rel=0.1
    )
    assert found.passes == 1


def test_a_build_that_repeats_itself_has_no_spread() -> None:
    values = passes(random.Random(2), 1, own=0.0)[0]
    kept = [round(value, 2) for value in values]

    found = apart(baseline(s=100), {"s": kept}, scored(s=values))

    assert found["s"].sd == 0.0
    assert found["s"].correlation == pytest.approx(1.0)


def test_counts_new_metrics_and_samples_without_a_score_are_left_out() -> None:
    some: list[float | None] = [None if i % 2 else float(i) for i in range(N)]

    found = apart(
        baseline(s=100, gen_len=100, one=100),
        {"s": some, "gen_len": some, "one": [1.0, *[None] * (N - 1)]},
        scored(s=some, gen_len=some, fresh=some, one=[1.0, *[None] * (N - 1)]),
    )

    assert list(found) == ["s"]
    assert found["s"].sd == 0.0


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (None, (2.0, 0.9, 1), (2.0, 0.9, 1)),
        ((1.0, 0.8, 1), (3.0, 0.9, 1), (math.sqrt(5.0), 0.85, 2)),
        ((1.0, 0.8, 3), (3.0, None, 1), (math.sqrt(3.0), 0.8, 4)),
        ((1.0, None, 1), None, (1.0, None, 1)),
    ],
)
def test_more_passes_are_averaged(old: Spread | None, new: Spread | None, expected: Spread) -> None:
    sides = ({"s": rerun(*side)} if side else {} for side in (old, new))

    found = pooled(*sides)["s"]

    assert (found.sd, found.passes) == (pytest.approx(expected[0]), expected[2])
    assert found.correlation == (None if expected[1] is None else pytest.approx(expected[1]))


Spread = tuple[float, float | None, int]


def rerun(sd: float, correlation: float | None, passes: int) -> Rerun:
    return Rerun(sd=sd, correlation=correlation, passes=passes)


@pytest.mark.parametrize("values", [(-1.0, None, 1), (math.nan, None, 1), (1.0, None, 0)])
def test_an_impossible_repeat_is_refused(values: Spread) -> None:
    with pytest.raises(ValueError, match="re-run sd"):
        rerun(*values)
