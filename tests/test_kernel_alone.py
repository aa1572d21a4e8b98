"""The kernel measures and judges where neither adapters nor add-ons are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_mlperf.stores.results import write_results
from tests.reports.verdicts import OK, result, session
from tests.sources import PACKAGE

pytestmark = pytest.mark.process

QUICKLY = ("-q", "-omlperf_control=off", "-omlperf_wait_idle=0", "-pno:cacheprovider")


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """A folder with the package without adapters and add-ons; its entry points lead to nothing."""
    walled = shutil.ignore_patterns("adapters", "addons", "__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "there" / PACKAGE.name, ignore=walled)
    return tmp_path / "there"


def run(kernel: Path, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a module of Python with the kernel alone."""
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(kernel)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.nightly
def test_a_first_suite_is_written_measured_recorded_and_a_slower_build_fails(
    kernel: Path, tmp_path: Path
) -> None:
    written = run(kernel, tmp_path, "pytest_mlperf", "init")
    recorded = run(kernel, tmp_path, "pytest", "suites", "--mlperf-update=missing", *QUICKLY)
    slowed = run(kernel, tmp_path, "pytest", "suites", "--mlperf-handicap=50%", *QUICKLY)

    assert (written.returncode, recorded.returncode) == (0, 0), written.stderr + recorded.stdout
    assert "1 recorded" in recorded.stdout
    assert (slowed.returncode, "PERF DROP" in slowed.stdout) == (1, True), slowed.stdout


def test_missing_parts_are_named_on_use(kernel: Path, tmp_path: Path) -> None:
    helped = run(kernel, tmp_path, "pytest_mlperf", "--help")
    submission_run = run(kernel, tmp_path, "pytest_mlperf", "submission", "r.json")
    other = run(kernel, tmp_path, "pytest_mlperf", "init", "--engine", "torch")
    write_results(tmp_path / "r.json", session(result(OK)))
    text = run(kernel, tmp_path, "pytest_mlperf", "report", "r.json")
    table = run(kernel, tmp_path, "pytest_mlperf", "report", "r.json", "--format", "csv")

    assert helped.returncode == 0
    assert "submission   cannot be loaded: No module named 'pytest_mlperf.addons'" in helped.stdout
    assert submission_run.returncode == 3
    assert "cannot be used" in submission_run.stderr
    assert (other.returncode, "invalid choice: 'torch'" in other.stderr) == (2, True)
    assert (text.returncode, "1 test: 1 ok" in text.stdout) == (0, True), text.stderr
    assert (table.returncode, table.stdout) == (3, "")
    assert "format csv (pytest-mlperf " in table.stderr
    assert "cannot be loaded: No module named 'pytest_mlperf.addons'" in table.stderr
