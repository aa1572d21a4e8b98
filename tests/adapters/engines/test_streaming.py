"""Samples are answered by coroutines of one long-lived thread, and a loop held up is late."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mlperf.adapters.engines.llm import streaming
from pytest_mlperf.adapters.engines.llm.streaming import (
    PROBE_PERIOD_SECONDS,
    RESOLUTION_S,
    Lateness,
    StreamedRequest,
    Streams,
)
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
    """No token is held back for others of the same pass: its time stamp would be too late.

    Outputs are passed only if the sink wants them, and in one call.
    """
    sink, both, read, unread = timing(1), timing(2), RecordingSink(2), quiet(100)
    answer(three_tokens, 1, sink)
    answer(three_tokens, 2, both)
    assert sink.calls == [("first", [7]), ("next", [7, 7]), ("done", [7])]
    assert (sink.n_tokens, sink.outputs) == ({7: 3}, {})
    tokens = [("first", [7]), ("first", [8]), ("next", [7, 7]), ("next", [8, 8])]
    assert both.calls == [*tokens, ("done", [7, 8])]
    answer(three_tokens, 2, read)
    answer(three_tokens, 100, unread)
    assert (read.calls, read.outputs) == ([("done", [7, 8])], {7: b"\x00", 8: b"\x01"})
    assert (unread.calls, unread.outputs) == ([("done", list(range(7, 107)))], {})


def test_samples_are_answered_in_one_thread_and_so_many_at_a_time_or_end_the_run() -> None:
    """Nothing is counted if one sample has no count; an exception of an answer ends the run."""
    running, most = 0, 0

    async def watched(request: StreamedRequest) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        request.done(None, None if request.index else 5)

    async def broken(request: StreamedRequest) -> None:
        raise ValueError("no such token")

    uncounted = quiet(20)
    answer(watched, 20, uncounted, concurrency=3)
    assert (most, uncounted.n_tokens) == (3, {})
    with pytest.raises(ValueError, match="at least 1"):
        Streams(three_tokens, concurrency=0)
    sink = timing(1)
    answer(broken, 1, sink)
    assert str(sink.errors[0]) == "no such token"

    sink, streams = timing(10), Streams(three_tokens)
    for sample in range(10):
        streams.put([sample], [sample], sink)
    sink.wait_for_end()
    assert streams.run(asyncio.sleep(0, 42)) == 42
    streams.close()
    assert len(sink.threads) == 1
    assert threading.get_ident() not in sink.threads


def test_closing_cancels_requests_in_flight_and_waits_for_them() -> None:
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


class ByHand:
    """A loop whose time a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.timers.append((self.now_s + delay_s, callback))

    def fire(self, late_s: float = 0.0) -> None:
        """Fire the only timer, `late_s` seconds after it was due."""
        ((due_s, callback),) = self.timers
        self.timers.clear()
        self.now_s = due_s + late_s
        callback()


def watching(loop: Any, under_way: Callable[[], bool] = lambda: True) -> Lateness:
    lateness = Lateness(loop, under_way, loop.time)
    lateness.begun(lateness.now())
    return lateness


def test_one_long_block_is_not_lost_among_many_short_looks() -> None:
    """Two seconds of ten are a fifth of all moments, though they are one look of hundreds."""
    loop = ByHand()
    lateness = watching(loop)
    for _ in range(round(8 / PROBE_PERIOD_SECONDS)):
        loop.fire(late_s=RESOLUTION_S / 2)
    assert set(lateness.take().values()) == {0.0}
    loop = ByHand()
    lateness = watching(loop)
    for _ in range(round(8 / PROBE_PERIOD_SECONDS)):
        loop.fire()
    loop.fire(late_s=2.0 + RESOLUTION_S)
    taken = lateness.take()
    assert taken["loop_p50"] == 0.0
    assert taken["loop_p90"] == pytest.approx(1.0, abs=2 * PROBE_PERIOD_SECONDS)
    assert taken["loop_p99"] == pytest.approx(1.9, abs=2 * PROBE_PERIOD_SECONDS)

    async def blocked() -> None:
        real = watching(asyncio.get_running_loop())
        await asyncio.sleep(0)
        time.sleep(0.5)
        await asyncio.sleep(2 * PROBE_PERIOD_SECONDS)
        assert real.take()["loop_p99"] > 0.3

    asyncio.run(blocked())


def test_late_starts_are_counted_and_an_idle_loop_is_not_polled() -> None:
    under_way = [True]
    loop = ByHand()
    lateness = watching(loop, lambda: under_way[0])
    for late_s in (*[0.0] * 97, 0.3, 0.3):
        lateness.begun(loop.now_s - late_s)
    loop.fire()
    taken = lateness.take()
    assert taken["issue_p50"] == 0.0
    assert taken["issue_p99"] == pytest.approx(0.3)
    assert lateness.take() == {}

    under_way[0] = False
    loop.fire()
    assert not loop.timers
    lateness.begun(loop.now_s)
    assert len(loop.timers) == 1


def test_a_client_is_late_by_its_work_its_wait_for_a_core_or_its_timers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each by half: of an answer's life, or of the time between two of its messages."""
    cases = [
        (0.0, 0.0, 0.0, False),
        (0.4, 0.05, 0.0, False),
        (0.6, 0.0, 0.0, True),
        (0.3, 0.3, 0.0, True),
        (0.0, 0.0, 0.004, False),
        (0.0, 0.0, 0.012, True),
    ]
    for busy, waiting, lag_s, late in cases:
        loop = ByHand()
        clock = SimpleNamespace(thread_time=lambda: busy * loop.now_s)  # noqa: B023
        monkeypatch.setattr(streaming, "time", clock)
        monkeypatch.setattr(streaming, "_waited_s", lambda: waiting * loop.now_s)  # noqa: B023
        watch = watching(loop)
        for _ in range(80):
            loop.fire(late_s=lag_s + RESOLUTION_S)
        since_s = loop.now_s - 1.0
        assert watch.held_up(since_s, events=100) is late, (busy, waiting, lag_s)
        assert watch.held_up(since_s - 1000, events=200) is late

    loop = ByHand()
    watch = watching(loop)
    loop.now_s += PROBE_PERIOD_SECONDS + 0.3
    assert watch.held_up(100.0, events=2), "a look that is overdue counts as late"


def test_the_wait_for_a_core_is_read_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    contents = {"5 2500000000 7": 2.5, "": 0.0, "5 x 7": 0.0}
    for number, (content, waited_s) in enumerate(contents.items()):
        file = tmp_path / str(number)
        file.write_text(content)
        monkeypatch.setattr(streaming, "SCHEDSTAT", file)
        assert streaming._waited_s() == waited_s
    monkeypatch.setattr(streaming, "SCHEDSTAT", tmp_path / "none")
    assert streaming._waited_s() == 0
