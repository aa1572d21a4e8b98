"""Answers are as long as the data set says, sample by sample."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.engines.openai import OpenAiEngine
from tests.engines.openai.recorder import Recorder
from tests.engines.openai.scripted import Asked, Manner, Reply, Script, Scripted
from tests.engines.recording import SizedSamples

LENGTHS = [2, 9, 5]


TURN = {"messages": [{"role": "user", "content": "Hello."}]}


def opened(url: str, sample: Any, **options: Any) -> OpenAiEngine:
    samples = SizedSamples([sample] * len(LENGTHS), LENGTHS)
    given = {"ignore_eos": True, "max_new_tokens": 16, **options}
    return OpenAiEngine(dataset=samples, model=None, precision="fp32", url=url, **given)


def counts(script: Script, sample: Any, **options: Any) -> tuple[Recorder, list[Asked]]:
    """Answer every sample once; return the sink, and the run's requests."""
    sink = Recorder(len(LENGTHS))
    with Scripted(script) as server, opened(server.url, sample, **options) as engine:
        engine.load_samples(range(len(LENGTHS)))
        before = len(server.streams)
        engine.submit(range(100, 100 + len(LENGTHS)), range(len(LENGTHS)), sink)
        sink.wait_for_end()
        return sink, server.streams[before:]


def test_each_request_asks_for_its_own_length() -> None:
    """Turns of conversations too; the longest must be one that the engine takes."""
    sink, asked = counts(Manner(), [5, 6, 7], min_new_tokens=4)
    lengths = sorted((one.body["max_tokens"], one.body["min_tokens"]) for one in asked)
    assert lengths == [(2, 2), (5, 4), (9, 4)]
    assert not sink.errors
    expected = {100 + index: length for index, length in enumerate(LENGTHS)}
    assert sink.n_tokens == expected
    assert counts(Manner(tokens=30), TURN, api="chat", ignore_eos=False)[0].n_tokens == expected
    message = r"up to 9 tokens, but max_new_tokens = 8; set .* at least 9"
    with Scripted(Manner()) as server, pytest.raises(RunError, match=message):
        opened(server.url, [5, 6, 7], max_new_tokens=8).__enter__()


def test_a_server_that_goes_beyond_a_samples_length_is_an_error() -> None:
    def greedy(asked: Asked) -> Reply:
        most = asked.body.get("max_tokens")
        more = {"max_tokens": most + 1, "ignore_eos": True} if most in LENGTHS else {}
        return Manner()(dataclasses.replace(asked, body={**asked.body, **more}))

    sink, _ = counts(greedy, [5, 6, 7], ignore_eos=False)

    assert "too many tokens" in sink.message
    assert "the sample's output_tokens = " in sink.message
