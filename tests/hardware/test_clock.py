"""Whether the wall clock was set between two looks."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from pytest_mlperf.hardware import clock
from pytest_mlperf.hardware.clock import ClockWatch, ahead_s

Set = Callable[[float], None]


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Set:
    """Return a function that sets the wall clock ahead."""
    real = time.time

    def set_to(ahead: float) -> None:
        monkeypatch.setattr(time, "time", lambda: real() + ahead)

    return set_to


def test_the_largest_offset_of_the_clock_is_reported(
    wall: Set, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a clock that was set back during the run, or slewed in small steps."""
    monkeypatch.setattr(clock, "CLOCK_PERIOD_SECONDS", 0.002)
    for steps, moved in (
        ((0.0,), 0.0),
        ((3600.0,), 3600.0),
        ((-1.0,), -1.0),
        ((1.0, 0.0), 1.0),
        ((0.01, 0.02, 0.03), 0.03),
    ):
        wall(0.0)
        watch = ClockWatch()
        watch.start()
        for step in steps:
            wall(step)
            time.sleep(0.05)
        watch.stop()
        assert watch.moved_s == pytest.approx(moved, abs=5e-3)


def test_a_process_that_is_held_up_between_two_clocks_reads_them_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steady = iter([0.0, 0.5, 1.0, 1.00001])
    monkeypatch.setattr(time, "clock_gettime", lambda _: next(steady))
    monkeypatch.setattr(time, "time", lambda: 101.0)

    assert ahead_s() == pytest.approx(100.0, abs=1e-4)
    assert ClockWatch().moved_s == 0.0
