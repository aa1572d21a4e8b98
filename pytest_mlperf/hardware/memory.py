"""Wait until GPUs have freed the memory of an ended process, in a process of its own.

    python -m pytest_mlperf.hardware.memory SECONDS '{"UUID": BYTES, ...}'

A killed process, such as a rank of MPI, may hold memory after it has disappeared. NVML is polled
until each GPU uses no more than the bytes given with its UUID or, if they are null, until its use
stops falling. A MIG instance has its own memory.
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
"""Less than any CUDA process uses on a datacenter GPU; more than a driver's variation."""

NVML_START_SECONDS, KILL_TIMEOUT_SECONDS = 30.0, 5.0
"""Maximum time for NVML to start, and for a process that hangs in a driver to end."""


class GpuMemory(TypedDict):
    """Hold a GPU's used bytes, whether its memory is free again, and its processes (pid, bytes)."""

    used: int | None
    free: bool
    processes: list[list[int | None]]


def wait_for_memory(earlier_use: Mapping[str, int | None], limit_s: float) -> dict[str, GpuMemory]:
    """Wait until GPUs use at most `earlier_use` [B]; return use by UUID, or {} if NVML fails."""
    command = [sys.executable, "-m", __name__, str(limit_s), json.dumps({**earlier_use})]
    try:
        answer = answer_of(
            command, limit_s=limit_s + NVML_START_SECONDS, killed_s=KILL_TIMEOUT_SECONDS
        )
        last: dict[str, GpuMemory] = json.loads(answer[1]) if answer else {}
    except (OSError, ValueError):
        return {}
    return last


def wait_until_free(
    nvml: Any,
    earlier_use: Mapping[str, int | None],
    limit_s: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, GpuMemory]:
    """Poll until all GPUs are free or `limit_s` is over; return their memory use by UUID."""
    with contextlib.closing(_nvml.NvmlLibrary(nvml)) as library:
        devices = {uuid: _device(library, uuid) for uuid in earlier_use}
        last: Mapping[str, int | None] = {}
        until_s = time.monotonic() + limit_s
        while True:
            earlier, last = last, {uuid: _read(d, "memory_used") for uuid, d in devices.items()}
            free = {
                uuid: _is_memory_released(used, earlier_use[uuid], earlier.get(uuid))
                for uuid, used in last.items()
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


def _is_memory_released(used: int | None, earlier_use: int | None, last_use: int | None) -> bool:
    """Check that `used` bytes are back at `earlier_use` or, if that is None, no longer fall."""
    if used is None:
        return True
    if earlier_use is not None:
        return used <= earlier_use + SPARE_BYTES
    return last_use is not None and last_use - used <= SPARE_BYTES


def _device(library: _nvml.NvmlLibrary, uuid: str) -> _nvml.NvmlDevice:
    handle = _nvml.call_nvml(library.nvml, library.nvml.nvmlDeviceGetHandleByUUID, uuid)
    return _nvml.NvmlDevice(library=library, uuid=uuid, handle=handle)


def _read(device: _nvml.NvmlDevice, quantity: str) -> Any:
    return _nvml.Probe(device=device, name=quantity, ways=QUANTITY_READERS[quantity]).answer()


def main() -> None:
    """Wait, up to a limit, for the GPUs in argv to be free; print memory use as JSON, or exit 1."""
    limit_s, earlier_use = sys.argv[1:]
    # The default action ends a process even inside a call that hangs.
    signal.alarm(int(float(limit_s) + NVML_START_SECONDS) + 1)
    nvml = _nvml.binding()
    try:
        json.dump(wait_until_free(nvml, json.loads(earlier_use), float(limit_s)), sys.stdout)
    except (nvml.NVMLError, _nvml.UnavailableNvml, _nvml.Lost) as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
