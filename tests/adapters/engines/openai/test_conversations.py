"""Turns of conversations over HTTP: messages as recorded, a salt and a header for each one."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_mlperf.adapters.engines.openai._salt import SALT, SALT_WORDS, salt_of
from pytest_mlperf.core.errors import RunError, SuiteError
from pytest_mlperf.run.worker.closed_loop import SlotSink
from pytest_mlperf.run.worker.conversations import NextRequest
from tests.adapters.engines.openai.recorder import RUN_TOKENS, Recorder, in_a_run, open_engine, run
from tests.adapters.engines.openai.scripted import Manner, Request, Scripted
from tests.refusals import unrefused

SYSTEM = {"role": "system", "content": "You are terse."}
USER: dict[str, str] = {"name": "ann", "role": "user", "content": 'Say "ü😀"\n\x07'}
CALL = {"id": "c0", "type": "function", "function": {"name": "bash", "arguments": '{"a": "b"}'}}
ANSWER = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c0", "content": "a.txt"}
TOOLS = [{"type": "function", "function": {"name": "bash"}}]

TURNS: list[dict[str, Any]] = [
    {"messages": [SYSTEM, USER], "tools": TOOLS},
    {"messages": [SYSTEM, USER, ANSWER, RESULT], "tools": TOOLS},
    {"messages": [{"role": "user", "content": "Hello."}]},
]

CHAT: dict[str, Any] = {"api": "chat"}


def asked_of(server: Scripted) -> list[Request]:
    return [request for request in server.requests if in_a_run(request)]


def test_a_turn_is_sent_as_it_was_recorded_where_nothing_is_under_way() -> None:
    """A chat with a picture too, with its further fields: nothing is put into a user's parts."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/PNG;base64,AAAA"}}
    parts = [{"type": "text", "text": "What is it? ü"}, picture]
    chat = {"messages": [SYSTEM, {"role": "user", "content": parts}]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "strict": True}}
    turns = [TURNS[2], chat, *TURNS[:2], {**chat, "response_format": form}]
    sink = Recorder(len(turns))
    with Scripted(Manner()) as server:
        run(server.url, turns, sink=sink, session_header="X-Session-ID", **CHAT)

    fields = ("messages", "tools", "response_format")
    requests = sorted(asked_of(server), key=lambda request: len(request.raw))
    sent = [{key: one.body[key] for key in fields if key in one.body} for one in requests]
    assert sorted(map(json.dumps, sent)) == sorted(map(json.dumps, turns))
    for request in requests:
        assert "x-session-id" not in request.headers
        assert (request.body["max_tokens"], request.body["stream"]) == (RUN_TOKENS, True)


def under_way(turns: Sequence[NextRequest], **options: Any) -> tuple[list[Request], list[str]]:
    """Ask turns one after the other as a closed loop does; return requests and sessions."""

    def refuse(error: BaseException) -> None:
        raise error

    sink, sessions = SlotSink(refuse, tokens=True), list[str]()
    with Scripted(Manner()) as server:
        with open_engine(server.url, TURNS, **CHAT, **options) as engine:
            engine.load_samples(range(len(TURNS)))
            for sample, turn in enumerate(turns):
                sink.expect_request(sample, turn, 0)
                sessions.append(sink.session(sample))
                engine.submit([sample], [turn.index], sink)
                sink.freed.get(timeout=30)
        return asked_of(server), sessions


def test_a_conversation_under_way_has_one_salt_after_the_system_prompt() -> None:
    """A later turn begins with the earlier turns, so that a prefix cache can reuse them.

    A header names the conversation to routers.
    """
    turns = [NextRequest(0, 4, 1), NextRequest(1, 4, 2), NextRequest(0, 5, 1)]
    requests, sessions = under_way(turns, session_header="X-Session-ID")
    assert [request.headers["x-session-id"] for request in requests] == sessions
    assert sessions[0] == sessions[1] != sessions[2]
    assert all(re.fullmatch(r"[0-9a-f]{16}-\d", session) for session in sessions)
    first, later, again = requests
    salt = first.body["messages"][1]["content"].removesuffix(USER["content"])
    words = salt.removeprefix("[").removesuffix("]\n\n").split()
    assert len(words) == SALT_WORDS
    assert set(words) <= set(SALT.split())
    for request, turn in ((first, TURNS[0]), (later, TURNS[1])):
        salted = {**USER, "content": salt + USER["content"]}
        assert request.body["messages"] == [SYSTEM, salted, *turn["messages"][2:]]
        assert request.body["tools"] == TOOLS
    assert first.body["messages"] != again.body["messages"]
    assert later.raw.startswith(first.raw[: first.raw.index(b"]," + b'"tools"')])
    (plain, plain_again), _ = under_way([NextRequest(0, 4, 1), NextRequest(0, 5, 1)], salt=False)
    assert plain.raw == plain_again.raw
    assert plain.body["messages"] == TURNS[0]["messages"]


def test_salts_are_70_bits_in_as_many_words() -> None:
    words = SALT.split()
    salts = {salt_of(f"{number}") for number in range(1000)}

    assert len(set(words)) == len(words) >= 128
    assert len(salts) == 1000
    assert {len(salt.split()) for salt in salts} == {SALT_WORDS}
    rows: list[tuple[Any, dict[str, Any], str | None]] = [
        (TURNS, CHAT, "10 words for each conversation in flight"),
        (TURNS, {**CHAT, "salt": False}, "none"),
        (["x"], CHAT, "10 words in each run"),
        (["x"], {**CHAT, "salt": False}, None),
    ]
    with Scripted(Manner()) as server:
        for samples, options, salt in rows:
            with open_engine(server.url, samples, **options) as engine:
                assert engine.describe().get("salt") == salt


def test_prompts_that_cannot_be_sent_are_refused_before_a_run() -> None:
    half = {"messages": [{"role": "user", "content": "a\ud800"}]}
    no_turn = "sample 1 of the data set has no list of messages"
    rows: list[tuple[Sequence[Any], dict[str, Any], str]] = [
        (TURNS, {}, 'the data set has conversations: set api = "chat"'),
        (
            TURNS,
            {**CHAT, "max_prompt_tokens": 9},
            "conversations, which are not cut: leave max_pro",
        ),
        ([*TURNS, "x"], CHAT, "sample 3 of the data set has no list of messages, but the first"),
        ([TURNS[0], {"messages": [1]}], CHAT, no_turn),
        (
            [TURNS[0], {"messages": [SYSTEM]}],
            CHAT,
            "sample 1 of the data set is a conversation without",
        ),
        (
            [TURNS[0], {"messages": [{"role": "user", "content": []}]}],
            CHAT,
            "sample 1 of the data set is a conversation without",
        ),
        ([TURNS[0], half], CHAT, "a request cannot be sent: its text has a lone surrogate"),
    ]

    def ask(samples: Sequence[Any], options: dict[str, Any]) -> None:
        run(server.url, samples, sink=Recorder(1), **options)

    with Scripted(Manner()) as server:
        assert unrefused(ask, RunError, rows) == []
        assert not asked_of(server)
    names = ["Content-Length", "host", "X Session", "X-A\r\nHost: b", "", "X-" + "a" * 64, "Ä"]
    for name in names:
        with pytest.raises(SuiteError, match="is not a valid name of a header that the"):
            open_engine("http://127.0.0.1:1", TURNS, session_header=name, **CHAT)
