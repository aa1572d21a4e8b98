"""Clocks beside the baseline's: told where they are free, refused where they are locked."""

from __future__ import annotations

import pytest

from pytest_mlperf.core.control import State, clocks_moved, locked_clock_moved

BASELINE: list[State] = [{"sm_mhz": 1900.0, "power_cap_share": 0.31, "temperature_c": 60.0}] * 3


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"sm_mhz": 1900.0, "power_cap_share": 0.31, "temperature_c": 60.0}, None),
        ({"sm_mhz": 1875.0, "power_cap_share": 0.40, "temperature_c": 75.0}, None),
        (
            {"sm_mhz": 1860.0, "power_cap_share": 0.58, "temperature_c": 71.0},
            "SM clock −2.1 %, power cap share 31 % → 58 %, +11 °C",
        ),
        ({"sm_mhz": 1900.0, "power_cap_share": 0.42}, "power cap share 31 % → 42 %"),
        ({"sm_mhz": 1950.0}, "SM clock +2.6 %"),
        ({}, None),
    ],
)
def test_what_moved_is_told_with_its_numbers(now: State, said: str | None) -> None:
    """From 1.5 % of the clock, or 10 points of the cap, on."""
    assert clocks_moved([now], BASELINE) == said


def test_without_a_baselines_clocks_nothing_is_told() -> None:
    assert clocks_moved(BASELINE, [{}, {}]) is None
    assert clocks_moved(BASELINE, [{"sm_mhz": 0.0}]) is None


@pytest.mark.parametrize(
    ("clocks", "mhz", "moved"),
    [
        ("free", 1500.0, False),
        (None, 1500.0, False),
        (1900, 1900.0, False),
        (1900, 1880.0, False),
        (1900, 1860.0, True),
        (1900, 1940.0, True),
    ],
)
def test_only_a_locked_clock_may_not_move(clocks: object, mhz: float, moved: bool) -> None:
    found = locked_clock_moved([{"sm_mhz": mhz}] * 2, BASELINE, clocks)

    assert (found is not None) == moved
    if moved:
        assert found is not None
        assert f"{mhz:.0f} MHz now, 1900 MHz when" in found
