"""The engine under the real LoadGen, in a worker process, as every run has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.under_loadgen import run, token_settings
from tests.run.harness import spec

pytestmark = pytest.mark.process

STARTS = [5 + number % 20 for number in range(24)]
TOKENS_PER_SAMPLE = sum(start - 2 for start in STARTS) / len(STARTS)


@pytest.mark.parametrize(
    ("scenario", "batching"),
    [
        pytest.param("Offline", "auto", marks=pytest.mark.nightly),
        ("Server", "auto"),
        pytest.param("SingleStream", "static", marks=pytest.mark.nightly),
    ],
)
def test_a_run_and_an_accuracy_pass_end_without_a_fault(
    counting: Path, tmp_path: Path, scenario: str, batching: str
) -> None:
    """Every token is counted and timed, and the completing thread outlives LoadGen."""
    case = spec(
        tmp_path,
        engine="pytest_mlperf.engines.torch:TorchEngine",
        options={"batching": batching, "threads": 1, "batch_size": 8},
        dataset="tests.engines.recording:Samples",
        dataset_options={"samples": [[start] for start in STARTS]},
        model=str(counting),
        precision="fp32",
        settings=token_settings(scenario, 24, target_qps=60.0, min_query_count=48),
    )

    ran = run(case, 24)

    assert ran.facts["generation.eos"] == "2"
    assert ran.result["completing_threads"] == 1
    assert ran.detail.metrics(scenario)["tokens_per_second"] > 0
    assert ran.every_token_is_timed
    if scenario == "Offline":
        assert ran.tokens["tokens_per_sample"] == pytest.approx(TOKENS_PER_SAMPLE)
