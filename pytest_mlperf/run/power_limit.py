"""Set a power limit on a case's GPUs, and restore the previous limit.

A guard process does both, see `pytest_mlperf.hardware.power_limit`. It also holds the case's
leases, so that no other process gets the GPUs before their limit is restored, even if this process
was killed. If the guard was killed too, the next holder of the GPUs restores the limit first.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_mlperf.core.errors import RunError, SuiteError, UnavailableError
from pytest_mlperf.core.untrusted_text import broken
from pytest_mlperf.hardware import power_limit
from pytest_mlperf.hardware.leases import lease_folder
from pytest_mlperf.hardware.machine import KILL_WAIT_SECONDS, NVML_TIMEOUT_SECONDS
from pytest_mlperf.processes import ChildProcess, answer_of, ended, last_line

MAX_ANSWER_BYTES = 1 << 16
_COMMAND = (sys.executable, "-m", power_limit.__name__)


@contextlib.contextmanager
def limited(gpus: Sequence[str], watts: int, leases: Sequence[int]) -> Iterator[None]:
    """Set a power limit on GPUs; restore their previous limit at the end of the block.

    `leases` are the caller's file descriptors that lock the GPUs. Raises SuiteError for an
    unsupported limit, UnavailableError without permission, RunError if setting or restoring failed.
    """
    command = [*_COMMAND, "set", str(lease_folder()), str(watts), *gpus]
    pipe = subprocess.PIPE
    try:
        guard = ChildProcess(command, stdout=pipe, stderr=pipe, descriptors=leases)
    except OSError as error:
        raise RunError("gpu", f"no process can be started to set it: {error.strerror}") from None
    try:
        _require_set(guard)
        yield
    finally:
        guard.end(alone_s=NVML_TIMEOUT_SECONDS, killed_s=KILL_WAIT_SECONDS)
        guard.close()
        if guard.returncode != 0:
            restore_limits(gpus)


def _require_set(guard: ChildProcess) -> None:
    try:
        line = guard.line(time.monotonic() + NVML_TIMEOUT_SECONDS, MAX_ANSWER_BYTES)
    except EOFError:
        guard.ends_within(KILL_WAIT_SECONDS)
        code = guard.poll()
        how = "ended" if code is None else ended(code)
        last = broken(last_line(guard.stderr.read()))[:200] if guard.stderr else ""
        text = f"the process that sets the power limit {how}" + (f": {last}" if last else "")
        raise RunError("gpu", text) from None
    if line is None:
        raise RunError(
            "gpu", f"the driver did not set the power limit within {NVML_TIMEOUT_SECONDS:g} s"
        )
    answer: dict[str, Any] = json.loads(line)
    match answer:
        case {"layer": "suite", "refused": text}:
            raise SuiteError(text)
        case {"layer": "permission", "refused": text}:
            raise UnavailableError(text)
        case {"refused": text}:
            raise RunError("gpu", text)


def restore_limits(gpu_uuids: Sequence[str]) -> tuple[str, ...]:
    """Restore power limits that killed processes left; return a message each, or raise RunError."""
    folder = lease_folder() if gpu_uuids else None
    left = sorted(set(gpu_uuids) & power_limit.saved_limits(folder).keys()) if folder else []
    if not left:
        return ()
    command = [*_COMMAND, "restore", str(folder), *left]
    try:
        answer = answer_of(command, limit_s=NVML_TIMEOUT_SECONDS, killed_s=KILL_WAIT_SECONDS)
        report = json.loads(answer[1]) if answer else {"troubles": ["the driver does not answer"]}
    except (OSError, ValueError):
        report = {"troubles": [f"{', '.join(left)}: NVML could not be queried"]}
    if troubles := "; ".join(report["troubles"]):
        raise RunError(
            "gpu", f"the power limit that a case changed could not be restored: {troubles}"
        )
    return tuple(report["done"])
