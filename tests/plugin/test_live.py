"""A measurement shows that it is alive, past pytest's capture."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from pytest_mlperf.run import conditions
from tests import forked
from tests.plugin.conftest import NO_CONTROL

SUITE = """
schema = 1
round = "v4.1"
[workload]
name = "demo"
dataset = { use = "synthetic", samples = 8 }
[[engines]]
use = "null"
options = { latency_s = 0.002 }
[[scenarios]]
name = "Offline"
min_duration = "1200ms"
target_qps = 500.0
"""

FAST_HEARTBEAT = "from pytest_mlperf.plugin import measuring\nmeasuring.HEARTBEAT_S = 0.1\n"

FAST_WAIT = "from pytest_mlperf.plugin import measuring\nmeasuring.MIN_NOTED_SECONDS = 0.3\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a suite of one run of a second."""
    monkeypatch.setenv("PYTEST_MLPERF_LEASES", str(tmp_path))
    monkeypatch.setenv("PYTEST_ADDOPTS", NO_CONTROL)
    forked.use(monkeypatch)
    (tmp_path / "demo.mlperf.toml").write_text(SUITE)
    return tmp_path


def on_a_terminal(project: Path, *more: str, columns: int = 80) -> str:
    """Run pytest on a pseudo-terminal and return everything it wrote."""
    parent, child = pty.openpty()
    termios.tcsetwinsize(child, (40, columns))
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "demo.mlperf.toml", *more],
        cwd=project,
        stdin=subprocess.DEVNULL,
        stdout=child,
        stderr=child,
    )
    os.close(child)
    written = b""
    try:
        while chunk := os.read(parent, 4096):
            written += chunk
    except OSError:  # Linux's word for the end of a terminal
        pass
    os.close(parent)
    process.wait(60)
    return written.decode()


def test_a_terminal_shows_one_line_that_renews_itself_and_goes_away(project: Path) -> None:
    """It names case, run, phase and rate; then the cursor is back on pytest's own line."""
    text = on_a_terminal(project, columns=200)

    assert "demo-Offline-null-fp32-cpu run 1 of at most 5: performance" in text
    assert re.search(r"case 1 of 1, at least \d+ s left: demo-Offline", text)
    assert re.search(r"mlperf: 1 case, at least \d+ s", text)
    back = "\r\x1b[K\x1b[A\x1b[" + str(len("demo.mlperf.toml ") + 1) + "G"
    assert text.count(back) == 1
    # On a busy machine a run may be INVALID: where the line goes away is the same.
    verdict = re.search("NO BASELINE|INVALID", text)
    assert verdict
    assert text.index(back) < verdict.start()


def test_a_failure_has_the_terminals_width_and_a_red_headline(project: Path) -> None:
    """Pytest's capture hides the width of the terminal while a test runs."""
    text = on_a_terminal(project, "--mlperf-fail-on=no-baseline", columns=200)

    verdict = re.search(r"\x1b\[1;31m(NO BASELINE|INVALID) .*\x1b\[0m", text)
    assert verdict
    rule = "rule      nothing was compared. In CI this fails on named accelerators; allow it with "
    assert rule in text or verdict[1] == "INVALID"


def test_quiet_is_quiet(project: Path) -> None:
    text = on_a_terminal(project, "-q")

    assert re.search(r" in \d", text)
    assert "run 1 of" not in text


def test_a_log_gets_a_heartbeat_without_control_codes(
    pytester: pytest.Pytester, project: Path
) -> None:
    """Options of the environment must be set after `pytester`, which removes them."""
    (project / "conftest.py").write_text(FAST_HEARTBEAT)

    done = pytester.run(sys.executable, "-m", "pytest", str(project / "demo.mlperf.toml"))

    done.stdout.fnmatch_lines(
        [  # on a busy machine the least time has passed before the run
            "mlperf: case 1 of 1, at least * left: demo-*-cpu run 1 of at most 5: *",
            "mlperf: case 1 of 1*: demo-*-cpu run 1 of at most 5: perf*",
        ]
    )
    assert "\x1b" not in done.stdout.str()


@pytest.mark.process
@pytest.mark.parametrize("workers", [(), ("-n1",)], ids=["alone", "xdist"])
def test_a_log_tells_a_long_wait_once_and_for_whom(project: Path, workers: tuple[str, ...]) -> None:
    """Also that of a worker of xdist, which its controller writes."""
    (project / "conftest.py").write_text(FAST_WAIT)
    waits = f"run 1 of at most 5: waiting for cpu, held by process {os.getpid()}"
    with conditions.lease_hardware((), 1, alone=True, limit_s=60, waiting=pytest.fail):
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "demo.mlperf.toml", *workers],
            cwd=project,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        line = ""
        while waits not in line:
            line = process.stdout.readline()
            assert line, "it ended without a word about its wait"
    rest, _ = process.communicate(timeout=60)

    whose = "gw0: " if workers else ""
    assert line.startswith(f"mlperf: {whose}demo-Offline-null-fp32-cpu {waits}")
    assert waits not in rest
    assert "1 test: 1 " in rest
