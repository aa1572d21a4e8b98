"""Our stamps of first tokens are held against TensorRT-LLM's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.engines.llm.engine import EARLY_S, StampGaps

TIMES_S = st.floats(0.001, 1000.0)


def new_gaps() -> StampGaps:
    return StampGaps("tensorrt_llm", "TensorRT-LLM")


def test_the_log_says_how_much_later_we_saw_first_tokens() -> None:
    gaps = new_gaps()
    for ours_ms in range(1, 101):
        gaps.add(0, "first", 0.5 + ours_ms / 1e3 / 10, 0.5)

    assert gaps.take() == (
        "engine tensorrt_llm: tokens were here after TensorRT-LLM's own stamps of them by, p50 and "
        "p99: first token 5.0 and 9.9 ms, over 100 requests"
    )
    assert gaps.take() == ""


def test_a_large_gap_is_told_as_a_warning() -> None:
    gaps = new_gaps()
    gaps.add(0, "first", 0.75, 0.5)

    assert gaps.take().endswith(
        "; WARNING: the median is above 20 ms, so the time to first token of this run is in part "
        "this process's, which may be short of CPU"
    )


def test_a_first_token_before_it_was_made_ends_the_run() -> None:
    with pytest.raises(RunError) as refused:
        new_gaps().add(7, "first", 0.5, 0.75)

    assert str(refused.value) == (
        "sample 7 of the data set: its first token was here 250.0 ms before TensorRT-LLM stamped "
        "it; one of the two is wrong, so no time of a token of this run can be trusted"
    )


@given(theirs_s=TIMES_S, late_s=st.floats(-EARLY_S / 2, 10.0))
def test_no_stamp_that_is_possible_is_refused(theirs_s: float, late_s: float) -> None:
    gaps = new_gaps()
    gaps.add(0, "first", theirs_s + late_s, theirs_s)

    assert gaps.take()
