"""Pictures and sound on the stand-in: answers are those of the torch engines, nothing is kept."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.errors import RunError, SuiteError
from pytest_mlperf.engines.torch import TorchEngine
from pytest_mlperf.engines.torch.whisper import WhisperEngine
from pytest_mlperf.engines.vllm import VllmEngine
from pytest_mlperf.testing import RecordingSink
from tests.engines.recording import Samples, ask
from tests.engines.vllm import shapes
from tests.engines.vllm.conftest import forget
from tests.engines.vllm.running import open_engine
from tests.suites.tiny_twin import TINY, Twin

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("standin")]

APIS = ["async", "offline"]
LONGEST = {"qwen3-vl": 6, "whisper": 40, "qwen3.6": 64}
"""Most tokens of an answer: a few of a category, all of a transcript, all of a call."""

QUIET = {"qwen3.6": {"chat_template_kwargs": {"enable_thinking": False}}}


class Twins:
    """The tiny Qwen3-VL, Whisper and Qwen3.6, read when one is first wanted."""

    def __init__(self) -> None:
        self._read: dict[str, Twin] = {}

    def __getitem__(self, name: str) -> Twin:
        if name == "qwen3-vl":
            pytest.importorskip("pyarrow")
        if name not in self._read:
            self._read[name] = Twin(name)
        return self._read[name]


@pytest.fixture(scope="module")
def twins() -> Twins:
    return Twins()


def on_vllm(twin: Twin, **options: Any) -> VllmEngine:
    """Return the engine on a twin's samples."""
    given = {"max_new_tokens": LONGEST[twin.name], **QUIET.get(twin.name, {}), **options}
    return open_engine(twin.model, [], **{"dataset": twin.dataset, **given})


def on_torch(twin: Twin) -> Any:
    kind = WhisperEngine if twin.name == "whisper" else TorchEngine
    return kind(
        dataset=twin.dataset,
        model=str(twin.model),
        precision="fp32",
        max_new_tokens=LONGEST[twin.name],
        **QUIET.get(twin.name, {}),
    )


def answered(engine: Any, samples: int, *, one_by_one: bool = False) -> RecordingSink:
    """Return what an engine, not entered yet, told of its first samples."""
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
def test_answers_are_those_of_the_torch_engine(
    twins: Twins, name: str, samples: int, api: str
) -> None:
    """Categories as tokens, transcripts as characters, calls as JSON; tokens are counted alike."""
    theirs = answered(on_torch(twins[name]), samples)

    ours = answered(on_vllm(twins[name], api=api), samples, one_by_one=api == "async")

    assert ours.outputs == theirs.outputs
    assert ours.n_tokens == theirs.n_tokens


def test_transcripts_are_scored_as_the_torch_engines(twins: Twins) -> None:
    twin, samples = twins["whisper"], 12

    sink = answered(on_vllm(twin), samples)
    answers = [sink.outputs[100 + index] for index in range(samples)]

    pytest.importorskip("whisper_normalizer")
    from pytest_mlperf.scorers.word_accuracy import WordAccuracyScorer

    scores = WordAccuracyScorer().score(answers, twin.references[:samples])
    assert scores.aggregate["accuracy"] > 95


def test_tokens_of_transcripts_can_be_timed(twins: Twins) -> None:
    """MLPerf has Offline alone; by the async API each scenario is measured."""
    sink = RecordingSink(2, times_tokens=True, counts_tokens=True, needs_first_tokens=True)
    with on_vllm(twins["whisper"]) as engine:
        ask(engine, sink, 2)

    for sample, tokens in sink.n_tokens.items():
        assert sink.reports(sample) == ["first", *["next"] * (tokens - 1), "done"]


class Repeated(Samples):
    """The first sample of a data set, again and again."""

    def __init__(self, dataset: Any, times: int) -> None:
        super().__init__([dataset.input(0)] * times)


def test_nothing_of_one_query_is_kept_for_another_unless_a_suite_lets_vllm(twins: Twins) -> None:
    """The same picture or clip is prepared and encoded each time."""
    cases: list[tuple[str, dict[str, Any], int]] = [
        *((name, {"api": api}, 0) for name in ("qwen3-vl", "whisper") for api in APIS),
        ("qwen3-vl", {"mm_processor_cache_gb": 0.5}, 2),
        ("qwen3-vl", {"enable_prefix_caching": True}, 2),
    ]
    others = []
    for name, options, reused in cases:
        forget()  # and what its cache counted
        dataset = Repeated(twins[name].dataset, 3)
        answered(on_vllm(twins[name], dataset=dataset, max_new_tokens=2, **options), 3)
        found = importlib.import_module("vllm.encoder_cache").CACHE.reused
        others += [] if found == reused else [(name, options, found)]
    assert others == []


