"""The engine on vLLM itself, in the Python that PYTEST_MLPERF_VLLM_PYTHON names.

That environment has vLLM (a build for the CPU will do) and mlcommons-loadgen; nothing of this
project is installed there. Each test loads vLLM once, which takes half a minute.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.run.answers import ACCURACY_LOG, AccuracyLog
from pytest_mlperf.run.builds import Build
from pytest_mlperf.run.child.process import Patience, WorkerProcess
from pytest_mlperf.run.child.protocol import PACKAGE
from pytest_mlperf.run.logs import DETAIL, parse_detail
from tests.adapters.engines.under_loadgen import token_settings
from tests.adapters.engines.vllm import shapes
from tests.adapters.engines.vllm.ready import READY
from tests.adapters.engines.vllm.tiny import DATA, LONGEST, PYTHON, SAMPLES, TWIN, equal, needs_vllm
from tests.run.harness import ROOT, spec
from tests.suites.tiny_twin import TINY, Twin

pytestmark = [needs_vllm, pytest.mark.process, pytest.mark.slow]

SMALL: dict[str, Any] = {
    "max_new_tokens": LONGEST,
    "max_model_len": 512,
    "max_num_seqs": 32,
    "enforce_eager": True,
    "gpu_memory_utilization": 0.1,  # on a CPU: of the machine's memory
}


def run_in_vllms_python(
    tmp_path: Path, scenario: str, samples: int, **parts: Any
) -> tuple[dict[str, str], dict[str, Any], dict[int, bytes]]:
    """Return the engine's facts, the results of a run, and the answers of an accuracy pass."""
    assert PYTHON
    shutil.copytree(PACKAGE, tmp_path / "code" / PACKAGE.name)
    build = Build(python=[PYTHON], code=tmp_path / "code", title=f"python {PYTHON}", key="python")
    case = spec(
        tmp_path,
        engine="pytest_mlperf.adapters.engines.vllm:VllmEngine",
        precision="fp32",
        settings=token_settings(scenario, samples, target_qps=4.0, min_query_count=samples),
        **parts,
    )
    with WorkerProcess(case, Patience(progress_s=900), lambda event: None, build=build) as worker:
        facts = worker.wait_for("loaded")["engine"]
        finished = worker.wait_for("finished")
        worker.wait_for("ready")
        worker.send({"command": "accuracy", "block": 0, "indices": list(range(samples))})
        accuracy = worker.wait_for("finished")
        worker.wait_for("ready")
        worker.send({"command": "stop"})
    assert finished["result"]["faults"] == []
    answered = AccuracyLog(Path(accuracy["folder"]) / ACCURACY_LOG)
    return facts, finished, dict(zip(answered, answered.values(), strict=True))


@pytest.mark.parametrize(
    ("scenario", "options"),
    [("Server", {}), ("Offline", {"api": "offline"}), ("Offline", {})],
    ids=str,
)
def test_vllm_itself_answers_as_the_torch_engine_does(
    tmp_path: Path, scenario: str, options: dict[str, Any]
) -> None:
    """A run without a fault, tokens timed in Server, stamps that agree, no process left."""
    facts, finished, answered = run_in_vllms_python(
        tmp_path,
        scenario,
        SAMPLES,
        options=SMALL | options,
        dataset="pytest_mlperf.adapters.datasets.openorca:OpenOrcaDataset",
        dataset_options={"path": DATA, "count": SAMPLES},
        model=str(TWIN / "model"),
    )

    assert facts["settled.max_num_seqs"] == "32"
    assert parse_detail(Path(finished["folder"]) / DETAIL).num_errors == 0
    assert ("ttft_p99" in finished["result"]["token_metrics"]) is (scenario == "Server")
    log = (tmp_path / "engine.log").read_text("utf-8")
    assert ("later than vLLM's own time stamps" in log) is (scenario == "Server")
    assert equal({n: struct.unpack(f"<{len(row) // 8}q", row) for n, row in answered.items()})


MEDIA = {
    "whisper": {
        "dataset": "pytest_mlperf.adapters.datasets.librispeech:LibriSpeechDataset",
        "dataset_options": {"path": str(TINY / "whisper/data/librispeech")},
        "most": 40,
    },
    "qwen3-vl": {
        "dataset": "pytest_mlperf.adapters.datasets.shopify:ShopifyDataset",
        "dataset_options": {"path": str(TINY / "qwen3-vl/data")},
        "most": 64,
    },
}


def needs(*modules: str) -> None:
    """Skip where vLLM's Python lacks a module: builds of torchvision are often for CUDA."""
    code = "; ".join(f"import {module}" for module in modules)
    if subprocess.run([str(PYTHON), "-c", code], capture_output=True, check=False).returncode:
        pytest.skip(f"{PYTHON} cannot import one of {', '.join(modules)}")


@pytest.mark.parametrize("api", ["async", "offline"])
@pytest.mark.parametrize("name", sorted(MEDIA))
def test_vllm_hears_and_sees_as_the_torch_engines_do(tmp_path: Path, name: str, api: str) -> None:
    """Answers, and so their score, are those of the torch engine but for 1 in 20."""
    if name == "qwen3-vl":
        needs("torchvision", "pyarrow")
    parts, twin = dict(MEDIA[name]), Twin(name)
    options = {**SMALL, "api": api, "max_new_tokens": parts.pop("most")}
    del options["max_model_len"]

    _, _, outputs = run_in_vllms_python(
        tmp_path,
        "Offline",
        len(twin.dataset),
        options=options,
        model=str(READY[name](tmp_path / "model")),
        **parts,
    )

    same = sum(outputs[index] == answer for index, answer in enumerate(twin.answers()))
    print(f"{name}: {same} of {len(outputs)} answers are those of the torch engine")
    assert same >= 0.95 * len(outputs)


@pytest.mark.parametrize(("name", "kind"), [("whisper", "speech"), ("qwen3-vl", "chats")])
def test_vllm_refuses_what_the_stand_in_refuses(tmp_path: Path, name: str, kind: str) -> None:
    if name == "qwen3-vl":
        needs("torchvision")
    model = str(READY[name](tmp_path / "model"))

    done = subprocess.run(
        [str(PYTHON), "-m", "tests.adapters.engines.vllm.shapes", model, kind],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"},
    )

    assert done.returncode == 0, done.stderr[-4000:]
    raised = json.loads(done.stdout.splitlines()[-1])
    assert shapes.differences(raised, model, kind) == []
