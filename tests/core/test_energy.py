"""Test the energy of a window: its error, its uncertainty, and when it is withheld."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.core.energy import MIN_GATED_SECONDS, Energy, measure, sum_energies
from pytest_mlperf.core.energy.host import Counted, host_energy
from pytest_mlperf.core.energy.readings import Reading, delay_s, lag_of, refresh_s, regular_steps
from pytest_mlperf.core.notes import Note
from tests.core.made import keys_of, present

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


def measured(load: Load, window_s: float = 20.0, **replaced: object) -> Energy:
    """Measure a window that begins at 10 s, with a second before and after."""
    first, last = 9.0, 11.0 + window_s
    readings = {
        "counter": counter(load, first, last),
        "trace": trace(load, first, last),
        "begin_s": 10.0,
        "end_s": 10.0 + window_s,
        "rate_hz": 50.0,
    }
    return measure(**{**readings, **replaced})  # type: ignore[arg-type]


@settings(max_examples=6)
@given(st.floats(40, 900), st.floats(5, 60))
def test_a_steady_load_is_counted_to_the_digit(watts: float, window_s: float) -> None:
    energy = measured(steady(watts), window_s)

    assert energy.joules == pytest.approx(watts * window_s, rel=0.004)
    assert energy.mean_w == pytest.approx(watts, rel=0.004)
    assert energy.method == "counter"
    assert energy.gated == (window_s >= MIN_GATED_SECONDS)
    assert energy.invalid == ()


@settings(max_examples=14)
@given(
    st.sampled_from([0.02, 0.1]),
    st.floats(0.0, 0.12),
    st.sampled_from(["job", 0.05, 0.11, 0.5, 1.1, 3.0]),
    st.integers(0, 9),
)
def test_the_uncertainty_covers_the_truth(
    step_s: float, lag_s: float, kind: float | str, seed: int
) -> None:
    load = job(10.0, 30.0) if kind == "job" else waves(float(kind))
    seen = counter(load, 9.0, 31.0, step_s=step_s, lag_s=lag_s, seed=seed)

    energy = measured(load, counter=seen)

    exact = load(30.0) - load(10.0)
    joules, uncertainty_j = present(energy.joules), present(energy.uncertainty_j)
    assert abs(joules - exact) <= min(uncertainty_j, 0.01 * exact)
    assert uncertainty_j < 0.05 * exact


def test_without_a_counter_the_trace_is_the_value_and_a_lag_is_seen_where_the_load_changes() -> (
    None
):
    energy = measured(job(10.0, 30.0), counter=[])
    nothing = measured(steady(300), counter=[], trace=[])

    assert (energy.method, energy.gated) == ("trace", True)
    assert energy.joules == pytest.approx(620 * 20, rel=0.01)
    assert keys_of(energy.notes) == ["no_counter"]
    assert (nothing.joules, nothing.mean_w, nothing.uncertainty_j) == (None, None, None)
    assert (nothing.method, nothing.gated) == (None, False)
    assert keys_of(nothing.notes) == ["no_counter", "no_trace"]

    load, flat = waves(1.1), counter(steady(300), 9.0, 31.0, lag_s=0.2)

    for lag_s in (0.0, 0.05, 0.1, 0.2):
        readings = counter(load, 9.0, 31.0, step_s=0.02, lag_s=lag_s)
        assert lag_of(readings, trace(load, 9.0, 31.0)) == pytest.approx(lag_s, abs=0.03)
    assert lag_of(flat, trace(steady(300), 9.0, 31.0)) is None
    assert measured(steady(300), counter=flat).joules == pytest.approx(6000, rel=0.002)


def reset(readings: list[Reading]) -> list[Reading]:
    half = len(readings) // 2
    later = [replace(r, value=r.value - readings[half].value) for r in readings[half:]]
    return [*readings[:half], *later]


def test_a_counter_that_cannot_be_used_is_not_used_and_a_trace_with_holes_is_no_witness() -> None:
    """The trace takes its place, under its own name; a reset makes the run INVALID."""
    whole, power = counter(steady(300), 9.0, 31.0), trace(steady(300), 9.0, 31.0)
    for readings, note, invalid in (
        (reset(whole), "counter_reset", ["counter_reset"]),
        ([replace(r, value=7.0) for r in whole], "counter_constant", []),
        ([r for r in whole if r.time_s > 10.5], "counter_in_part", []),
        ([r for r in whole if not 29.2 < r.time_s < 30.4], "counter_unread", []),
    ):
        energy = measured(steady(300), counter=readings, trace=power)
        assert energy.method == "trace"
        assert energy.joules == pytest.approx(6000, rel=0.001)
        assert keys_of(energy.notes)[0] == note
        assert keys_of(energy.invalid) == invalid
    for readings, note in (
        ([r for r in power if not 15 < r.time_s < 16], "trace_gap"),
        ([r for i, r in enumerate(power) if i % 3], "trace_thin"),
        ([r for r in power if r.time_s > 12], "trace_in_part"),
    ):
        energy = measured(steady(300), counter=whole, trace=readings)
        assert (energy.method, energy.trace_j) == ("counter", None)
        assert keys_of(energy.notes) == [note]


def second(load: Load, first_s: float, last_s: float) -> list[Reading]:
    """Return the driver's mean of the last second, five times a second."""
    moments = [first_s + i / 5 for i in range(int((last_s - first_s) * 5))]
    return [Reading(time_s=t, value=load(t) - load(t - 1.0)) for t in moments]


