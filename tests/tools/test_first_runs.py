"""What a warm-up is worth to rule R, in a small run of the simulation."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rows(lib: Any) -> Any:
    rows = lib("decisions_lib.first_runs").rows(40)
    return {(row.model, row.design, row.warmed): row for row in rows}


def test_a_first_run_that_is_faster_hides_drops_and_a_warm_up_shows_them(rows: Any) -> None:
    """The same noise is drawn with and without."""
    cold, warm = (rows["first run +2 % alone; only now", "4x2", warmed] for warmed in (False, True))
    assert cold.passes > 0.15
    assert warm.passes <= 0.05
    assert warm.found > 0.85 > cold.found
    both = [rows["first run +2 %, halving", "4x2", warmed] for warmed in (False, True)]
    assert all(row.passes <= 0.06 and row.fails <= 0.02 for row in both)
    assert len(rows) == 28
