"""What goes wrong ends the run in one sentence: before loading, while loading, in mid-run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.adapters.engines.tensorrt_llm import TensorRtLlmEngine
from pytest_mlperf.core.errors import EnvironmentFault, MlperfError, SuiteError
from tests.adapters.engines.recording import Recorder, Samples, ask
from tests.adapters.engines.tensorrt_llm.conftest import forget
from tests.adapters.engines.torch.models import broken_but_accepted, config_with
from tests.refusals import unrefused

standin = pytest.mark.usefixtures("standin")
pytestmark = pytest.mark.slow

ONE, THREE = Samples([[9]]), Samples([[9], [8], [7]])


def engine(folder: Path, **options: Any) -> TensorRtLlmEngine:
    arguments = {"dataset": THREE, "model": str(folder), "precision": "fp32"}
    return TensorRtLlmEngine(**{**arguments, **options})


def inject_faults(monkeypatch: pytest.MonkeyPatch, **faults: Any) -> None:
    """Tell the stand-in what to do wrong."""
    monkeypatch.setenv("TENSORRT_LLM_STANDIN", json.dumps(faults))


def failure(folder: Path, *, times_tokens: bool = True, **options: Any) -> str:
    """Run all samples; return the one sentence with which that fails."""
    samples = len(options.get("dataset", THREE))
    sink = Recorder(samples, times_tokens=times_tokens)
    with pytest.raises(MlperfError) as failed, engine(folder, **options) as model:
        ask(model, sink, samples)
    return str(failed.value)


@pytest.mark.usefixtures("absent")
def test_a_missing_package_is_named(counting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvironmentFault) as refused, engine(counting):
        pass

    assert str(refused.value) == (
        "engine tensorrt_llm needs tensorrt_llm, which is not installed; TensorRT-LLM pins other "
        "versions of torch and numpy than most environments have, so let the engine run in a "
        'Python or container of its own: python = "~/venvs/trtllm/bin/python" or command = '
        '["docker", "run", ...] in the engine entry'
    )
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EnvironmentFault, match="which is not installed"):
        engine(counting).require()
    with pytest.raises(SuiteError, match="holds plain weights"):
        engine(counting, precision="fp8").require()


@standin
def test_an_unsuitable_package_is_refused_with_the_reason(
    counting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine(counting).require()
    package = tmp_path / "tensorrt_llm"
    (package / "llmapi").mkdir(parents=True)
    (package / "llmapi" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)

    def enter(content: str) -> None:
        (package / "__init__.py").write_text(content, "utf-8")
        forget()
        with engine(counting):
            pass

    lib = "libcuda.so.1: cannot open shared object file"
    rows = [
        (
            f"raise ImportError('{lib}')",
            f"tensorrt_llm is installed but cannot be imported: {lib}; TensorRT-LLM pins",
        ),
        ("import mpi4py_of_nowhere", "No module named 'mpi4py_of_nowhere'; TensorRT-LLM pins"),
        ("__version__ = '1.0.0rc4'", "needs TensorRT-LLM 1.2 or newer; 1.0.0rc4 is installed"),
    ]
    assert unrefused(enter, EnvironmentFault, rows) == []


NAME = "TensorRT-LLM 1.2.1+standin"
BROKEN = "CUDA error: out of memory (from ValueError: the worker's own words)"
GRAPH = {"moe_config": {"backend": "CUTLAS"}, "batch_wait_timeout_iters": "soon"}

REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"llm": {"enable_trtllm_sampler": True}},
        f"engine tensorrt_llm: {NAME} has no LLM argument enable_trtllm_sampler",
    ),
    (
        {"llm": {"moe_configs": {}}},
        f"engine tensorrt_llm: {NAME} has no LLM argument moe_configs; did you mean moe_config?",
    ),
    (
        {"llm": {"kv_cache_config": {"max_blocks": 5}}},
        f"engine tensorrt_llm: {NAME} refuses these options: kv_cache_config.max_blocks: "
        "Extra inputs are not permitted",
    ),
    (
        {"llm": GRAPH},
        f"engine tensorrt_llm: {NAME} refuses these options: batch_wait_timeout_iters: Input "
        "should be a valid integer, unable to parse string as an integer, moe_config.backend: "
        "Input should be 'CUTLASS', 'CUTEDSL', 'WIDEEP', 'TRTLLM', 'DEEPGEMM', 'VANILLA' or "
        "'TRITON'",
    ),
    (
        {"max_num_tokens": 1, "dataset": Samples([[9, 9], [8], [7]])},
        "engine tensorrt_llm: the longest prompt has 2 tokens, but a forward pass takes at most "
        "max_num_tokens = 1; set max_num_tokens higher, or enable_chunked_prefill = true",
    ),
    (
        {"max_seq_len": 100},
        "sample 0 of the data set has 1 tokens, and max_new_tokens = 128 more do not fit the "
        "model's context of 100; set max_new_tokens to at most 99, or shorten the prompt",
    ),
    (
        {"max_new_tokens": 1, "dataset": ONE},
        "sample 0 of the data set got an answer of 1 token, but LoadGen needs at least 2 to time "
        "tokens: max_new_tokens is 1; set it to at least 2",
    ),
    (
        {"tensor_parallel_size": 2},
        f"{{folder}}: {NAME} cannot load it: RuntimeError: Only 1 GPUs are available, but 2 are "
        "required.",
    ),
]

FAILED: list[tuple[dict[str, Any], str]] = [
    ({"fail": 4}, f"TensorRT-LLM failed sample 1 of the data set: RuntimeError: {BROKEN}"),
    (
        {"fail": 4, "told_error": True},
        "TensorRT-LLM failed sample 1 of the data set: CUDA error: out of memory",
    ),
    ({"fail": 0}, f"TensorRT-LLM failed a test request: RuntimeError: {BROKEN}"),
    (
        {"cancel": 5},
        (
            "the answer to sample 2 of the data set was stopped by TensorRT-LLM after 2 tokens: "
            "finish_reason is 'cancelled'"
        ),
    ),
    (
        {"load": "CUDA error: no kernel image is available"},
        f"{{folder}}: {NAME} cannot load it: RuntimeError: CUDA error: no kernel image is "
        "available",
    ),
]


@standin
def test_options_that_tensorrt_llm_would_refuse_are_refused_by_our_names(counting: Path) -> None:
    for options, sentence in REFUSED:
        assert failure(counting, **options) == sentence.format(folder=counting)


@standin
def test_a_failure_names_its_sample(counting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for faults, sentence in FAILED:
        inject_faults(monkeypatch, **faults)
        for times_tokens in (True, False):
            message = failure(counting, times_tokens=times_tokens)
            assert message == sentence.format(folder=counting)


LENGTHS: list[tuple[str, str, dict[str, Any], str]] = [
    # TensorRT-LLM lowers max_tokens to what fits its workers, and only warns.
    (
        "counting",
        "longest",
        {"dataset": ONE},
        "the answer to sample 0 of the data set was cut at 3 tokens, before max_new_tokens = 128; "
        "TensorRT-LLM cuts answers that do not fit its max_seq_len: set max_seq_len to at least "
        "the tokens of the longest prompt plus max_new_tokens",
    ),
    (
        "counting",
        "strip_end",
        {"dataset": ONE},
        (
            "the answer to sample 0 of the data set ended with token 3, which is not an end "
            "token of the model (2): its token count would be wrong"
        ),
    ),
    (
        "mute",
        "min_ignored",
        {"min_new_tokens": 2},
        (
            "min_new_tokens = 2, but TensorRT-LLM 1.2.1+standin cannot suppress the end token; "
            "set min_new_tokens = 1, or ignore_eos = true for answers of max_new_tokens tokens"
        ),
    ),
    (
        "mute",
        "min_ignored",
        {"dataset": ONE},
        (
            "sample 0 of the data set got an answer of 1 token, but LoadGen needs at least 2 to "
            "time tokens: the model ended its answer at once; the engine did not respect "
            "min_new_tokens = 1: remove the sample, or set ignore_eos = true to measure fixed "
            "lengths"
        ),
    ),
]


@standin
def test_wrong_lengths_fail(counting: Path, mute: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, fault, options, sentence in LENGTHS:
        inject_faults(monkeypatch, **{fault: 4 if fault == "longest" else True})
        assert failure(counting if name == "counting" else mute, **options) == sentence


@standin
def test_stamps_may_be_missing_and_never_wrong(
    counting: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    inject_faults(monkeypatch, clock_ahead_s=100)
    assert "before TensorRT-LLM's own time stamp: one of the two clocks is wrong" in failure(
        counting
    )
    inject_faults(monkeypatch, no_metrics=True)
    capfd.readouterr()
    with engine(counting) as model:
        ask(model, Recorder(expected=3), 3)
    assert "stamps" not in capfd.readouterr().err


@standin
def test_a_folder_that_says_too_little_is_refused(counting: Path, tmp_path: Path) -> None:
    rows = [
        (
            config_with(eos_token_id=None),
            "neither generation_config.json nor config.json names an eos_t",
        ),
        (config_with(vocab_size=None), "names no vocab_size, so this is not a language model"),
    ]
    source = tmp_path / "source"
    source.mkdir()
    shutil.copy(counting / "config.json", source)

    def enter(folder: Path) -> None:
        with engine(folder):
            pass

    assert broken_but_accepted(source, tmp_path, enter, rows) == []
