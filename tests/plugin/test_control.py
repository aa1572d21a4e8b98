"""Test the machine's own speed during each run.

A drop of the machine is not a drop of the build.
"""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path

import pytest

from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.stores.results import read_results
from tests.conftest import LEAN
from tests.plugin.project import Project, newest_results
from tests.sessions import spread

pytestmark = pytest.mark.quiet

PERFORMANCE = ("suites", "-k", "performance")


@pytest.fixture
def project(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Return a project whose machine is looked at, as it is for users."""
    monkeypatch.setenv("PYTEST_ADDOPTS", LEAN)
    return project


def record(project: Project, *, days: int = 4) -> Path:
    """Return a baseline that was recorded over some days, or in one session."""
    project.suite()
    project.run_process(*PERFORMANCE, "--mlperf-update=missing", "-omlperf_baseline_runs=5")
    (path,) = project.path.glob("baselines/cpu/**/*.json")
    if days > 1:
        spread(path)
    return path


def scale(path: Path, *factors: float) -> None:
    """Multiply the machine's speeds in a baseline by a factor for each run.

    Args:
        path: The baseline.
        factors: Of the runs in turn.
    """
    text = json.loads(path.read_text("utf-8"))
    runs = text["records"][0]["runs"]
    for run, factor in zip(runs, cycle(factors), strict=False):
        for name in ("matmul_flops", "copy_bytes_per_s"):
            run["control"][name] *= factor
    path.write_text(json.dumps(text), "utf-8")


RESTLESS = (0.5, 0.7, 1.0, 1.4, 2.0)
"""Whatever else runs beside the tests, a machine that was so restless is the same."""


def judged(project: Project, *arguments: str) -> tuple[pytest.RunResult, CaseResult]:
    result = project.run_process(*PERFORMANCE, *arguments)
    newest = newest_results(project.path)
    return result, read_results(newest).cases[0]


def test_a_drop_on_a_machine_that_is_slower_may_not_be_judged(project: Project) -> None:
    """INVALID with both numbers; the same drop on the same machine is a PERF DROP."""
    path = record(project)
    scale(path, *RESTLESS)
    _, same = judged(project, "--mlperf-handicap=60%")

    scale(path, 100)
    result, slower = judged(project, "--mlperf-handicap=60%")
    _, unasked = judged(project, "--mlperf-handicap=60%", "-omlperf_control=off")

    assert same.verdict.outcome is Outcome.PERF_DROP
    assert slower.verdict.outcome is Outcome.INVALID
    assert unasked.verdict.outcome is Outcome.PERF_DROP
    result.stdout.re_match_lines(
        [
            r"INVALID the machine is slow: .* now, .* when the",
            r".*not judged: PERF DROP samples/s.*",
        ]
    )


@pytest.mark.parametrize(
    ("days", "words"), [(4, {Outcome.OK}), (1, {Outcome.OK, Outcome.PROVISIONAL})]
)
def test_an_unchanged_build_passes_at_any_speed_of_the_machine(
    project: Project, days: int, words: set[Outcome]
) -> None:
    path = record(project, days=days)
    scale(path, 10)

    _, case_result = judged(project)

    assert case_result.verdict.outcome in words
    assert case_result.verdict.runs[0].hardware.control["matmul_flops"] > 0
