"""Engines under the real LoadGen, in a worker process, as every run has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.case import Scenario
from tests.adapters.engines.torch.modules import HERE
from tests.adapters.engines.under_loadgen import LIMIT_NS, Ran, run, token_settings
from tests.run.harness import ROOT, settings, spec

pytestmark = pytest.mark.process

STARTS = [5 + number % 20 for number in range(24)]
TOKENS_PER_SAMPLE = sum(start - 2 for start in STARTS) / len(STARTS)

TORCH = "pytest_mlperf.adapters.engines.torch:TorchEngine"
VLLM = "pytest_mlperf.adapters.engines.vllm:VllmEngine"
TENSORRT = "pytest_mlperf.adapters.engines.tensorrt_llm:TensorRtLlmEngine"
LLAMA = [
    (TORCH, "Server", {"batching": "auto", "threads": 1, "batch_size": 8}, ""),
    (TORCH, "Offline", {"batching": "auto", "threads": 1, "batch_size": 8}, ""),
    (TORCH, "SingleStream", {"batching": "static", "threads": 1, "batch_size": 8}, ""),
    (VLLM, "Server", {}, "later than vLLM's own time stamps"),
    (VLLM, "Offline", {}, ""),
    (VLLM, "Offline", {"stream": True}, "later than vLLM's own time stamps"),
    (VLLM, "Offline", {"api": "offline"}, ""),
    (TENSORRT, "Server", {"max_batch_size": 16}, "later than TensorRT-LLM's own time stamps"),
    (TENSORRT, "Offline", {"max_batch_size": 16}, ""),
]
IN_EVERY_RUN = (0, 4)
"""Engines of LLMs: with tokens timed by the engine itself, and taken whole from another package."""


@pytest.mark.parametrize(
    ("engine", "scenario", "options", "stamps"),
    [
        pytest.param(*case, marks=[] if number in IN_EVERY_RUN else pytest.mark.nightly)
        for number, case in enumerate(LLAMA)
    ],
    ids=[f"{engine.rpartition(':')[2]}-{scenario}" for engine, scenario, *_ in LLAMA],
)
def test_a_run_and_an_accuracy_pass_end_without_a_fault(
    counting: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    engine: str,
    scenario: str,
    options: dict[str, Any],
    stamps: str,
) -> None:
    """Every token is counted and timed, and the completing thread outlives LoadGen."""
    # On a busy machine the stand-ins' libraries take half a minute to be imported.
    monkeypatch.setattr("tests.run.harness.LIMIT_S", 180.0)
    case = spec(
        tmp_path,
        engine=engine,
        options=options,
        dataset="tests.adapters.engines.recording:Samples",
        dataset_options={"samples": [[start] for start in STARTS]},
        model=str(counting),
        precision="fp32",
        import_path=[] if engine == TORCH else [str(ROOT / "tests" / "standins")],
        settings=token_settings(scenario, 24, target_qps=40.0, min_query_count=24),
    )

    ran = run(case, 24)

    assert ran.facts["generation.eos"] == "2"
    assert ran.result["completing_threads"] == 1
    assert ran.detail.metrics(Scenario(scenario))["tokens_per_second"] > 0
    assert ran.every_token_is_timed is (engine == TORCH or bool(stamps))
    assert stamps in ran.log
    assert ("own time stamps" in ran.log) is bool(stamps)
    if scenario == "Offline":
        assert ran.tokens["tokens_per_sample"] == pytest.approx(TOKENS_PER_SAMPLE)


def run_untimed(folder: Path, scenario: str, samples: int, queries: int, **parts: Any) -> Ran:
    """Run an engine whose answers have no tokens."""
    plan = settings(
        scenario,
        performance_samples=samples,
        equal_issue=scenario == "Offline",
        latency_limit_ns=LIMIT_NS if scenario == "Server" else None,
        target_qps=200.0,
        min_query_count=queries,
    )
    return run(spec(folder, precision="fp32", settings=plan, **parts), samples)


@pytest.mark.parametrize(
    ("scenario", "workers"),
    [
        pytest.param("Offline", 0, marks=pytest.mark.nightly),
        pytest.param("Server", 1, marks=pytest.mark.nightly),
        ("SingleStream", 1),
    ],
)
def test_a_module_runs_and_answers(tmp_path: Path, scenario: str, workers: int) -> None:
    ran = run_untimed(
        tmp_path,
        scenario,
        16,
        64,
        engine="pytest_mlperf.adapters.engines.torch.module:TorchModuleEngine",
        options={"factory": f"{HERE}:linear", "workers": workers, "threads": 1, "batch_size": 4},
        dataset="tests.adapters.engines.recording:Samples",
        dataset_options={"samples": [[float(number), 1.0, 2.0, 3.0] for number in range(16)]},
        model=None,
    )
    assert ran.facts["architecture"] == "Linear"


@pytest.mark.nightly
@pytest.mark.parametrize("scenario", ["Offline", "Server"])
def test_images_are_made(tmp_path: Path, tiny: Path, scenario: str) -> None:
    """By the thread of the queue, which outlives LoadGen."""
    from tests.adapters.engines.torch.pipelines import PROMPTS

    ran = run_untimed(
        tmp_path,
        scenario,
        4,
        8,
        engine="pytest_mlperf.adapters.engines.torch.diffusion:DiffusionEngine",
        options={"steps": 1, "threads": 1, "batch_size": 4},
        dataset="tests.adapters.engines.torch.pipelines:Captions",
        dataset_options={"prompts": PROMPTS},
        model=str(tiny),
    )
    assert ran.facts["generation.steps"] == "1"
