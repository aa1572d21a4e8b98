"""Tokens by a reference tokenizer: text, reasoning and calls of tools, nothing added."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.adapters.engines.openai._count import ReferenceCount, merged
from pytest_mlperf.adapters.engines.openai._events import StreamedAnswer
from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.errors import RunError, SuiteError
from pytest_mlperf.run.worker.closed_loop import ClosedLoop, SlotSink
from pytest_mlperf.run.worker.conversations import Conversations
from pytest_mlperf.run.worker.point_window import NOTE, REQUEST_COLUMNS
from tests.adapters.engines.openai.recorder import open_engine
from tests.adapters.engines.openai.scripted import Manner, Scripted, event
from tests.run.harness import error_of, run_to_end, settings, spec
from tests.run.test_curve import refuse


@pytest.fixture(scope="module", autouse=True)
def _libraries() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("tokenizers")


TEMPLATE = (
    "{% for m in messages %}start {{ m.role }} "
    "{% if m.reasoning_content %}think {{ m.reasoning_content }} end {% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %} call {{ call.function.name }}"
    "{% for key, value in call.function.arguments.items() %} {{ key }} {{ value }}{% endfor %}"
    "{% endfor %} stop {% endfor %}"
)


def tokenizer(*, template: str | None = TEMPLATE) -> Any:
    """Return one of a token for each word, that begins every text with a token of its own."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0, "^": 1}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.post_processor = tokenizers.processors.TemplateProcessing(
        single="^ $A", special_tokens=[("^", 1)]
    )
    made = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")
    made.chat_template = template
    return made


CALLS = [
    ("tools", [{"index": 0, "id": "x", "function": {"name": "find", "arguments": '{"what": '}}]),
    ("tools", [{"index": 0, "function": {"arguments": '"shoes"}'}}]),
]


def test_answers_are_counted_without_tokens_added_by_tokenizer_and_template() -> None:
    count = ReferenceCount(tokenizer())
    answers = {7: [("text", "one two"), ("text", " three")], 8: [("text", "one")], 9: []}
    assert count.counts(answers) == {7: (3, 1), 8: (1, 0), 9: (0, 0)}
    assert len(tokenizer()("one two three")["input_ids"]) == 4
    assert count.counts({1: [("text", "a \ud83d"), ("text", "\ude00 b")]}) == {1: (3, 2)}
    pieces = [("reasoning", "we"), ("reasoning", " should"), ("text", "yes"), *CALLS]
    assert count.counts({1: pieces}) == {1: (9, 8)}

    # Without a template each kind is counted by itself.
    count = ReferenceCount(tokenizer(template=None))
    calls = json.dumps(merged([value for _, value in CALLS]))
    pieces = [("reasoning", "we should"), ("text", "yes")]
    assert count.counts({1: pieces}) == {1: (3, 1)}
    assert count.counts({1: CALLS})[1][0] == len(calls.split())

    refusing = "{% for m in messages %}{% if m.tool_calls %}{{ raise_exception('no') }}{% endif %}"
    count = ReferenceCount(tokenizer(template=refusing + "{% endfor %}"))
    with pytest.raises(RunError, match="chat template cannot format an answer: no"):
        count.counts({1: CALLS})


def test_calls_that_came_in_pieces_are_whole() -> None:
    function = {"name": "find", "arguments": {"what": "shoes"}}
    assert merged([value for _, value in CALLS]) == [{"type": "function", "function": function}]
    half = {"name": "x", "arguments": "{"}
    assert merged([[{"function": half}]])[0]["function"] == half
    assert merged([[{"index": "?", "function": 5}, {"function": {"arguments": {"a": 1}}}]]) == [
        {"type": "function", "function": {"name": "", "arguments": {"a": 1}}}
    ]


def test_pieces_of_every_kind_are_kept_once() -> None:
    answer = StreamedAnswer(keeps=True)
    for delta in (
        {"reasoning": "hm", "reasoning_content": "hm"},
        {"content": "yes", "tool_calls": CALLS[0][1]},
        {"function_call": {"name": "find"}},
    ):
        answer.read_events(
            event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        )

    assert answer.pieces == [
        ("reasoning", "hm"),
        CALLS[0],
        ("text", "yes"),
        ("tools", [{"function": {"name": "find"}}]),
    ]
    assert answer.text == ["yes"]


def test_a_curve_is_by_the_reference_count(tmp_path: Path) -> None:
    tokenizer().save_pretrained(tmp_path / "tokenizer")
    curve_settings = replace(
        settings("Offline"), scenario=Scenario.CONCURRENCY, points=[2], min_duration_ms=300
    )
    options = {"count_tokens": "reference", "tokenizer": str(tmp_path / "tokenizer")}
    with (
        Scripted(Thinker(tokens=4)) as server,
        open_engine(server.url, ["a", "b"], max_new_tokens=9, api="chat", **options) as engine,
    ):
        engine.load_samples([0, 1])
        sink = SlotSink(refuse, tokens=True, records=True)
        loop = ClosedLoop(engine, sink, Conversations([0, 1]), curve_settings)
        log = loop.run("run", 0.0, lambda: None)
        described = engine.describe()

    (point,) = log["points"]
    assert point["requests"] > 2
    assert point["metrics"]["tokens_per_sample"] == 5  # think, hm, end, w0, w1
    assert point["tokens"] == 5 * point["requests"]
    assert "the reference tokenizer counts" in point["notes"][NOTE]
    records = [dict(zip(REQUEST_COLUMNS, record, strict=True)) for record in sink.records or ()]
    assert [(one["output_tokens"], one["reference_tokens"]) for one in records] == [(4, 5)] * point[
        "requests"
    ]
    assert described["tokens_counted_by"] == "reference tokenizer"
    assert len(described["counter_sha256"]) == 16


class Thinker(Manner):
    """Thinks a word and says two, and counts four tokens."""

    def stream(self, request: Any) -> Any:
        reply = super().stream(request)
        first, *_, last, usage, done = reply.parts
        del last
        deltas = [{"reasoning": "hm"}, {"content": " w0"}, {"content": " w1"}]
        pieces = [
            event({"choices": [{"index": 0, "delta": each, "finish_reason": None}]})
            for each in deltas
        ]
        end = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        return replace(reply, parts=[first, *pieces, end, usage, done])


@pytest.mark.process
def test_loadgen_takes_tokens_as_they_come(tmp_path: Path) -> None:
    counting = "tests.adapters.engines.openai.recorder:CountingEngine"
    events, _ = run_to_end(spec(tmp_path, engine=counting))

    assert "counts tokens only in Concurrency and OpenLoop, because" in error_of(events)["message"]


def test_options_that_do_not_fit_are_refused() -> None:
    for options, message in (
        ({"count_tokens": "reference"}, "needs a tokenizer; set tokenizer or"),
        ({"tokenizer": "x"}, "tokenizer needs count_tokens"),
        ({"count_tokens": "both"}, "count_tokens"),
    ):
        with pytest.raises(SuiteError, match=message):
            open_engine("http://127.0.0.1:1", ["x"], **options)
