"""Calls of tools as a server streams them reach the scorer of function calls."""

from __future__ import annotations

import json
from typing import Any

from pytest_mlperf.adapters.scorers.function_calls import FunctionCallsScorer
from tests.adapters.engines.openai.recorder import Recorder, answering, open_engine, run
from tests.adapters.engines.openai.scripted import (
    DONE,
    Reply,
    Request,
    Scripted,
    event,
    piece,
    usage,
)

PARTS = {"colour": {"type": "string"}, "count": {"type": "integer"}}
PARAMETERS = {"type": "dict", "properties": PARTS, "required": list(PARTS)}
LAMP = {"name": "shop.order_lamp", "description": "Orders lamps.", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": {**LAMP, "name": "shop_order_lamp"}}


def question(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "tools": [TOOL], "tool_choice": "auto"}


QUESTIONS = [
    question("Two red lamps, please."),
    question("Three blue lamps and a green one, please."),
    question("What is the capital of France?"),
]
CALLS: list[list[dict[str, Any]]] = [
    [{"colour": "red", "count": 2}],
    [{"colour": "blue", "count": 3}, {"colour": "green", "count": 1}],
    [],
]
SUBSETS = ("simple_python", "parallel", "irrelevance")
REFERENCES = [
    {
        "subset": subset,
        "ground_truth": [
            {LAMP["name"]: {name: [value] for name, value in call.items()}} for call in calls
        ],
        "func_description": [LAMP],
    }
    for subset, calls in zip(SUBSETS, CALLS, strict=True)
]


def delta(**fields: Any) -> bytes:
    return event({"id": "x", "choices": [{"index": 0, "delta": fields, "finish_reason": None}]})


def streamed(calls: list[dict[str, Any]]) -> list[bytes]:
    """Return calls as vLLM streams them: the name first, then arguments in pieces."""
    parts = []
    for index, call in enumerate(calls):
        named = {"name": "shop_order_lamp", "arguments": ""}
        head = {"index": index, "id": f"c{index}", "type": "function", "function": named}
        parts.append(delta(tool_calls=[head]))
        text = json.dumps(call)
        for start in range(0, len(text), 7):
            part = {"index": index, "function": {"arguments": text[start : start + 7]}}
            parts.append(delta(tool_calls=[part]))
    return parts


def reply(request: Request) -> Reply:
    """Return the expected call, or an answer in text if no call is expected."""
    asked_for = request.body["messages"][0]["content"]
    index = [each["messages"][0]["content"] for each in QUESTIONS].index(asked_for)
    parts = streamed(CALLS[index]) or [delta(content="I can only"), delta(content=" order lamps.")]
    finish = "tool_calls" if CALLS[index] else "stop"
    end = piece("", finish=finish, chat=True)
    counted = event({"id": "x", "choices": [], "usage": usage(30, 12)})
    return Reply(parts=[*parts, end, counted, DONE])


def asked_of(script: Any) -> list[bytes]:
    sink = Recorder(len(QUESTIONS), wants_output=True)
    with Scripted(answering(script)) as server:
        run(server.url, QUESTIONS, sink=sink, api="chat")
        sent = [request.body for request in server.requests if request.body.get("max_tokens") == 32]
    assert not sink.errors
    assert all((body["tools"], body["tool_choice"]) == ([TOOL], "auto") for body in sent)
    assert set(sink.n_tokens.values()) == {12}
    return [sink.outputs[100 + place] for place in range(len(QUESTIONS))]


def test_refusals_and_calls_that_are_no_json_are_counted_where_answers_are_read() -> None:
    """Calls of a timed run are not read, and nothing is claimed of them."""
    half = {"name": "shop_order_lamp", "arguments": '{"colour": '}
    answers = [
        [delta(tool_calls=[{"index": 0, "id": "c0", "type": "function", "function": half}])],
        [delta(refusal="I cannot"), delta(refusal=" do that.")],
        [delta(reasoning_content="hm"), *streamed(CALLS[1])],
    ]

    def script(request: Request) -> Reply:
        index = [each["messages"] for each in QUESTIONS].index(request.body["messages"])
        counted = event({"id": "x", "choices": [], "usage": usage(30, 12)})
        return Reply(parts=[*answers[index], piece("", finish="stop", chat=True), counted, DONE])

    for reads in (True, False):
        sink = Recorder(len(QUESTIONS), wants_output=reads)
        with (
            Scripted(answering(script)) as server,
            open_engine(server.url, QUESTIONS, api="chat") as engine,
        ):
            engine.answer_counts()
            engine.load_samples(range(3))
            engine.submit(range(3), range(3), sink)
            sink.wait_for_end()
            counts = engine.answer_counts()
        assert not sink.errors
        named = {name: counts.get(name) for name in ("answers", "empty", "refused", "bad_calls")}
        assert named == {
            "answers": 3,
            "empty": None,
            "refused": 1,
            "bad_calls": 1 if reads else None,
        }


def test_right_calls_score_all_there_is_without_a_tokenizer() -> None:
    answers = asked_of(reply)

    assert FunctionCallsScorer().score(answers, REFERENCES).aggregate == {
        "accuracy": 100.0,
        "normalized": 100.0,
    }
    first, two, none = answers
    swapped = FunctionCallsScorer().score([two, none, first], REFERENCES)
    assert swapped.aggregate["accuracy"] == 0
    assert none == b"I can only order lamps."
    assert [call["function"] for call in json.loads(two)] == [
        {"name": "shop_order_lamp", "arguments": arguments} for arguments in CALLS[1]
    ]
