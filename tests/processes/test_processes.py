"""A child is heard, and nothing that it started outlives it."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_mlperf.processes import (
    OUT_OF_MEMORY,
    ChildProcess,
    answer_of,
    ended,
    last_line,
    log_tail,
)
from tests.children import LIMIT_S, is_gone
from tests.test_architecture import MODULES

PARENTS = {
    "cli.update",  # pytest in the foreground, which Ctrl-C shall reach
    "run.worker._replica_group",  # of a worker, in the group that its guard ends with it
    "adapters.engines.serving._launch",  # a script, which imports nothing of ours
    "adapters.scorers.code.sandbox",  # of a child that isolates itself
}
"""Modules that start a process otherwise, and why."""

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"])
os.write(1, b"%d\\n" % child.pid)
time.sleep(600)
"""


def python(code: str) -> ChildProcess:
    return ChildProcess(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )


def within() -> float:
    return time.monotonic() + LIMIT_S


def test_processes_have_one_owner() -> None:
    texts = {name: path.read_text("utf-8") for name, path in MODULES.items()}
    users = {
        name
        for name, text in texts.items()
        if "subprocess.Popen" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "subprocess.Popen"
    }

    assert users == PARENTS


@pytest.mark.process
def test_a_child_whose_stdin_ends_may_end_by_itself() -> None:
    child = python("import sys; sys.stdin.read(); print('done')")

    assert child.end(alone_s=LIMIT_S)
    assert child.returncode == 0
    assert child.line(within(), 100) == b"done\n"
    child.close()


@pytest.mark.process
def test_a_child_that_will_not_end_is_killed_with_its_own() -> None:
    for term_s in (0.0, 0.2):
        child = python(STUBBORN)
        grandchild = int(child.line(within(), 100) or 0)
        assert not child.end(alone_s=0.1, term_s=term_s)
        assert child.returncode == -9
        assert is_gone(grandchild)
        child.close()

    child = python("import subprocess; print(subprocess.Popen(['sleep', '600']).pid)")
    grandchild = int(child.line(within(), 100) or 0)
    assert child.end(alone_s=LIMIT_S)
    assert is_gone(grandchild), "what it left behind"
    child.close()


@pytest.mark.process
def test_a_child_receives_and_sends_line_by_line() -> None:
    child = python("import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)")
    child.tell(b"one\ntwo\n")

    assert [child.line(within(), 100) for _ in range(2)] == [b"ONE\n", b"TWO\n"]
    assert child.line(time.monotonic() + 0.01, 100) is None
    child.close_stdin()
    with pytest.raises(EOFError):
        child.line(within(), 100)
    child.tell(b"nobody hears this\n")
    child.end()
    child.close()


@pytest.mark.process
def test_an_answer_is_all_that_a_child_printed() -> None:
    """Who does not answer in time is killed; bytes without an end are not waited for."""
    command = [sys.executable, "-c", "import sys; print(1); sys.exit('no')"]
    assert answer_of(command, limit_s=LIMIT_S, killed_s=LIMIT_S) == (1, b"1\n", b"no\n")
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    assert answer_of(command, limit_s=0.2, killed_s=LIMIT_S) is None

    child = python("import os, time; os.write(1, b'x' * 200); time.sleep(600)")
    assert child.line(within(), 100) == b"x" * 200
    child.end()
    child.close()


@pytest.mark.process
def test_a_program_that_cannot_start_leaves_no_descriptor() -> None:
    descriptors_at_start = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(FileNotFoundError):
        ChildProcess(["/nowhere/program"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors_at_start


def test_the_end_of_a_process_is_reported_with_its_last_line() -> None:
    assert {code: ended(code) for code in (0, 3, 137, -9, -64, -99)} == {
        0: "ended with exit code 0",
        3: "ended with exit code 3",
        137: f"ended with exit code 137; {OUT_OF_MEMORY}",
        -9: f"was killed by SIGKILL; {OUT_OF_MEMORY}",
        -64: "was killed by SIGRTMAX",
        -99: "was killed by signal 99",
    }

    texts = (b"", b"one\n two \n\n", b"\xff")
    assert [last_line(text) for text in texts] == ["", "two", "\ufffd"]


def test_the_tail_of_a_log_cannot_pose_as_ours(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"first\n\n" + b"::error::x\x1b[31m\n" + b"last\n")

    assert log_tail(str(log), lines=2) == [":\u200b:error:\u200b:x\\x1b[31m", "last"]
    assert log_tail(str(tmp_path / "none")) == log_tail(None) == []
