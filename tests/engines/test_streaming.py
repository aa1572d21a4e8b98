"""Samples are answered by coroutines of one long-lived thread; none is lost, none told twice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from pytest_mlperf.engines.streaming import Request, Streams


class Told:
    """A sink that keeps what it is told."""

    def __init__(self, *, times_tokens: bool = True, wants_output: bool = False) -> None:
        self.times_tokens = times_tokens
        self.wants_output = wants_output
        self.calls: list[tuple[str, list[int]]] = []
        self.outputs: list[bytes] = []
        self.counts: list[int] | None = []
        self.errors: list[BaseException] = []
        self.threads: set[int] = set()
        self.heard = threading.Semaphore(0)

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[bytes] | None = None) -> None:
        self.calls.append(("first", list(ids)))

    def next_tokens(self, ids: Sequence[int]) -> None:
        self.calls.append(("next", list(ids)))

    def done(
        self,
        ids: Sequence[int],
        outputs: Sequence[bytes] | None = None,
        n_tokens: Sequence[int] | None = None,
    ) -> None:
        self.threads.add(threading.get_ident())
        self.calls.append(("done", list(ids)))
        self.outputs += outputs or []
        self.counts = [*(self.counts or []), *n_tokens] if n_tokens is not None else None
        for _ in ids:
            self.heard.release()

    def failed(self, error: BaseException) -> None:
        self.errors.append(error)
        self.heard.release()

    def wait(self, samples: int) -> None:
        for _ in range(samples):
            assert self.heard.acquire(timeout=30)


async def three_tokens(request: Request) -> None:
    request.tokens()
    await asyncio.sleep(0)
    request.tokens(2)
    request.done(bytes([request.index]), 3)


def test_first_tokens_come_before_further_ones_and_those_before_the_end() -> None:
    sink, streams = Told(), Streams(three_tokens)

    streams.put([7], [3], sink)
    sink.wait(1)
    streams.close()

    assert sink.calls == [("first", [7]), ("next", [7, 7]), ("done", [7])]
    assert (sink.counts, sink.outputs) == ([3], [])


def test_outputs_are_given_only_where_they_are_wanted() -> None:
    sink, streams = Told(times_tokens=False, wants_output=True), Streams(three_tokens)

    streams.put([7, 8], [3, 4], sink)
    sink.wait(2)
    streams.close()

    assert sink.calls == [("done", [7, 8])]
    assert sink.outputs == [b"\x03", b"\x04"]


def test_samples_that_end_in_one_pass_are_told_in_one_call() -> None:
    sink, streams = Told(times_tokens=False), Streams(three_tokens)

    streams.put(range(100), range(100), sink)
    sink.wait(100)
    streams.close()

    assert sink.calls == [("done", list(range(100)))]


def test_nothing_is_counted_where_one_sample_has_no_count() -> None:
    async def uncounted(request: Request) -> None:
        request.done(None, None if request.index else 5)

    sink, streams = Told(times_tokens=False), Streams(uncounted)

    streams.put([1, 2], [0, 1], sink)
    sink.wait(2)
    streams.close()

    assert sink.counts is None


def test_at_most_concurrency_samples_are_answered_at_a_time() -> None:
    running, most = 0, 0

    async def watched(request: Request) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        request.done(None, 1)

    sink, streams = Told(times_tokens=False), Streams(watched, concurrency=3)

    streams.put(range(20), range(20), sink)
    sink.wait(20)
    streams.close()

    assert most == 3


def test_every_completion_comes_from_one_thread() -> None:
    sink, streams = Told(), Streams(three_tokens)

    for sample in range(10):
        streams.put([sample], [sample], sink)
    sink.wait(10)
    streams.close()

    assert len(sink.threads) == 1
    assert threading.get_ident() not in sink.threads


def test_what_an_answer_raises_ends_the_run() -> None:
    async def broken(request: Request) -> None:
        raise ValueError("no such token")

    sink, streams = Told(), Streams(broken)

    streams.put([1], [0], sink)
    sink.wait(1)
    streams.close()

    assert str(sink.errors[0]) == "no such token"


def test_closing_cancels_what_is_under_way_and_waits_for_it() -> None:
    begun, cleaned = threading.Event(), threading.Event()

    async def endless(request: Request) -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    sink, streams = Told(), Streams(endless)
    streams.put([1], [0], sink)
    assert begun.wait(30)

    streams.close()

    assert cleaned.is_set()
    assert not sink.errors


def test_run_returns_what_a_coroutine_returns_and_gives_up_in_time() -> None:
    async def answer() -> int:
        return 42

    async def never() -> None:
        await asyncio.Event().wait()

    streams = Streams(three_tokens)

    assert streams.run(answer()) == 42
    with pytest.raises(TimeoutError):
        streams.run(never(), timeout_s=0.01)
    streams.close()


def test_no_concurrency_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Streams(three_tokens, concurrency=0)
