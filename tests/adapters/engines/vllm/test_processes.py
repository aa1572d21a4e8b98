"""What an engine started is gone when it ends, also what does not want to go."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_mlperf.adapters.engines.serving import descendants
from pytest_mlperf.adapters.engines.vllm._library import ChildTracker

pytestmark = pytest.mark.process

SLEEPS = "import time; print(flush=True); time.sleep(600)"
FORKS = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEPS!r}])"


def start(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def ready(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
    """Wait until the innermost process runs."""
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


def test_processes_from_before_are_left_alone() -> None:
    """Children and their children are ended; an older child of this process is not."""
    with ready(start(SLEEPS)) as older:
        started = ChildTracker()
        with ready(start(FORKS)) as newer:
            assert len(started.pids()) == 2

            killed = started.end(grace_s=0.0)

            assert newer.pid in killed
            assert len(killed) == 2
        assert older.poll() is None
        assert older.pid in descendants()
        older.kill()


def test_processes_that_end_by_themselves_are_not_killed() -> None:
    started = ChildTracker()
    with start("print(flush=True); input()") as process:
        ready(process)
        assert started.pids() == {process.pid}
        process.communicate("\n")
    # Reaped by now: nothing is left to wait for.
    assert started.end() == set()
