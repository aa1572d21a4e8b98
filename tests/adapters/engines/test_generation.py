"""Test that end tokens and sampling reach every engine alike, and MLPerf's transcripts."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.adapters.conventions import SPEECH_LABELS
from pytest_mlperf.adapters.engines.llm.generation import SEEDS, Answers, Generation, TextOptions
from pytest_mlperf.adapters.engines.llm.speech import spelled
from pytest_mlperf.adapters.engines.openai._client import Bodies
from pytest_mlperf.adapters.engines.tensorrt_llm import TensorRtLlmEngine
from pytest_mlperf.adapters.engines.tensorrt_llm._requests import SamplingByPrompt
from pytest_mlperf.adapters.engines.tensorrt_llm._requests import (
    sampling_arguments as of_tensorrt_llm,
)
from pytest_mlperf.adapters.engines.vllm._library import sampling_arguments as of_vllm
from pytest_mlperf.core.errors import SuiteError
from tests.adapters.engines.recording import Recorder, Samples

TOKENS = st.integers(0, 9)


def generation(**changes: Any) -> Generation:
    fields = {"max_new_tokens": 8, "min_new_tokens": 1, "num_beams": 1, "ignore_eos": False}
    return Generation(**{**fields, **changes})


@given(row=st.lists(TOKENS), eos=st.sets(TOKENS, max_size=3))
def test_a_row_is_cut_behind_its_first_end_token_unless_ends_are_ignored(
    row: list[int], eos: set[int]
) -> None:
    cut = generation(eos=tuple(eos)).cut(row)

    assert cut == row[: len(cut)]
    assert not eos & set(cut[:-1])
    assert len(cut) == len(row) or cut[-1] in eos
    assert generation(eos=tuple(eos), ignore_eos=True).cut(row) == row


def test_the_model_keeps_its_end_tokens_in_the_description_when_they_are_ignored() -> None:
    first = generation(eos=(2, 7)).describe()
    second = generation(eos=(2, 7), ignore_eos=True).describe()

    assert first["generation.eos"] == second["generation.eos"] == "2,7"
    assert set(first.items()) - set(second.items()) == {("generation.ignore_eos", "false")}
    assert all(key.startswith("generation.") for key in first)


def test_an_answer_of_an_end_token_alone_is_counted_as_empty() -> None:
    for ignores, empty in ((False, 2), (True, 1)):
        answers = Answers(generation(eos=(2,), ignore_eos=ignores), check_ends=False)
        answers.check_answers([0, 1, 2], [[2], [5, 2], []], Recorder(times_tokens=False))
        answers.check_answers([3], [[5, 6]], Recorder(times_tokens=False, wants_output=False))
        assert answers.take_counts() == {"answers": 4, "empty": empty}
        assert answers.take_counts() == {}


DRAWN: dict[str, Any] = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "seed": 5}


def test_what_cannot_be_drawn_is_refused() -> None:
    drawn = {"temperature": 1.0}
    rows: list[tuple[str, dict[str, Any], str]] = [
        ("temperature", {"temperature": -0.1}, "temperature = -0.1 is not a number of at least"),
        ("top_p", {**drawn, "top_p": 0.0}, "top_p = 0.0 is not above 0 and at most 1"),
        ("top_p", {**drawn, "top_p": 1.1}, "top_p = 1.1 is not above 0 and at most 1"),
        ("top_k", {**drawn, "top_k": 0}, "top_k = 0 is not a number of tokens"),
        ("seed", {**drawn, "seed": -1}, "seed = -1 is not a whole number from 0"),
        ("seed", {**drawn, "seed": SEEDS}, f"seed = {SEEDS} is not a whole number"),
        ("top_p", {"top_p": 0.9, "seed": 1}, "temperature = 0 does not sample tokens, so top_p"),
    ]
    for at_fault, options, defect in rows:
        with pytest.raises(SuiteError) as error:
            TextOptions(**options).generation("mine")
        assert defect in str(error.value)
        assert at_fault in error.value.options
    with pytest.raises(SuiteError, match="samples tokens, but beam search does not; leave num"):
        TextOptions(temperature=1.0).generation("mine", num_beams=4)


def test_each_sample_has_a_seed_of_its_own_that_every_library_takes() -> None:
    greedy, of_all = TextOptions(), TextOptions(temperature=1.0)
    seeded = TextOptions(temperature=1.0, seed=SEEDS - 2).generation("mine")
    assert [seeded.seed_of(index) for index in range(4)] == [SEEDS - 2, SEEDS - 1, 0, 1]
    assert of_all.generation("mine").seed_of(3) is None

    drawn = TextOptions(**DRAWN).generation("any")
    for sampling in (of_vllm(drawn, None, index=3), of_tensorrt_llm(drawn, index=3)):
        assert {name: sampling[name] for name in DRAWN} == {**DRAWN, "seed": 8}
    sampling = of_vllm(greedy.generation("vllm"), None, index=3)
    assert sampling["temperature"] == 0
    assert not {"top_p", "top_k", "seed"} & set(sampling)
    sampling = of_tensorrt_llm(of_all.generation("tensorrt_llm"))
    assert (sampling["top_k"], sampling["temperature"]) == (0, 1.0)
    assert "seed" not in sampling
    sampling = of_tensorrt_llm(greedy.generation("tensorrt_llm"), index=3)
    assert sampling["top_k"] == 1
    assert "temperature" not in sampling
    made = SamplingByPrompt(make=dict, generation=drawn)
    assert [made.params([1, 2], None, index)["seed"] for index in (0, 4)] == [5, 9]


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

    requests = [json.loads(bodies[index].with_salt("")) for index in (0, 2)]
    assert [one.pop("seed") for one in requests] == [5, 7]
    shared = {name: value for name, value in DRAWN.items() if name != "seed"}
    assert requests[0] == requests[1] == {"prompt": [7, 8], "model": "m", **shared}


@given(st.text())
def test_a_transcript_is_spelled_character_by_character(text: str) -> None:
    places = struct.unpack(f"<{len(spelled(text)) // 8}q", spelled(text))

    expected = [letter for letter in text.lower().strip() if letter in SPEECH_LABELS]
    assert [SPEECH_LABELS[place] for place in places] == expected


def test_an_engine_without_sound_says_which_ones_have_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", "utf-8")
    clips = Samples([{"audio": [0.0], "sampling_rate": 16000}])

    expected = "this engine does not support audio clips; use engine vllm or torch-whisper"
    with (
        pytest.raises(SuiteError, match=expected),
        TensorRtLlmEngine(dataset=clips, model=str(tmp_path), precision="bf16"),
    ):
        pass
