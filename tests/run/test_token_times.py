"""What our own stamps say about tokens: complete, or absent; never invented."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_mlperf.run.worker import clocks as token_times
from pytest_mlperf.run.worker.clocks import TokenTimes


class Clock:
    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def pass_(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(100.0)
    monkeypatch.setattr(token_times, "perf_counter", clock)
    return clock


def answer(
    times: TokenTimes, clock: Clock, ids: Sequence[int], waits_s: Sequence[float]
) -> list[str | None]:
    """Let these samples' tokens come together, each after its wait; return the complaints."""
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
        "ttft_p90": 0.5,
        "ttft_p99": 0.5,
        "tpot_p50": pytest.approx(0.5 / 3),
        "tpot_p90": pytest.approx(0.5 / 3),
        "tpot_p99": pytest.approx(0.5 / 3),
        "itl_p50": 0.125,
        "itl_p90": 0.25,
        "itl_p99": 0.25,
        "tokens_per_second_per_user": pytest.approx(6),
    }
    assert times.notes == {}

    times = TokenTimes()
    times.first([1])
    clock.pass_(1.0)
    assert times.end(1, 5, 99.0) is None
    assert set(times.metrics()) == {
        "tokens_per_sample",
        "tokens_per_second_per_user",
        *(f"{name}_{share}" for name in ("ttft", "tpot") for share in ("p50", "p90", "p99")),
    }

    times = TokenTimes()
    assert times.metrics() == {}
    for sample in range(4):
        assert times.end(sample, 10 + sample, 0.0) is None
    assert times.metrics() == {"tokens_per_sample": 11.5}
    assert times.tokens == 46

    mixed = TokenTimes()
    answer(mixed, clock, [1], [0.1, 0.1])
    mixed.end(2, 2, 0.0)
    assert set(mixed.metrics()) == {"tokens_per_sample"}


TOGETHER = "of the tokens arrived together with others"
IN_ONE_PIECE = "100 % of the answers came in one piece"


def test_tokens_that_come_together_were_lost_or_invented_are_noted(clock: Clock) -> None:
    cases: list[tuple[list[float], float | None, bool, list[str]]] = [
        ([0.5, 0.25, 0.25, 0.25], 4.0, True, []),
        # Of eight tokens four come with the first message; the other four take one second.
        ([0.5, 0, 0, 0, 1.0, 0, 0, 0], 4.0, False, [f"86 % {TOGETHER}"]),
        ([0.5, 0.25, 1e-5, 0.25, 1e-5], 4 / 0.50002, False, [f"50 % {TOGETHER}"]),
        ([0.5, 0, 0, 0], None, False, [f"100 % {TOGETHER}", IN_ONE_PIECE]),
        # Nobody can tell what the jitter of one token in thirty hides.
        ([0.5, 1e-5, *[0.25] * 29], 29 / 7.25001, True, []),
        # A pause makes the time per token long; what comes at its own pace is no bunch.
        ([0.5, *[1e-4] * 9, 9.0], 10 / 9.0009, True, []),
    ]
    for waits_s, per_user, gaps, notes in cases:
        times = TokenTimes()
        answer(times, clock, [1], waits_s)
        metrics = times.metrics()
        expected = None if per_user is None else pytest.approx(per_user, rel=1e-5)
        assert metrics.get("tokens_per_second_per_user") == expected
        assert ("itl_p50" in metrics) is gaps
        assert [note.partition(":")[0] for note in times.notes.values()] == notes

    times = TokenTimes()
    for sample in range(100):
        times.first([sample])
        clock.pass_(1e-6)
        times.end(sample, 100, clock.now_s - 1.0)
    assert "tokens_per_second_per_user" not in times.metrics()
    assert tuple(times.notes.values()) == (
        "100 % of the answers came in one piece: TPOT does not show how fast a user sees tokens",
    )

    times = TokenTimes()
    times.first([1, 2])
    times.further([1, 2])
    reported = "first_tokens() and next_tokens() reported {}; report every token, or only the first"
    assert times.end(1, 3, 0.0) == reported.format("2 tokens, done() 3")
    assert times.further([2, 3]) == [3]
    assert times.end(2, 2, 0.0) == reported.format("3 tokens, done() 2")


def test_the_median_user_decides_and_a_sample_has_met_its_limits_where_it_met_both(
    clock: Clock,
) -> None:
    """AIPerf's definition for each request, 1 / mean inter-token latency; then the median."""
    times = TokenTimes()
    for sample, gap_s in enumerate([0.5, 0.25, 0.125]):
        answer(times, clock, [sample], [1.0, gap_s, gap_s])
    metrics = times.metrics()
    assert metrics["tokens_per_second_per_user"] == pytest.approx(4)
    assert metrics["tokens_per_second_per_user"] == pytest.approx(1 / metrics["tpot_p50"])

    expected = {(1.0, 0.25): 2, (1.0, 0.125): 1, (0.375, 0.25): 1, (0.375, 0.125): 0, (9, 9): 3}
    met = {}
    for limits_s in expected:
        times = TokenTimes(limits_s)
        for sample, waits_s in enumerate([[0.375, 0.25], [1.0, 0.125], [2.0, 0.5]]):
            answer(times, clock, [sample], waits_s)
        met[limits_s] = times.met
    assert met == expected


def test_where_an_engine_tells_how_answers_came_that_decides(clock: Clock) -> None:
    """Up to one answer in twenty may have come together; it is left out of times per token."""

    def measured(*ways: tuple[int | None, int | None], tokens: int = 5) -> TokenTimes:
        times = TokenTimes((2.0, 0.5))
        for sample, (after, hidden) in enumerate(ways):
            issued_s = clock.now_s
            clock.pass_(1.0)
            times.first([sample])
            times.streamed([sample], [after], [hidden])
            clock.pass_(1.0)
            assert times.end(sample, tokens, issued_s) is None
        return times

    usual = measured(*[(4, 0)] * 20)
    assert usual.metrics()["tpot_p50"] == 0.25
    assert (usual.notes, usual.corrected, usual.hidden_share) == ({}, False, 0.0)

    few = measured(*[(4, 0)] * 19, (None, 0))
    assert few.metrics().keys() == usual.metrics().keys()
    assert few.metrics()["tpot_p99"] == 0.25
    assert (few.notes, few.corrected) == ({}, True)

    many = measured(*[(4, 0)] * 9, (None, 0))
    assert many.metrics().keys() == {
        "tokens_per_sample",
        *(f"first_read_{share}" for share in ("p50", "p90", "p99")),
    }
    assert many.notes["answers_buffered"].startswith("10 % of the answers arrived in one or")

    hides = measured((2, 2), (2, 2))
    assert hides.metrics()["tpot_p50"] == 0.5
    assert hides.hidden_share == 0.4
    assert hides.notes["hidden_tokens"].startswith("40 % of the tokens were hidden")
    silent = measured((4, None))
    assert (silent.hidden_share, silent.metrics()["tpot_p50"]) == (None, 0.25)
    assert silent.notes["hidden_tokens"].startswith("the server counts tokens that it never sends")
    assert TokenTimes().hidden_share is None

    times = TokenTimes()
    times.first([1])
    times.further([1, 1])
    times.streamed([1, 2], [1, 3], None)
    assert times.after_first(1, 3) == 1
    assert times.after_first(2, 3) == 2
    assert times.end(1, 3, 0.0) is None
