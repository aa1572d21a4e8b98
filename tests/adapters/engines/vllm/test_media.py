"""Pictures and sound on the stand-in: answers are those of the torch engines, nothing is kept."""

from __future__ import annotations

import functools
import importlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.adapters.engines.torch import TorchEngine
from pytest_mlperf.adapters.engines.torch.whisper import WhisperEngine
from pytest_mlperf.adapters.engines.vllm import VllmEngine
from pytest_mlperf.core.errors import RunError, SuiteError
from pytest_mlperf.testing import RecordingSink
from tests.adapters.engines.recording import Samples, ask
from tests.adapters.engines.torch.models import broken_but_accepted, json_with
from tests.adapters.engines.vllm import ready, shapes
from tests.adapters.engines.vllm.conftest import forget
from tests.adapters.engines.vllm.running import open_engine
from tests.refusals import unrefused
from tests.suites.tiny_twin import TINY, Twin

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("standin")]

APIS = ["async", "offline"]
LONGEST = {"qwen3-vl": 6, "whisper": 40, "qwen3.6": 64}
"""Most tokens of an answer: a few of a category, all of a transcript, all of a call."""

QUIET = {"qwen3.6": {"chat_template_kwargs": {"enable_thinking": False}}}


@functools.cache
def twin(name: str) -> Twin:
    """Return the tiny Qwen3-VL, Whisper or Qwen3.6, read when it is first wanted."""
    if name == "qwen3-vl":
        pytest.importorskip("pyarrow")
    return Twin(name)


def on_vllm(name: str, **options: Any) -> VllmEngine:
    """Return the engine on a twin's samples."""
    defaults = {"dataset": twin(name).dataset, "max_new_tokens": LONGEST[name]}
    return open_engine(twin(name).model, [], **{**defaults, **QUIET.get(name, {}), **options})


def on_torch(name: str) -> Any:
    return (WhisperEngine if name == "whisper" else TorchEngine)(
        dataset=twin(name).dataset,
        model=str(twin(name).model),
        precision="fp32",
        max_new_tokens=LONGEST[name],
        **QUIET.get(name, {}),
    )


def answered(engine: Any, samples: int, *, one_by_one: bool = False) -> RecordingSink:
    """Return the answers of an engine, which is entered here, to its first samples."""
    sink = RecordingSink(samples, times_tokens=False, counts_tokens=True)
    with engine:
        ask(engine, sink, samples, one_by_one=one_by_one)
    return sink


@pytest.mark.parametrize(
    ("name", "samples", "api"),
    [
        ("qwen3-vl", 2, "async"),
        ("whisper", 3, "offline"),
        *(
            pytest.param(name, 6, api, marks=pytest.mark.nightly)
            for name in ("qwen3-vl", "whisper", "qwen3.6")
            for api in APIS
        ),
    ],
)
def test_answers_are_those_of_the_torch_engine(name: str, samples: int, api: str) -> None:
    """Categories as tokens, transcripts as characters, calls as JSON; tokens are counted alike."""
    theirs = answered(on_torch(name), samples)

    ours = answered(on_vllm(name, api=api), samples, one_by_one=api == "async")

    assert ours.outputs == theirs.outputs
    assert ours.n_tokens == theirs.n_tokens


@pytest.mark.nightly
def test_transcripts_are_scored_as_the_torch_engines() -> None:
    pytest.importorskip("whisper_normalizer")
    from pytest_mlperf.adapters.scorers.word_accuracy import WordAccuracyScorer

    outputs = answered(on_vllm("whisper"), 12).outputs
    answers = [outputs[100 + index] for index in range(12)]

    scores = WordAccuracyScorer().score(answers, twin("whisper").references[:12])
    assert scores.aggregate["accuracy"] > 95


def test_tokens_of_transcripts_can_be_timed() -> None:
    """MLPerf has Offline alone; by the async API each scenario is measured."""
    sink = RecordingSink(2, times_tokens=True, counts_tokens=True, needs_first_tokens=True)
    with on_vllm("whisper") as engine:
        ask(engine, sink, 2)

    for sample, tokens in sink.n_tokens.items():
        assert sink.reports(sample) == ["first", *["next"] * (tokens - 1), "done"]


class Repeated(Samples):
    """The first sample of a data set, again and again."""

    def __init__(self, dataset: Any, times: int) -> None:
        super().__init__([dataset.input(0)] * times)


def test_nothing_of_one_query_is_kept_for_another_unless_a_suite_lets_vllm() -> None:
    """The same picture or clip is prepared and encoded each time."""
    cases: list[tuple[str, dict[str, Any], int]] = [
        *((name, {"api": api}, 0) for name in ("qwen3-vl", "whisper") for api in APIS),
        ("qwen3-vl", {"mm_processor_cache_gb": 0.5}, 2),
        ("qwen3-vl", {"enable_prefix_caching": True}, 2),
    ]
    others = []
    for name, options, reused in cases:
        forget()  # and what its cache counted
        dataset = Repeated(twin(name).dataset, 3)
        answered(on_vllm(name, dataset=dataset, max_new_tokens=2, **options), 3)
        kept_entries = importlib.import_module("vllm.encoder_cache").CACHE.reused
        others += [] if kept_entries == reused else [(name, options, kept_entries)]
    assert others == []


