"""Test that bytes are cut into events at any network boundary, without loss."""

from __future__ import annotations

import json
import re
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.adapters.engines.openai._events import (
    BLANKS,
    EventStream,
    Failed,
    StreamedAnswer,
    error_text,
    payload,
)
from tests.adapters.engines.openai.scripted import DONE, event, piece, usage


def payloads(stream: bytes, cuts: list[int]) -> list[bytes]:
    """Feed a stream in pieces; return the payloads of its events."""
    events = EventStream()
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    blocks = [events.feed(stream[a:b]) for a, b in pairwise(edges)] + [events.close()]
    return [
        payload_read
        for block in blocks
        for each in events_of(block)
        if (payload_read := payload(each[:-2]))
    ]


def events_of(block: bytes) -> list[bytes]:
    return [each + b"\n\n" for each in block.split(b"\n\n")[:-1]]


def take(answer: StreamedAnswer, stream: bytes) -> list[int]:
    """Return the token count of each event of a stream."""
    return [
        answer.read_events(event_bytes) for event_bytes in events_of(EventStream().feed(stream))
    ]


def read(*events: bytes, keeps: bool = True) -> tuple[StreamedAnswer, list[int]]:
    """Return an answer and the token count of each of its events."""
    answer = StreamedAnswer(keeps=keeps)
    return answer, [told for part in events for told in take(answer, part)]


@given(
    texts=st.lists(st.text(max_size=20), min_size=1, max_size=5),
    cuts=st.lists(st.integers(0, 2000), max_size=8),
    newline=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    comment=st.sampled_from([b"", b": ping\n\n", b"event: x\nid: 3\n"]),
    begin=st.sampled_from([b"", b"\xef\xbb\xbf"]),
)
def test_cuts_change_nothing(
    texts: list[str], cuts: list[int], newline: bytes, comment: bytes, begin: bytes
) -> None:
    sent = [json.dumps({"text": text}, ensure_ascii=False).encode() for text in texts]
    lines = b"".join(comment + b"data: " + each + b"\n\n" for each in sent) + DONE

    assert payloads(begin + lines.replace(b"\n", newline), cuts) == [*sent, b"[DONE]"]


def test_the_forms_of_an_event() -> None:
    """Half an event at the end is none; a whole one without an empty line after it is one."""
    forms: dict[bytes, list[bytes]] = {
        b'data:{"a":1}\n\n': [b'{"a":1}'],
        b'data: {"a":\ndata: 1}\n\n': [b'{"a":\n1}'],
        b"\n\n: comment\n\n\n": [],
        b'data: {"a":1}\n\ndata: [DONE]': [b'{"a":1}', b"[DONE]"],
        b'data: {"a":1}': [b'{"a":1}'],
        b'data: {"a":1}\n\ndata: {"b"': [b'{"a":1}'],
        b"": [],
    }
    assert {stream: payloads(stream, []) for stream in forms} == forms
    with pytest.raises(Failed, match="a line is not in the SSE format: '<html>"):
        read(b"<html>\n\n")
    for data in (b"data: " + b"x" * (1 << 20), b"\r: " + b"y" * (1 << 20)):
        with pytest.raises(Failed, match="malformed event: it has more than 1 MiB"):
            payloads(data, list(range(0, len(data), 50_000)))


TEXTS = st.text(max_size=12) | st.sampled_from(
    ['"error"', '"usage":{"completion_tokens":9}', '"token_ids":[1,2]', '"finish_reason":"x"']
)


def kept_text(pieces: list[tuple[str, list[int] | None]]) -> str:
    return "".join(text for text, _ in pieces).strip(BLANKS)


@given(
    pieces=st.lists(
        st.tuples(TEXTS, st.none() | st.lists(st.integers(0, 9), max_size=3)), max_size=8
    ),
    chat=st.booleans(),
    spaced=st.booleans(),
)
def test_skipping_uninformative_events_changes_no_result(
    pieces: list[tuple[str, list[int] | None]], chat: bool, spaced: bool
) -> None:
    separators = (", ", ": ") if spaced else (",", ":")
    parts = [piece(text, ids=ids, chat=chat) for text, ids in pieces]
    parts += [piece("", finish="stop", chat=chat)]
    parts += [event({"choices": [], "usage": usage(3, 4)})]
    same = [
        b"data: " + json.dumps(json.loads(part[6:]), separators=separators).encode() + b"\n\n"
        for part in parts
    ]

    kept, tokens_of_parts = read(*same)
    counted, told_too = read(*same, keeps=False)

    assert told_too == tokens_of_parts
    assert counted.n_ids == kept.n_ids == len(kept.ids)
    assert kept.complete
    assert counted.complete
    assert (counted.started, counted.finish) == (kept.started, kept.finish)
    assert counted.completion_tokens == kept.completion_tokens == 4
    assert "".join(kept.text) == "".join(text for text, _ in pieces)
    assert counted.text == []
    assert counted.is_empty == kept.is_empty == (not kept_text(pieces))


