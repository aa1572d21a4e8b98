"""Our stamps against vLLM's: what is possible is summed up, what is not ends the run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.engines.llm.engine import StampGaps
from pytest_mlperf.engines.vllm._library import SeenRequest, compare


def theirs(first_s: float, last_s: float, tokens: int = 3) -> Any:
    return SimpleNamespace(
        first_token_ts=first_s, last_token_ts=last_s, num_generation_tokens=tokens
    )


def seen(first_s: float, last_s: float, tokens: int = 3) -> SeenRequest:
    return SeenRequest(index=7, tokens=tokens, first_s=first_s, last_s=last_s)


def new_gaps() -> StampGaps:
    return StampGaps("vllm", "vLLM")


@given(st.lists(st.integers(0, 15).map(lambda ms: ms / 1e3), min_size=1, max_size=120))
def test_the_line_has_the_middle_and_the_tail(gaps_s: list[float]) -> None:
    """p50 and p99 are values that occurred: at least that share is not above them."""
    gaps = new_gaps()
    for gap_s in gaps_s:
        compare(gaps, seen(10.0 + gap_s, 11.0 + gap_s), theirs(10.0, 11.0))

    line = gaps.take()

    p50, p99 = (
        min(each for each in gaps_s if sum(gap <= each for gap in gaps_s) >= share * len(gaps_s))
        for share in (0.5, 0.99)
    )
    assert f"first token {p50 * 1e3:.1f} and {p99 * 1e3:.1f} ms" in line
    assert f"over {len(gaps_s)} requests" in line
    assert "WARNING" not in line
    assert gaps.take() == ""


def test_a_slow_way_here_is_a_warning() -> None:
    gaps = new_gaps()
    compare(gaps, seen(10.03, 11.03), theirs(10.0, 11.0))

    assert "WARNING: the median is above 20 ms" in gaps.take()


@pytest.mark.parametrize(
    ("ours", "other", "said"),
    [
        (seen(9.9, 11.1), theirs(10.0, 11.0), "its first token was here 100.0 ms before vLLM"),
        (seen(10.1, 10.9), theirs(10.0, 11.0), "its last token was here 100.0 ms before vLLM"),
        (seen(10.1, 11.1), theirs(11.0, 10.0), "vLLM stamped its last token before its first"),
        (seen(10.1, 11.1), theirs(10.0, 11.0, 4), "vLLM counts 4 tokens in the answer, and 3 came"),
    ],
)
def test_what_cannot_be_ends_the_run(ours: SeenRequest, other: Any, said: str) -> None:
    with pytest.raises(RunError, match=said) as fault:
        compare(new_gaps(), ours, other)

    assert "sample 7 of the data set" in str(fault.value)


@pytest.mark.parametrize("other", [None, theirs(0.0, 0.0, 0)])
def test_where_vllm_keeps_no_stamps_nothing_is_said(other: Any) -> None:
    gaps = new_gaps()
    compare(gaps, seen(10.0, 11.0), other)

    assert gaps.take() == ""
