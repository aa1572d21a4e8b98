"""What a user saw of an answer: by reads of the socket, by events, and by visible tokens."""

from __future__ import annotations

import math
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.adapters.engines.openai._client import Listener, Streamed
from pytest_mlperf.adapters.engines.openai._events import StreamedAnswer
from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.reason import Sign, SignKey
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.run.figures import figures
from pytest_mlperf.run.server import answer_signs
from pytest_mlperf.run.worker.closed_loop import ClosedLoop, SlotSink
from pytest_mlperf.run.worker.conversations import Conversations
from tests.adapters.engines.openai.echo import echo_server
from tests.adapters.engines.openai.recorder import open_engine
from tests.adapters.engines.openai.scripted import DONE, event, piece, usage
from tests.adapters.engines.openai.test_clients import PROMPTS, measured, worker
from tests.adapters.engines.openai.test_loadgen import case
from tests.adapters.engines.under_loadgen import run
from tests.run.harness import settings

PACE_S = 0.015
POINT = 2
BUFFERED, HIDDEN, TOGETHER = (
    SignKey.ANSWERS_BUFFERED,
    SignKey.HIDDEN_TOKENS,
    SignKey.TOKENS_TOGETHER,
)
TIMES = ("tpot_p50", "tpot_p90", "tps_per_user", "tokens_per_second_per_user")
NEITHER = (*TIMES, "itl_p50", "ttft_p50", "ttft_p99")


@contextmanager
def busy(loop: Any, *, in_loop: bool) -> Iterator[None]:
    """Keep the client from its sockets: its loop computes, or another thread of it does."""
    over = threading.Event()

    def compute() -> None:
        until_s = time.perf_counter() + 4 * PACE_S
        while time.perf_counter() < until_s:
            pass
        if not over.is_set():
            loop.call_later(PACE_S / 10, compute)

    def hold_interpreter() -> None:
        while not over.is_set():
            pass

    switch_s = sys.getswitchinterval()
    if in_loop:
        loop.call_soon_threadsafe(compute)
    else:
        sys.setswitchinterval(7 * PACE_S)  # no multiple of the time between two looks at it
        threading.Thread(target=hold_interpreter, daemon=True).start()
    try:
        yield
    finally:
        over.set()
        sys.setswitchinterval(switch_s)


def window(url: str, *, late: str = "", prompt: Any = "Say it.", **options: Any) -> dict[str, Any]:
    """Measure a point of a curve with this client, in this process."""
    samples = [prompt] * 8
    curve_settings = replace(
        settings("Offline"), scenario=Scenario.CONCURRENCY, points=[POINT], tokens=True
    )
    curve_settings = replace(curve_settings, min_duration_ms=500, ramp_ms=0)

    def fail(error: BaseException) -> None:
        traceback.print_exception(error)
        sink.freed.put((-1, math.nan))  # who waits for a slot wakes up, and finds none

    with open_engine(url, samples, max_new_tokens=128, **options) as engine:
        engine.load_samples(range(len(samples)))
        sink = SlotSink(fail, tokens=True)
        loop = ClosedLoop(engine, sink, Conversations(range(len(samples))), curve_settings)
        if not late:
            (point,) = loop.run("a run", 0.0, lambda: None)["points"]
            return dict(point)
        with busy(engine.event_loop(), in_loop=late == "computes"):
            (point,) = loop.run("a run", 0.0, lambda: None)["points"]
    return dict(point)


@pytest.mark.process
def test_answers_that_come_together_have_no_times_between_their_tokens() -> None:
    """A whole answer in one read, one of a few flushes, and one that the server sends whole."""
    ways: Mapping[str, tuple[int, dict[str, int]]] = {
        "held back, 8 tokens": (8, {"hold": 1000}),
        "held back, 20 tokens": (20, {"hold": 1000, "ids": 0}),
        "flushed every 5 events": (20, {"hold": 5}),
        "one event": (8, {"step": 1000}),
    }
    for name, (tokens, manner) in ways.items():
        with echo_server(tokens, 20, 1e3 * PACE_S, **manner) as url:
            point = window(url)
        metrics = point["metrics"]
        assert not metrics.keys() & {*NEITHER}, name
        assert metrics["first_read_p50"] > 0.02, name
        assert "answers arrived in one or a few reads: TPOT" in point["notes"][BUFFERED], name
        assert int(point["notes"][BUFFERED].partition("%")[0]) > 60, name
        assert metrics["tokens_per_sample"] == tokens, name
        assert point["hidden_share"] == 0


