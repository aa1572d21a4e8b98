"""Test research/decisions_lib/load.py: the shipped rule keeps its error rates under load."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow

CASES = 400


def test_no_load_makes_a_false_drop_or_hides_one(lib: Any) -> None:
    """The page has many more cases a row; here a rate far above the promised one would show."""
    load = lib("decisions_lib.load")
    for name, taken in (
        ("constant, now", "all of now"),
        ("constant, both", "all of the baseline"),
        ("bursts, both", "all of now"),
        ("growing, now", "nothing"),
    ):
        row = load.row(name, taken, CASES)
        assert row.fails <= 0.03, row
        assert row.passes <= 0.09, row
    assert row.large > 0.9
    idle = load.row("idle", "nothing", CASES)
    assert idle.found > 0.85
    assert idle.runs < 1.8


def test_bounds_are_shares_and_only_idle_ones_are_tolerated(lib: Any) -> None:
    load = lib("decisions_lib.load")
    rng = np.random.default_rng(5)
    for draw in (load.idle, load.constant, load.bursts, load.growing):
        drawn = draw(rng, (200, 8))
        assert drawn.min() >= 0
        assert drawn.max() <= 0.4
        assert bool(drawn.max() > load.TOLERATED_SHARE) is (draw is not load.idle)