@pytest.mark.parametrize(("name", "most"), [("qwen3-vl", 2), ("whisper", 2), (None, 6)])
def test_media_are_prepared_for_few_samples_at_a_time(
    twins: Twins, counting: Path, name: str | None, most: int
) -> None:
    """Twice as many as vLLM works on; token ids are so small that all of them wait in vLLM."""
    dataset = Samples([[9]] * 6) if name is None else Repeated(twins[name].dataset, 6)
    folder = counting if name is None else twins[name].model

    answered(open_engine(folder, [], dataset=dataset, max_num_seqs=1, max_new_tokens=4), 6)

    at_a_time = importlib.import_module("vllm.v1.engine.async_llm").AT_A_TIME
    assert max(at_a_time) == most


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen3-vl", {"limit_mm_per_prompt": "{'video': 0}"}),
        ("qwen3.6", {"limit_mm_per_prompt": "{'image': 0, 'video': 0}"}),
        ("whisper", {}),
    ],
)
def test_the_fingerprint_tells_what_is_kept_and_the_tokenizer(
    twins: Twins, name: str, expected: dict[str, str]
) -> None:
    with on_vllm(twins[name]) as engine:
        facts = engine.describe()

    limits = {key: value for key, value in facts.items() if key == "limit_mm_per_prompt"}
    assert limits == expected
    assert facts["mm_processor_cache_gb"] == "0.0"
    assert facts["skip_tokenizer_init"] == "false"
    assert len(facts["tokenizer_sha256"]) == 16


def test_a_suites_own_limits_stand(twins: Twins) -> None:
    """A data set with more pictures in a prompt than that ends in vLLM's words."""
    engine = on_vllm(
        twins["qwen3-vl"], api="offline", engine_args={"limit_mm_per_prompt": {"image": 0}}
    )

    with pytest.raises(RunError, match=r"At most 0 image\(s\) may be provided in one prompt"):
        answered(engine, 1)


def copied(folder: Path, changes: dict[str, Any]) -> Path:
    """Return a folder with the tiny Whisper, whose preprocessor says something else."""
    shutil.copytree(TINY / "whisper" / "model", folder, dirs_exist_ok=True)
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | changes), "utf-8")
    return folder


def test_what_the_model_cannot_hear_or_see_is_refused_when_it_is_opened(
    twins: Twins, tmp_path: Path
) -> None:
    for name in ("qwen3-vl", "whisper"):
        with (
            pytest.raises(SuiteError, match="max_prompt_tokens cuts prompts of text"),
            on_vllm(twins[name], max_prompt_tokens=8),
        ):
            pass
    with (
        pytest.raises(SuiteError, match="do not fit the model's 64 positions; set max_new_tokens"),
        on_vllm(twins["whisper"], max_new_tokens=200),
    ):
        pass
    for seconds, expected in (
        (30, "chunk_length is 30 seconds, and the model's encoder has 100"),
        (None, "chunk_length is None seconds"),
    ):
        folder = copied(tmp_path, {"chunk_length": seconds})
        with (
            pytest.raises(RunError, match=expected),
            open_engine(folder, [], dataset=twins["whisper"].dataset, max_new_tokens=40),
        ):
            pass


def test_a_sample_that_vllm_would_cut_or_change_is_refused(twins: Twins) -> None:
    film = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}
    samples: list[tuple[str, dict[str, Any], str]] = [
        ("whisper", {"audio": [0.0] * 48_000, "sampling_rate": 16_000}, "the model hears 2 s at"),
        ("whisper", {"audio": [0.0] * 800, "sampling_rate": 8_000}, "8000 Hz; Whisper takes 16000"),
        ("whisper", {"audio": [], "sampling_rate": 16_000}, "is no mono sound"),
        (
            "qwen3-vl",
            {"messages": [{"role": "user", "content": [film]}]},
            "a part of type 'video_url': text and pictures are taken",
        ),
    ]
    for name, sample, expected in samples:
        with (
            on_vllm(twins[name], dataset=Samples([sample])) as engine,
            pytest.raises(RunError, match=expected),
        ):
            engine.load_samples([0])


@pytest.mark.parametrize(("name", "kind"), [("whisper", "speech"), ("qwen3-vl", "chats")])
def test_the_stand_in_refuses_prompts_as_vllm_does(twins: Twins, name: str, kind: str) -> None:
    """What it would let pass, no test here could find; `test_real.py` asks vLLM the same."""
    model = str(twins[name].model)

    assert shapes.differences(shapes.refusals(model, kind), model, kind) == []
