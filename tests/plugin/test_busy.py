"""Test a machine under load by others: speed that they took is not a drop of the build."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.stores.results import read_results
from tests.conftest import LEAN
from tests.plugin.project import Project, near, newest_results

COMPUTES = "{ latency_s = 0.0005 }"
"""Half a millisecond of work in the processor for each sample, and none asleep."""

FASTEST = 2000.0

LONGER = f"""
[[scenarios]]
name = "Offline"
target_qps = {FASTEST}
min_duration = "500ms"
"""

BURN = """
import os
parent = os.getppid()
print(flush=True)
while os.getppid() == parent:
    sum(range(10_000))
"""
"""Computes as long as whoever started it lives."""

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="this kernel tells no waits"
)


@pytest.fixture
def project(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Return a project whose machine is watched, as it is for users."""
    monkeypatch.setenv("PYTEST_ADDOPTS", LEAN)
    return project


@contextmanager
def neighbours() -> Iterator[None]:
    """Let two processes compute on each core."""
    started = []
    try:
        for core in sorted(os.sched_getaffinity(0)) * 2:
            process = subprocess.Popen(
                [sys.executable, "-c", BURN], stdout=subprocess.PIPE, start_new_session=True
            )
            started.append(process)
            os.sched_setaffinity(process.pid, {core})
            assert process.stdout is not None
            process.stdout.readline()
        yield
    finally:
        for process in started:
            process.kill()
            process.communicate()


def judged(project: Project) -> tuple[pytest.RunResult, CaseResult]:
    result = project.run_process("suites", "-k", "performance")
    newest = newest_results(project.path)
    return result, read_results(newest).cases[0]


@pytest.mark.quiet
def test_unchanged_code_under_load_by_neighbours_passes(project: Project) -> None:
    project.suite(options=COMPUTES, scenarios=LONGER)
    project.baseline(near(FASTEST), target_qps=FASTEST)
    with neighbours():
        result, case_result = judged(project)

    verdict = case_result.verdict
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert (verdict.invalid_runs, len(verdict.runs)) == ((), 5)
    for run in verdict.runs:
        assert run.metrics["throughput"] < 0.8 * FASTEST
        assert run.load.contention is not None
        assert run.load.contention.share is not None
        assert run.load.contention.share > 0.2
        assert run.load.contention.window_s == pytest.approx(run.duration_s, abs=0.2)
    result.stdout.fnmatch_lines(["*load may have cost up to * now and 0 % in the baseline*"])
