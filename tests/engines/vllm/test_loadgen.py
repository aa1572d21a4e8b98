"""The engine under the real LoadGen, in a worker process, on the stand-in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engines.under_loadgen import run, token_settings
from tests.engines.vllm.conftest import STANDINS
from tests.run.harness import spec

pytestmark = pytest.mark.process

STARTS = [5 + number % 20 for number in range(24)]
TOKENS_PER_SAMPLE = sum(start - 2 for start in STARTS) / len(STARTS)


@pytest.mark.parametrize(
    ("scenario", "options"),
    [
        ("Server", {}),
        *(
            pytest.param("Offline", options, marks=pytest.mark.nightly)
            for options in ({}, {"stream": True}, {"api": "offline"})
        ),
    ],
)
def test_a_run_and_an_accuracy_pass_end_without_a_fault(
    counting: Path, tmp_path: Path, scenario: str, options: dict[str, Any]
) -> None:
    case = spec(
        tmp_path,
        engine="pytest_mlperf.engines.vllm:VllmEngine",
        options=options,
        dataset="tests.engines.recording:Samples",
        dataset_options={"samples": [[start] for start in STARTS]},
        model=str(counting),
        precision="fp32",
        import_path=[str(STANDINS)],
        settings=token_settings(scenario, 24, target_qps=40.0, min_query_count=24),
    )

    ran = run(case, 24)

    assert ran.facts["generation.eos"] == "2"
    assert ran.result["completing_threads"] == 1
    assert ran.detail.metrics(scenario)["tokens_per_second"] > 0
    streamed = scenario == "Server" or "stream" in options
    assert ran.every_token_is_timed is streamed
    if scenario == "Offline":
        assert ran.tokens["tokens_per_sample"] == pytest.approx(TOKENS_PER_SAMPLE)
    assert ("after vLLM's own stamps" in ran.log) is streamed
