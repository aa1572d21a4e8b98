"""Samples are answered by coroutines of one long-lived thread; none is lost, none told twice."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from pytest_mlperf.engines.llm.streaming import StreamedRequest, Streams
from pytest_mlperf.testing import RecordingSink


def timing(expected: int) -> RecordingSink:
    """Return a sink of a performance run of a language model."""
    return RecordingSink(expected, wants_output=False, times_tokens=True)


def quiet(expected: int) -> RecordingSink:
    """Return a sink that reads neither outputs nor tokens as they come."""
    return RecordingSink(expected, wants_output=False)


def answer(answering: Any, samples: int, sink: RecordingSink, **options: Any) -> None:
    """Have samples 0, 1, … answered as ids 7, 8, …, all put at once."""
    streams = Streams(answering, **options)
    streams.put(range(7, 7 + samples), range(samples), sink)
    sink.wait_for_end()
    streams.close()


async def three_tokens(request: StreamedRequest) -> None:
    request.tokens()
    await asyncio.sleep(0)
    request.tokens(2)
    request.done(bytes([request.index]), 3)


def test_first_tokens_come_before_further_ones_and_those_before_the_end() -> None:
    """None is kept for others of the same pass: it would be stamped when the last is there."""
    sink, both = timing(1), timing(2)
    answer(three_tokens, 1, sink)
    answer(three_tokens, 2, both)

    assert sink.calls == [("first", [7]), ("next", [7, 7]), ("done", [7])]
    assert (sink.n_tokens, sink.outputs) == ({7: 3}, {})
    tokens = [("first", [7]), ("first", [8]), ("next", [7, 7]), ("next", [8, 8])]
    assert both.calls == [*tokens, ("done", [7, 8])]


def test_outputs_are_given_only_where_they_are_wanted_and_in_one_call() -> None:
    sink, unread = RecordingSink(2), quiet(100)
    answer(three_tokens, 2, sink)
    answer(three_tokens, 100, unread)

    assert sink.calls == [("done", [7, 8])]
    assert sink.outputs == {7: b"\x00", 8: b"\x01"}
    assert unread.calls == [("done", list(range(7, 107)))]
    assert unread.outputs == {}


def test_nothing_is_counted_where_one_sample_has_no_count() -> None:
    async def uncounted(request: StreamedRequest) -> None:
        request.done(None, None if request.index else 5)

    sink = quiet(2)
    answer(uncounted, 2, sink)

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

    answer(watched, 20, quiet(20), concurrency=3)

    assert most == 3
    with pytest.raises(ValueError, match="at least 1"):
        Streams(three_tokens, concurrency=0)


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

    sink = timing(1)
    answer(broken, 1, sink)

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