@pytest.mark.process
def test_times_per_token_are_of_tokens_that_a_user_saw_after_the_first_message() -> None:
    """Each token takes the same time, whatever is hidden, or comes with others in one event."""
    ways: Mapping[str, tuple[dict[str, int], dict[str, Any], set[str], float | None]] = {
        "10 of 40 shown": ({"hidden": 30, "details": 1}, {}, {HIDDEN}, 0.75),
        "hidden, and not told": ({"hidden": 37, "ids": 0}, {}, {HIDDEN}, None),
        "each token, without ids": ({"ids": 0}, {}, set(), 0.0),
        "tens, with token ids": ({"step": 10}, {"prompt": [5, 6, 7]}, {TOGETHER}, 0.0),
    }
    for name, (manner, options, notes, hidden) in ways.items():
        # The few tokens that are shown may come in one read on a busy machine at the usual pace.
        pace_s = PACE_S * {"10 of 40 shown": 2, "hidden, and not told": 4}.get(name, 1)
        with echo_server(40, 20, 1e3 * pace_s, **manner) as url:
            point = window(url, **options)
        metrics = point["metrics"]
        # A busy machine may bring some tokens together.
        assert notes <= point["notes"].keys() <= {*notes, TOGETHER}, (name, point["notes"])
        unsized = {name for name in point["answer_counts"] if name.startswith("unsized")}
        assert bool(unsized) is (manner.get("ids") == 0 and HIDDEN not in notes), name
        assert (point["hidden_share"], metrics["tokens_per_sample"]) == (hidden, 40), name
        expected = pace_s * (2 / 39 if name == "hidden, and not told" else 1)
        assert expected * 0.9 < metrics["tpot_p50"] < expected * 2, (name, metrics)
        assert metrics["tps_per_user"] == pytest.approx(1 / metrics["tpot_p90"])
        if name != "tens, with token ids":
            assert metrics["ttft_p50"] > 0.02 + manner.get("hidden", 0) * pace_s, name


@pytest.mark.process
def test_comments_reasoning_and_held_arguments_change_no_time_of_a_token() -> None:
    """A comment is not a first token; tokens that a parser holds share one time."""
    ways: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "comments until the first token": ({"ping_ms": 4}, {}),
        "reasoning in full": ({"reasoning": 12, "details": 1}, {"api": "chat"}),
        "arguments of a call in one event": ({"calls": 1, "ids": 0}, {"api": "chat"}),
    }
    for name, (manner, options) in ways.items():
        with echo_server(40, 20, 1e3 * PACE_S, **manner) as url:
            point = window(url, **options)
        metrics = point["metrics"]
        # A busy machine may bring some tokens together.
        assert (point["notes"].keys() - {TOGETHER}, point["hidden_share"]) == (set(), 0), name
        assert PACE_S * 0.9 < metrics["tpot_p50"] < PACE_S * 1.5, (name, metrics)
        assert 0.02 < metrics["ttft_p50"] < 0.02 + 10 * PACE_S, (name, metrics)


@pytest.mark.process
@pytest.mark.parametrize("late", ["computes", pytest.param("waits", marks=pytest.mark.quiet)])
def test_a_late_client_does_not_blame_the_server(late: str) -> None:
    """Its own reads bring several events of an honest server."""
    with echo_server(20, 20, 1e3 * PACE_S) as url:
        point = window(url, late=late)
    assert BUFFERED not in point["notes"]
    assert point["metrics"].keys() >= {"tpot_p50", "ttft_p50"}


@pytest.mark.process
def test_several_clients_tell_how_answers_came(tmp_path: Path) -> None:
    pace_s = 4 * PACE_S  # At the usual pace a busy machine may bring an answer in one read.
    for name, tokens, manner in (("held", 8, {"hold": 1000}), ("hides", 16, {"hidden": 8})):
        (folder := tmp_path / name).mkdir()
        with echo_server(tokens, 20, 1e3 * pace_s, details=1, **manner) as url:
            _, _, log = measured(worker(folder, url, PROMPTS, loop={"points": [4]}))
        (point,) = log.points
        if name == "held":
            assert not point.metrics.keys() & {*NEITHER}
            assert BUFFERED in point.notes
        else:
            assert point.hidden_share == 0.5
            assert {HIDDEN} <= point.notes.keys() <= {HIDDEN, TOGETHER}
            assert pace_s * 0.9 < point.metrics["tpot_p50"] < pace_s * 2


