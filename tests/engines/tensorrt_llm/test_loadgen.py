"""The engine under the real LoadGen, in a worker process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.tensorrt_llm.conftest import STANDINS
from tests.engines.under_loadgen import run, token_settings
from tests.run.harness import spec

pytestmark = pytest.mark.process

SAMPLES = 16


@pytest.mark.parametrize("scenario", [pytest.param("Offline", marks=pytest.mark.nightly), "Server"])
def test_a_run_and_an_accuracy_pass_end_without_a_fault(
    counting: Path, tmp_path: Path, scenario: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine the stand-in's libraries take half a minute to be imported.
    monkeypatch.setattr("tests.run.harness.LIMIT_S", 180.0)
    case = spec(
        tmp_path,
        engine="pytest_mlperf.engines.tensorrt_llm:TensorRtLlmEngine",
        options={"max_batch_size": 16, "max_new_tokens": 40},
        dataset="tests.engines.recording:Samples",
        dataset_options={"samples": [[20 + number] for number in range(SAMPLES)]},
        model=str(counting),
        precision="fp32",
        import_path=[str(STANDINS)],
        settings=token_settings(scenario, SAMPLES, target_qps=20.0, min_query_count=SAMPLES),
    )

    ran = run(case, SAMPLES)

    assert ran.facts["tensorrt_llm"] == "1.2.1+standin"
    assert ran.result["completing_threads"] == 1
    assert ran.every_token_is_timed is (scenario == "Server")
    assert 10 < ran.tokens["tokens_per_sample"] <= 40
    assert ("TensorRT-LLM's own stamps" in ran.log) is (scenario == "Server")