def test_tokens_are_counted_by_usage_or_ids_and_never_by_pieces_of_text() -> None:
    parts = [piece(f"w{number}") for number in range(26)] + [piece("w", finish="length")]
    answer, token_counts = read(
        *parts, event({"choices": [], "usage": usage(5, 32)}), DONE, keeps=False
    )
    assert (answer.tokens, answer.prompt_tokens) == (32, 5)
    assert token_counts == [1] + [0] * 28
    answer, _ = read(*[piece("w")] * 5, piece("", finish="stop"), DONE)
    assert (answer.complete, answer.tokens) == (True, None)
    first, rest = piece("a", ids=[1, 2]), piece("b", ids=[3, 4, 5])
    for keeps in (False, True):
        answer, token_counts = read(
            first, rest, piece("", ids=[], finish="stop"), DONE, keeps=keeps
        )
        assert token_counts[:3] == [2, 3, 0]
        assert (answer.tokens, answer.complete) == (5, True)


def test_the_first_token_is_the_first_with_text_token_ids_or_thoughts() -> None:
    """The role comes before it; a character held back has token ids and no text yet."""
    role = piece("", chat=True, role="assistant")

    assert read(role, piece("a", chat=True), piece("b", chat=True))[1] == [0, 1, 0]
    assert read(piece("", ids=[7]), piece("é", ids=[8]))[1] == [1, 1]
    assert read(piece(""), piece(None), piece("é"))[1] == [0, 0, 1]
    for key in ("reasoning_content", "reasoning"):
        thought = event({"choices": [{"delta": {key: "hm"}, "finish_reason": None}]})
        answer, token_counts = read(thought, piece("yes", chat=True))
        assert (token_counts, answer.text) == ([1, 0], ["yes"])


def test_an_answer_is_empty_without_text_refusal_or_calls_however_it_is_read() -> None:
    thoughts = [delta(reasoning_content=f'"content": "{n}"') for n in range(3)]
    call = {"index": 0, "function": {"name": "a", "arguments": ""}}
    streams: list[tuple[dict[str, Any], set[str]]] = [
        ({"content": "\n\n "}, set()),
        ({"content": None, "tool_calls": []}, set()),
        ({"content": ""}, set()),
        ({"content": "\n\u4f60"}, {"content"}),
        ({"content": '"'}, {"content"}),
        ({"refusal": "I cannot help."}, {"refusal"}),
        ({"tool_calls": [call]}, {"tool_calls"}),
        ({"function_call": {"name": "a"}}, {"function_call"}),
    ]
    for fields, visible in streams:
        stream = [*thoughts, delta(**fields), delta(reasoning_content="hm")]
        for keeps in (False, True):
            for parts in (stream, [stream[0], b"".join(stream[1:])]):
                answer = StreamedAnswer(keeps=keeps)
                for part in parts:
                    answer.read_events(part)
                assert answer.fields - {"reasoning_content"} == visible, (fields, keeps)
                assert answer.is_empty == (not visible)


def delta(**fields: object) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": None}]})


def test_a_running_count_that_stops_is_no_count_and_an_empty_reason_none() -> None:
    """One at the beginning alone says 1 of whatever comes after it; in every event one runs."""
    parts = [piece("a", counted=usage(3, number)) for number in (1, 2)]
    assert not read(*parts)[0].complete
    assert not read(*parts, piece("b", finish="stop"))[0].complete
    answer, _ = read(*parts, piece("b", finish="stop", counted=usage(3, 4)))
    assert (answer.complete, answer.tokens) == (True, 4)
    begun, counted = event({"choices": [], "usage": usage(3, 1)}), piece("b", counted=usage(3, 2))
    end, last = piece("c", finish="stop"), piece("", finish="stop")
    going = event({"choices": [{"text": "a", "finish_reason": ""}]})
    for keeps in (False, True):
        streams = [[begun, piece("a"), piece("b"), end], [piece("a"), counted, end]]
        streams += [[piece("a"), counted, last]]
        tokens = [read(*stream, DONE, keeps=keeps)[0].tokens for stream in streams]
        assert tokens == [None, None, 2]
        assert not read(going, DONE, keeps=keeps)[0].complete
        assert read(going, going, last, DONE, keeps=keeps)[0].finish == "stop"
    assert not read(piece("a"), DONE)[0].complete, "half an answer, with [DONE] behind it"


def counted(number: object) -> bytes:
    return event({"usage": {"completion_tokens": number}})