def test_a_counter_that_its_witness_contradicts_is_not_judged() -> None:
    """The witness is a trace that covers, else the driver's mean, else whatever trace there is."""
    witness = trace(steady(330), 9.0, 31.0)
    cases: list[tuple[int | None, bool, dict[str, str]]] = [
        (None, True, {"key": "energies_differ", "other": "trace", "sensor": ""}),
        (300, True, {"key": "energies_differ", "other": "trace", "sensor": ""}),
        (None, False, {"key": "energies_differ", "other": "trace", "sensor": "partial_sensor"}),
        (300, False, {"key": "counter_used", "other": "trace", "reason": "mean_agrees"}),
        (330, False, {"key": "energies_differ", "other": "mean_power", "sensor": ""}),
    ]
    for average, covers, values in cases:
        means = second(steady(average), 9.0, 31.0) if average else ()
        energy = measured(steady(300), trace=witness, average=means, covers=covers)
        (note,) = (*energy.invalid, *energy.notes)
        assert isinstance(note, Note)
        assert {"key": note.key, **note.values}.items() >= values.items()
        figures = [note.values[name] for name in ("joules", "other_j")]
        assert figures == pytest.approx([6000, 6600], rel=1e-3)
        assert energy.gated is not bool(energy.invalid)
        assert bool(energy.invalid) is (note.key == "energies_differ")
        assert energy.joules == pytest.approx(6000, rel=0.001)


def refreshed(load: Load, every_s: float, first_s: float, mean_s: float = 0.025) -> list[Reading]:
    """Return 22 s of a sensor whose value is refreshed at an interval, read every 20 ms."""

    def value_at(t: float) -> float:
        last = t // every_s * every_s
        return (load(last) - load(last - mean_s)) / mean_s

    moments = [first_s + i / 50 for i in range(1100)]
    return [Reading(time_s=t, value=value_at(t)) for t in moments]


