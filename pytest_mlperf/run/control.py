"""Measure this machine with a fixed micro-benchmark, in a child process.

It is a process because numpy, torch and the driver have no place in pytest's own: they are heavy,
and a driver may crash or hang.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from pytest_mlperf.core.control import COPY, MATMUL, Control
from pytest_mlperf.core.foreign_text import broken

GRACE_S = 5.0
"""How long a killed child may take to be gone; one that hangs in a driver may never be."""

_NOTHING: Mapping[str, str] = MappingProxyType({})


def control(
    gpus: Sequence[str], *, limit_s: float = 60.0, environment: Mapping[str, str] = _NOTHING
) -> tuple[Control, str | None]:
    """Measure now; about 0.6 s on a CPU, some seconds on GPUs.

    Nothing else may run on the machine meanwhile, so hold its lease.

    Args:
        gpus: UUIDs of the GPUs to measure, one after the other, the slowest counts; none: the CPU.
        limit_s: The child is killed after that long.
        environment: Variables that the child gets besides this process's own.

    Returns:
        The values, and None; or no values, and why they cannot be had.
    """
    command = [sys.executable, "-m", "pytest_mlperf.hardware.control"]
    variables = {**os.environ, **environment}
    if gpus:
        command += ["--cuda", str(len(gpus))]
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    # communicate() would close a stdin of Popen's own, and the child ends with its stdin.
    theirs, ours = os.pipe()
    try:
        process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=variables,
            start_new_session=True,
        )
    except OSError as error:
        os.close(ours)
        return {}, f"the control cannot start: {error.strerror}"
    finally:
        os.close(theirs)
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return {}, f"the control was not done within {limit_s:g} s"
    finally:
        os.close(ours)
        if process.returncode is None:
            _kill(process)
    return _read(process.returncode, out, err)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the child's process group and let go of its pipes."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    for pipe in (process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()


def _read(returncode: int, out: bytes, err: bytes) -> tuple[Control, str | None]:
    """Return what the child found, or why it found nothing."""
    if returncode:
        ended = f"exit code {returncode}"
        if returncode < 0:
            ended = f"signal {-returncode} ({signal.strsignal(-returncode)})"
        said = _last_line(err)
        return {}, f"the control ended with {ended}" + (f": {broken(said)[:200]}" * bool(said))
    try:
        found = json.loads(_last_line(out))
        if "unavailable" in found:
            return {}, broken(str(found["unavailable"]))
        values = {str(name): float(value) for name, value in found.items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}, "the control printed no figures"
    if not all(0 < values.get(name, 0.0) < math.inf for name in (MATMUL, COPY)):
        return {}, "the control's figures are not positive"
    return values, None


def _last_line(text: bytes) -> str:
    lines = text.decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
