"""Ask one GPU through NVML: an ordered list of ways per quantity, and a reaction to every failure.

NVML's functions come and go between drivers and products, and a refusal may be passing, lasting, or
the end of the GPU. What is done about each return code, once and here:

| code | meaning | reaction |
|---|---|---|
| 3 | not supported | three in a row from the start: the next way; later: a missed sample |
| 13, 2, 25, 26 | the driver does not know it | the next way, at once |
| 4 | no permission, as for MIG in a container | given up, with a note; no energy for a counter |
| 15, 16, 9, 18 | GPU lost or to be reset, driver gone | `Lost` |
| 10, 999, others | passing | asked three more times, then a missed sample |
| 1 | someone shut NVML down | initialised again, once; then `Lost` |

The pynvml module is handed in; this one never imports it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION = 1, 2, 3, 4
NOT_FOUND, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 6, 9, 12, 13
GPU_IS_LOST, RESET_REQUIRED, VERSION_MISMATCH = 15, 16, 18

GONE = frozenset({GPU_IS_LOST, RESET_REQUIRED, DRIVER_NOT_LOADED, VERSION_MISMATCH})
"""After these there is nothing left to ask."""

UNKNOWN_WAY = frozenset({INVALID_ARGUMENT, FUNCTION_NOT_FOUND, 25, 26})
"""This driver does not know what was asked: argument, function, struct version, deprecated."""

REFUSALS = 3
"""So many "not supported" in a row from the start are meant."""

LASTING = GONE | UNKNOWN_WAY | {NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, LIBRARY_NOT_FOUND}
"""Asking again at once is of no use after these."""

RETRIES = 3
"""How often a passing failure is asked again."""

ADVICE = {
    LIBRARY_NOT_FOUND: "NVIDIA's library libnvidia-ml.so.1 is not here: no driver is installed, or "
    "a container lacks it (set NVIDIA_DRIVER_CAPABILITIES=utility,compute)",
    DRIVER_NOT_LOADED: "NVIDIA's kernel driver is not loaded",
    VERSION_MISMATCH: "NVIDIA's driver was upgraded while loaded: reboot; until then its "
    "performance is suspect too",
    NO_PERMISSION: "this user may not open NVIDIA's device files",
}


class UnavailableNvml(Exception):
    """NVML, or a GPU, cannot be asked at all.

    Attributes:
        code: NVML's return code, None where it gave none.
    """

    def __init__(self, reason: str, code: int | None = None) -> None:
        """Keep the code beside the reason."""
        super().__init__(reason)
        self.code = code


class Lost(Exception):
    """A GPU that answered does so no more.

    Attributes:
        code: NVML's return code.
    """

    def __init__(self, reason: str, code: int) -> None:
        """Keep the code beside the reason."""
        super().__init__(reason)
        self.code = code


class Library:
    """NVML, initialised.

    Attributes:
        nvml: The pynvml module.
        starts: How often it was initialised.
    """

    def __init__(self, nvml: Any) -> None:
        """Initialise it.

        Raises:
            UnavailableNvml: Not NVIDIA's binding, or no driver; the message says what to do.
        """
        self.nvml, self.starts = nvml, 1
        self._starting = threading.Lock()
        if not hasattr(nvml, "nvmlDeviceGetTemperatureV"):
            raise UnavailableNvml(
                f"{getattr(nvml, '__file__', 'pynvml')} is not nvidia-ml-py 12.575.51 or newer: "
                "pip uninstall pynvml; pip install --force-reinstall nvidia-ml-py"
            )
        try:
            patiently(nvml, nvml.nvmlInit)
        except nvml.NVMLError as error:
            reason = ADVICE.get(error.value, f"NVML does not start: {words(error)}")
            raise UnavailableNvml(reason, error.value) from None

    def begin_again(self, seen: int) -> bool:
        """Initialise once more what someone else shut down; False the second time.

        Args:
            seen: `starts` when the caller took its handle: where another thread was quicker,
                nothing is left to do.
        """
        with self._starting:
            if self.starts == seen:
                if self.starts > 1:
                    return False
                self.starts += 1
                self.nvml.nvmlInit()
            return True

    def close(self) -> None:
        """Let go of NVML, whatever state it is in."""
        try:
            self.nvml.nvmlShutdown()
        except self.nvml.NVMLError:
            return


@dataclass(kw_only=True, slots=True)
class Device:
    """One physical GPU.

    Attributes:
        library: NVML.
        uuid: As it was asked for, of the GPU or of a MIG instance.
        handle: NVML's, of the physical GPU: an instance has no energy of its own.
        instance: Whether the UUID is that of a MIG instance.
        instances: MIG instances on the GPU, 0 without MIG; None where they may not be seen.
        starts: How often NVML was initialised when the handle was taken.
    """

    library: Library
    uuid: str
    handle: Any
    instance: bool = False
    instances: int | None = 0
    starts: int = 1

    @property
    def shared(self) -> bool | None:
        """Whether what is read may belong to another MIG instance; None: not known."""
        return None if self.instances is None else self.instances > 1

    def find_again(self) -> None:
        """Take a fresh handle, after NVML was initialised anew."""
        fresh = find(self.library, self.uuid)
        self.handle, self.starts = fresh.handle, fresh.starts


def find(library: Library, uuid: str) -> Device:
    """Return the physical GPU of a UUID, that of a MIG instance included.

    Raises:
        UnavailableNvml: There is no such GPU, or it may not be asked.
    """
    nvml, starts = library.nvml, library.starts
    try:
        handle = patiently(nvml, nvml.nvmlDeviceGetHandleByUUID, uuid)
    except nvml.NVMLError as error:
        if error.value in {NOT_FOUND, INVALID_ARGUMENT}:
            raise UnavailableNvml(f"there is no GPU {uuid} here", error.value) from None
        raise UnavailableNvml(f"{uuid}: {words(error)}", error.value) from None
    instance = False
    try:
        # The binding gives a ctypes number here, which is true even where it is 0.
        instance = bool(patiently(nvml, nvml.nvmlDeviceIsMigDeviceHandle, handle).value)
        if instance:
            handle = patiently(nvml, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
    except nvml.NVMLError as error:
        if instance:
            reason = f"the GPU of instance {uuid} may not be asked: {words(error)}"
            raise UnavailableNvml(reason, error.value) from None
    found = Device(library=library, uuid=uuid, handle=handle, instance=instance, starts=starts)
    found.instances = _instances(nvml, handle, at_least_one=instance)
    return found


def _instances(nvml: Any, handle: Any, *, at_least_one: bool) -> int | None:
    """Return how many MIG instances a GPU has; None where they may not be counted."""
    try:
        if not patiently(nvml, nvml.nvmlDeviceGetMigMode, handle)[0]:
            return 0
        most = patiently(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle)
    except nvml.NVMLError as error:
        without = error.value in UNKNOWN_WAY | {NOT_SUPPORTED}
        return 0 if without and not at_least_one else None
    found = 0
    for index in range(most):
        try:
            patiently(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        except nvml.NVMLError as error:
            if error.value != NOT_FOUND:
                return None
        else:
            found += 1
    return found


def patiently(nvml: Any, ask: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function of the binding answers, asked again where the failure may pass."""
    left = RETRIES
    while True:
        try:
            return ask(*arguments)
        except nvml.NVMLError as error:
            if error.value in LASTING | {UNINITIALIZED} or not left:
                raise
            left -= 1


def words(error: Any) -> str:
    """Return an error of NVML as "Not Supported (3)"."""
    text = str(error)
    # The binding prints NVML's own words, for codes it has none for, as Python bytes.
    text = text[2:-1] if text.startswith("b'") else text
    return text if f"code {error.value}" in text else f"{text} ({error.value})"
