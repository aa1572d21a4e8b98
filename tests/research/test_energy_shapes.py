"""Test research/energy.py: the stated uncertainty covers the error, and is not a multiple of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

BOARDS = ["H100-like", "A100-like", "counter 20 ms", "GA10x-like"]
STARVED = ["H100-like, read at 5 Hz", "A100-like, read at 5 Hz"]


@pytest.mark.parametrize(
    ("name", "count", "gpus"),
    [
        *((name, 4, 1) for name in (*BOARDS, *STARVED)),
        pytest.param("H100-like", 3, 8, marks=pytest.mark.nightly),
    ],
)
def test_the_stated_uncertainty_covers_and_is_at_most_ten_times_the_mean_error(
    lib: Callable[[str], Any], name: str, count: int, gpus: int
) -> None:
    """Eight shapes and a job between rests, against a plain sum of each step of the power."""
    tool = lib("energy")
    windows = list(tool.shape_windows(tool.BOARDS[name], count, gpus))

    assert fmean(one.error_j <= one.unsure_j for one in windows) >= 0.99
    stated = fmean(one.unsure_j / one.truth_j for one in windows)
    assert stated <= 10 * fmean(one.error_j / one.truth_j for one in windows)
    assert all(one.gated for one in windows)


def test_a_counter_of_a_wrong_gain_is_refused(lib: Callable[[str], Any]) -> None:
    """Whether its witness is a trace that covers, a driver's mean, or the power at rest."""
    tool = lib("energy")
    for name in BOARDS:
        board = tool.BOARDS[name]
        wrong = replace(board, sensor=replace(board.sensor, gain=1.08))
        assert fmean(one.gated for one in tool.shape_windows(wrong, 2)) < 0.1, name
