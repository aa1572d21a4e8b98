"""Transcripts are those of transformers' own generation, however clips come."""

from __future__ import annotations

import array
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    GenerationConfig,
    GenerationMixin,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)

from pytest_mlperf.adapters.engines.llm.speech import TRANSCRIPT_START
from pytest_mlperf.adapters.engines.torch.whisper import WhisperEngine
from pytest_mlperf.core.errors import RunError, SuiteError
from tests.adapters.engines.recording import Recorder, Samples, ask
from tests.adapters.engines.torch.models import broken_but_accepted, config_with, json_with, without
from tests.refusals import unrefused

LABELS = [*" abcdefghijklmnopqrstuvwxyz'0123456789$%+-"]
RATE = 16000
MOST = 12
RNG = np.random.default_rng(1)


def sound(seconds: float) -> dict[str, Any]:
    return {
        "audio": RNG.uniform(-1, 1, int(seconds * RATE)).astype(np.float32),
        "sampling_rate": RATE,
    }


CLIPS = [sound(seconds) for seconds in (1.0, 0.3, 0.7, 0.05, 0.9)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Whisper of one second with random weights, of which some transcripts end by themselves."""
    folder = tmp_path_factory.mktemp("whisper")
    letters = [*"abcdefghijklmnopqrstuvwxyzABC.,é5", "Ġ"]
    names = [*letters, "<|endoftext|>", *TRANSCRIPT_START]
    end = len(letters)
    tokenizer = WhisperTokenizer(
        vocab={name: number for number, name in enumerate(names)}, merges=[]
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(TRANSCRIPT_START)})
    torch.manual_seed(4)  # some transcripts end by themselves, and some do not
    model = WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=len(names),
            num_mel_bins=16,
            d_model=32,
            encoder_layers=1,
            decoder_layers=2,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            max_source_positions=50,
            max_target_positions=24,
            init_std=1.0,
            tie_word_embeddings=False,
            bos_token_id=end,
            eos_token_id=end,
            pad_token_id=end,
            decoder_start_token_id=end + 1,
        )
    )
    with torch.no_grad():
        model.proj_out.weight[end] *= 2
    model.generation_config = GenerationConfig(eos_token_id=end)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=16, chunk_length=1).save_pretrained(folder)
    return folder


def open_engine(folder: Path, clips: Sequence[Any] = CLIPS, **options: Any) -> WhisperEngine:
    arguments = {"precision": "fp32", "max_new_tokens": MOST, **options}
    return WhisperEngine(dataset=Samples(clips), model=str(folder), **arguments)


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[tuple[bytes, int]]:
    """Return the logged bytes and the tokens of each clip alone, as MLPerf's reference makes them.

    It strips the text, looks each character up, and drops characters without a label.
    """
    model = WhisperForConditionalGeneration.from_pretrained(folder)
    tokenizer = WhisperTokenizer.from_pretrained(folder)
    extract = WhisperFeatureExtractor.from_pretrained(folder)
    prompt = tokenizer.convert_tokens_to_ids(list(TRANSCRIPT_START))
    answers = []
    for clip in CLIPS:
        features = extract(clip["audio"], sampling_rate=RATE, return_tensors="pt").input_features
        config = GenerationConfig(
            max_new_tokens=MOST,
            min_new_tokens=1,
            do_sample=False,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.eos_token_id,
            decoder_start_token_id=prompt[0],
        )
        (row,) = GenerationMixin.generate(
            model,
            input_features=features,
            decoder_input_ids=torch.tensor([prompt]),
            generation_config=config,
        )
        text = tokenizer.decode(row[len(prompt) :], skip_special_tokens=True).lower().strip()
        places = [LABELS.index(letter) for letter in text if letter in LABELS]
        answers.append((array.array("q", places).tobytes(), len(row) - len(prompt)))
    return answers


def transcribe(
    folder: Path, *, one_by_one: bool = False, **options: Any
) -> tuple[list[tuple[bytes, int]], Recorder]:
    sink = Recorder(len(CLIPS))
    with open_engine(folder, **options) as engine:
        ask(engine, sink, len(CLIPS), one_by_one=one_by_one)
    ids = range(100, 100 + len(CLIPS))
    return [(sink.outputs[each], sink.n_tokens[each]) for each in ids], sink


@pytest.mark.parametrize("options", [{"batch_size": 1}, {"batch_size": 2}, {"one_by_one": True}])
def test_transcripts_and_tokens_are_those_of_each_clip_alone(
    folder: Path, expected: list[tuple[bytes, int]], options: Mapping[str, Any]
) -> None:
    answers, sink = transcribe(folder, **options)

    assert answers == expected
    assert len(set(answers)) == len(CLIPS)
    assert min(tokens for _, tokens in answers) < max(tokens for _, tokens in answers) == MOST
    # A stamp for the first token of each, and one for each further.
    for number, (_, tokens) in enumerate(answers):
        stamps = [kind for kind, ids in sink.calls for each in ids if each == 100 + number]
        assert stamps == ["first", *["next"] * (tokens - 1), "done"]


def test_what_is_measured_needs_no_text(folder: Path, expected: list[tuple[bytes, int]]) -> None:
    sink = Recorder(len(CLIPS), wants_output=False)
    with open_engine(folder, batch_size=3) as engine:
        ask(engine, sink, len(CLIPS))
        facts = engine.describe()

    assert [sink.n_tokens[100 + number] for number in range(5)] == [n for _, n in expected]
    described = {
        "engine": "torch-whisper",
        "architecture": "WhisperForConditionalGeneration",
        "features": "16 mels of 1 s",
        "generation.max_new_tokens": str(MOST),
        "work.batch": "3",
    }
    assert facts.items() >= described.items()
    assert {"weights_sha256", "tokenizer_sha256", "dtype", "attention"} <= set(facts)


def test_a_sample_that_is_no_clip_for_it_is_refused(folder: Path) -> None:
    table: list[tuple[Any, str]] = [
        ("text", "is of type str, but a Whisper model takes audio clips"),
        ({"audio": CLIPS[0]["audio"]}, "is of type dict, but a Whisper model"),
        ({**CLIPS[0], "sampling_rate": 8000}, "has 8000 Hz; resample it to 16000 Hz"),
        (sound(1.2), "lasts 1.20 s, but the model takes clips of at most 1 s; leave"),
        (
            {**CLIPS[0], "audio": np.zeros((2, 80))},
            "has audio of shape (2, 80); mono audio has the shape (samples,)",
        ),
        ({**CLIPS[0], "audio": np.array([])}, "has audio of shape (0,); mono audio"),
        ({**CLIPS[0], "audio": np.array([np.nan])}, "has audio with a value that is NaN"),
    ]
    clips = [CLIPS[0], *(clip for clip, _ in table)]
    with open_engine(folder, clips) as engine:
        rows = [
            ([0, number], f"sample {number} of the data set {message}")
            for number, (_, message) in enumerate(table, 1)
        ]
        assert unrefused(engine.load_samples, RunError, rows) == []


def break_tokenizer(folder: Path) -> None:
    for file in (folder / "tokenizer.json", folder / "tokenizer_config.json"):
        file.write_text(file.read_text("utf-8").replace("<|transcribe|>", "<|sing|>"), "utf-8")


def load(folder: Path, options: Mapping[str, Any] = MappingProxyType({})) -> None:
    with open_engine(folder, **options):
        pass


def test_a_folder_that_cannot_work_is_refused(folder: Path, tmp_path: Path) -> None:
    assert broken_but_accepted(folder, tmp_path, load, [
        (
            json_with("preprocessor_config.json", feature_size=80),
            "features have 16000 Hz, 80 mels and 100 frames, but the model needs",
        ),
        (without("preprocessor_config.json"), "transformers cannot read preprocessor_config.json"),
        (break_tokenizer, "its tokenizer has no <|transcribe|>; use a multilingual"),
        (
            config_with(architectures=["BartForConditionalGeneration"]),
            "BartForConditionalGeneration in config.json is not a Whisper model; this engine runs",
        ),
    ]) == []  # fmt: skip


def test_wrong_options_are_refused_at_once(folder: Path) -> None:
    """24 positions hold the 4 tokens of the prompt, and 20 more."""
    rows = [
        (folder, {"attention": "fast"}, "engine torch-whisper: attention = 'fast' is not one of"),
        (folder, {"weights": "none"}, "engine torch-whisper: weights = 'none' is not one of"),
        (folder, {"sparsity": "1:4"}, "engine torch-whisper: sparsity = '1:4' is not one of 2:4"),
        (folder, {"max_new_tokens": 0}, "engine torch-whisper: max_new_tokens = 0 is not at least"),
    ]
    assert unrefused(lambda at, options: open_engine(at, **options), SuiteError, rows) == []
    load(folder, {"max_new_tokens": 20})
    room = "max_new_tokens = 21 and the 4 tokens of the prompt do not fit the model's 24 positions"
    assert unrefused(load, SuiteError, [(folder, {"max_new_tokens": 21}, room)]) == []


@pytest.mark.parametrize(
    "options", [{"weights": "dummy"}, {"precision": "bf16"}, {"precision": "int8"}]
)
def test_other_weights_answer_too(folder: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    """Random ones without the files, and always the same."""
    copy = Path(shutil.copytree(folder, tmp_path / "model"))
    if "weights" in options:
        (copy / "model.safetensors").unlink()

    (answers, _), (again, _) = (transcribe(copy, **options) for _ in range(2))

    assert answers == again
    assert {tokens for _, tokens in answers} <= set(range(2, MOST + 1))
