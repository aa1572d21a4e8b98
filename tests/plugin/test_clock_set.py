"""Test that a run is INVALID if the wall clock is set during it, by any measurement."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pytest_mlperf.core.reason import Key
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.reports.sentences import sentence
from tests.plugin.project import Project

pytestmark = pytest.mark.process

SCENARIOS = """
[[scenarios]]
name = "Offline"
target_qps = 500
min_duration = "200ms"

[[scenarios]]
name = "SingleStream"
target_qps = 400
min_duration = "200ms"

[[scenarios]]
name = "Concurrency"
points = [1, 4]
min_duration = "500ms"
ramp = "100ms"
"""

ENGINE = """[[engines]]
use = "clock_engine:ClockSetter"
accelerators = ["cpu"]
options = { latency_s = 0.002 }
"""

BENCHMARK = """
import time

_real = time.time

def test_sets_the_clock(benchmark):
    def work():
        time.time = lambda: _real() + 30.0
        time.sleep(0.001)
    benchmark.pedantic(work, rounds=100)
"""


def test_a_clock_that_is_set_makes_runs_invalid(project: Project) -> None:
    """Each is measured again twice; the last one says by how much."""
    shutil.copy(Path(__file__).with_name("clock_engine.py"), project.path / "clock_engine.py")
    limits = '[limits]\nthroughput = { max_drop = "5%" }'
    project.suite(engines=ENGINE, scenarios=SCENARIOS, more=limits)

    result = project.run("suites", "-o", "mlperf_control=off")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    for case_result in project.results().cases:
        verdict = case_result.verdict
        assert verdict.outcome is Outcome.INVALID, verdict.headline
        messages = [
            sentence(reason.text) for reason in verdict.reasons if reason.key is Key.CLOCK_SET
        ]
        assert [text.partition("+")[0] for text in messages] == ["the wall clock was set by "]
        assert len(verdict.invalid_runs) == 3


def test_a_judged_benchmark_is_watched_as_well(project: Project) -> None:
    (project.path / "test_clock.py").write_text(BENCHMARK, "utf-8")

    project.run("test_clock.py", "--mlperf-judge-benchmarks", "-o", "mlperf_control=off")

    (case_result,) = project.results().cases
    assert case_result.verdict.outcome is Outcome.INVALID
    assert "the wall clock was set by +30 s" in sentence(case_result.verdict.headline)
