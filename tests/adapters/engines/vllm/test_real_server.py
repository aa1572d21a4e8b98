"""The openai engine on vLLM's own server, started by the Python of PYTEST_MLPERF_VLLM_PYTHON."""

from __future__ import annotations

import pytest

from pytest_mlperf.adapters.engines.openai import OpenAiEngine
from tests.adapters.engines.recording import Recorder, Samples
from tests.adapters.engines.vllm.tiny import (
    LONGEST,
    PYTHON,
    SAMPLES,
    TWIN,
    equal,
    needs_vllm,
    prompts,
)

pytest.importorskip("httptools", reason="needs pytest-mlperf[openai]")

pytestmark = [needs_vllm, pytest.mark.process, pytest.mark.slow]

OPTIONS = ["--dtype", "float32", "--max-model-len", "512", "--max-num-seqs", "32"]
OPTIONS += ["--enforce-eager", "--no-enable-prefix-caching", "--gpu-memory-utilization", "0.1"]


def test_its_server_answers_as_the_torch_engine_does() -> None:
    """Token ids in and out; every answer has a first token before it ends."""
    assert PYTHON
    # Builds under another name have no `vllm serve`: it asks for the package of that name.
    module = "vllm.entrypoints.openai.api_server"
    command = [PYTHON, "-m", module, "--model", "{model}", "--port", "{port}", *OPTIONS]
    sink = Recorder(expected=SAMPLES)
    engine = OpenAiEngine(
        dataset=Samples(prompts()),
        model=str(TWIN / "model"),
        precision="fp32",
        serve=command,
        env={"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"},
        max_new_tokens=LONGEST,
    )
    with engine:
        engine.load_samples(range(SAMPLES))
        engine.submit(range(SAMPLES), range(SAMPLES), sink)
        sink.wait()

    assert equal(sink.answers)
    assert all(sink.reports(sample)[0] == "first" for sample in range(SAMPLES))
    assert all(sink.reports(sample)[-1] == "done" for sample in range(SAMPLES))
