"""Energy of a window: how near to the exact integral, how sure, and when nothing may be said."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.counter import Reading, lag_of
from pytest_mlperf.core.energy import GATED_S, Energy, measure

Load = Callable[[float], float]
"""Joules used from time 0 to a time."""


def steady(watts: float) -> Load:
    return lambda t: watts * t


def job(begin_s: float, end_s: float, *, idle_w: float = 80.0, busy_w: float = 620.0) -> Load:
    def used(t: float) -> float:
        busy_s = min(max(t - begin_s, 0.0), end_s - begin_s)
        return idle_w * (t - busy_s) + busy_w * busy_s

    return used


def waves(period_s: float, *, low_w: float = 80.0, high_w: float = 620.0) -> Load:
    def used(t: float) -> float:
        periods, rest = divmod(t, period_s)
        high_s = min(rest, period_s / 2)
        return periods * period_s * (low_w + high_w) / 2 + high_w * high_s + low_w * (rest - high_s)

    return used


def counter(
    load: Load,
    first_s: float,
    last_s: float,
    *,
    step_s: float = 0.1,
    lag_s: float = 0.0,
    seed: int = 0,
) -> list[Reading]:
    """Return 20 readings a second, each up to 5 ms late."""
    rng = random.Random(seed)
    moments = [first_s + i / 20 + 0.005 * rng.random() for i in range(int((last_s - first_s) * 20))]
    return [Reading(time_s=t, value=load(max(t // step_s * step_s - lag_s, 0.0))) for t in moments]


def trace(load: Load, first_s: float, last_s: float, *, rate_hz: float = 50.0) -> list[Reading]:
    """Return readings of the power over the 20 ms before each."""
    moments = [first_s + i / rate_hz for i in range(int((last_s - first_s) * rate_hz))]
    return [Reading(time_s=t, value=(load(t) - load(t - 0.02)) / 0.02) for t in moments]


def measured(load: Load, window_s: float = 20.0, **given: object) -> Energy:
    """Measure a window that begins at 10 s, with a second before and after."""
    first, last = 9.0, 11.0 + window_s
    readings = {
        "counter": counter(load, first, last),
        "trace": trace(load, first, last),
        "begin_s": 10.0,
        "end_s": 10.0 + window_s,
        "rate_hz": 50.0,
    }
    return measure(**{**readings, **given})  # type: ignore[arg-type]


@given(st.floats(40, 900), st.floats(5, 60))
def test_a_steady_load_is_counted_to_the_digit(watts: float, window_s: float) -> None:
    found = measured(steady(watts), window_s)

    assert found.joules == pytest.approx(watts * window_s, rel=0.004)
    assert found.mean_w == pytest.approx(watts, rel=0.004)
    assert found.method == "counter"
    assert found.gated == (window_s >= GATED_S)
    assert found.invalid == ()


@given(
    st.sampled_from([0.02, 0.1]),
    st.floats(0.0, 0.12),
    st.sampled_from(["job", 0.05, 0.11, 0.5, 1.1, 3.0]),
    st.integers(0, 9),
)
def test_the_uncertainty_covers_the_truth(
    step_s: float, lag_s: float, kind: float | str, seed: int
) -> None:
    """Whatever the load, the counter's step and its lag."""
    load = job(10.0, 30.0) if kind == "job" else waves(float(kind))
    seen = counter(load, 9.0, 31.0, step_s=step_s, lag_s=lag_s, seed=seed)

    found = measured(load, counter=seen)

    exact = load(30.0) - load(10.0)
    assert found.joules is not None
    assert found.uncertainty_j is not None
    assert abs(found.joules - exact) <= found.uncertainty_j
    assert abs(found.joules - exact) <= 0.01 * exact
    assert found.uncertainty_j < 0.05 * exact


@pytest.mark.parametrize("lag_s", [0.0, 0.05, 0.1, 0.2])
def test_a_lag_is_seen_where_the_load_changes(lag_s: float) -> None:
    load = waves(1.1)
    readings = counter(load, 9.0, 31.0, step_s=0.02, lag_s=lag_s)

    assert lag_of(readings, trace(load, 9.0, 31.0)) == pytest.approx(lag_s, abs=0.03)


def test_a_lag_cannot_be_seen_and_does_not_matter_where_it_does_not() -> None:
    readings = counter(steady(300), 9.0, 31.0, lag_s=0.2)

    assert lag_of(readings, trace(steady(300), 9.0, 31.0)) == 0.0
    assert measured(steady(300), counter=readings).joules == pytest.approx(6000, rel=0.002)


