"""Counters are compared, not tested: noise is no excuse for work that was not done."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.judge.ruling import other_count

counts = st.lists(st.integers(0, 10**9).map(float), min_size=1, max_size=8)


def test_any_difference_beyond_the_tolerance_is_said() -> None:
    for before, now, tolerance, words in (
        ([512.0] * 8, [512.0], 0.0, None),
        ([512.0] * 8, [511.0], 0.0, "511, less than the baseline's 512"),
        ([512.0] * 8, [512.0, 513.0], 0.0, "513, more than the baseline's 512"),
        ([500.0, 512.0], [505.0], 0.0, None),
        ([294.1, 294.6], [250.0, 400.0], 0.0, "250, less than the baseline's 294.1 to 294.6"),
        ([1000.0], [990.0], 0.01, None),
        ([1000.0], [989.0], 0.01, "989, less than the baseline's 990 to 1010"),
        ([0.0], [0.0], 0.0, None),
        ([0.0], [1.0], 0.5, "1, more than the baseline's 0"),
    ):
        found = other_count("tokens/sample", before, now, tolerance=tolerance)
        assert found == (words and f"tokens/sample {words}")


@given(before=counts, now=counts)
def test_counters_are_the_same_exactly_when_each_was_seen_before(
    before: list[float], now: list[float]
) -> None:
    said = other_count("tokens", before, now)

    inside = all(min(before) <= value <= max(before) for value in now)
    assert (said is None) is inside
    assert other_count("tokens", before, before) is None
    assert inside or any(f"tokens {value:.7g}, " in str(said) for value in now)


def test_what_is_no_counter_is_refused() -> None:
    for before, now, tolerance, message in (
        ([], [1.0], 0.0, "nothing to compare: 0 baseline values and 1 now"),
        ([1.0], [], 0.0, "nothing to compare: 1 baseline values and 0 now"),
        ([1.0], [math.nan], 0.0, "must be finite"),
        ([math.inf], [1.0], 0.0, "must be finite"),
        ([1.0], [1.0], -0.1, "must be finite"),
    ):
        with pytest.raises(ValueError, match=message):
            other_count("tokens", before, now, tolerance=tolerance)
