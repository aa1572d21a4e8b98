"""Changes of level in histories of sessions."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.judge.drift import (
    MEMORY,
    MIN_CHANGE_SHARE,
    MIN_SIDE_SESSIONS,
    _p_of,
    level_changes,
)


def noise(count: int, seed: int = 0, sd: float = 0.009) -> list[float]:
    rng = random.Random(seed)
    return [100 * math.exp(rng.gauss(0, sd)) for _ in range(count)]


def stepped(left: int, after: int, share: float, seed: int = 0) -> list[float]:
    values = noise(left + after, seed)
    return [value * (1 + share * (n >= left)) for n, value in enumerate(values)]


def test_a_step_is_found_where_it_is_and_so_is_a_slow_ramp() -> None:
    """Down and up again are two changes."""
    for share in (-0.05, -0.03, 0.03, 0.08):
        (change,) = level_changes(stepped(40, 20, share))
        assert abs(change.index - 40) <= 2
        assert change.low < share < change.high
        assert change.low < change.change < change.high
        assert change.p < 1e-6

    values = [v * (0.95 if 60 <= n < 90 else 1) for n, v in enumerate(noise(150, 3))]
    ramp = [v * 0.997 ** (max(0, n - 30) / 5) for n, v in enumerate(noise(80, 5))]

    down, up = level_changes(values)
    steps = level_changes(ramp)

    assert (abs(down.index - 60) <= 2, down.change < 0) == (True, True)
    assert (abs(up.index - 90) <= 2, up.change > 0) == (True, True)
    assert steps
    assert sum(math.log1p(one.change) for one in steps) < -0.01


def test_single_sessions_few_ones_ties_and_tiny_steps_prove_nothing() -> None:
    """Only the newest sessions are looked at, and neighbours that are alike prove less.

    A machine in states that last some sessions: by ranks alone a third of these would alarm.
    """
    for outliers in ((20,), (20, 21), (5, 20, 35), (59,)):
        values = [v * (0.5 if n in outliers else 1) for n, v in enumerate(noise(60, 7))]
        assert level_changes(values) == []
    for count in range(2 * MIN_SIDE_SESSIONS):
        assert level_changes([100.0 / (1 + n) for n in range(count)]) == []
    assert level_changes([100.0 + n * 1e-4 + 0.1 * (n >= 30) for n in range(60)]) == []
    assert MIN_CHANGE_SHARE > 0.001
    assert level_changes([7.0] * 100) == level_changes([7.0, 8.0] * 50) == []
    assert level_changes(stepped(20, MEMORY, -0.2)) == []

    alarms = 0
    for seed in range(40):
        rng = random.Random(seed)
        state, values = 0.0, []
        for _ in range(100):
            state = 0.6 * state + 0.8 * rng.gauss(0, 0.009)
            values.append(100 * math.exp(state))
        alarms += bool(level_changes(values))

    assert [seed for seed in range(40) if level_changes(noise(100, seed))] == []
    assert alarms <= 4


@given(st.lists(st.floats(1e-6, 1e6), max_size=60), st.sampled_from([0.25, 2.0, 1024.0]))
def test_units_change_nothing(values: list[float], unit: float) -> None:
    changes = level_changes(values)
    scaled = level_changes([value * unit for value in values])

    assert [one.index for one in scaled] == [one.index for one in changes]
    assert all(0 < one.index < len(values) for one in changes)


def test_the_chance_of_a_split_is_exact() -> None:
    from scipy.stats import mannwhitneyu

    for m, n in ((4, 6), (5, 30), (8, 8), (12, 20)):
        for seed in range(5):
            left, after = noise(m, seed), [v * 0.99 for v in noise(n, seed + 1000)]
            exact = mannwhitneyu(left, after, method="exact").pvalue
            assert math.isclose(_p_of(left, after), exact, rel_tol=1e-9)
