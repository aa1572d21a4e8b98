"""Critical errors that the driver reports of a GPU (XIDs), through NVML's events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_mlperf.hardware.nvml_probe import Way

TIMEOUT = 10
"""NVML's code for "nothing happened"."""

XID_CRITICAL_ERROR = 0x8
"""nvmlEventTypeXidCriticalError."""

MOST = 64
"""Events taken in one reading: a GPU in its last throes may report without end."""


def xids() -> Way:
    """Return the way to the XIDs of one GPU since the last reading; it waits for none.

    The first reading registers for them: what was before it is not told.
    """
    return Way(name="nvmlEventSetWait_v2", read=_reader())


def _reader() -> Callable[[Any, Any], list[int]]:
    registered: dict[int, Any] = {}

    def read(nvml: Any, handle: Any) -> list[int]:
        if id(handle) not in registered:  # again after NVML was initialised anew
            events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(handle, XID_CRITICAL_ERROR, events)
            registered.clear()
            registered[id(handle)] = events
        found: list[int] = []
        while len(found) < MOST:
            try:
                found.append(nvml.nvmlEventSetWait_v2(registered[id(handle)], 0).eventData)
            except nvml.NVMLError as error:
                if error.value == TIMEOUT:
                    break
                raise
        return found

    return read
