"""Servers under the real LoadGen, in a worker process: well served, or one clear error."""

from __future__ import annotations

import importlib.util
import json
import re
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_mlperf.run.child.protocol import WorkerSpec
from tests.adapters.engines.serving.test_server import left_of
from tests.adapters.engines.under_loadgen import run, token_settings
from tests.run.harness import RunningWorker, spec

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[4]
TINY = ROOT / "suites" / "tiny" / "llama2-70b"
ENGINE = "pytest_mlperf.adapters.engines.openai:OpenAiEngine"
OPENORCA = "pytest_mlperf.adapters.datasets.openorca:OpenOrcaDataset"
SHORT: dict[str, Any] = {"samples": [[5 + number % 20] * 10 for number in range(24)]}
SAMPLES = 24
PROMPTS: dict[str, Any] = {
    "path": str(TINY / "data/open_orca/open_orca_tiny.pkl.gz"),
    "count": SAMPLES,
}
TOKENS = 24

needs_transformers_serve = pytest.mark.skipif(
    any(
        importlib.util.find_spec(n) is None for n in ("torch", "transformers", "fastapi", "openai")
    ),
    reason="needs transformers[serving]",
)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes import transformers here, which takes long where cores are shared."""
    monkeypatch.setattr("tests.run.harness.LIMIT_S", 240.0)


def transformers_serve(folder: Path) -> dict[str, Any]:
    """Return options of an engine that starts transformers' own server.

    Without limits of its cache the server takes more than half of the machine's memory.
    """
    (folder / "hf" / "hub").mkdir(parents=True)  # else it cannot list its models
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", "{model}"]
    command += ["--device", "cpu", "--host", "{host}", "--port", "{port}"]
    command += ["--continuous-batching", "--cb-num-blocks", "64", "--cb-max-batch-tokens", "512"]
    return {
        "serve": command,
        "env": {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf"), "OMP_NUM_THREADS": "1"},
        "max_new_tokens": TOKENS,
    }


def accident(how: str) -> dict[str, Any]:
    """Return options of an engine that starts one of our own, which goes wrong."""
    command = [sys.executable, "-m", "tests.adapters.engines.openai.accidents", how, "{port}"]
    return {"serve": command, "max_new_tokens": TOKENS, "served_model": "echo"}


def case(
    folder: Path, options: dict[str, Any], scenario: str = "Offline", **changes: Any
) -> WorkerSpec:
    """Return a worker's specification, with the tiny Llama's prompts or a few ids."""
    usual: dict[str, Any] = {
        "target_qps": 20.0,
        "latency_percentile": 0.9,  # 99 % takes 662 queries to show
        "min_query_count": 100 if scenario == "Server" else 48,
    }
    model = None if "served_model" in options else str(TINY / "model")
    return spec(
        folder,
        engine=ENGINE,
        options=options,
        dataset=OPENORCA if model else "tests.adapters.engines.recording:Samples",
        dataset_options=PROMPTS if model else SHORT,
        model=model,
        precision="fp32",
        settings=token_settings(scenario, SAMPLES, **{**usual, **changes}),
    )


@contextmanager
def nothing_left() -> Iterator[list[psutil.Process]]:
    """Gather a worker's processes inside; all of them are gone a while after it."""
    family: list[psutil.Process] = []
    yield family
    assert left_of([process.pid for process in family]) == []


def family_of(worker: RunningWorker) -> list[psutil.Process]:
    """Return all that the worker started."""
    return psutil.Process(worker.process.pid).children(recursive=True)


def outputs(folder: Path) -> dict[int, list[int]]:
    """Return what LoadGen's accuracy log has of each sample."""
    rows = json.loads((folder / "mlperf_log_accuracy.json").read_text("utf-8"))
    raw = {row["qsl_idx"]: bytes.fromhex(row["data"]) for row in rows}
    return {index: list(struct.unpack(f"<{len(data) // 8}q", data)) for index, data in raw.items()}


@needs_transformers_serve
@pytest.mark.nightly
@pytest.mark.parametrize("scenario", ["Offline", "Server"])
def test_a_run_on_a_real_server_is_valid(scenario: str, tmp_path: Path) -> None:
    server_case = case(tmp_path, transformers_serve(tmp_path), scenario)
    with nothing_left() as family:
        ran = run(server_case, SAMPLES, at_load=lambda worker: family.extend(family_of(worker)))

    assert family
    # The server takes no token ids: they go there and come back as text.
    assert ran.facts["prompts"] == "text"
    assert ran.facts["outputs"] == "text, tokenised again"
    assert ran.detail.valid
    assert (tmp_path / "server.log").is_file()
    if scenario == "Offline":
        assert outputs(ran.accuracy) == torch_answers(range(SAMPLES))


def torch_answers(indices: Sequence[int]) -> dict[int, list[int]]:
    """Return the torch engine's answers to the same prompts."""
    from pytest_mlperf.adapters.datasets.openorca import OpenOrcaDataset
    from tests.adapters.engines.torch.models import answers

    dataset = OpenOrcaDataset(**PROMPTS)
    prompts = [dataset.input(index) for index in indices]
    outputs = answers(TINY / "model", prompts, max_new_tokens=TOKENS, batch_size=8)
    return dict(zip(indices, outputs, strict=True))


def error_after(worker: RunningWorker, family: list[psutil.Process]) -> str:
    """Return the one error that a worker ends with."""
    errors = []
    while (event := worker.next_event()) is not None:
        if event["event"] == "loaded":
            family.extend(family_of(worker))
        if event["event"] == "error":
            errors.append(event)
    assert worker.exit_code() == 70
    assert [(error["layer"], error["designed"]) for error in errors] == [("engine", True)]
    return str(errors[0]["message"])


FAILED = r"\d+ of \d+ requests failed: "


@pytest.mark.parametrize(
    ("manner", "message"),
    [
        ("dies", f"the server was killed by SIGKILL; .*{FAILED}.*"),
        (
            "runs out of memory",
            r'the server ended with exit code 1; .*has "torch\.OutOfMemoryError: CUDA out of '
            rf"memory\. .*shutting down part 7.*{FAILED}.*",
        ),
        ("leaves streams unfinished", rf"{FAILED}\d+ x .*stream.*"),
    ],
)
def test_a_server_that_fails_in_mid_run_is_one_clear_error(
    manner: str, message: str, tmp_path: Path
) -> None:
    with RunningWorker(case(tmp_path, accident(manner))) as worker, nothing_left() as family:
        error = error_after(worker, family)

    # One that ends by itself may be gone before anybody looks for it.
    assert family or manner != "leaves streams unfinished"
    assert re.fullmatch(message, error)
    assert "server.log" in error
