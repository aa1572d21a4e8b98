"""What our own stamps say about tokens: complete, or absent; never invented."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_mlperf.run import token_times
from pytest_mlperf.run.token_times import TokenTimes


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def pass_(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(token_times, "perf_counter", clock)
    return clock


def answer(
    times: TokenTimes, clock: Clock, ids: Sequence[int], waits_s: Sequence[float]
) -> list[str | None]:
    """Let these samples' tokens come together, each after its wait; return what is odd."""
    issued_s = clock.now_s
    for number, wait_s in enumerate(waits_s):
        clock.pass_(wait_s)
        if number:
            assert times.further(ids) == []
        else:
            times.first(ids)
    return [times.end(sample, len(waits_s), issued_s) for sample in ids]


def test_first_further_and_mean_times(clock: Clock) -> None:
    times = TokenTimes()

    odd = answer(times, clock, [1, 2], [0.5, 0.125, 0.25, 0.125])

    assert odd == [None, None]
    assert times.metrics() == {
        "tokens_per_sample": 4.0,
        "ttft_p50": 0.5,
        "ttft_p99": 0.5,
        "tpot_p50": pytest.approx(0.5 / 3),
        "tpot_p99": pytest.approx(0.5 / 3),
        "itl_p50": 0.125,
        "itl_p99": 0.25,
    }


def test_an_engine_that_sees_no_single_token_has_no_inter_token_times(clock: Clock) -> None:
    times = TokenTimes()
    times.first([1])
    clock.pass_(1.0)

    assert times.end(1, 5, 99.0) is None
    assert set(times.metrics()) == {
        "tokens_per_sample",
        "ttft_p50",
        "ttft_p99",
        "tpot_p50",
        "tpot_p99",
    }


def test_without_first_tokens_only_the_count_is_known() -> None:
    times = TokenTimes()
    for sample in range(4):
        assert times.end(sample, 10 + sample, 0.0) is None

    assert times.metrics() == {"tokens_per_sample": 11.5}
    assert times.tokens == 46


def test_one_sample_without_stamps_leaves_no_percentile(clock: Clock) -> None:
    times = TokenTimes()
    answer(times, clock, [1], [0.1, 0.1])
    times.end(2, 2, 0.0)

    assert set(times.metrics()) == {"tokens_per_sample"}


def test_tokens_that_were_lost_or_invented_are_named(clock: Clock) -> None:
    times = TokenTimes()
    times.first([1, 2])
    times.further([1, 2])

    assert times.end(1, 3, 0.0) == "2 of its 3 tokens were reported"
    assert times.further([2, 3]) == [3]
    assert times.end(2, 2, 0.0) == "3 of its 2 tokens were reported"


def test_nothing_measured_is_nothing() -> None:
    assert TokenTimes().metrics() == {}
