"""examples/engine-plugin: an engine as a package of its own, written from the docs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.stores.results import read_results

pytestmark = pytest.mark.process

EXAMPLE = Path(__file__).parents[2] / "examples" / "engine-plugin"

LIMIT_S = 240.0


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python beside the installed example."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder / "site"),
        "PYTEST_MLPERF_LEASES": str(folder / "leases"),
        "PYTEST_ADDOPTS": "-p no:cacheprovider",
    }
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder / "project",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the example, and the package installed beside it."""
    pytest.importorskip("setuptools", "77")
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(EXAMPLE, folder / "project", ignore=shutil.ignore_patterns("*.egg-info"))
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--quiet")
    done = run(folder, "pip", "install", *offline, "--target", str(folder / "site"), ".")
    assert done.returncode == 0, done.stderr
    made = run(folder, "mlperf_numpy.make_model", "knn.npz")
    assert made.returncode == 0, made.stderr
    return folder


def test_its_own_tests_pass(installed: Path) -> None:
    done = run(installed, "pytest", "-q", "tests")

    assert done.returncode == 0, done.stdout


def test_its_engine_is_known_and_its_suite_is_measured(installed: Path) -> None:
    known = run(installed, "pytest_mlperf", "options", "knn")
    assert "batch_size" in known.stdout

    done = run(installed, "pytest", "suites", "-omlperf_control=off", "--mlperf-json=all.json")

    assert done.returncode == 0, done.stdout
    found = read_results(installed / "project" / "all.json")
    assert [(r.verdict.kind, r.verdict.outcome) for r in found.cases] == [
        ("accuracy", Outcome.OK),
        ("performance", Outcome.NO_BASELINE),
    ] * 2


def test_a_damaged_model_fails_the_gate(installed: Path) -> None:
    damaged = run(installed, "mlperf_numpy.make_model", "knn.npz", "--damaged", "0.3")
    assert damaged.returncode == 0, damaged.stderr

    done = run(installed, "pytest", "suites", "-k", "accuracy and Offline")

    assert done.returncode == 1
    assert "GATE FAIL" in done.stdout
