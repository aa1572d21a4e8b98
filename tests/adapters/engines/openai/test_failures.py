"""Requests that fail end the run as one error with counts: never as a fast result."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pytest_mlperf.core.errors import RunError
from tests.adapters.engines.openai.recorder import Recorder, answering, open_engine, run
from tests.adapters.engines.openai.scripted import (
    DONE,
    Reply,
    Request,
    Scripted,
    event,
    failure,
    piece,
)


def storm(reply: Callable[[int], Reply], samples: int = 1, **options: Any) -> Recorder:
    """Answer the run's n-th request by `reply(n)`."""
    numbers = itertools.count()
    sink = Recorder(samples)
    with (
        Scripted(answering(lambda _: reply(next(numbers)))) as server,
        open_engine(server.url, [[5, 6, 7]] * samples, **options) as engine,
    ):
        engine.load_samples(range(samples))
        engine.submit(range(samples), range(samples), sink)
        sink.wait_for_end()
    assert len(sink.errors) == 1
    assert isinstance(sink.errors[0], RunError)
    return sink


HALF = [piece("a", ids=[1]), piece("b", ids=[2])]
WHOLE = [piece("a", ids=[1, 2], finish="stop"), DONE]


EARLY, TIMEOUT = "stream ended early: ", "(request_timeout)"
TIMEOUT = "(request_timeout)"
FAILURES = [
    (
        failure("429 Too Many Requests", "slow down"),
        "HTTP 429 (rate limit); first: sample 0: HTTP 429 (rate limit): slow down; set "
        "concurrency to the number of requests that the server accepts at a time, or raise",
    ),
    (failure("503 Service Unavailable", "warm"), "warm; the server is overloaded or not ready"),
    (failure("499 Gone Fishing", "x"), "HTTP 499 (unknown status): x"),
    (Reply(parts=[*HALF, DONE]), "stream ended early: after 2 tokens"),
    (Reply(parts=HALF, end="cut"), "stream ended early: "),
    (Reply(parts=[]), "stream ended early: it had no text"),
    (Reply(parts=[*HALF, event({"error": "out of\n\x1b[31m"})]), "the stream: out of \ufffd[31m"),
    (
        Reply(parts=[b'{"error":"odd"}'], kind="application/json"),
        "content type application/json, not text/event-stream: odd",
    ),
    (Reply(parts=HALF, end="hang"), f"a stream sent nothing more for 2 s {TIMEOUT}"),
    (Reply(end="hang"), f"the server sent nothing on any stream for 2 s {TIMEOUT}"),
]


def test_each_kind_of_failure_is_reported_with_its_count() -> None:
    for reply, expected in FAILURES:
        sink = storm(lambda _, reply=reply: reply, request_timeout=2)  # type: ignore[misc]
        assert sink.message.startswith("1 of 1 request failed: 1 x ")
        assert expected in sink.message
        assert "done" not in sink.reports(0)


def test_a_storm_is_counted_by_kinds() -> None:
    def reply(number: int) -> Reply:
        if number < 30:
            return failure("429 Too Many Requests", f"queue {number}")
        return Reply(parts=HALF) if number < 37 else Reply(parts=WHOLE)

    sink = storm(reply, 50, concurrency=5)
    counts = "37 of 50 requests failed: 30 x HTTP 429 (rate limit), 7 x stream ended early; first: "
    assert sink.message.startswith(counts)
    assert sum(kind == "done" for kind, _ in sink.events) == 13

    many = storm(lambda number: failure(f"{500 + number} Odd", "x"), 9, concurrency=1)
    assert re.match(r"9 of 9 requests failed: (1 x HTTP 50\d \([^)]*\), ){6}3 x oth", many.message)
    hanging = Reply(end="hang")
    alone = storm(
        lambda number: hanging if number else failure("500 Internal Server Error", ""), 20
    )
    assert alone.message.startswith("1 of 20 requests failed: 1 x HTTP 500")


def test_a_stream_may_be_silent_while_it_waits_for_its_turn() -> None:
    answers = threading.Semaphore(0)

    def reply(number: int) -> Reply:
        if number == 0:
            return Reply(end="hang")
        answers.release()
        return Reply(parts=WHOLE)

    sink = storm(reply, 12, concurrency=2, request_timeout=2)

    assert sum(kind == "done" for kind, _ in sink.events) == 11
    assert sink.message.startswith("1 of 12 requests failed: 1 x time-out; first: sample 0")


def test_nothing_more_is_sent_after_the_end() -> None:
    sink = Recorder(1)
    script = answering(lambda _: failure("500 Internal Server Error", "x"))
    with Scripted(script) as server, open_engine(server.url) as engine:
        engine.load_samples([0])
        engine.submit([1], [0], sink)
        assert "1 of 1" in sink.message
        sent = len(server.streams)
        engine.submit([2, 3], [0, 0], sink)
        other = Recorder(1)
        engine.submit([4], [0], other)
        assert "1 of 1" in other.message
        assert len(server.streams) == sent + 1
    assert len(sink.errors) == 1


def test_a_key_in_a_broken_stream_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-s3cret")
    replies = [
        Reply(parts=[event({"error": "key sk-s3cret"})]),
        Reply(parts=[b"data: sk-s3cret\n\n"]),
        Reply(parts=[b"sk-s3cret"], kind="text/plain"),
        failure("400 Bad Request", json.dumps({"headers": "Bearer sk-s3cret"})),
    ]
    for reply in replies:
        message = storm(lambda _, reply=reply: reply).message  # type: ignore[misc]
        assert "s3cret" not in message
        assert "***" in message


def test_leaving_gives_up_what_is_under_way_and_the_drain_of_an_answer_is_no_failure() -> None:
    """A server that keeps its stream open after the last word, or breaks it off."""
    begun, running = threading.Event(), set(threading.enumerate())

    def reply(_: Request) -> Reply:
        begun.set()
        return replies[0]

    replies = [Reply(parts=HALF, end="hang")]
    sink = Recorder(1)
    with Scripted(answering(reply)) as server, open_engine(server.url) as engine:
        engine.load_samples([0])
        engine.submit([1], [0], sink)
        assert begun.wait(30)
    assert not sink.errors
    assert set(threading.enumerate()) <= running
    for replies[0] in (Reply(parts=WHOLE, end="hang"), Reply(parts=WHOLE, end="cut")):
        sink = Recorder(1)
        with Scripted(answering(reply)) as server:
            run(server.url, sink=sink)
        assert not sink.errors
        assert sink.n_tokens == {100: 2}
