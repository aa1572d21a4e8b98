"""Where a real wheel or source tree of vLLM is: named by a variable, or fetched by pip."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

VARIABLE = "PYTEST_MLPERF_VLLM_WHEEL"
"""A wheel, or a folder that has the package `vllm`."""

NETWORK = "PYTEST_MLPERF_NETWORK"
"""Set: tests may fetch packages, hundreds of megabytes once."""

CACHE = "PYTEST_MLPERF_WHEELS"
"""Folder for what is fetched, to be used again; by default it is the test's own."""

FETCH_S = 1800


def named() -> Path:
    """Return the place that the variable names, or skip the test."""
    wheel = os.environ.get(VARIABLE)
    if not wheel:
        pytest.skip(f"{VARIABLE} names no wheel or source tree of vLLM")
    return Path(wheel).expanduser()


def fetched(requirement: str, folder: Path) -> Path:
    """Return a wheel that pip has fetched, once; skip where tests may not use the network.

    Args:
        requirement: What pip is asked for, e.g. "vllm".
        folder: Where wheels are kept, unless `PYTEST_MLPERF_WHEELS` names another place.
    """
    if not os.environ.get(NETWORK):
        pytest.skip(f"{NETWORK} is not set: this test fetches a wheel of about 350 MB")
    folder = Path(os.environ.get(CACHE, folder))
    folder.mkdir(parents=True, exist_ok=True)
    # Only read, never installed: any build of it for any machine has the same Python files.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S, check=False)
    assert done.returncode == 0, done.stderr
    name = requirement.partition("=")[0]
    return max(folder.glob(f"{name}-*.whl"), key=lambda path: path.stat().st_mtime)
