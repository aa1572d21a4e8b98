"""Packages of examples, installed in a folder of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_S = 240.0


def run(
    folder: Path, *command: str, addopts: str = "-p no:cacheprovider"
) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder's project, with the packages of its site folder."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder / "site"),
        "PYTEST_MLPERF_LEASES": str(folder / "leases"),
        "PYTEST_ADDOPTS": addopts,
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


def install(folder: Path, source: str = ".") -> None:
    """Build and install a package of the project into the folder's site."""
    pytest.importorskip("setuptools", "77")
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--quiet")
    done = run(folder, "pip", "install", *offline, "--target", str(folder / "site"), source)
    assert done.returncode == 0, done.stderr
