"""The engine on vLLM itself, in the Python that PYTEST_MLPERF_VLLM_PYTHON names.

That environment has vLLM (a build for the CPU will do) and mlcommons-loadgen; nothing of this
project is installed there. Each test loads vLLM once, which takes half a minute.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.run.builds import Build
from pytest_mlperf.run.child.process import Patience, WorkerProcess
from pytest_mlperf.run.child.protocol import PACKAGE
from pytest_mlperf.run.logs import parse_detail
from pytest_mlperf.run.score import ACCURACY, AccuracyLog
from tests.engines.under_loadgen import token_settings
from tests.engines.vllm.tiny import DATA, LONGEST, PYTHON, SAMPLES, TWIN, equal, needs_vllm
from tests.run.harness import spec

pytestmark = needs_vllm

SMALL: dict[str, Any] = {
    "max_new_tokens": LONGEST,
    "max_model_len": 512,
    "max_num_seqs": 32,
    "enforce_eager": True,
    "gpu_memory_utilization": 0.1,  # on a CPU: of the machine's memory
}


@pytest.mark.parametrize(
    ("scenario", "options"),
    [("Server", {}), ("Offline", {"api": "offline"}), ("Offline", {})],
    ids=str,
)
def test_vllm_itself_answers_as_the_torch_engine_does(
    tmp_path: Path, scenario: str, options: dict[str, Any]
) -> None:
    """A run without a fault, tokens timed in Server, stamps that agree, no process left."""
    assert PYTHON
    shutil.copytree(PACKAGE, tmp_path / "code" / PACKAGE.name)
    build = Build(python=[PYTHON], code=tmp_path / "code", title=f"python {PYTHON}", key="python")
    case = spec(
        tmp_path,
        engine="pytest_mlperf.engines.vllm:VllmEngine",
        options=SMALL | options,
        dataset="pytest_mlperf.datasets.openorca:OpenOrcaDataset",
        dataset_options={"path": DATA, "count": SAMPLES},
        model=str(TWIN / "model"),
        precision="fp32",
        settings=token_settings(scenario, SAMPLES, target_qps=4.0, min_query_count=SAMPLES),
    )
    patience = Patience(progress_s=900)
    with WorkerProcess(case, patience, lambda event: None, build=build) as worker:
        loaded = worker.wait_for("loaded")
        finished = worker.wait_for("finished")
        worker.wait_for("ready")
        worker.send({"command": "accuracy", "block": 0, "indices": list(range(SAMPLES))})
        accuracy = worker.wait_for("finished")
        worker.wait_for("ready")
        worker.send({"command": "stop"})

    assert loaded["engine"]["settled.max_num_seqs"] == "32"
    assert finished["result"]["faults"] == []
    detail = parse_detail(Path(finished["folder"]) / "mlperf_log_detail.txt")
    assert detail.num_errors == 0
    assert ("ttft_p99" in finished["result"]["token_metrics"]) is (scenario == "Server")
    log = (tmp_path / "engine.log").read_text("utf-8")
    assert ("after vLLM's own stamps" in log) is (scenario == "Server")
    answered = AccuracyLog(Path(accuracy["folder"]) / ACCURACY)
    rows = [struct.unpack(f"<{len(each) // 8}q", each) for each in answered.values()]
    assert equal(dict(zip(answered, rows, strict=True)))