def test_a_sensor_that_may_see_a_part_of_the_time_is_not_gated() -> None:
    """A load of 100 ms under a sensor that looks every 100 ms: nothing in the trace shows it.

    A covering sensor of 25 ms, read every 20 ms, is off, and says so.
    """
    load = waves(0.1)

    energy = measured(load, counter=[], trace=refreshed(load, 0.1, 9.0), covers=False)

    assert present(energy.joules) < 0.5 * load(20.0)
    assert (energy.uncertainty_j, energy.gated) == (None, False)
    assert keys_of(energy.notes) == ["no_counter", "trace_alone"]

    energy = measured(load, counter=[], trace=refreshed(load, 0.025, 9.001))

    assert abs(present(energy.joules) - 7000) <= present(energy.uncertainty_j)
    assert not energy.gated
    assert keys_of(energy.notes)[-1] == "energy_unsure"


@pytest.mark.parametrize(("begin_s", "end_of_window"), [(9.8, "the begin"), (29.9, "the end")])
def test_a_hole_at_an_end_of_the_window_is_noted_and_adds_uncertainty(
    begin_s: float, end_of_window: str
) -> None:
    """The sampler was stopped for 0.4 s where the power stepped."""
    load = job(10.0, 30.0)
    kept = [
        [r for r in readings if not begin_s < r.time_s < begin_s + 0.4]
        for readings in (counter(load, 9.0, 31.0), trace(load, 9.0, 31.0))
    ]

    whole, energy = measured(load), measured(load, counter=kept[0], trace=kept[1])

    seconds = pytest.approx(0.45, abs=0.01)
    assert energy.notes == (Note.of("counter_unread", seconds=seconds, end=end_of_window),)
    uncertainty_j = present(energy.uncertainty_j)
    assert uncertainty_j > present(whole.uncertainty_j)
    assert abs(present(energy.joules) - load(30.0) + load(10.0)) <= uncertainty_j


def test_a_counter_of_slow_steps_is_used_and_the_reason_of_one_too_slow_is_right() -> None:
    """A hole or late readings do not move the other steps: every 100 ms, seen up to 25 ms off."""
    load = job(10.0, 30.0)
    slow, too_slow = (
        measured(load, counter=counter(load, 7.0, 33.0, step_s=step_s)) for step_s in (0.5, 1.5)
    )

    assert slow.method == "counter"
    assert slow.joules == pytest.approx(load(30.0) - load(10.0), rel=0.01)
    assert too_slow.method == "trace"
    assert too_slow.notes == (Note.of("counter_still", seconds=pytest.approx(1.5, rel=1e-3)),)

    rng = random.Random(4)
    moments = {i: i / 10 + 0.05 * (rng.random() - 0.5) for i in range(200) if not 90 <= i < 100}
    moments[50] += 0.06

    readings = regular_steps([Reading(time_s=t, value=i) for i, t in moments.items()], 0.05)

    assert [r.value for r in readings] == list(moments)
    assert all(r.time_s == pytest.approx(r.value / 10, abs=0.01) for r in readings)


