"""The engine under the real LoadGen, in a worker process, on the stand-in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.run.logs import parse_detail
from tests.engines.vllm.conftest import STANDINS
from tests.run.harness import RunningWorker, settings, spec

STARTS = [5 + number % 20 for number in range(24)]
TOKENS_PER_SAMPLE = sum(start - 2 for start in STARTS) / len(STARTS)
LIMIT_NS = 60_000_000_000


@pytest.mark.parametrize(
    ("scenario", "options"),
    [
        ("Offline", {}),
        ("Offline", {"api": "offline"}),
        ("Server", {}),
    ],
    ids=str,
)
def test_a_run_and_an_accuracy_pass_end_without_a_fault(
    counting: Path, tmp_path: Path, scenario: str, options: dict[str, Any]
) -> None:
    """Tokens are counted and timed where they are seen, and no process is left."""
    limits: dict[str, Any] = {"ttft_limit_ns": LIMIT_NS, "tpot_limit_ns": LIMIT_NS}
    case = spec(
        tmp_path,
        engine="pytest_mlperf.engines.vllm:VllmEngine",
        options=options,
        dataset="tests.engines.vllm.prompts:Prompts",
        dataset_options={"prompts": [[start] for start in STARTS]},
        model=str(counting),
        precision="fp32",
        import_path=[str(STANDINS)],
        settings=settings(
            scenario,
            tokens=True,
            target_qps=40.0,
            min_query_count=24,
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
        assert worker.group_is_gone()

    assert loaded["engine"]["generation.eos"] == "2"
    assert finished["result"]["faults"] == []
    assert finished["result"]["completing_threads"] == 1
    assert accuracy["result"]["completed"] == len(STARTS)
    detail = parse_detail(Path(finished["folder"]) / "mlperf_log_detail.txt")
    assert detail.num_errors == 0
    assert detail.metrics(scenario)["tokens_per_second"] > 0
    metrics = finished["result"]["token_metrics"]
    timed = {"ttft_p99", "tpot_p99", "itl_p99"}
    assert timed & metrics.keys() == (set() if options else timed)
    if scenario == "Offline":
        assert metrics["tokens_per_sample"] == pytest.approx(TOKENS_PER_SAMPLE)
    log = worker.log.read_text("utf-8")
    assert ("after vLLM's own stamps" in log) is not bool(options)
