"""Two passes of one build say how far a score moves by itself."""

from __future__ import annotations

import math
import random
from statistics import fmean, stdev

import pytest

from pytest_mlperf.core.baseline import AccuracyBaseline, Rerun
from pytest_mlperf.core.judge.accuracy import apart, pooled
from pytest_mlperf.core.measurement import Scored

N = 400


def baseline(**steps: int) -> AccuracyBaseline:
    return AccuracyBaseline(
        round="v4.1",
        workload="w",
        engine="e",
        precision="fp32",
        scenario="Offline",
        samples=N,
        scores={},
        steps=steps,
        scores_sha256="",
        scorer="",
        identity={},
        fingerprint={},
        history=(),
    )


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
        ({}, {"s": Rerun(sd=2.0, correlation=0.9, passes=1)}, (2.0, 0.9, 1)),
        (
            {"s": Rerun(sd=1.0, correlation=0.8, passes=1)},
            {"s": Rerun(sd=3.0, correlation=0.9, passes=1)},
            (math.sqrt(5.0), 0.85, 2),
        ),
        (
            {"s": Rerun(sd=1.0, correlation=0.8, passes=3)},
            {"s": Rerun(sd=3.0, correlation=None, passes=1)},
            (math.sqrt(3.0), 0.8, 4),
        ),
        ({"s": Rerun(sd=1.0, correlation=None, passes=1)}, {}, (1.0, None, 1)),
    ],
)
def test_more_passes_are_averaged(
    old: dict[str, Rerun],
    new: dict[str, Rerun],
    expected: tuple[float, float | None, int],
) -> None:
    found = pooled(old, new)["s"]

    assert found.sd == pytest.approx(expected[0])
    assert found.passes == expected[2]
    assert found.correlation == (None if expected[1] is None else pytest.approx(expected[1]))


@pytest.mark.parametrize("fields", [{"sd": -1.0}, {"sd": math.nan}, {"passes": 0}])
def test_an_impossible_repeat_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="re-run sd"):
        Rerun(**{"sd": 1.0, "correlation": None, "passes": 1, **fields})  # type: ignore[arg-type]
