"""What passes the edge of a child's events can be kept in a result, and read again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from pytest_mlperf.core import numbers as ranges
from pytest_mlperf.run.child.events import Check, is_count, is_duration, is_number, is_rate
from tests.run.harness import FEWER

ENDS = (0, 1e-320, 1e-30, 1e10, 1e30, 1e100, 1e101, 1e308, 2**53, 2**53 + 1, 10**400, -1)


KINDS: list[tuple[Check, Any]] = [
    (is_count, ranges.Count),
    (is_number, ranges.Number),
    (is_duration, ranges.Seconds),
    (is_duration, ranges.NotNegative),
    (is_rate, ranges.Positive),
]


@FEWER
@given(value=st.sampled_from(ENDS) | st.floats() | st.integers())
def test_a_number_that_an_event_may_have_is_in_its_range(value: float) -> None:
    for check, kind in KINDS:
        if check(value):
            assert TypeAdapter(kind).validate_python(value) == pytest.approx(value)
