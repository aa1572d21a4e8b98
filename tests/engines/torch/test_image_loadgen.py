"""The engines of modules and images under the real LoadGen, in a worker process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engines.torch.modules import HERE
from tests.engines.under_loadgen import run
from tests.run.harness import settings, spec

pytestmark = pytest.mark.process


def quick(scenario: str, **changes: Any) -> Any:
    return settings(
        scenario,
        performance_samples=changes.pop("samples"),
        equal_issue=scenario == "Offline",
        latency_limit_ns=60_000_000_000 if scenario == "Server" else None,
        **changes,
    )


@pytest.mark.parametrize(
    ("scenario", "workers"),
    [
        pytest.param("Offline", 0, marks=pytest.mark.nightly),
        ("Server", 1),
        pytest.param("SingleStream", 0, marks=pytest.mark.nightly),
    ],
)
def test_a_module_runs_and_answers(tmp_path: Path, scenario: str, workers: int) -> None:
    samples = [[float(number), 1.0, 2.0, 3.0] for number in range(16)]
    case = spec(
        tmp_path,
        engine="pytest_mlperf.engines.torch.module:TorchModuleEngine",
        options={"factory": f"{HERE}:linear", "workers": workers, "threads": 1, "batch_size": 4},
        dataset="tests.engines.recording:Samples",
        dataset_options={"samples": samples},
        model=None,
        precision="fp32",
        settings=quick(scenario, samples=16, target_qps=500.0, min_query_count=64),
    )

    assert run(case, 16).facts["architecture"] == "Linear"


@pytest.mark.parametrize("scenario", [pytest.param("Offline", marks=pytest.mark.nightly), "Server"])
def test_images_are_made(tmp_path: Path, scenario: str) -> None:
    """By the thread of the queue, which outlives LoadGen."""
    pipelines = pytest.importorskip("tests.engines.torch.pipelines")
    case = spec(
        tmp_path,
        engine="pytest_mlperf.engines.torch.diffusion:DiffusionEngine",
        options={"steps": 1, "threads": 1, "batch_size": 4},
        dataset="tests.engines.torch.pipelines:Captions",
        dataset_options={"prompts": pipelines.PROMPTS},
        model=str(pipelines.write_pipeline(tmp_path / "model")),
        precision="fp32",
        settings=quick(scenario, samples=4, target_qps=20.0, min_query_count=8),
    )

    assert run(case, 4).facts["generation.steps"] == "1"