@pytest.mark.parametrize(("name", "most"), [("qwen3-vl", 2), ("whisper", 2), (None, 6)])
def test_few_media_are_prepared_at_a_time(counting: Path, name: str | None, most: int) -> None:
    """Twice as many as vLLM works on; token ids are so small that all of them wait in vLLM."""
    dataset = Samples([[9]] * 6) if name is None else Repeated(twin(name).dataset, 6)
    folder = counting if name is None else twin(name).model

    answered(open_engine(folder, [], dataset=dataset, max_num_seqs=1, max_new_tokens=4), 6)

    assert max(importlib.import_module("vllm.v1.engine.async_llm").AT_A_TIME) == most


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("qwen3-vl", "{'video': 0}"),
        ("qwen3.6", "{'image': 0, 'video': 0}"),
        ("whisper", None),
    ],
)
def test_the_fingerprint_tells_limits_and_tokenizer(name: str, limits: str | None) -> None:
    with on_vllm(name) as engine:
        facts = engine.describe()

    assert facts.get("limit_mm_per_prompt") == limits
    assert (facts["mm_processor_cache_gb"], facts["skip_tokenizer_init"]) == ("0.0", "false")
    assert len(facts["tokenizer_sha256"]) == 16


def test_what_the_model_cannot_hear_or_see_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    """A suite's own limits stand: with more pictures in a prompt than that it ends in vLLM's words.

    What the model cannot take is refused before that.
    """
    few: dict[str, Any] = {"api": "offline", "engine_args": {"limit_mm_per_prompt": {"image": 0}}}
    at_most = r"At most 0 image\(s\) may be provided in one prompt"
    long = {"max_new_tokens": 200}
    rows: list[tuple[str, int, dict[str, Any], str]] = [
        ("qwen3-vl", 0, {"max_prompt_tokens": 8}, "max_prompt_tokens cuts text prompts"),
        ("whisper", 0, {"max_prompt_tokens": 8}, "max_prompt_tokens cuts text prompts"),
        ("whisper", 0, long, "do not fit the model's 64 positions; set max_new_tokens"),
    ]

    def attempt(name: str, samples: int, options: dict[str, Any]) -> None:
        answered(on_vllm(name, **options), samples)

    assert unrefused(attempt, SuiteError, rows) == []
    assert unrefused(attempt, RunError, [("qwen3-vl", 1, few, at_most)]) == []
    shutil.copytree(TINY / "whisper" / "model", folder := tmp_path / "model")
    changes = [
        (
            json_with("preprocessor_config.json", chunk_length=seconds),
            f"chunk_length is {seconds} seconds{more}",
        )
        for seconds, more in ((30, ", but max_source_positions in config.json is 100"), (None, ""))
    ]

    def load(copy: Path) -> None:
        with open_engine(copy, [], dataset=twin("whisper").dataset, max_new_tokens=40):
            pass

    assert broken_but_accepted(folder, tmp_path, load, changes) == []


def test_a_sample_that_vllm_would_cut_or_change_is_refused() -> None:
    film = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}
    rows: list[tuple[str, dict[str, Any], str]] = [
        ("whisper", {"audio": [0.0] * 48_000, "sampling_rate": 16_000}, "clips of at most 2 s"),
        ("whisper", {"audio": [0.0] * 800, "sampling_rate": 8_000}, "8000 Hz; resample it to 16"),
        ("whisper", {"audio": [], "sampling_rate": 16_000}, "has audio of shape"),
        (
            "qwen3-vl",
            {"messages": [{"role": "user", "content": [film]}]},
            "a part of type 'video_url'; only text and pictures are supported",
        ),
    ]

    def load(name: str, sample: dict[str, Any]) -> None:
        with on_vllm(name, dataset=Samples([sample])) as engine:
            engine.load_samples([0])

    assert unrefused(load, RunError, rows) == []


@pytest.mark.parametrize(("name", "kind"), [("whisper", "speech"), ("qwen3-vl", "chats")])
def test_the_stand_in_refuses_prompts_as_vllm_does(name: str, kind: str) -> None:
    """A laxer stand-in would hide defects; `test_real.py` checks vLLM itself."""
    model = str(twin(name).model)

    assert shapes.differences(shapes.refusals(model, kind), model, kind) == []


@pytest.mark.nightly
def test_a_whisper_with_copies_of_its_state_says_the_same(tmp_path: Path) -> None:
    """A twin that is written for vLLM's kernels is the same model."""
    assert twin("whisper").answers(ready.whisper(tmp_path)) == twin("whisper").answers()