API = "not in the format of OpenAI's API: '"
MALFORMED = [
    (b'data: {"choices": [{"te\n\n', 'no JSON: \'{"choices": [{"te'),
    (b"data: 5\n\n", "no JSON object: '5'"),
    (b"data: " + b"[" * 100_000 + b"\n\n", "no JSON: '[[["),
    *((event({"choices": choices}), API) for choices in ([5], "x")),
    *((counted(number), API) for number in ("many", -1, 2**70)),
    (b'data: {"choices": [], "usage": {"completion_tokens": 1e400}}\n\n', API),
    (event({"choices": [{"text": 5, "finish_reason": "stop"}]}), API),
]
IN_STREAM = [
    (event({"error": {"message": "no blocks left"}}), "no blocks left"),
    (event({"error": "worker died"}), "worker died"),
    (event({"object": "error", "message": "gone"}), "gone"),
    (b'event: error\ndata: {"code": 500, "message": "oom"}\n\n', "oom"),
]
ONE: dict[str, Any] = {"text": "a", "finish_reason": "stop"}
BROKEN = [
    *((part, "malformed event", detail) for part, detail in MALFORMED),
    *((part, "error in the stream", detail) for part, detail in IN_STREAM),
    (piece("", finish="abort"), "finish_reason 'abort'", "did not finish an answer"),
    (event({"choices": [ONE] * 2}), "several answers", "one was requested"),
    (event({"choices": [{"index": 1, **ONE}]}), "several answers", "one was requested"),
]


def test_broken_events_and_errors_are_reported() -> None:
    for (part, kind, detail), keeps, is_begun in product(BROKEN, (False, True), (False, True)):
        answer = StreamedAnswer(keeps=keeps)
        if is_begun:
            take(answer, piece("a", ids=[1]))
        with pytest.raises(Failed, match=re.escape(detail)) as caught:
            take(answer, part)
        assert caught.value.kind == kind


def test_every_form_of_a_servers_error_is_recognised() -> None:
    bodies: list[tuple[Any, str]] = [
        ({"error": {"message": "too long", "code": 400}}, "too long"),
        ({"error": "plain"}, "plain"),
        ({"error": {"code": 1}}, "{'code': 1}"),
        ({"detail": "not found"}, "not found"),
        ({"detail": [{"msg": "a", "loc": []}, {"msg": "b"}, 3]}, "a; b; 3"),
        ({"object": "error", "message": "m"}, "m"),
        ({"choices": []}, ""),
        ([], ""),
        (None, ""),
    ]
    assert [error_text(body) for body, _ in bodies] == [text for _, text in bodies]


@given(
    parts=st.lists(
        st.sampled_from(
            [
                piece("a", ids=[1]),
                piece("b", ids=[2, 3]),
                piece('say "error', ids=[]),
                piece('"usage":null', chat=True),
                piece("c", counted=usage(3, 2)),
                piece("", role="assistant", chat=True),
                b": ping\n\n",
                b"event: x\n" + piece("d", ids=[4]),
                b"\n\n",
            ]
        ),
        max_size=12,
    ),
    spaced=st.booleans(),
)
def test_events_that_come_together_count_as_if_alone(parts: list[bytes], spaced: bool) -> None:
    if not spaced:
        parts = [part.replace(b'": ', b'":').replace(b', "', b',"') for part in parts]
    parts = [piece("x", ids=[9]), *parts, piece("", finish="stop"), DONE]
    alone, together = StreamedAnswer(keeps=False), StreamedAnswer(keeps=False)

    tokens_apart = sum(alone.read_events(part) for part in parts)

    assert together.read_events(b"".join(parts)) == tokens_apart
    assert together == alone


HIDDEN = {
    "an error": '{"delta":{"content":""},NULL}],"error":{"message":"boom"},"x":[{NULL}]',
    "a count": '{"delta":{"content":"b"}}],"usage":{"completion_tokens":9},"x":[{NULL}]',
    "an end": '{"delta":{},"finish_reason": "stop"}],"x":[{NULL}]',
    "no text": '{"delta":{"content":7},NULL}]',
    "an error behind token ids": (
        '{"delta":{"content":"a"},NULL,"token_ids":[]}],"error":"bad","details":[{"loc":[]}]'
    ),
}
"""What events say between a beginning and an end that are those of an event which only adds."""


def test_an_event_that_begins_and_ends_as_others_is_read_all_the_same() -> None:
    def outcome(*blocks: bytes) -> tuple[Any, ...]:
        answer = StreamedAnswer(keeps=False)
        try:
            for block in blocks:
                answer.read_events(block)
        except Failed as failure:
            return (str(failure),)
        return answer.n_ids, answer.finish, answer.completion_tokens

    for name, hidden_event in HIDDEN.items():
        ids = ',"token_ids":[1]' if "token_ids" in hidden_event else ""
        usual = '{"delta":{"content":"a"},NULL' + ids + "}]"
        plain, other = (
            b'data: {"id":"1","choices":[%s}\n\n'
            % text.replace("NULL", '"finish_reason":null').encode()
            for text in (usual, hidden_event)
        )
        assert outcome(plain, plain + other + plain) == outcome(plain, plain, other, plain), name
    # Token ids are those of JSON, whatever stands between them.
    answer = StreamedAnswer(keeps=False)
    events = [
        b'data: {"choices":[{"text":"a","finish_reason":null,"token_ids":[%s]}]}\n\n' % ids
        for ids in (b"1", b"1,2", b"", b" ", b"\t", b"3, 4", b"5")
    ]
    answer.read_events(events[0])
    assert answer.read_events(b"".join(events)) == 1 + 2 + 0 + 0 + 0 + 2 + 1
