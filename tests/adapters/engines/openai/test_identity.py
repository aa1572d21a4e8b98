"""Test which model answered, and how many prompt tokens it read, by the server's own fields."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.errors import RunError
from tests.adapters.engines.openai.recorder import Recorder, answering, in_a_run, open_engine
from tests.adapters.engines.openai.scripted import MODEL, Manner, Reply, Request, Script, Scripted

TINY = Path(__file__).parents[4] / "suites" / "tiny" / "llama2-70b" / "model"

FORTY, TOKENS = " ".join(["word"] * 40), 120
"""A prompt, and its tokens by the tiny model's tokenizer but for the begin token."""


def listing(*entries: Mapping[str, Any]) -> Manner:
    return Manner(paths={"/v1/models": json.dumps({"data": entries})})


def named(model: str, manner: Manner = Manner()) -> Script:  # noqa: B008 - a frozen value
    """Return a server whose answers are of this model, whatever is asked for."""

    def answer(request: Request) -> Reply:
        reply = manner(request)
        name = json.dumps(model).encode()
        return replace(reply, parts=[part.replace(MODEL, name) for part in reply.parts])

    return answer


def refused(other: str) -> contextlib.AbstractContextManager[Any]:
    """Expect an error that names the model that answered, or no error if it is ""."""
    text = f'"(gpt|minimax)" was requested, but "{other}" answered; .*_answers = ."{other}"'
    return pytest.raises(RunError, match=text) if other else contextlib.nullcontext()


def test_another_model_is_refused_before_anything_is_timed() -> None:
    """Not its root, an alias, a revision, or a name that the suite adds."""
    alike = listing({"id": "gpt", "root": "/models/gpt", "aliases": ["gpt-small"]})
    rows: list[tuple[Script, dict[str, Any], str]] = [
        (named("gpt-oss", listing({"id": "gpt-oss"})), {"served_model": "minimax"}, "gpt-oss"),
        (named("base", listing({"id": "gpt", "parent": "base"})), {}, "base"),
        (named("/models/gpt", alike), {}, ""),
        (named("gpt", alike), {"served_model": "gpt-small"}, ""),
        (named("gpt@2026-11", alike), {}, ""),
        (named("m-2026", Manner()), {"served_model_answers": ["m-2026"]}, ""),
    ]
    for script, options, other in rows:
        with Scripted(script) as server, refused(other), open_engine(server.url, **options):
            pass


def test_another_model_in_mid_run_is_an_error_with_its_count() -> None:
    sink = Recorder(3)
    with Scripted(answering(named("other"))) as server, open_engine(server.url) as engine:
        engine.load_samples([0])
        engine.submit([1, 2, 3], [0, 0, 0], sink)
        sink.wait_for_end()
    assert "3 of 3 requests failed: 3 x another model; first: sample 0" in sink.message


def test_name_revision_build_and_added_tokens_belong_to_the_fingerprint() -> None:
    def build(request: Request) -> Reply:
        reply = Manner(prompt_tokens=TOKENS + 6)(request)
        marked = b'{"system_fingerprint": "fp_1", "id"'
        return replace(reply, parts=[part.replace(b'{"id"', marked) for part in reply.parts])

    with (
        Scripted(build) as server,
        open_engine(server.url, [FORTY], model=str(TINY), api="chat") as engine,
    ):
        facts = engine.describe()
    assert facts["server.build"] == "fp_1"
    assert facts["server.revision"] == "main"
    assert facts["prompt_tokens_added"] == "6"


def test_builds_that_change_are_counted() -> None:
    turns = Counter[str]()

    def answer(request: Request) -> Reply:
        turns["all"] += 1
        mark = f'{{"system_fingerprint": "fp_{turns["all"] % 2}", "id"'.encode()
        reply = Manner()(request)
        return replace(reply, parts=[part.replace(b'{"id"', mark) for part in reply.parts])

    with Scripted(answering(answer)) as server, open_engine(server.url) as engine:
        engine.load_samples([0])
        engine.answer_counts()
        sink = Recorder(4)
        engine.submit(range(4), [0] * 4, sink)
        sink.wait_for_end()
        counts = engine.answer_counts()
    assert (counts["build fp_0"], counts["build fp_1"]) == (2, 2)


@pytest.mark.parametrize("wants_output", [False, True])
def test_a_prompt_that_was_cut_is_an_error(wants_output: bool) -> None:
    """Text is counted by the model's tokenizer, or, without one, by its words if they suffice."""
    rows: list[tuple[dict[str, Any], int, str]] = [
        ({"model": str(TINY)}, 20, f"counts 20 tokens in a prompt of {TOKENS + 1}"),
        ({"model": str(TINY), "api": "chat"}, 20, f"counts 20 tokens in a prompt of {TOKENS}"),
        ({}, 20, "counts 20 tokens in a prompt that has at least 24"),
        ({}, 30, ""),
    ]
    for options, counted, text in rows:
        whole = Manner(prompt_tokens=TOKENS + 4)
        cut = answering(Manner(prompt_tokens=counted), whole)
        sink = Recorder(1, wants_output=wants_output)
        with Scripted(cut) as server, open_engine(server.url, [FORTY], **options) as engine:
            engine.load_samples([0])
            engine.submit([1], [0], sink)
            sink.wait_for_end()
        assert bool(text) == bool(sink.errors)
        if text:
            assert text in sink.message
            with (
                Scripted(Manner(prompt_tokens=counted)) as server,
                pytest.raises(RunError, match=f"counts {counted} tokens in a prompt of"),
                open_engine(server.url, [FORTY], **options),
            ):
                pass


def test_a_second_begin_token_is_counted() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(TINY)
    prompts = [f"{tokenizer.bos_token}{FORTY}", FORTY]
    lengths = {text: len(tokenizer(text)["input_ids"]) for text in prompts}
    twice, once = lengths.values()
    assert twice == once + 1

    def count(request: Request) -> Reply:
        prompt = request.body.get("prompt")
        tokens = lengths.get(str(prompt), once)
        return Manner(prompt_tokens=tokens if in_a_run(request) else once)(request)

    with (
        Scripted(count) as server,
        open_engine(server.url, [FORTY, prompts[0]], model=str(TINY), salt=False) as engine,
    ):
        engine.load_samples([0, 1])
        engine.answer_counts()
        sink = Recorder(2)
        engine.submit([1, 2], [0, 1], sink)
        sink.wait_for_end()
        counts = engine.answer_counts()
    assert counts["prompt_tokens"] == counts["expected_tokens"] + 1
