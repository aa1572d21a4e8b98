"""Test our time stamps against vLLM's.

Possible differences are summarised, impossible ones end the run.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.adapters.engines.llm.engine import STAMP_ROUNDING_SECONDS, StampGaps
from pytest_mlperf.adapters.engines.vllm._library import compare_stamps
from pytest_mlperf.core.errors import RunError
from tests.refusals import unrefused


def theirs(first_s: float, last_s: float, tokens: int = 3) -> Any:
    return SimpleNamespace(
        first_token_ts=first_s, last_token_ts=last_s, num_generation_tokens=tokens
    )


def new_gaps() -> StampGaps:
    return StampGaps("vllm", "vLLM")


@given(st.lists(st.integers(0, 15).map(lambda ms: ms / 1e3), min_size=1, max_size=120))
def test_the_line_has_the_middle_and_the_tail(gaps_s: list[float]) -> None:
    """p50 and p99 are values that occurred: at least that share is not above them."""
    gaps = new_gaps()
    for gap_s in gaps_s:
        compare_stamps(gaps, 7, 3, (10.0 + gap_s, 11.0 + gap_s), theirs(10.0, 11.0))

    line = gaps.take()

    p50, p99 = (
        min(each for each in gaps_s if sum(gap <= each for gap in gaps_s) >= share * len(gaps_s))
        for share in (0.5, 0.99)
    )
    assert f"first token {p50 * 1e3:.1f} and {p99 * 1e3:.1f} ms" in line
    assert f"over {len(gaps_s)} requests" in line
    assert "WARNING" not in line
    assert gaps.take() == ""


def test_sentences_name_the_library_whose_stamps_they_are() -> None:
    gaps = StampGaps("tensorrt_llm", "TensorRT-LLM")
    for ours_ms in range(1, 101):
        gaps.add(0, "first", 0.5 + ours_ms / 1e3 / 10, 0.5)
    assert gaps.take() == (
        "engine tensorrt_llm: tokens arrived in this process later than TensorRT-LLM's own time "
        "stamps, by (p50 and p99): first token 5.0 and 9.9 ms, over 100 requests"
    )
    assert gaps.take() == ""
    gaps.add(0, "first", 0.75, 0.5)
    assert gaps.take().endswith(
        "; WARNING: the median is above 20 ms, so part of the time to first token is spent "
        "in this process, which may be short of CPU"
    )
    with pytest.raises(RunError) as refused:
        gaps.add(7, "first", 0.5, 0.75)
    assert str(refused.value) == (
        "sample 7 of the data set: its first token arrived in this process 250.0 ms before "
        "TensorRT-LLM's own time stamp: one of the two clocks is wrong; so no token time of this "
        "run can be trusted"
    )


@given(theirs_s=st.floats(0.001, 1000.0), late_s=st.floats(-STAMP_ROUNDING_SECONDS / 2, 10.0))
def test_no_stamp_that_is_possible_is_refused(theirs_s: float, late_s: float) -> None:
    gaps = new_gaps()
    gaps.add(0, "first", theirs_s + late_s, theirs_s)

    assert gaps.take()


def test_impossible_stamps_end_the_run() -> None:
    table = [
        ((9.9, 11.1), theirs(10.0, 11.0), "its first token arrived in this process 100.0 ms"),
        ((10.1, 10.9), theirs(10.0, 11.0), "its last token arrived in this process 100.0 ms"),
        ((10.1, 11.1), theirs(11.0, 10.0), "vLLM's time stamp of its last token is before"),
        ((10.1, 11.1), theirs(10.0, 11.0, 4), "vLLM counts 4 tokens in the answer, but 3 came"),
    ]
    rows = [(new_gaps(), 7, 3, *row, f"^sample 7 of the data set.*{said}") for *row, said in table]
    assert unrefused(compare_stamps, RunError, rows) == []
    gaps = new_gaps()
    for other in (None, theirs(0.0, 0.0, 0)):  # where vLLM keeps no stamps
        compare_stamps(gaps, 7, 3, (10.0, 11.0), other)
    assert gaps.take() == ""
