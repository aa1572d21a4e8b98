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


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(("name", "samples"), [("qwen3-vl", 3), ("whisper", 6), ("qwen3.6", 3)])
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


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("name", ["qwen3-vl", "whisper"])
def test_nothing_of_one_query_is_kept_for_another(twins: Twins, name: str, api: str) -> None:
    """The same picture or clip is prepared and encoded each time."""
    dataset = Repeated(twins[name].dataset, 3)

    answered(on_vllm(twins[name], dataset=dataset, api=api, max_new_tokens=2), 3)

    assert importlib.import_module("vllm.encoder_cache").CACHE.reused == 0


@pytest.mark.parametrize(
    "options", [{"mm_processor_cache_gb": 0.5}, {"enable_prefix_caching": True}], ids=str
)
def test_what_a_suite_lets_vllm_keep_is_kept(twins: Twins, options: dict[str, Any]) -> None:
    dataset = Repeated(twins["qwen3-vl"].dataset, 3)
    engine = on_vllm(twins["qwen3-vl"], dataset=dataset, max_new_tokens=2, **options)

    answered(engine, 3)

    assert importlib.import_module("vllm.encoder_cache").CACHE.reused == 2


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


@pytest.mark.parametrize("name", ["qwen3-vl", "whisper"])
def test_prompts_that_are_no_text_are_not_cut(twins: Twins, name: str) -> None:
    with (
        pytest.raises(SuiteError, match="max_prompt_tokens cuts prompts of text"),
        on_vllm(twins[name], max_prompt_tokens=8),
    ):
        pass


def copied(folder: Path, file: str, changes: dict[str, Any]) -> Path:
    """Return a folder with the tiny Whisper, of which a JSON file says something else."""
    shutil.copytree(TINY / "whisper" / "model", folder, dirs_exist_ok=True)
    table = json.loads((folder / file).read_text("utf-8")) | changes
    (folder / file).write_text(json.dumps(table), "utf-8")
    return folder


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"chunk_length": 30}, "chunk_length is 30 seconds, and the model's encoder has 100"),
        ({"chunk_length": None}, "chunk_length is None seconds"),
    ],
)
def test_what_hears_other_lengths_than_the_model_is_refused(
    twins: Twins, tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    folder = copied(tmp_path, "preprocessor_config.json", changes)

    with (
        pytest.raises(RunError, match=expected),
        open_engine(folder, [], dataset=twins["whisper"].dataset, max_new_tokens=40),
    ):
        pass


def test_transcripts_must_fit_the_model(twins: Twins) -> None:
    with (
        pytest.raises(SuiteError, match="do not fit the model's 64 positions; set max_new_tokens"),
        on_vllm(twins["whisper"], max_new_tokens=200),
    ):
        pass


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        ({"audio": [0.0] * 48_000, "sampling_rate": 16_000}, "the model hears 2 s at a time"),
        ({"audio": [0.0] * 800, "sampling_rate": 8_000}, "has 8000 Hz; Whisper takes 16000"),
        ({"audio": [], "sampling_rate": 16_000}, "is no mono sound"),
    ],
)
def test_a_clip_that_is_not_heard_whole_is_refused(
    twins: Twins, sample: dict[str, Any], expected: str
) -> None:
    """What vLLM would cut or make another rate of without a word."""
    with (
        on_vllm(twins["whisper"], dataset=Samples([sample])) as engine,
        pytest.raises(RunError, match=expected),
    ):
        engine.load_samples([0])


def test_a_film_is_refused_in_the_samples_name(twins: Twins) -> None:
    film = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}
    chat = {"messages": [{"role": "user", "content": [film]}]}
    with (
        on_vllm(twins["qwen3-vl"], dataset=Samples([chat])) as engine,
        pytest.raises(RunError, match="a part of type 'video_url': text and pictures are taken"),
    ):
        engine.load_samples([0])


@pytest.mark.parametrize(("name", "kind"), [("whisper", "speech"), ("qwen3-vl", "chats")])
def test_the_stand_in_refuses_prompts_as_vllm_does(twins: Twins, name: str, kind: str) -> None:
    """What it would let pass, no test here could find; `test_real.py` asks vLLM the same."""
    model = str(twins[name].model)

    assert shapes.differences(shapes.refusals(model, kind), model, kind) == []
