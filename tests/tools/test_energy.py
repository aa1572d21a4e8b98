"""tools/energy.py: what is stated of an energy holds for every simulated board that is judged."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any

import pytest

pytestmark = pytest.mark.slow


JUDGED = (
    "counter 100 ms, no lag",
    "counter 20 ms, lag 20 ms",
    "counter with jitter, lag 50 ms",
    "counter, lag 250 ms",
    "GA10x-like: lag 50 ms, 100/100",
    "H100-like: lag 100 ms, 25/100",
)
"""What boards are reported to have: all windows of 20 s are judged, at 0.1 % mean error."""

COVERED = (
    "A100-like: no mean of a second",
    "no counter, 100/100, covers",
    "counter of a 1 s mean",
    "counter, lag 500 ms",
    "counter, lag 600 ms",
    "counter of 500 ms",
    "counter +2 %, GA10x-like",
)
"""What boards may do: what is judged lies inside what is stated."""

NOT_JUDGED = (
    "no counter, 25/100",
    "no counter, 25/25",
    "counter +4 %, GA10x-like",
    "counter +8 %, H100-like",
    "counter +20 %, module",
)
"""What nothing vouches for."""


@pytest.fixture
def windows(lib: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[Any]]:
    """Return one window of 20 s of each load."""
    tool = lib("energy")
    monkeypatch.setattr(tool, "PHASES", 1)
    return lambda name: list(tool.windows(tool.SENSORS[name], 20.0))


def test_a_usual_board_is_judged_and_near(windows: Callable[[str], list[Any]]) -> None:
    for name in JUDGED:
        found = windows(name)
        assert all(each.gated and each.inside for each in found), name
        assert fmean(abs(each.error) for each in found) < 0.0015
        assert all(0 < each.unsure < 0.04 for each in found)


def test_what_is_judged_lies_inside_what_is_stated(windows: Callable[[str], list[Any]]) -> None:
    for name in COVERED:
        found = windows(name)
        assert any(each.gated for each in found), name
        assert all(each.inside for each in found if each.gated)


def test_what_nothing_vouches_for_is_not_judged(
    windows: Callable[[str], list[Any]], lib: Any
) -> None:
    for name in NOT_JUDGED:
        found = windows(name)
        assert not any(each.gated for each in found), name
        assert len(found) == len(lib("energy").LOADS)
