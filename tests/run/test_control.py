"""The parent of the micro-benchmark gets figures or one reason, and leaves no process behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_mlperf.core.control import COPY, MATMUL
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.run.conditions import Conditions, ControlRun, Placement, control
from tests.children import is_gone
from tests.run.harness import LIMIT_S, ROOT

# What stands in for libraries is found by a fresh interpreter alone.
pytestmark = [pytest.mark.process, pytest.mark.usefixtures("interpreter")]

HANG_WITH_THE_LOCK = """
import ctypes, os, sys
from pathlib import Path
Path(os.environ["STARTED"]).write_bytes(b"%d\\n" % os.getpid())
ctypes.PyDLL(None).pause()
"""
"""A library that never returns, nor gives back the interpreter's lock."""

HANG_WITH_A_CHILD = """
import os, subprocess, time
child = subprocess.Popen(["sleep", "600"])
with open(os.environ["STARTED"], "wb", buffering=0) as started:
    started.write(b"%d\\n%d\\n" % (os.getpid(), child.pid))
time.sleep(600)
"""


def instead(folder: Path, name: str, text: str) -> dict[str, str]:
    """Return variables for a child that finds this module in place of a library."""
    (folder / f"{name}.py").write_text(text, "utf-8")
    return {"PYTHONPATH": f"{folder}:{ROOT}"}


def pids(started: Path) -> list[int]:
    return [int(line) for line in started.read_text("ascii").splitlines()]


def test_a_cpu_is_measured_and_this_process_stays_light() -> None:
    """With the sizes that count, on anything; the one who asks imports neither numpy nor torch."""
    code = (
        "import json, sys, pytest_mlperf.run.conditions as c; c.TOLERATED_SHARE = 1; "
        "run = c.control(0); heavy = sorted({'numpy', 'torch'} & set(sys.modules)); "
        "print(json.dumps([run.values, run.unavailable, heavy]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=LIMIT_S, check=True
    )

    values, trouble, heavy = json.loads(done.stdout)
    assert (trouble, heavy) == (None, [])
    assert 1e8 < values[MATMUL] < 1e15
    assert 1e8 < values[COPY] < 1e13


def test_gpus_are_named_to_cuda_as_to_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By number, or by UUID if a GPU is divided; without torch the message names the package."""
    text = "import os\nraise SystemExit(os.environ['CUDA_VISIBLE_DEVICES'])"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setenv("PYTHONPATH", instead(tmp_path, "torch", text)["PYTHONPATH"])
    for numbers, named in (((2, 5), "2,5"), ((None, None), "GPU-2,GPU-5")):
        gpus = tuple(
            {"uuid": uuid, "gpu": "NVIDIA H200", "index": number}
            for uuid, number in zip(("GPU-2", "GPU-5"), numbers, strict=True)
        )
        here = Conditions(folder=tmp_path, session="s", machine=Machine(cpu={}, gpus=gpus))
        reason = f"the micro-benchmark ended with exit code 1: {named}"
        assert Placement(conditions=here).control("2xH200") == ControlRun(unavailable=reason)

    without = instead(tmp_path, "torch", "raise ImportError")
    reason = "torch is not installed, which the GPU micro-benchmark needs: pip install torch"
    assert control(1, environment=without) == ControlRun(unavailable=reason)


BUSY = {"window_s": 1.0, "cores": 2, "own_s": 1.0, "foreign_s": 1.0, "waited_s": 0.5}


def test_a_broken_child_is_one_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, reason in (
        (
            "os.kill(os.getpid(), 11)",
            "the micro-benchmark ended with signal 11 (Segmentation fault)",
        ),
        (
            "raise RuntimeError('::error::no\\x1b[31m driver')",
            "the micro-benchmark ended with exit code 1: RuntimeError: "
            ":\u200b:error:\u200b:no\\x1b[31m driver",
        ),
        ("os._exit(0)", "the micro-benchmark printed no results"),
        (
            "print('{}', flush=True); os._exit(0)",
            "the results of the micro-benchmark are not positive",
        ),
        ("print('[1]', flush=True); os._exit(0)", "the micro-benchmark printed no results"),
        (
            f"print({json.dumps({MATMUL: 1e9, COPY: 1e9, 'contention': BUSY})!r}, flush=True)\n"
            "os._exit(0)",
            "other processes used the CPU while it ran",
        ),
    ):
        variables = instead(tmp_path, "numpy", f"import os\n{module}")
        assert control(0, environment=variables) == ControlRun(unavailable=reason)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    reason = "the micro-benchmark cannot start: No such file or directory"
    assert control(0) == ControlRun(unavailable=reason)


def test_a_child_is_ended_by_its_limit_and_with_its_parent(tmp_path: Path) -> None:
    """Even one that hangs in a library with the interpreter's lock."""
    started = tmp_path / "started"
    variables = {**instead(tmp_path, "numpy", HANG_WITH_A_CHILD), "STARTED": str(started)}
    reason = "the micro-benchmark did not finish within 3 s"
    assert control(0, limit_s=3, environment=variables) == ControlRun(unavailable=reason)
    assert len(pids(started)) == 2
    assert all(map(is_gone, pids(started)))

    started.unlink()
    os.mkfifo(started)
    variables = {**instead(tmp_path, "numpy", HANG_WITH_THE_LOCK), "STARTED": str(started)}
    code = (
        f"from pytest_mlperf.run.conditions import control; control(0, environment={variables!r})"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        (child,) = pids(started)  # waits for it, as the file is a pipe
        descriptor = os.pidfd_open(child)
        parent.send_signal(signal.SIGKILL)
    try:
        assert select.select([descriptor], [], [], LIMIT_S)[0]
    finally:
        os.close(descriptor)