@pytest.mark.parametrize("every_s", [0.025, 0.1])
def test_the_refresh_is_seen_though_a_flat_load_hides_most_of_it(every_s: float) -> None:
    """Most changes are those of the load, so that their usual distance says nothing."""
    load = waves(3.0)
    times = [9.0 + i / 50 + 0.0007 * (i % 7) for i in range(2000)]
    watts = [load(t // every_s * every_s) - load(t // every_s * every_s - 0.02) for t in times]
    noise = [(t // every_s) % 3 * (t % 5 < 2) for t in times]
    noisy = [
        Reading(time_s=t, value=round(w / 0.02, 3) + n)
        for t, w, n in zip(times, watts, noise, strict=True)
    ]

    assert refresh_s(noisy) == pytest.approx(every_s, abs=0.02)
    assert delay_s(noisy, covers=True) == 2 * delay_s(noisy, covers=False)
    assert refresh_s([Reading(time_s=t, value=300.0) for t in times]) is None


def test_short_windows_say_so() -> None:
    """What no board draws is a defect."""
    low, high = measured(steady(3.0)), measured(steady(900.0), limit_w=700.0)

    high_values = {"mean_w": pytest.approx(900, rel=1e-3), "limit_w": 700.0, "most": 1.2}
    assert low.invalid == (Note.of("power_too_low", mean_w=pytest.approx(3.0, rel=1e-3)),)
    assert high.invalid == (Note.of("power_above_limit", **high_values),)
    with pytest.raises(ValueError, match="the window ends 1 s before it begins"):
        measure([], [], 3.0, 2.0)

    for window_s, shown_s in ((4.0, 4.0), (12.0, 12.0), (18.99, 18.9), (19.99, None), (20.0, None)):
        energy = measured(steady(300), window_s)
        short = Note.of("energy_short", noun="energy", window_s=shown_s, needed_s=19.0)
        assert (energy.notes, energy.gated) == ((short,) if shown_s else (), shown_s is None)


def test_energy_above_idle_needs_an_idle_time_around_the_window() -> None:
    """The quietest half second before or after, if its power was steady."""
    for load, idle_w in (
        (job(10.0, 30.0), 80.0),
        (job(8.0, 30.0), 80.0),  # busy before
        (job(10.0, 40.0, idle_w=120.0), 120.0),  # busy after
        (job(10.0, 30.3), 80.0),  # a tail
    ):
        energy = measured(load, counter=counter(load, 9.0, 31.3), trace=trace(load, 9.0, 31.3))
        assert energy.idle_w == pytest.approx(idle_w)
        assert energy.net_joules == pytest.approx((energy.joules or 0.0) - 20 * idle_w)

    never, flat, untraced = (
        measured(waves(0.7), counter=counter(waves(0.7), 9.0, 31.3)),
        measured(steady(300)),
        measured(steady(300), trace=[]),
    )
    assert [never.idle_w, flat.idle_w, untraced.idle_w] == [None, pytest.approx(300), None]
    assert [found.net_joules for found in (never, flat, untraced)] == [None] * 3


@given(
    st.lists(st.floats(min_value=100.0, max_value=1e6), min_size=1, max_size=8),
    st.floats(min_value=-0.1, max_value=0.1),
)
def test_common_errors_of_sensors_of_one_kind_are_in_the_uncertainty_of_the_sum(
    used_j: list[float], gain: float
) -> None:
    """Each reads a share too much or too little, the same one: a root of squares would not hold."""
    energies = {
        f"GPU-{n}": Energy(
            joules=joules * (1 + gain),
            uncertainty_j=joules * abs(gain),
            method="counter",
            window_s=60.0,
            peak_w=None,
            trace_j=None,
            idle_w=None,
        )
        for n, joules in enumerate(used_j)
    }
    whole = sum_energies(energies)

    uncertainty_j = present(whole.uncertainty_j)
    assert abs(present(whole.joules) - sum(used_j)) <= uncertainty_j * (1 + 1e-9) + 1e-6
    assert whole.parts == {uuid: energy.joules for uuid, energy in energies.items()}


def counted(
    used: Callable[[float], float], *, range_j: float = 1e9, period_s: float = 0.2, end_s: float
) -> Counted:
    """What a counter shows of a load from 0 to a moment, beginning near the end of its range."""
    times = [period_s * n for n in range(int(end_s / period_s) + 2)]
    start_j = 0.9 * range_j
    readings = (Reading(time_s=t, value=(start_j + used(t)) % range_j) for t in times)
    return Counted(range_j=range_j, readings=tuple(readings))


@settings(max_examples=30)
@given(
    watts=st.floats(min_value=1.0, max_value=800.0),
    range_j=st.floats(min_value=2000.0, max_value=300_000.0),
    begin_s=st.floats(min_value=0.0, max_value=30.0),
    window_s=st.floats(min_value=1.0, max_value=300.0),
)
def test_a_counter_that_goes_round_is_followed(
    watts: float, range_j: float, begin_s: float, window_s: float
) -> None:
    end_s = begin_s + window_s
    readings = counted(lambda t: watts * t, range_j=range_j, end_s=end_s + 1)
    energy = host_energy({"package-0": readings}, begin_s, end_s)

    assert energy.joules == pytest.approx(watts * window_s, rel=1e-6)
    assert energy.mean_w == pytest.approx(watts, rel=1e-6)


@given(
    step_s=st.floats(min_value=4.0, max_value=26.0), begin_s=st.floats(min_value=4.9, max_value=5.3)
)
def test_the_truth_is_inside_the_uncertainty(step_s: float, begin_s: float) -> None:
    def used(t: float) -> float:
        return 50 * t + 350 * max(0.0, t - step_s)

    energy = host_energy({"package-0": counted(used, end_s=40)}, begin_s, 25.0)

    uncertainty_j, truth_j = present(energy.uncertainty_j), used(25.0) - used(begin_s)
    assert abs(present(energy.joules) - truth_j) <= uncertainty_j * (1 + 1e-9) + 1e-6
    assert uncertainty_j < 400 * 0.5


def test_domains_are_summed_with_their_uncertainties() -> None:
    """Memory whose counter never moves is left out, and neighbours are named."""
    both = {
        name: counted(lambda t, w=watts: w * t, end_s=20)  # type: ignore[misc]
        for name, watts in (("package-0", 100.0), ("package-0 dram", 20.0))
    }
    energy = host_energy(both, 5.05, 15.05)
    alone = [host_energy({name: one}, 5.05, 15.05) for name, one in both.items()]

    assert energy.parts == pytest.approx({"package-0": 1000.0, "package-0 dram": 200.0})
    assert energy.joules == pytest.approx(1200.0)
    assert energy.uncertainty_j == pytest.approx(sum(one.uncertainty_j or 0 for one in alone))
    assert energy.notes == ()

    package, memory = counted(lambda t: 100 * t, end_s=40), counted(lambda t: 0.0, end_s=40)

    energy = host_energy({"package-0": package, "package-0 dram": memory}, 5.0, 15.0)
    shared = host_energy({"package-0": package}, 1.0, 2.0, shared=True)

    assert energy.joules == pytest.approx(1000.0)
    assert energy.notes == (Note.of("host_constant", counter="package-0 dram"),)
    assert keys_of(shared.notes) == ["host_shared"]


def test_energy_without_readings_is_unknown() -> None:
    """Never a 0, and the sum of several is not known either."""
    good = counted(lambda t: 100 * t, end_s=40)
    cases: dict[str, tuple[tuple[float, float], ...]] = {
        "none": (),
        "late": ((6.0, 1.0), (20.0, 2.0)),
        "short": ((0.0, 1.0), (14.0, 2.0)),
        "a hole": ((0.0, 1.0), (40.0, 2.0)),
        "absurd": ((0.0, 1.0), (10.0, 9e5), (20.0, 9.1e5)),
        "set back": ((0.0, 500.0), (10.0, 100.0), (20.0, 200.0)),
        "the clock": ((0.0, 1.0), (20.0, 2.0), (15.0, 3.0), (30.0, 4.0)),
        "dead": ((0.0, 7.0), (10.0, 7.0), (20.0, 7.0)),
        "range 0": ((0.0, 900.0), (10.0, 100.0), (20.0, 200.0)),
    }
    note = Note.of("host_unread", counter="package-1")
    for name, values in cases.items():
        readings = tuple(Reading(time_s=t, value=v) for t, v in values)
        odd = Counted(range_j=0.0 if name == "range 0" else 1e6, readings=readings)
        energy = host_energy({"package-0": good, "package-1": odd}, 5.0, 15.0)
        assert (energy.joules, energy.uncertainty_j, energy.mean_w) == (None, None, None), name
        assert energy.parts == {"package-0": pytest.approx(1000.0), "package-1": None}
        assert energy.notes == (note,)
