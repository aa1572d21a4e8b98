"""Samples are answered by coroutines of one long-lived thread; none is lost, none told twice."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pytest_mlperf.engines.llm.streaming import StreamedRequest, Streams
from pytest_mlperf.testing import RecordingSink


def timing(expected: int) -> RecordingSink:
    """Return a sink of a performance run of a language model."""
    return RecordingSink(expected, wants_output=False, times_tokens=True)


def quiet(expected: int) -> RecordingSink:
    """Return a sink that reads neither outputs nor tokens as they come."""
    return RecordingSink(expected, wants_output=False)


async def three_tokens(request: StreamedRequest) -> None:
    request.tokens()
    await asyncio.sleep(0)
    request.tokens(2)
    request.done(bytes([request.index]), 3)


def test_first_tokens_come_before_further_ones_and_those_before_the_end() -> None:
    sink, streams = timing(1), Streams(three_tokens)

    streams.put([7], [3], sink)
    sink.wait_for_end()
    streams.close()

    assert sink.calls == [("first", [7]), ("next", [7, 7]), ("done", [7])]
    assert (sink.n_tokens, sink.outputs) == ({7: 3}, {})


def test_outputs_are_given_only_where_they_are_wanted() -> None:
    sink, streams = RecordingSink(2), Streams(three_tokens)

    streams.put([7, 8], [3, 4], sink)
    sink.wait_for_end()
    streams.close()

    assert sink.calls == [("done", [7, 8])]
    assert sink.outputs == {7: b"\x03", 8: b"\x04"}


def test_samples_that_end_in_one_pass_are_told_in_one_call() -> None:
    sink, streams = quiet(100), Streams(three_tokens)

    streams.put(range(100), range(100), sink)
    sink.wait_for_end()
    streams.close()

    assert sink.calls == [("done", list(range(100)))]


def test_tokens_are_not_kept_for_others_of_the_same_pass() -> None:
    """They would be stamped when the last of them is there."""
    sink, streams = timing(2), Streams(three_tokens)

    streams.put([7, 8], [3, 4], sink)
    sink.wait_for_end()
    streams.close()

    tokens = [("first", [7]), ("first", [8]), ("next", [7, 7]), ("next", [8, 8])]
    assert sink.calls == [*tokens, ("done", [7, 8])]


def test_nothing_is_counted_where_one_sample_has_no_count() -> None:
    async def uncounted(request: StreamedRequest) -> None:
        request.done(None, None if request.index else 5)

    sink, streams = quiet(2), Streams(uncounted)

    streams.put([1, 2], [0, 1], sink)
    sink.wait_for_end()
    streams.close()

    assert sink.n_tokens == {}


def test_at_most_concurrency_samples_are_answered_at_a_time() -> None:
    running, most = 0, 0

    async def watched(request: StreamedRequest) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        request.done(None, 1)

    sink, streams = quiet(20), Streams(watched, concurrency=3)

    streams.put(range(20), range(20), sink)
    sink.wait_for_end()
    streams.close()

    assert most == 3


def test_every_completion_comes_from_one_thread() -> None:
    sink, streams = timing(10), Streams(three_tokens)

    for sample in range(10):
        streams.put([sample], [sample], sink)
    sink.wait_for_end()
    streams.close()

    assert len(sink.threads) == 1
    assert threading.get_ident() not in sink.threads


def test_what_an_answer_raises_ends_the_run() -> None:
    async def broken(request: StreamedRequest) -> None:
        raise ValueError("no such token")

    sink, streams = timing(1), Streams(broken)

    streams.put([1], [0], sink)
    sink.wait_for_end()
    streams.close()

    assert str(sink.errors[0]) == "no such token"


def test_closing_cancels_what_is_under_way_and_waits_for_it() -> None:
    begun, cleaned = threading.Event(), threading.Event()

    async def endless(request: StreamedRequest) -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    sink, streams = timing(1), Streams(endless)
    streams.put([1], [0], sink)
    assert begun.wait(30)

    streams.close()

    assert cleaned.is_set()
    assert not sink.errors


def test_run_returns_what_a_coroutine_returns() -> None:
    async def answer() -> int:
        return 42

    streams = Streams(three_tokens)

    assert streams.run(answer()) == 42
    streams.close()


def test_no_concurrency_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Streams(three_tokens, concurrency=0)
