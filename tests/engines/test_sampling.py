"""How answers are drawn is said alike to every engine of language models, each sample by a seed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.engines.llm.generation import SEEDS, TextOptions
from pytest_mlperf.engines.openai._client import Bodies
from pytest_mlperf.engines.tensorrt_llm._requests import SamplingByPrompt
from pytest_mlperf.engines.tensorrt_llm._requests import sampling_arguments as of_tensorrt_llm
from pytest_mlperf.engines.vllm._library import sampling_arguments as of_vllm
from tests.engines.recording import Samples

DRAWN: dict[str, Any] = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "seed": 5}


def test_what_cannot_be_drawn_is_refused() -> None:
    drawn = {"temperature": 1.0}
    rows: list[tuple[str, dict[str, Any], str]] = [
        ("temperature", {"temperature": -0.1}, "temperature = -0.1 is not a number from 0 on"),
        ("top_p", {**drawn, "top_p": 0.0}, "top_p = 0.0 is not above 0 and at most 1"),
        ("top_p", {**drawn, "top_p": 1.1}, "top_p = 1.1 is not above 0 and at most 1"),
        ("top_k", {**drawn, "top_k": 0}, "top_k = 0 is not a number of tokens"),
        ("seed", {**drawn, "seed": -1}, "seed = -1 is not a whole number from 0"),
        ("seed", {**drawn, "seed": SEEDS}, f"seed = {SEEDS} is not a whole number"),
        ("top_p", {"top_p": 0.9, "seed": 1}, "temperature = 0 draws no tokens: leave top_p and"),
    ]
    for at_fault, options, defect in rows:
        with pytest.raises(SuiteError) as error:
            TextOptions(**options).generation("mine")
        assert defect in str(error.value)
        assert at_fault in error.value.options
    with pytest.raises(SuiteError, match="draws tokens, and beams do not: leave num_beams out"):
        TextOptions(temperature=1.0).generation("mine", num_beams=4)


def test_each_sample_has_a_seed_of_its_own_that_every_library_takes() -> None:
    greedy, of_all = TextOptions(), TextOptions(temperature=1.0)
    seeded = TextOptions(temperature=1.0, seed=SEEDS - 2).generation("mine")
    assert [seeded.seed_of(index) for index in range(4)] == [SEEDS - 2, SEEDS - 1, 0, 1]
    assert of_all.generation("mine").seed_of(3) is None

    drawn = TextOptions(**DRAWN).generation("any")
    for asked in (of_vllm(drawn, None, index=3), of_tensorrt_llm(drawn, index=3)):
        assert {name: asked[name] for name in DRAWN} == {**DRAWN, "seed": 8}
    asked = of_vllm(greedy.generation("vllm"), None, index=3)
    assert asked["temperature"] == 0
    assert not {"top_p", "top_k", "seed"} & set(asked)
    asked = of_tensorrt_llm(of_all.generation("tensorrt_llm"))
    assert (asked["top_k"], asked["temperature"]) == (0, 1.0)
    assert "seed" not in asked
    asked = of_tensorrt_llm(greedy.generation("tensorrt_llm"), index=3)
    assert asked["top_k"] == 1
    assert "temperature" not in asked
    made = SamplingByPrompt(make=dict, generation=drawn)
    assert [made.of([1, 2], None, index)["seed"] for index in (0, 4)] == [5, 9]


def test_a_server_is_told_of_each_sample() -> None:
    generation = TextOptions(**DRAWN).generation("openai")
    samples = Samples([[7, 8], [9], [7, 8]])
    bodies = Bodies(
        dataset=samples,
        chat=False,
        as_they_are=False,
        prompts=generation.prompts(samples, None, None),
        tokenizer=lambda: None,
        seed_of=generation.seed_of,
    )

    bodies.load([0, 2], "tokens", {"model": "m", **DRAWN})

    asked = [json.loads(bodies[index].data) for index in (0, 2)]
    assert [one.pop("seed") for one in asked] == [5, 7]
    shared = {name: value for name, value in DRAWN.items() if name != "seed"}
    assert asked[0] == asked[1] == {"prompt": [7, 8], "model": "m", **shared}
