"""The engine under the real LoadGen, in a worker process, as every run has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.run.logs import parse_detail
from tests.run.harness import RunningWorker, settings, spec

STARTS = [5 + number % 20 for number in range(24)]
TOKENS_PER_SAMPLE = sum(start - 2 for start in STARTS) / len(STARTS)
LIMIT_NS = 60_000_000_000


@pytest.mark.parametrize(
    ("scenario", "batching"),
    [("Offline", "auto"), ("Server", "auto"), ("SingleStream", "static")],
)
def test_a_run_and_an_accuracy_pass_end_without_a_fault(
    counting: Path, tmp_path: Path, scenario: str, batching: str
) -> None:
    """Every token is counted and timed, and the completing thread outlives LoadGen."""
    limits: dict[str, Any] = {"ttft_limit_ns": LIMIT_NS, "tpot_limit_ns": LIMIT_NS}
    case = spec(
        tmp_path,
        engine="pytest_mlperf.engines.torch:TorchEngine",
        options={"batching": batching, "threads": 1, "batch_size": 8},
        dataset="tests.engines.torch.models:Prompts",
        dataset_options={"prompts": [[start] for start in STARTS]},
        model=str(counting),
        precision="fp32",
        settings=settings(
            scenario,
            tokens=True,
            target_qps=60.0,
            min_query_count=48,
            performance_samples=24,
            equal_issue=scenario == "Offline",
            latency_limit_ns=None,
            **(limits if scenario == "Server" else {}),
        ),
    )
    with RunningWorker(case) as worker:
        loaded = worker.wait_for("loaded")
        finished = worker.wait_for("finished")
        worker.wait_for("ready")
        worker.send(command="accuracy", block=0, indices=list(range(len(STARTS))))
        accuracy = worker.wait_for("finished")
        worker.wait_for("ready")
        worker.send(command="stop")
        assert worker.exit_code() == 0

    assert loaded["engine"]["generation.eos"] == "2"
    assert finished["result"]["faults"] == []
    assert finished["result"]["completing_threads"] == 1
    assert accuracy["result"]["completed"] == len(STARTS)
    detail = parse_detail(Path(finished["folder"]) / "mlperf_log_detail.txt")
    assert detail.num_errors == 0
    assert detail.metrics(scenario)["tokens_per_second"] > 0
    metrics = finished["result"]["token_metrics"]
    assert metrics.keys() >= {"ttft_p99", "tpot_p99", "itl_p99"}
    if scenario == "Offline":
        assert metrics["tokens_per_sample"] == pytest.approx(TOKENS_PER_SAMPLE)
