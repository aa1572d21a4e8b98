"""When a machine counts as slow, and how often one that is not does."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.core.control import (
    COPY,
    FLOOR_CPU,
    FLOOR_GPU,
    FLOOR_PEER,
    LIBRARY,
    MATMUL,
    PEER,
    Control,
    ControlComparison,
    State,
    cannot_say,
    clock_changes,
    compared,
    locked_clock_change,
    most_significant,
    steady,
)
from pytest_mlperf.reports.sentences import machine_speed, sentence
from tests.core.made import present

BASELINE = [1.45e12, 1.46e12, 1.44e12, 1.45e12]


def controls(matmul: Sequence[float], copy: float = 2e10, library: float = 1.0) -> list[Control]:
    return [{MATMUL: value, COPY: copy, LIBRARY: library} for value in matmul]


def slow(
    current: Sequence[Control], baseline: Sequence[Control], *, floor: float = FLOOR_GPU
) -> ControlComparison | None:
    return most_significant(compared(current, baseline, floor=floor))


def test_the_worst_figure_is_reported_and_a_momentary_disturbance_is_not() -> None:
    """A copy between GPUs is compared where both sides have it: with a wider smallest spread.

    A faster machine is off too. One of three values is far off, and the middle one counts.
    """
    plain = controls(BASELINE)
    paired = [{**each, PEER: 4e11} for each in plain]
    slower = [{**each, PEER: 4e10} for each in plain[:1]]

    off = present(slow(slower, paired))

    assert [each.quantity for each in compared(slower, plain, floor=FLOOR_GPU)] == [MATMUL, COPY]
    assert (off.quantity, off.sd) == (PEER, FLOOR_PEER)
    sides = {"now": pytest.approx(4e10), "baseline": pytest.approx(4e11)}
    assert off.note.values == {**sides, "quantity": PEER, "change": off.share, "sd": off.sd}
    assert slow(paired[:1], paired) is None

    restless = controls([1.4e12, 0.4e12, 1.5e12, 0.45e12])
    off = present(slow(controls([1.2e12], copy=1e10), controls(BASELINE)))

    assert present(slow(controls([1.9e12]), controls(BASELINE))).faster
    assert off.quantity == COPY
    assert (off.now, off.baseline) == pytest.approx((1e10, 2e10))
    for current, baseline, is_off in (
        ([1.45e12, 0.4e12, 1.45e12], controls(BASELINE), False),
        ([0.45e12, 0.4e12, 1.45e12], controls(BASELINE), True),
        ([0.4e12], restless, False),
        ([1.5e12], restless, False),
    ):
        assert bool(slow(controls(current), baseline, floor=FLOOR_CPU)) is is_off


def test_both_speeds_are_reported_with_their_spread_and_detectable_change() -> None:
    """A machine that multiplies a fifth slower is not as fast as it was, though none could tell."""
    for quantity, current, baseline, sd, speed, stored, change in (
        (MATMUL, 1.02e12, 1.45e12, 0.018, "slow: matrix product 1.02", "1.45 TFLOP/s", "−29.7"),
        (COPY, 3.5e12, 3.2e12, 0.0075, "fast: copy 3.50", "3.20 TB/s", "+9.4"),
        (COPY, 999.6e6, 14.5e9, 0.07, "slow: copy 1.00", "14.5 GB/s", "−93.1"),
        (MATMUL, 99.6e12, 712e12, 0.0075, "slow: matrix product 99.6", "712 TFLOP/s", "−86.0"),
    ):
        off = ControlComparison(quantity=quantity, now=current, baseline=baseline, sd=sd)
        assert sentence(off.note) == (
            f"the machine is {speed} {stored.split()[1]} now, {stored} when the baseline was "
            f"recorded ({change} %; normal variation {100 * sd:g} %)"
        )

    earlier = [{MATMUL: 1e12 * x, COPY: 2e10} for x in (0.5, 1.0, 2.0, 1.0)]
    saw = compared([{MATMUL: 0.78e12, COPY: 1.5e10}], [{MATMUL: 1e12, COPY: 2e10}] * 8, floor=0.07)
    unlike = compared([{MATMUL: 1e12, COPY: 2e10}], earlier, floor=0.07)

    assert steady(saw) is True
    assert machine_speed(saw) == (
        "matrix product −22.0 %, copy −25.0 %; only slowdowns of 26.9 % or more can be "
        "detected on this machine"
    )
    assert machine_speed(unlike).endswith(
        "only slowdowns of 84 % and 29 % or more can be detected on this machine"
    )
    assert steady(compared([{}], [{}] * 8, floor=0.07)) is None
    assert steady(compared([{COPY: 1e10}], [{COPY: 1e10}], floor=0.07)) is None


def test_the_threshold_is_four_standard_deviations_of_the_difference() -> None:
    """By hand: s² = (4 · 0.01² + 2 · 0.03²) / 5, a difference's is s · sqrt(1 + 2/2).

    No spread is believed below the floor: equal values of the baseline turn no noise into a slow
    machine.
    """
    spread = math.sqrt((4 * 0.01**2 + 2 * 0.03**2) / 5)
    two, equal = controls([math.exp(0.03), math.exp(-0.03)]), controls([1.0] * 8)
    for baseline, floor, sd, edge in (
        (two, 0.01, spread, 4 * spread * math.sqrt(2)),
        (equal, 0.02, 0.02, 4 * 0.02 * math.sqrt(1.25)),
    ):
        assert slow(controls([math.exp(-edge * 0.999)]), baseline, floor=floor) is None
        off = present(slow(controls([math.exp(-edge * 1.001)]), baseline, floor=floor))
        assert (off.quantity, off.faster) == (MATMUL, False)
        assert off.sd == pytest.approx(sd)
        assert (off.now, off.baseline) == pytest.approx((math.exp(-edge * 1.001), 1.0))


NOW = controls([1e12])
OTHER = controls(BASELINE, library=2.0)


def test_unknown_speeds_are_left_out_and_all_known_ones_compared() -> None:
    """Another library leaves the copy compared."""
    few = "fewer than 2 runs of the baseline have results of the machine's micro-benchmark"
    other = "not compared: the baseline used another library"
    single, two = controls(BASELINE[:1]), controls(BASELINE[:2])
    cases: list[tuple[list[Control], list[Control], str]] = [
        ([], controls(BASELINE), "the machine's micro-benchmark was not run in this session"),
        ([{}, {}], controls(BASELINE), "the machine's micro-benchmark was not run in this session"),
        (NOW, [], few),
        (NOW, single, few),
        (NOW, [*single, {}], few),
        (NOW, OTHER, other),
        (NOW, [*single, *OTHER], other),
    ]
    for current, baseline, reason in cases:
        assert slow(current, baseline) is None
        assert reason in sentence(cannot_say(current, baseline) or "")
    assert cannot_say(NOW, controls(BASELINE)) is None
    assert slow(NOW, [*two, {}, {}, *OTHER])
    assert cannot_say([{}, *NOW], [*two, {}, *OTHER]) is None
    assert slow(controls([3e12]), OTHER) is None
    assert present(slow(controls([3e12], copy=1e10), OTHER)).quantity == COPY


values = st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=6)


@settings(max_examples=50)
@given(values, values, st.floats(0.001, 0.1), st.floats(1e-3, 1e3))
def test_neither_order_nor_unit_matters(
    current: list[float], baseline: list[float], floor: float, unit: float
) -> None:
    """The verdict is of ratios; that of the mirrored values is its mirror."""
    there = [math.exp(x) for x in current], [math.exp(x) for x in baseline]
    first = slow(*map(controls, there), floor=floor)
    others = (
        slow(*(controls([unit * v for v in side][::-1]) for side in there), floor=floor),
        slow(*(controls([1 / v for v in side]) for side in there), floor=floor),
    )
    mean = math.exp(math.fsum(baseline) / len(baseline))

    for other in others:
        assert (first is None) == (other is None)
    if first and others[0] and others[1]:
        assert others[0].now / others[0].baseline == pytest.approx(first.now / first.baseline)
        assert others[0].faster == first.faster != others[1].faster
        assert others[0].sd == pytest.approx(first.sd) == others[1].sd
    assert slow(controls([mean]), controls(there[1]), floor=floor) is None


def sessions(
    sd: float, shared: float, shape: str, drop: float, count: int
) -> Iterator[tuple[list[Control], list[Control]]]:
    """Yield a session of 1 to 5 values and a baseline of 8 in 4 sessions, both figures of each.

    Values of one session have a share of their variance in common; "t3" is Student's t of 3 degrees
    of freedom, scaled to `sd`.
    """
    draw = np.random.default_rng(2024)

    def noise(*size: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        if shape == "t3":
            return draw.standard_t(3, size) / math.sqrt(3)
        return draw.standard_normal(size)

    for number in range(count):
        together = sd * math.sqrt(shared) * np.repeat(noise(5, 2), [2, 2, 2, 2, 5], axis=0)
        logs = together + sd * math.sqrt(1 - shared) * noise(13, 2)
        logs[8:] += math.log1p(-drop)
        both: list[Control] = [
            dict(zip((MATMUL, COPY), row, strict=True)) for row in np.exp(logs).tolist()
        ]
        yield both[8 : 9 + number % 5], both[:8]


def false_alarms(floor: float, noise: tuple[float, float, str], drop: float, count: int) -> float:
    pairs = sessions(*noise, drop, count)
    return sum(slow(*pair, floor=floor) is not None for pair in pairs) / count


@pytest.mark.parametrize("count", [400, pytest.param(4000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(("shape", "most"), [("normal", 0.0005), ("t3", 0.003)])
def test_an_unchanged_machine_is_hardly_ever_off(shape: str, most: float, count: int) -> None:
    for floor, sd in ((FLOOR_GPU, 0.005), (FLOOR_CPU, 0.05)):
        for shared in (0.25, 0.6):
            assert false_alarms(floor, (sd, shared, shape), 0.0, count) <= most


def test_how_slow_a_machine_must_be_to_be_found() -> None:
    for floor, sd, drops in (
        (FLOOR_GPU, 0.005, (0.025, 0.032, 0.038)),
        (FLOOR_CPU, 0.05, (0.20, 0.26, 0.31)),
    ):
        few, half, all_ = (false_alarms(floor, (sd, 0.25, "normal"), drop, 300) for drop in drops)
        assert few <= 0.2
        assert 0.5 <= half <= 0.8
        assert all_ >= 0.95


@settings(max_examples=50)
@given(
    st.floats(1e-3, 1e3),
    st.lists(st.floats(1e9, 1e11), min_size=2, max_size=12),
    st.sampled_from([FLOOR_CPU, FLOOR_GPU]),
)
def test_the_detectable_change_is_the_threshold_of_detection(
    factor: float, baseline_values: list[float], floor: float
) -> None:
    """`least` is the edge of `off`, for a slower machine."""
    baseline: list[Control] = [{COPY: value} for value in baseline_values]
    (comparison,) = compared([{COPY: factor * baseline_values[0]}], baseline, floor=floor)

    if abs(-comparison.share - comparison.min_detectable_slowdown) > 1e-9 and not comparison.faster:
        assert comparison.is_significant == (-comparison.share > comparison.min_detectable_slowdown)


LOCKED: list[State] = [{"sm_mhz": 1900.0, "power_cap_share": 0.31, "temperature_c": 60.0}] * 3


def test_changed_clocks_are_reported_with_their_numbers() -> None:
    """From 1.5 % of the clock, or 10 points of the cap, on; only a locked clock may not move."""
    cases: list[tuple[State, dict[str, list[float]]]] = [
        ({"sm_mhz": 1900.0, "power_cap_share": 0.31, "temperature_c": 60.0}, {}),
        ({"sm_mhz": 1875.0, "power_cap_share": 0.40, "temperature_c": 75.0}, {}),
        (
            {"sm_mhz": 1860.0, "power_cap_share": 0.58, "temperature_c": 71.0},
            {"clock_change": [-0.021], "cap_change": [0.31, 0.58], "heat_change": [11.0]},
        ),
        ({"sm_mhz": 1900.0, "power_cap_share": 0.42}, {"cap_change": [0.31, 0.42]}),
        ({"sm_mhz": 1950.0}, {"clock_change": [0.026]}),
        ({}, {}),
    ]
    for current, changes in cases:
        note = clock_changes([current], LOCKED)
        moves: Any = note.values["moves"] if note else ()
        assert [move.key for move in moves] == [*changes]
        for move in moves:
            assert [*move.values.values()] == pytest.approx(changes[move.key], abs=5e-4)
    assert clock_changes(LOCKED, [{}, {}]) is None
    assert clock_changes(LOCKED, [{"sm_mhz": 0.0}]) is None

    for clocks, mhz, moved in (
        ("free", 1500.0, False),
        (None, 1500.0, False),
        (1900, 1900.0, False),
        (1900, 1880.0, False),
        (1900, 1860.0, True),
        (1900, 1940.0, True),
    ):
        message = locked_clock_change([{"sm_mhz": mhz}] * 2, LOCKED, clocks)
        assert (message is not None) == moved
        assert f"{mhz:.0f} MHz now, 1900 MHz when" in sentence(message or "") or not moved
