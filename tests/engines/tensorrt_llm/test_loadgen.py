"""The engine under the real LoadGen, in a worker process, on the committed tiny Llama."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.run.logs import parse_detail
from tests.engines.tensorrt_llm.conftest import STANDINS
from tests.run.harness import ROOT, RunningWorker, settings, spec

TINY = ROOT / "suites" / "tiny" / "llama2-70b"
SAMPLES = 16
LIMIT_NS = 60_000_000_000


@pytest.mark.parametrize("scenario", ["Offline", "Server"])
def test_a_run_and_an_accuracy_pass_end_without_a_fault(
    tmp_path: Path, scenario: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every token is counted, timed where it must be, and one thread completes all."""
    # On a busy machine the stand-in's libraries take half a minute to be imported.
    monkeypatch.setattr("tests.run.harness.LIMIT_S", 180.0)
    limits: dict[str, Any] = {"ttft_limit_ns": LIMIT_NS, "tpot_limit_ns": LIMIT_NS}
    case = spec(
        tmp_path,
        engine="pytest_mlperf.engines.tensorrt_llm:TensorRtLlmEngine",
        options={"max_batch_size": 16, "max_new_tokens": 40},
        dataset="pytest_mlperf.datasets.openorca:OpenOrcaDataset",
        dataset_options={
            "path": str(TINY / "data" / "open_orca" / "open_orca_tiny.pkl.gz"),
            "count": SAMPLES,
        },
        model=str(TINY / "model"),
        precision="fp32",
        import_path=[str(STANDINS)],
        settings=settings(
            scenario,
            tokens=True,
            target_qps=20.0,
            min_query_count=SAMPLES,
            performance_samples=SAMPLES,
            equal_issue=scenario == "Offline",
            latency_limit_ns=None,
            **(limits if scenario == "Server" else {}),
        ),
    )
    with RunningWorker(case) as worker:
        loaded = worker.wait_for("loaded")
        finished = worker.wait_for("finished")
        worker.wait_for("ready")
        worker.send(command="accuracy", block=0, indices=list(range(SAMPLES)))
        accuracy = worker.wait_for("finished")
        worker.wait_for("ready")
        worker.send(command="stop")
        assert worker.exit_code() == 0
        log = worker.log.read_text("utf-8")

    assert loaded["engine"]["tensorrt_llm"] == "1.2.1+standin"
    assert finished["result"]["faults"] == []
    assert finished["result"]["completing_threads"] == 1
    assert accuracy["result"]["completed"] == SAMPLES
    detail = parse_detail(Path(finished["folder"]) / "mlperf_log_detail.txt")
    assert detail.num_errors == 0
    metrics = finished["result"]["token_metrics"]
    assert metrics.keys() >= {"ttft_p99", "tpot_p99", "itl_p99"}
    assert 10 < metrics["tokens_per_sample"] <= 40
    assert "TensorRT-LLM stamped them itself" in log
