"""research/energy.py: a stated energy holds for every simulated board that is judged."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any

import pytest

pytestmark = pytest.mark.slow


JUDGED = {
    "few": ("GA10x-like: lag 50 ms, 100/100", "H100-like: lag 100 ms, 25/100"),
    "rest": (
        "counter 100 ms, no lag",
        "counter 20 ms, lag 20 ms",
        "counter with jitter, lag 50 ms",
        "counter, lag 250 ms",
    ),
}
"""What boards are reported to have: all windows of 20 s are judged, at 0.1 % mean error."""

COVERED = {
    "few": ("no counter, 100/100, covers", "counter of 500 ms", "counter +2 %, GA10x-like"),
    "rest": (
        "A100-like: no mean of a second",
        "counter of a 1 s mean",
        "counter, lag 500 ms",
        "counter, lag 600 ms",
    ),
}
"""What boards may do: what is judged lies inside what is stated."""

NOT_JUDGED = {
    "few": ("no counter, 25/100", "no counter, 25/25", "counter +4 %, GA10x-like"),
    "rest": ("counter +8 %, H100-like", "counter +20 %, module"),
}
"""What nothing vouches for."""


@pytest.fixture
def windows(lib: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[Any]]:
    """Return one window of 20 s of each load."""
    tool = lib("energy")
    monkeypatch.setattr(tool, "PHASES", 1)
    return lambda name: list(tool.windows(tool.SENSORS[name], 20.0))


@pytest.mark.parametrize("boards", ["few", pytest.param("rest", marks=pytest.mark.nightly)])
def test_the_stated_figures_hold_for_each_judged_board(
    windows: Callable[[str], list[Any]], lib: Any, boards: str
) -> None:
    for name in JUDGED[boards]:
        windows_of_board = windows(name)
        assert all(window.gated and window.inside for window in windows_of_board), name
        assert fmean(abs(window.error) for window in windows_of_board) < 0.0015, name
        assert all(0 < window.unsure < 0.04 for window in windows_of_board), name
    for name in COVERED[boards]:
        windows_of_board = windows(name)
        assert any(window.gated for window in windows_of_board), name
        assert all(window.inside for window in windows_of_board if window.gated), name
    for name in NOT_JUDGED[boards]:
        windows_of_board = windows(name)
        assert not any(window.gated for window in windows_of_board), name
        assert len(windows_of_board) == len(lib("energy").LOADS)
