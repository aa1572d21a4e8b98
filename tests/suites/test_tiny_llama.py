"""The tokens of a real language model are timed, and its rates belong together."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mlperf.core.case import Kind
from tests.suites.tiny_twin import LANGUAGE, Twin, twin_marks

pytestmark = [*twin_marks(*LANGUAGE), pytest.mark.nightly]


def test_rates_and_times_of_tokens_are_complete(tmp_path: Path) -> None:
    verdict = Twin("llama2-70b").verdict(tmp_path, kind=Kind.PERFORMANCE)

    (run,) = verdict["runs"]
    metrics = run["metrics"]
    assert metrics["tokens_per_second"] == pytest.approx(
        metrics["throughput"] * metrics["tokens_per_sample"], rel=0.05
    )
    assert 0 < metrics["itl_p50"] <= metrics["itl_p99"]
    assert 0 < metrics["ttft_p50"] <= metrics["ttft_p99"]
    assert metrics["tokens_per_sample"] > 2
