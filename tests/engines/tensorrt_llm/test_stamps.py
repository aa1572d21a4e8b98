"""Our stamps of first tokens are held against TensorRT-LLM's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.engines.tensorrt_llm.stamps import EARLY_S, Gaps

TIMES_S = st.floats(0.001, 1000.0)


def test_the_log_says_how_much_later_we_saw_first_tokens() -> None:
    gaps = Gaps()
    for ours_ms in range(1, 101):
        gaps.add(0, 0.5 + ours_ms / 1e3 / 10, 0.5)

    assert gaps.take() == (
        "engine tensorrt_llm: first tokens were here 5.0 ms (p50) and 9.9 ms (p99) after "
        "TensorRT-LLM stamped them itself, over 100 requests"
    )
    assert gaps.take() == ""


def test_a_large_gap_is_told_as_a_warning() -> None:
    gaps = Gaps()
    gaps.add(0, 0.75, 0.5)

    assert gaps.take().endswith(
        "; WARNING: the median is above 20 ms, so the time to first token of this run is in part "
        "this process's, which may be short of CPU"
    )


def test_a_first_token_before_it_was_made_ends_the_run() -> None:
    with pytest.raises(RunError) as refused:
        Gaps().add(7, 0.5, 0.75)

    assert str(refused.value) == (
        "sample 7 of the data set: its first token was here after 500.0 ms, but TensorRT-LLM says "
        "that it made it after 750.0 ms; one of the two clocks is wrong, so no time to first token "
        "of this run can be trusted"
    )


@given(theirs_s=TIMES_S, late_s=st.floats(-EARLY_S / 2, 10.0))
def test_no_stamp_that_is_possible_is_refused(theirs_s: float, late_s: float) -> None:
    gaps = Gaps()
    gaps.add(0, theirs_s + late_s, theirs_s)

    assert gaps.take()
