"""Test that log-probabilities of a prompt do not depend on the other prompts of a batch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from pytest_mlperf.adapters.conventions import LOGPROB_RECORD
from pytest_mlperf.core.errors import RunError, SuiteError
from tests.adapters.engines.recording import Recorder, Samples, Tokenless, ask
from tests.adapters.engines.torch.models import CONTEXT, MIXED, open_engine
from tests.refusals import unrefused

pytestmark = pytest.mark.torch

LONG = [30 + place % 250 for place in range(CONTEXT)]
"""A prompt as long as the model's context."""

PROMPTS = [*MIXED, LONG]


def evaluated(
    folder: Path, *, one_by_one: bool = False, **options: Any
) -> list[tuple[list[int], list[float]]]:
    """Return the tokens and log-probabilities that an engine answers each prompt with."""
    sink = Tokenless(len(PROMPTS))
    with open_engine(folder, PROMPTS, prompt_logprobs=True, **options) as engine:
        ask(engine, sink, len(PROMPTS), one_by_one=one_by_one)
    records = [
        np.frombuffer(sink.outputs[100 + index], list(LOGPROB_RECORD))
        for index in range(len(PROMPTS))
    ]
    return [(each["token"].tolist(), each["logprob"].tolist()) for each in records]


@pytest.fixture(scope="module")
def alone(random: Path) -> list[list[float]]:
    """What the model gives for each prompt alone, by transformers and float64."""
    model = LlamaForCausalLM.from_pretrained(random).eval()
    rows = []
    for prompt in PROMPTS:
        tokens = torch.tensor([prompt])
        with torch.inference_mode():
            logprobs = model(tokens).logits[0, :-1].double().log_softmax(-1)
        rows.append(logprobs.gather(1, tokens[0, 1:, None])[:, 0].tolist())
    return rows


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": 1},
        {"batch_size": 5, "batching": "dynamic"},
        {"batch_size": 5, "one_by_one": True},
        {"attention": "eager", "batching": "static"},
    ],
    ids=str,
)
def test_they_are_those_of_the_model_alone(
    random: Path, alone: list[list[float]], options: dict[str, Any]
) -> None:
    answers = evaluated(random, **options)

    assert [tokens for tokens, _ in answers] == PROMPTS
    for (_, (first, *rest)), expected in zip(answers, alone, strict=True):
        assert math.isnan(first)
        assert rest == pytest.approx(expected, abs=1e-4)


def test_a_timed_run_evaluates_and_logs_nothing(random: Path) -> None:
    sink = Tokenless(3, wants_output=False)
    with open_engine(random, PROMPTS, prompt_logprobs=True) as engine:
        ask(engine, sink, 3)
        described = engine.describe()
    generation = {key for key in described if key.startswith("generation.")}

    assert sink.outputs == {}
    assert generation == {"generation.prompt_logprobs"}


def test_weights_that_are_no_numbers_are_named(random: Path, tmp_path: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(random)
    with torch.no_grad():
        model.model.embed_tokens.weight[40] = math.nan
    model.save_pretrained(tmp_path)
    sink = Tokenless(1)

    with (
        open_engine(tmp_path, [[30, 40, 50]], prompt_logprobs=True) as engine,
        pytest.raises(RunError, match="has the log-probability nan for its token 1: the model's"),
    ):
        ask(engine, sink, 1)


def test_unsupported_evaluations_are_refused(random: Path) -> None:
    options: list[tuple[dict[str, Any], str]] = [
        ({"prompt_logprobs": 1}, "prompt_logprobs = 1 is not true or false"),
        ({"temperature": 1.0}, "prompt_logprobs = true generates no tokens, so temp"),
        ({"num_beams": 2}, "prompt_logprobs = true generates no tokens, so num_beams"),
        ({"batching": "continuous"}, '"continuous" gives no log-probabilities of prompts'),
    ]

    def build(changes: dict[str, Any]) -> None:
        open_engine(random, PROMPTS, **{"prompt_logprobs": True, **changes})

    assert unrefused(build, SuiteError, options) == []
    with open_engine(random, PROMPTS, prompt_logprobs=True) as engine:
        engine.load_samples([0])
        with pytest.raises(SuiteError, match="generates no tokens that could be timed; set tokens"):
            engine.submit([1], [0], Recorder(1))
    chats = [{"messages": [{"role": "user", "content": "a"}]}]
    with pytest.raises((SuiteError, RunError)):
        open_engine(random, [], dataset=Samples(chats), prompt_logprobs=True).__enter__()
