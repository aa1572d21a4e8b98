"""Test verdicts on a part of a data set: their error rate at the gate's edge, and their power."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.core.measurement import Accuracy, Scored
from pytest_mlperf.core.rulings.gate import (
    ALPHA,
    GateWindow,
    Pass,
    below_by_influence,
    betting_p_value,
    proven_misses,
)

Draw = Callable[[random.Random], float]

TOTAL = 2_000

SHAPES: dict[str, Draw] = {
    "right or wrong": lambda r: 100.0 * (r.random() < 0.76),
    "rarely right": lambda r: 100.0 * (r.random() < 0.004),
    "hardly ever wrong": lambda r: 100.0 * (r.random() < 0.996),
    "graded": lambda r: 100 * r.betavariate(2, 3),
    "three values": lambda r: r.choice((0.0, 50.0, 100.0)),
    "low but for a few": lambda r: 100.0 if r.random() < 0.02 else 2 * r.random(),
    "high but for a few": lambda r: 0.0 if r.random() < 0.02 else 98 + 2 * r.random(),
}


def rejected(shape: Draw, looks: Sequence[int], *, lift: float = 0.0, times: int = 400) -> int:
    """Return how often an interim analysis proves a mean below its true value, less `lift`."""
    r = random.Random(20261122)
    scores = [shape(r) for _ in range(TOTAL)]
    bound = sum(scores) / TOTAL + lift
    rejections = 0
    for _ in range(times):
        excess = [score - bound for score in r.sample(scores, looks[-1])]
        rejections += any(
            betting_p_value(excess[:look], 100 - bound, TOTAL) <= ALPHA for look in looks
        )
    return rejections


@pytest.mark.parametrize("times", [15, pytest.param(400, marks=pytest.mark.nightly)])
def test_a_mean_at_its_bound_is_called_below_at_most_1_percent_of_the_time(times: int) -> None:
    """Of 400 an error of 1 % gives 10 or more with a probability of 0.8 %."""
    for name, shape in SHAPES.items():
        for looks in ((5,), (40,), (150, 400), (1500,)):
            assert rejected(shape, looks, times=times) < (10 if times == 400 else 3), (name, looks)


def test_a_mean_well_below_its_bound_is_proven_and_what_the_rest_cannot_mend_is_certain() -> None:
    assert rejected(SHAPES["right or wrong"], (400,), lift=10.0, times=50) > 40
    assert rejected(SHAPES["graded"], (400,), lift=5.0, times=50) > 40
    assert rejected(SHAPES["hardly ever wrong"], (1500,), lift=0.3, times=50) > 40

    assert betting_p_value([-75.0] * 800, 25.0, 1000) == 0.0
    assert 0 < betting_p_value([-75.0] * 5, 25.0, 1000) < 0.1
    assert betting_p_value([-75.0], 25.0, 1000) > ALPHA
    for values, proven in (
        (spread(50.0, 40.0), True),
        (spread(75.0, 40.0), False),
        ([0.0] * 20, False),
    ):
        assert (below_by_influence(values, 76.0, 100.0) < ALPHA) is proven
    for values in ([0.0], [80.0] * 900):
        assert below_by_influence(values, 76.0, 100.0) == 1.0


@settings(max_examples=50)
@given(
    st.lists(st.floats(0, 100) | st.none(), min_size=1, max_size=60),
    st.floats(0, 99.9),
    st.integers(0, 5000),
)
def test_p_is_a_probability_and_worse_scores_never_raise_it(
    scores: list[float | None], bound: float, more: int
) -> None:
    total = len(scores) + more
    excess = [None if score is None else score - bound for score in scores]
    p = betting_p_value(excess, 100 - bound, total)

    assert 0 <= p <= 1
    assert betting_p_value([*excess, -bound], 100 - bound, total + 1) <= 1
    if all(value is None or value >= 0 for value in excess):
        assert p == 1


def measured(
    per_sample: Mapping[str, Sequence[float | None]], scores: Mapping[str, float], **fields: Any
) -> Pass:
    samples = len(next(iter(per_sample.values())))
    accuracy = Accuracy(
        scores=scores, samples=samples, total=5_000, full=False, folder="x", **fields
    )
    scored = Scored(indices=tuple(range(samples)), per_sample=per_sample)
    return Pass(accuracy=accuracy, scored=scored, order=range(samples), total=5_000)


def spread(mean: float, by: float, samples: int = 500) -> list[float]:
    return [mean + by * (-1) ** n for n in range(samples)]


def test_a_window_is_tested_on_both_sides() -> None:
    """Without a known end of the scale only on the other one; scores beyond it prove nothing."""
    bounds = {"tokens": GateWindow(reference=294.45, low=265.0, high=323.9, most=1024.0)}
    open_ended = {"tokens": replace(bounds["tokens"], most=None)}

    for mean, by, missed in ((200.0, 90.0, True), (290.0, 200.0, False), (400.0, 100.0, True)):
        part = measured({"tokens": spread(mean, by)}, {"tokens": mean})
        assert ("tokens" in proven_misses(part, bounds)) == missed
    assert not proven_misses(measured({"tokens": [1.0] * 500}, {"tokens": 1.0}), open_ended)
    assert proven_misses(measured({"tokens": [999.0] * 500}, {"tokens": 999.0}), open_ended)

    low = {"m": GateWindow(reference=80.0, low=79.0, high=None)}
    high = {"m": GateWindow(reference=10.0, low=None, high=11.0)}
    for odd in (-5.0, 101.0):
        values = [*([50.0] * 499), odd]
        part = measured({"m": values}, {"m": sum(values) / 500})
        assert (bool(proven_misses(part, low)), bool(proven_misses(part, high))) == (
            odd < 0,
            odd > 0,
        )


def test_a_sum_is_held_against_the_share_of_its_samples_and_a_metric_of_some_against_these() -> (
    None
):
    bounds = {"gen_len": GateWindow(reference=1e6, low=9e5, high=1.1e6, most=None)}

    def missed(length: float) -> Mapping[str, float]:
        values = spread(length, 20.0)
        return proven_misses(measured({"gen_len": values}, {"gen_len": sum(values)}), bounds)

    assert missed(200.0) == {}  # 5,000 samples of 200 characters
    assert missed(300.0) == {"gen_len": pytest.approx(1.5e6)}

    values = [40.0 if n % 3 else None for n in range(900)]
    part = measured({"gsm8k": values}, {"gsm8k": 40.0})
    bounds = {"corpus": GateWindow(reference=80.0, low=79.0, high=None)}

    misses = proven_misses(part, {"gsm8k": GateWindow(reference=73.78, low=73.04, high=None)})

    assert misses == {"gsm8k": 40.0}
    assert not proven_misses(measured({"corpus": [10.0] * 500}, {"corpus": 20.0}), bounds)
    assert not proven_misses(measured({"other": [10.0] * 500}, {"corpus": 10.0}), bounds)


def test_several_scores_share_the_error_and_a_distance_is_never_decided_on_a_part() -> None:
    part = measured({"a": [50.0, *([0.0] * 6)], "b": [80.0] * 7}, {"a": 50 / 7, "b": 80.0})
    one_window = {"a": GateWindow(reference=80.0, low=76.0, high=None)}
    p = betting_p_value(
        [v - 76.0 for v in part.scored.per_sample["a"] if v is not None], 24.0, 5_000
    )

    assert p < ALPHA
    many = {
        **one_window,
        **{f"other{n}": GateWindow(reference=1, low=1, high=None) for n in range(200)},
    }
    assert (p > ALPHA / 201, list(proven_misses(part, one_window))) == (True, ["a"])
    assert proven_misses(part, many) == {}

    fid = {"fid": GateWindow(reference=23.48, low=23.01, high=23.95)}
    auc = {"auc": GateWindow(reference=80.31, low=80.23, high=None)}

    far = measured({"fid": spread(300, 9)}, {"fid": 300.0}, whole=("fid",), lower=("fid",))
    chance = measured({"auc": spread(50, 30, 4000)}, {"auc": 50.0}, whole=("auc",))

    assert not proven_misses(far, fid)
    assert proven_misses(chance, auc) == {"auc": 50.0}


Sample = tuple[bool, float]


def population(r: random.Random, size: int) -> list[Sample]:
    """Return samples of which one of five is positive and scores somewhat higher."""
    return [(yes, r.gauss(1.2 * yes, 1)) for yes in (n % 5 == 0 for n in range(size))]


def area(samples: Sequence[Sample]) -> tuple[float, list[float]]:
    """Return the share of pairs in order, 0 to 100, and the pseudo-values, whose mean it is."""
    positive = [score for yes, score in samples if yes]
    negative = [score for yes, score in samples if not yes]
    n = len(samples)

    def won(yes: bool, score: float) -> float:
        others = negative if yes else positive
        wins = sum((score > other) if yes else (other > score) for other in others)
        return wins / len(others)

    shares = [(yes, won(yes, score)) for yes, score in samples]
    value = sum(share for yes, share in shares if yes) / len(positive)
    count_of_class = {True: len(positive), False: len(negative)}
    return 100 * value, [
        100 * (value + n * (share - value) / count_of_class[yes]) for yes, share in shares
    ]


def test_an_area_at_its_bound_is_called_below_at_most_1_percent_of_the_time() -> None:
    r = random.Random(7)
    samples = population(r, 2_000)
    bound = area(samples)[0]
    alarms = 0
    for _ in range(60):
        score, values = area(r.sample(samples, 100))
        assert sum(values) / 100 == pytest.approx(score)
        alarms += below_by_influence(values, bound, 100.0) <= ALPHA

    assert alarms < 4
