"""Wait until GPUs have back the memory that the last process on them had, in a process of its own.

    python -m pytest_mlperf.hardware.memory SECONDS UUID[=BYTES] ...

A process that was killed, such as a rank of MPI, still has its memory when nobody sees it any more.
NVML is asked again and again until each GPU has no more taken than the bytes beside its UUID, or,
where there are none, until what is taken falls no further. A MIG instance has memory of its own.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from pytest_mlperf.hardware import _nvml
from pytest_mlperf.hardware.nvml_quantities import QUANTITY_READERS
from pytest_mlperf.processes import answer_of

POLL_SECONDS = 0.25
SPARE_BYTES = 256 << 20
"""Less than any process of CUDA takes on a datacenter GPU, more than what drivers take and give."""

NVML_START_SECONDS, KILL_TIMEOUT_SECONDS = 30.0, 5.0
"""Time for NVML to start, and for a process that hangs in a driver to be gone."""


class MemoryTaken(TypedDict):
    """What one GPU told last.

    Attributes:
        used: Bytes; None: it does not tell.
        free: Whether it has no more taken than before.
        processes: [pid as the host knows it, bytes or None] of each that is on it.
    """

    used: int | None
    free: bool
    processes: list[list[int | None]]


def taken(before: Mapping[str, int | None], limit_s: float) -> dict[str, MemoryTaken]:
    """Return what GPUs had taken when they were free, or when the time was over.

    Args:
        before: Bytes by UUID; None: not known.
        limit_s: Longest time to wait.

    Returns:
        By UUID; {} where NVML could not be asked.
    """
    gpus = [uuid if used is None else f"{uuid}={used}" for uuid, used in before.items()]
    command = [sys.executable, "-m", __name__, str(limit_s), *gpus]
    try:
        answer = answer_of(
            command, limit_s=limit_s + NVML_START_SECONDS, killed_s=KILL_TIMEOUT_SECONDS
        )
        last: dict[str, MemoryTaken] = json.loads(answer[1]) if answer else {}
    except (OSError, ValueError):
        return {}
    return last


def wait(
    nvml: Any,
    before: Mapping[str, int | None],
    limit_s: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, MemoryTaken]:
    """Look until all are free, or the time is over; see `taken`."""
    with contextlib.closing(_nvml.NvmlLibrary(nvml)) as library:
        devices = {uuid: _device(library, uuid) for uuid in before}
        last: Mapping[str, int | None] = {}
        until_s = time.monotonic() + limit_s
        while True:
            earlier, last = last, {uuid: _read(d, "memory_used") for uuid, d in devices.items()}
            free = {
                uuid: _free(used, before[uuid], earlier.get(uuid)) for uuid, used in last.items()
            }
            if all(free.values()) or time.monotonic() > until_s:
                break
            sleep(POLL_SECONDS)
        return {
            uuid: {
                "used": used,
                "free": free[uuid],
                "processes": _read(devices[uuid], "processes") or [],
            }
            for uuid, used in last.items()
        }


def _free(used: int | None, before: int | None, earlier: int | None) -> bool:
    """Whether no more is taken than before; where that is not known, whether it falls no more."""
    if used is None:
        return True
    if before is not None:
        return used <= before + SPARE_BYTES
    return earlier is not None and earlier - used <= SPARE_BYTES


def _device(library: _nvml.NvmlLibrary, uuid: str) -> _nvml.NvmlDevice:
    handle = _nvml.patiently(library.nvml, library.nvml.nvmlDeviceGetHandleByUUID, uuid)
    return _nvml.NvmlDevice(library=library, uuid=uuid, handle=handle)


def _read(device: _nvml.NvmlDevice, quantity: str) -> Any:
    return _nvml.Probe(device=device, name=quantity, ways=QUANTITY_READERS[quantity]).answer()


def main() -> None:
    """Print what GPUs had taken last; nothing where they may not be asked."""
    limit_s, *gpus = sys.argv[1:]
    # The default action ends a process even inside a call that hangs.
    signal.alarm(int(float(limit_s) + NVML_START_SECONDS) + 1)
    named = (gpu.partition("=") for gpu in gpus)
    before = {uuid: int(used) if used else None for uuid, _, used in named}
    nvml = _nvml.binding()
    try:
        json.dump(wait(nvml, before, float(limit_s)), sys.stdout)
    except (nvml.NVMLError, _nvml.UnavailableNvml, _nvml.Lost) as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