@pytest.mark.process
@pytest.mark.parametrize(
    "manner", [{"hold": 1000}, pytest.param({"hidden": 4, "details": 1}, marks=pytest.mark.nightly)]
)
def test_times_that_loadgen_cannot_measure_are_not_in_its_figures(
    tmp_path: Path, manner: dict[str, int]
) -> None:
    """It divides by all tokens but one, and takes any first read for a first token."""
    with echo_server(9, 4, 1e3 * PACE_S, **manner) as url:
        ran = run(case(tmp_path, url, "Server"), 24)
    seen = figures(ran.result, ran.detail, Scenario.SERVER)
    theirs = ran.detail.metrics(Scenario.SERVER)
    assert theirs.keys() >= {"ttft_p50", "tpot_p50"}
    if "hold" in manner:
        assert not seen.metrics.keys() & {*NEITHER, "goodput"}
        assert seen.metrics["first_read_p50"] > 0
        assert [sign.key for sign in seen.signs] == [BUFFERED]
    else:
        assert ran.result["hidden_share"] == pytest.approx(4 / 9)
        assert seen.metrics["tpot_p50"] == pytest.approx(2 * theirs["tpot_p50"], rel=0.2)
        assert seen.metrics["ttft_p50"] == theirs["ttft_p50"]


@given(
    texts=st.lists(st.sampled_from(["a", "", "\u00e9", '"usage":{']), min_size=1, max_size=12),
    with_ids=st.booleans(),
    chat=st.booleans(),
    cuts=st.lists(st.integers(0, 5000), max_size=6),
)
def test_events_are_counted_independently_of_reads(
    texts: list[str], with_ids: bool, chat: bool, cuts: list[int]
) -> None:
    parts = [
        piece(text, ids=[number] if with_ids and text else None, chat=chat)
        for number, text in enumerate(texts)
    ]
    begun = [with_ids or bool(text) for text in texts]
    parts += [piece("", finish="stop", chat=chat), event({"choices": [], "usage": usage(3, 20)})]
    stream = b"".join([*parts, DONE])
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    expected = len(texts) - next((n for n, text in enumerate(texts) if text), len(texts))

    for keeps in (False, True):
        answer = StreamedAnswer(keeps=keeps)
        read = Streamed(answer, Listener())
        for begin, end in pairwise(edges):
            read.data(stream[begin:end])
        assert answer.events == expected, begun
        assert answer.joined <= max(0, expected - 1)
        if len(edges) == 2:
            assert answer.joined == max(0, expected - 1)


def test_hidden_tokens_and_the_first_message_follow_the_servers_usage() -> None:
    def counted(*parts: bytes, **counts: int) -> tuple[int, int]:
        answer = StreamedAnswer(keeps=False)
        details = {"reasoning_tokens": counts["reasoning"]} if "reasoning" in counts else {}
        last = {**usage(3, counts["all"]), "completion_tokens_details": details}
        for part in (*parts, piece("", finish="stop"), event({"choices": [], "usage": last}), DONE):
            answer.read_events(part)
        return answer.hidden, answer.after_first

    words = [piece("w")] * 20
    thought = event({"choices": [{"delta": {"reasoning": "hm"}, "finish_reason": None}]})
    cases: list[tuple[tuple[int, int], tuple[int, int]]] = [
        (counted(*words, all=80), (0, 79)),
        (counted(*words, all=80, reasoning=60), (60, 19)),
        (counted(*words, all=80, reasoning=70), (60, 19)),
        (counted(thought, *words, all=80, reasoning=60), (0, 79)),
        (counted(piece("<think>hm"), *words, all=80, reasoning=60), (0, 79)),
        (counted(piece("a b", ids=[1, 2]), piece("c", ids=[3]), all=4), (0, 2)),
        # A running count in each event, and one in the first event that cannot be right.
        (counted(*(piece("w", counted=usage(3, n)) for n in (10, 20, 30)), all=30), (0, 20)),
        (counted(piece("w", counted=usage(3, 19)), *words, all=21), (0, 20)),
        # One event has no token after it, but for an end token that is not sent.
        (counted(piece("all of it"), all=20), (0, 0)),
        (counted(piece("a", ids=[1]), all=2), (0, 1)),
        (counted(piece("a b", ids=[1, 2]), all=2), (0, 0)),
    ]
    for number, (counts, expected) in enumerate(cases):
        assert counts == expected, number


def test_a_first_message_of_unknown_size_is_noted_if_it_may_hide_much_of_the_time() -> None:
    def signs(answers: int, messages: int, tokens: int) -> list[Sign]:
        counts = {"answers": answers, "messages": messages, "tokens": tokens}
        unsized = {f"unsized_{name}": count for name, count in counts.items()}
        every = [*answer_signs({4: unsized}, {}, {})]
        return [sign for sign in every if sign.key is SignKey.FIRST_UNSIZED]

    (sign,) = signs(10, 20, 200)
    assert sign.point == 4
    assert "may be too short by up to 47%" in sentence(sign.text)
    for counts in ((10, 200, 200), (10, 400, 600), (10, 10, 200), (10, 10, 10), (0, 0, 0)):
        assert signs(*counts) == [], counts
