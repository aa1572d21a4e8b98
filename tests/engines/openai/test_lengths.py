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


def opened(url: str, **options: Any) -> OpenAiEngine:
    samples = SizedSamples([[5, 6, 7]] * len(LENGTHS), LENGTHS)
    given = {"ignore_eos": True, "max_new_tokens": 16, **options}
    return OpenAiEngine(dataset=samples, model=None, precision="fp32", url=url, **given)


def counts(script: Script, **options: Any) -> tuple[Recorder, list[Asked]]:
    """Answer every sample once; return the sink, and the run's requests."""
    sink = Recorder(len(LENGTHS))
    with Scripted(script) as server, opened(server.url, **options) as engine:
        engine.load_samples(range(len(LENGTHS)))
        before = len(server.streams)
        engine.submit(range(100, 100 + len(LENGTHS)), range(len(LENGTHS)), sink)
        sink.wait_for_end()
        return sink, server.streams[before:]


def test_each_request_asks_for_its_own_length() -> None:
    sink, asked = counts(Manner(), min_new_tokens=4)

    assert sorted((one.body["max_tokens"], one.body["min_tokens"]) for one in asked) == [
        (2, 2),
        (5, 4),
        (9, 4),
    ]
    assert not sink.errors
    assert sink.n_tokens == {100 + index: length for index, length in enumerate(LENGTHS)}


def test_a_length_above_the_engines_is_refused_before_a_run_with_the_longest() -> None:
    with (
        Scripted(Manner()) as server,
        pytest.raises(RunError, match=r"up to 9 tokens, but max_new_tokens = 8; set .* at least 9"),
        opened(server.url, max_new_tokens=8),
    ):
        pytest.fail("it was opened")


def test_a_server_that_goes_beyond_a_samples_length_is_an_error() -> None:
    def greedy(asked: Asked) -> Reply:
        most = asked.body.get("max_tokens")
        more = {"max_tokens": most + 1, "ignore_eos": True} if most in LENGTHS else {}
        return Manner()(dataclasses.replace(asked, body={**asked.body, **more}))

    sink, _ = counts(greedy, ignore_eos=False)

    assert "too many tokens" in sink.message
    assert "the sample's output_tokens = " in sink.message
