"""Chats with tools as token ids, and calls read out of text, as from a server or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mlperf.adapters.engines.llm.generation import TextOptions, TokenPrompts, packed
from pytest_mlperf.adapters.engines.llm.tools import (
    CALL_FORMATS,
    HERMES,
    MAX_ARGUMENT_LEVELS,
    TAGGED,
    ToolChats,
    ToolOptions,
    calls_or_text,
    tool_chats,
    without_thought,
)
from pytest_mlperf.adapters.engines.openai import _traffic
from pytest_mlperf.adapters.scorers.function_calls import FunctionCallsScorer
from pytest_mlperf.core.errors import RunError, SuiteError
from tests.adapters.engines.recording import Samples
from tests.refusals import unrefused

LAMP = {
    "colour": {"type": "string"},
    "count": {"type": "integer"},
    "price": {"type": "number"},
    "sent": {"type": "boolean"},
    "sizes": {"type": "array", "items": {"type": "integer"}},
    "to": {"type": ["null", "object"]},
    "size": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
}
SCHEMAS = {"order_lamp": LAMP, "ring": {}}
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": properties}},
    }
    for name, properties in SCHEMAS.items()
]

Function = tuple[str, Any]


def tagged(name: str, **arguments: str) -> str:
    parts = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in arguments.items())
    return f"<tool_call>\n<function={name}>\n{parts}</function>\n</tool_call>"


def hermes(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def read(text: str, form: str = TAGGED) -> list[Function] | str:
    """Return the calls in an answer, or its text."""
    output = calls_or_text(text, form, SCHEMAS).decode()
    if not output.startswith("[{"):
        return output
    calls = json.loads(output)
    assert {call["type"] for call in calls} == {"function"}
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def test_an_argument_in_tags_has_its_schemas_type_or_stays_text() -> None:
    rows: list[tuple[str, str, Any]] = [
        ("colour", "red", "red"),
        ("colour", "7", "7"),
        ("colour", "two\nlines", "two\nlines"),
        ("colour", "", ""),
        ("count", "7", 7),
        ("count", "-7", -7),
        ("count", "7.5", "7.5"),
        ("count", "null", None),
        ("price", "2.5", 2.5),
        ("price", "2.0", 2),
        ("price", "1e400", "1e400"),
        ("price", "nan", "nan"),
        ("price", "cheap", "cheap"),
        ("sent", "true", True),
        ("sent", "False", False),
        ("sent", "yes", "yes"),
        ("sizes", "[1, 2]", [1, 2]),
        ("sizes", "['a', True]", ["a", True]),
        ("sizes", "[1, 2", "[1, 2"),
        ("to", '{"city": "Oslo"}', {"city": "Oslo"}),
        ("size", "3", 3),
        ("size", "three", "three"),
        ("unheard_of", "3", "3"),
    ]
    for name, text, value in rows:
        called = read(tagged("order_lamp", **{name: text}))
        assert called == [("order_lamp", {name: value})]
        assert type(called[0][1][name]) is type(value)


def test_calls_are_read_in_their_order_and_other_text_stays() -> None:
    often, inner = {"often": [1, {"a": None}]}, "<function=b></function></tool_call>"
    unended = "<tool_call><function=order_lamp><parameter=count>7"
    lamps = tagged("a") + tagged("order_lamp", count="1")
    rows: list[tuple[str, str, Any]] = [
        (HERMES, hermes("ring"), [("ring", {})]),
        (HERMES, "Sure.\n" + hermes("ring", **often), [("ring", often)]),
        (HERMES, hermes("a") + "\n" + hermes("b"), [("a", {}), ("b", {})]),
        (HERMES, hermes("a").removesuffix("\n</tool_call>"), [("a", {})]),
        (TAGGED, "Sure.\n" + tagged("ring"), [("ring", {})]),
        (TAGGED, lamps, [("a", {}), ("order_lamp", {"count": 1})]),
        (TAGGED, "<function=ring>\n</function>", [("ring", {})]),
        (TAGGED, tagged("a").replace("</tool_call>", inner), [("a", {}), ("b", {})]),
        (TAGGED, unended, [("order_lamp", {"count": 7})]),
        (HERMES, "No lamp has that colour.", "No lamp has that colour."),
        (TAGGED, 'They are {"name": "dear"} to me.', 'They are {"name": "dear"} to me.'),
        (TAGGED, "", ""),
    ]
    assert [read(text, form) for form, text, _ in rows] == [calls for *_, calls in rows]


NAMED = '<tool_call>{"name": "ring", "arguments": '
MALFORMED = [
    "<tool_call>",
    "<tool_call></tool_call>",
    "<tool_call>order the lamp</tool_call>",
    "<tool_call>{}</tool_call>",
    '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
    '<tool_call>{"name": "ring"}</tool_call>',
    NAMED + "[" * 50_000 + "</tool_call>",
    NAMED + "[" * 90 + "]" * 90 + "}</tool_call>",
    NAMED + "9" * 50_000 + "}</tool_call>",
    "<tool_call><function=</tool_call>",
    "<tool_call><function=></function></tool_call>",
    '<tool_call><function=ring>{"a": 1}</function></tool_call>',
    "<tool_call><function=ring><parameter=a</function></tool_call>",
    "<tool_call>" * 500,
]
HOSTILE = [
    ("sizes", "[" * 3000 + "]" * 3000),
    ("sizes", "(" * 50_000),
    ("sizes", "-" * 4000 + "1"),
    ("sizes", "{1, 2}"),
    ("sizes", "[b'a']"),
    ("count", "9" * 50_000),
    ("price", "9" * 50_000),
    ("to", "\x00\ud800"),
]
REFERENCE = {
    "subset": "simple_python",
    "ground_truth": [{"ring": {"often": [1]}}],
    "func_description": [
        {
            "name": "ring",
            "parameters": {"properties": {"often": {"type": "integer"}}, "required": ["often"]},
        }
    ],
}


def test_a_call_that_cannot_be_read_is_a_wrong_one_where_any_or_none_is_right() -> None:
    irrelevant = {"subset": "irrelevance"}
    outputs = [calls_or_text(text, form, SCHEMAS) for form in CALL_FORMATS for text in MALFORMED]
    lamps = [tagged("order_lamp", **{name: text}) for name, text in HOSTILE]
    outputs += [calls_or_text(text, TAGGED, SCHEMAS) for text in lamps]
    for output in outputs:
        assert json.loads(output)[0]["function"]["name"] in ("", "ring", "order_lamp")
        scores = FunctionCallsScorer().score([output, output], [REFERENCE, irrelevant])
        assert scores.aggregate["accuracy"] == 0


def test_arguments_are_read_up_to_a_depth() -> None:
    """Function and arguments are two levels; JSON that not every parser reads is not a call."""
    names = []
    for levels in (MAX_ARGUMENT_LEVELS - 2, MAX_ARGUMENT_LEVELS - 1):
        arguments: Any = 1
        for _ in range(levels):
            arguments = {"a": arguments}
        names += [call[0] for call in read(hermes("ring", **arguments), HERMES)]
    assert names == ["ring", ""]


def test_the_bytes_are_those_from_a_server_that_has_read_the_same_calls() -> None:
    calls = [("order_lamp", {"colour": "röt", "count": 2}), ("ring", {})]
    written = {
        HERMES: "".join(hermes(name, **arguments) for name, arguments in calls),
        TAGGED: tagged("order_lamp", colour="röt", count="2") + tagged("ring"),
    }
    pieces = [
        ("tools", [{"index": at, "function": {"name": name, "arguments": json.dumps(arguments)}}])
        for at, (name, arguments) in enumerate(calls)
    ]
    streamed: Any = SimpleNamespace(pieces=pieces, text=[])
    assert {form: calls_or_text(written[form], form, SCHEMAS) for form in CALL_FORMATS} == (
        dict.fromkeys(CALL_FORMATS, _traffic.calls_or_text(streamed))
    )


def test_reasoning_is_separated_from_the_answer() -> None:
    for text, is_thinking, rest in (
        ("Yes.", False, "Yes."),
        ("<think>\nHm.\n</think>\n\nYes.", False, "Yes."),
        ("Hm.\n</think>\n\nYes.", True, "Yes."),
        ("Hm. <tool_call>", True, ""),
        ("<think>Hm.", False, ""),
        ("</think>Yes.</think>", False, "Yes.</think>"),
    ):
        assert without_thought(text, is_thinking=is_thinking) == rest


SPECIAL = "\x01"
TEMPLATE = "tools, <function=…>, <tool_call>"


class Letters:
    """A tokenizer of letters whose template writes down its input."""

    chat_template: Any = TEMPLATE
    thinks = ""

    def __init__(self, template: Any = TEMPLATE, thinks: str = "") -> None:
        self.chat_template = template
        self.thinks = thinks
        self.added_tokens_decoder = {ord(SPECIAL): SimpleNamespace(special=True, content=SPECIAL)}

    def apply_chat_template(
        self, messages: Any, *, tools: Any, tokenize: bool, add_generation_prompt: bool, **more: Any
    ) -> str:
        assert add_generation_prompt
        assert not tokenize
        contents = [message["content"] for message in messages]
        names = [tool["function"]["name"] for tool in tools or ()]
        return "|".join([*names, *contents, *map(str, more.values())]) + self.thinks

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        assert not add_special_tokens
        return {"input_ids": [ord(letter) for letter in text]}

    def decode(self, ids: Sequence[int], **_: bool) -> str:
        return "".join(map(chr, ids))


def chat(text: str = "Ring.", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "tools": TOOLS, **more}


def loaded(
    *samples: Mapping[str, Any], thinks: str = "", **options: Any
) -> tuple[TokenPrompts, ToolChats]:
    chats, _ = tool_chats("torch", Path("m"), Letters(thinks=thinks), ToolOptions(**options))
    generation = TextOptions(max_new_tokens=4).generation("torch")
    prompts = generation.prompts(Samples(samples), None, None, chats=chats)
    prompts.load(range(len(samples)))
    return prompts, chats


def row(text: str) -> list[int]:
    return list(map(ord, text))


def test_chats_become_prompts_and_answers_calls_or_text_without_special_tokens() -> None:
    """The engine gets tokens if there are no tools.

    A prompt that opens a thought waits for its end.
    """
    prompts, _ = loaded(chat(tool_choice="auto"), chat_template_kwargs={"enable_thinking": False})
    assert prompts[0] == row("order_lamp|ring|Ring.|False")
    _, chats = loaded(chat(), chat(tools=[]))
    (call,) = json.loads(chats.output(0, row(tagged("ring") + SPECIAL)))
    assert call["function"] == {"name": "ring", "arguments": {}}
    assert chats.output(0, row(f"No{SPECIAL}")) == b"No"
    assert chats.output(1, row("No")) == packed(row("No"))
    _, chats = loaded(chat(), thinks="<think>\n")
    assert chats.output(0, row("Ring?")) == b""
    assert chats.output(0, row("Ring?</think>\n\nNo.")) == b"No."


def test_the_form_of_calls_is_that_of_the_template_unless_the_suite_says_it() -> None:
    for template, form in (
        ("{% for tool in tools %}<tool_call>\n<function=", TAGGED),
        ("{% for tool in tools %}<tool_call>\n{", HERMES),
        ({"default": "", "tool_use": "tools <tool_call>"}, HERMES),
    ):
        _, facts = tool_chats("torch", Path("m"), Letters(template), ToolOptions())
        options = ToolOptions(tool_format=HERMES)
        _, named = tool_chats("torch", Path("m"), Letters(template), options)
        assert (facts["tool_format"], named["tool_format"]) == (form, HERMES)
        assert len(facts["chat_template_sha256"]) == 16


def test_templates_and_chats_that_cannot_offer_tools_are_refused() -> None:
    def offer(template: Any) -> None:
        tool_chats("torch", Path("m"), Letters(template), ToolOptions())

    rows: list[tuple[Any, str]] = [
        (None, "has no chat template"),
        ("{{ messages }}", "leaves tools out"),
    ]
    assert unrefused(offer, RunError, rows) == []
    with pytest.raises(SuiteError, match="the model writes: hermes or qwen3_coder"):
        offer("{{ tools }} [TOOL_CALLS]")
    samples = [
        (chat(response_format={}), "has response_format, which this engine"),
        (chat(tool_choice="required"), "has tool_choice 'required'"),
        (chat(tools=[{"type": "function"}]), "does not fit the model's chat"),
        ({"messages": [{"role": "user"}], "tools": TOOLS}, "does not fit the model's chat"),
    ]
    assert unrefused(loaded, RunError, samples) == []
    options = ToolOptions(chat_template_kwargs={"enable_thinking": False})
    options.require_tools("torch", Samples([chat()]))
    ToolOptions().require_tools("torch", Samples(["text"]))
    with pytest.raises(SuiteError, match="chat_template_kwargs would have no effect"):
        options.require_tools("torch", Samples(["text"]))
