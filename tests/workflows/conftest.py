"""A project that the action really measures: once to record baselines, then as a team would."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests import forked
from tests.children import PYTHON
from tests.conftest import LEAN
from tests.shared import once
from tests.workflows import composite
from tests.workflows.github import Runner, workflow

SUITE = """schema = 1
round = "v4.1"

[workload]
name = "first"
dataset = { use = "synthetic", samples = 32 }
scorer = { use = "top1" }
reference = { top1 = 100.0 }

[[engines]]
use = "null"
accelerators = ["cpu"]
options = { latency_s = 0.002, batch_size = 16, threads = 1 }

[[scenarios]]
name = "Offline"
target_qps = 500
min_duration = "100ms"

[limits]
throughput = { max_drop = "40%" }
"""

CASE = "first-Offline-null-fp32-cpu"
QUICK = f"{LEAN} -omlperf_control=off -omlperf_baseline_runs=5 -p no:cacheprovider"
GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org")


@dataclass(frozen=True)
class Measured:
    """A project with recorded baselines, the action's steps, and the wheel that it installed."""

    runner: Runner
    outcome: composite.Outcome = field(default_factory=composite.Outcome)
    wheel: Path = Path()

    @property
    def project(self) -> Path:
        return self.runner.workspace / "change"


def git(folder: Path, *words: str) -> str:
    return subprocess.check_output([*GIT, *words], cwd=folder, text=True).strip()


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Record baselines with the action, in a job like that of gpu.yml; the result is read-only."""
    return once(tmp_path_factory, "recording", record_by_action)


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Record baselines with pytest alone; the result is read-only."""
    return once(tmp_path_factory, "recording-alone", record)


def prepare(folder: Path) -> Runner:
    """Return a job whose workspace has a project with a suite."""
    runner = Runner(folder, env=environment(folder))
    project = runner.workspace / "change"
    (project / "suites").mkdir(parents=True)
    (project / "baselines").mkdir()
    (project / "baselines" / "README.md").write_text("# Baselines\n", "utf-8")
    (project / "suites" / "first.mlperf.toml").write_text(SUITE, "utf-8")
    (project / "pyproject.toml").write_text("[tool.pytest.ini_options]\n", "utf-8")
    git(project, "init", "--quiet", "--initial-branch=main")
    git(project, "add", ".")
    git(project, "commit", "--quiet", "-m", "suite")
    return runner


def record(folder: Path) -> Measured:
    runner = prepare(folder)
    runs = runner.temp / "mlperf"
    words = ["--mlperf-accelerator=cpu", f"--mlperf-runs-dir={runs}", "--mlperf-profile=quick"]
    words += [f"--mlperf-json={runs / 'results.json'}", "--mlperf-update=replace"]
    words += [f"--mlperf-reason={REASON}", "suites/first.mlperf.toml"]
    with pytest.MonkeyPatch.context() as patch:
        forked.use(patch)
        for last in (False, False, True):  # where a run was disturbed, again, as the message asks
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *words],
                cwd=runner.workspace / "change",
                env=runner.environment(),
                capture_output=True,
                text=True,
                check=False,
            )
            if last or "the machine was disturbed" not in done.stdout:
                break
    assert done.returncode == 0, done.stdout + done.stderr
    return Measured(runner)


def record_by_action(folder: Path) -> Measured:
    runner = prepare(folder)
    wheel = composite.wheel(folder)
    plan = workflow("gpu").script("plan", "Plan")
    planned = Runner(folder)
    done = planned.run(
        f"cd change\n{plan}\nmkdir ../plan\nmv plan.json ../plan\n",
        SUITES="suites",
        ACCELERATOR="",
        FLEET="cpu",
        PROFILE="quick",
        PURPOSE="baseline",
    )
    assert done.returncode == 0, done.stderr
    (folder / "summary").unlink()
    inputs = inputs_of(runner, wheel) | {"update": "replace", "reason": REASON}
    outcome = composite.run(runner, inputs)
    assert outcome.failed == [], outcome.log()
    return Measured(runner, outcome, wheel)


REASON = "driver 580; $(touch pwned) `touch pwned` \"'"


def environment(folder: Path) -> dict[str, str]:
    """Return the variables that a real job needs here.

    Quick runs, leases of its own, no network.
    """
    return {
        "PYTEST_ADDOPTS": QUICK,
        "PYTEST_MLPERF_LEASES": str(folder / "leases"),
        "PIP_NO_INDEX": "1",
        "PIP_CONFIG_FILE": "/dev/null",
        "COLUMNS": "100",
    }


def inputs_of(runner: Runner, wheel: Path) -> dict[str, str]:
    return {
        "suite": "suites/first.mlperf.toml",
        "accelerator": "cpu",
        "profile": "quick",
        "python": sys.executable,
        "package": str(wheel),
        "extras": "fast",
        "working-directory": "change",
        "manifest": str(runner.workspace / "plan" / "plan.json"),
    }


LINKING = """#!/bin/sh
if [ "$1 $2" = "-m venv" ]; then exec ln -s {made} "$3"; fi
exec {python} "$@"
"""
"""A Python that gives the environment that is there already for a new one: making one takes
seconds, and the first job has shown that it works."""


@pytest.fixture
def job(measured: Measured, tmp_path: Path) -> Runner:
    """Return a job of its own, with a copy of the project and its plan."""
    runner = Runner(tmp_path, env=environment(tmp_path))
    made = measured.runner.temp / "mlperf-venv"
    runner.put("linking-python", LINKING.format(made=made, python=PYTHON))
    for name in ("change", "plan"):
        shutil.copytree(measured.runner.workspace / name, runner.workspace / name)
    return runner