def test_without_a_counter_the_trace_is_the_value_and_says_so() -> None:
    found = measured(job(10.0, 30.0), counter=[])

    assert found.method == "trace"
    assert found.joules == pytest.approx(620 * 20, rel=0.01)
    assert found.notes == ("no energy counter",)
    assert found.gated


def test_nothing_known_is_none_and_never_0() -> None:
    found = measured(steady(300), counter=[], trace=[])

    assert (found.joules, found.mean_w, found.uncertainty_j) == (None, None, None)
    assert (found.method, found.gated) == (None, False)
    assert found.notes == ("no energy counter", "no power trace")


def reset(readings: list[Reading]) -> list[Reading]:
    half = len(readings) // 2
    start = readings[half].value
    return [
        *readings[:half],
        *(Reading(time_s=r.time_s, value=r.value - start) for r in readings[half:]),
    ]


DEFECTS = {
    "reset": (
        reset,
        "the energy counter was reset",
        "the energy counter went back from 5,",
    ),
    "still": (
        lambda r: [Reading(time_s=x.time_s, value=7.0) for x in r],
        "the energy counter does not move",
        "",
    ),
    "begun late": (
        lambda r: [x for x in r if x.time_s > 10.5],
        "the energy counter was not read before and after the window",
        "",
    ),
    "hole at an end": (
        lambda r: [x for x in r if not 29.2 < x.time_s < 30.4],
        "the energy counter was not read for 0.",
        "",
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_counter_that_cannot_be_used_is_not_used(defect: str) -> None:
    """The trace takes its place, under its own name; a reset makes the run INVALID."""
    spoil, note, invalid = DEFECTS[defect]

    found = measured(steady(300), counter=spoil(counter(steady(300), 9.0, 31.0)))

    assert found.method == "trace"
    assert found.joules == pytest.approx(6000, rel=0.001)
    assert found.notes[0].startswith(note)
    assert [text[: len(invalid)] for text in found.invalid] == ([invalid] if invalid else [])


@pytest.mark.parametrize(
    ("keep", "note"),
    [
        (lambda i, t: not 15 < t < 16, "the power trace has a hole of 1.0 s"),
        (lambda i, t: i % 3, "the power trace has 67% of its samples"),
        (lambda i, t: t > 12, "the power trace does not reach over the window"),
    ],
)
def test_a_trace_with_holes_is_no_witness(keep: Callable[[int, float], bool], note: str) -> None:
    readings = [r for i, r in enumerate(trace(steady(300), 9.0, 31.0)) if keep(i, r.time_s)]

    found = measured(steady(300), trace=readings)

    assert (found.method, found.trace_j) == ("counter", None)
    assert found.notes == (note,)


def test_witnesses_that_disagree_make_the_energy_invalid() -> None:
    """On a sensor that sees a quarter of the time the trace is the weak one: a note."""
    other = trace(steady(330), 9.0, 31.0)

    sure, quarter = (measured(steady(300), trace=other, covers=covers) for covers in (True, False))

    said = "counter and power trace disagree: 6,000 J and 6,600 J"
    assert sure.invalid == (said,)
    assert not sure.gated
    assert quarter.invalid == ()
    assert quarter.notes == (f"{said}; this sensor sees a quarter of the time, the counter counts",)


@pytest.mark.parametrize(
    ("watts", "limit_w", "text"),
    [
        (3.0, None, "a mean power of 3.0 W is less than any board draws"),
        (900.0, 700.0, "a mean power of 900 W is above 1.2 times the enforced limit of 700 W"),
    ],
)
def test_what_no_board_draws_is_a_defect(watts: float, limit_w: float | None, text: str) -> None:
    assert measured(steady(watts), limit_w=limit_w).invalid == (text,)


@pytest.mark.parametrize(
    ("window_s", "note"),
    [
        (4.0, ("a window of 4.0 s is too short for energy",)),
        (12.0, ("energy of 12.0 s is reported, not gated: that needs 20 s",)),
        (20.0, ()),
    ],
)
def test_short_windows_say_so(window_s: float, note: tuple[str, ...]) -> None:
    found = measured(steady(300), window_s)

    assert found.notes == note
    assert found.gated is (not note)


def test_a_window_without_a_length_is_refused() -> None:
    with pytest.raises(ValueError, match="the window ends 1 s before it begins"):
        measure([], [], 3.0, 2.0)
