"""Read one GPU through NVML, with several methods per quantity and error handling.

NVML's functions differ between drivers and products, and an error may be transient, permanent, or
the end of the GPU. Reactions by NVML's return code:

3 (not supported): at the first three in a row use the next method; later count a missed reading.
13, 2, 25, 26 (unknown to the driver): use the next method at once.
4 (no permission, as for MIG in a container): give up with a note; use no other energy source.
15, 16, 9, 18 (GPU lost or to be reset, driver gone): raise `Lost`.
10, 999 and others (transient): retry three times, then count a missed reading.
1 (other code shut NVML down): initialise NVML again, once; then raise `Lost`.

Only `binding` imports pynvml; everything else takes the module as an argument.
"""

from __future__ import annotations

import importlib
import re
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from pytest_mlperf.core.plausible import plausible_reading
from pytest_mlperf.hardware.probe import MAX_INSTANCES

UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION = 1, 2, 3, 4
NOT_FOUND, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 6, 9, 12, 13
GPU_IS_LOST, RESET_REQUIRED, VERSION_MISMATCH = 15, 16, 18

FATAL_ERRORS = frozenset({GPU_IS_LOST, RESET_REQUIRED, DRIVER_NOT_LOADED, VERSION_MISMATCH})
UNKNOWN_WAY = frozenset({INVALID_ARGUMENT, FUNCTION_NOT_FOUND, 25, 26})
"""Codes of an unknown argument, function or struct version, and of a deprecated call."""

REFUSALS = 3
"""Number of initial "not supported" answers in a row that are final."""

LASTING_ERRORS = (
    FATAL_ERRORS | UNKNOWN_WAY | {NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, LIBRARY_NOT_FOUND}
)
"""Errors after which an immediate retry is useless."""

IMPOSSIBLE_VALUE = "an implausible value"

RETRIES = 3

ADVICE = {
    LIBRARY_NOT_FOUND: "NVIDIA's library libnvidia-ml.so.1 was not found: no driver is installed, "
    "or a container lacks it (set NVIDIA_DRIVER_CAPABILITIES=utility,compute)",
    DRIVER_NOT_LOADED: "NVIDIA's kernel driver is not loaded; load it: sudo modprobe nvidia",
    VERSION_MISMATCH: "NVIDIA's driver was upgraded, but the old one is still loaded: reboot; "
    "until then measurements may be wrong, too",
    NO_PERMISSION: "this user may not open NVIDIA's device files: see ls -l /dev/nvidia*",
}


class UnavailableNvml(Exception):
    """Report that NVML or a GPU cannot be queried; `code` is NVML's return code, if any."""

    def __init__(self, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.code = code


class Lost(Exception):
    """Report that a GPU has stopped answering."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code


def binding() -> Any:
    """Import and return `pynvml`, NVIDIA's NVML binding; ImportError if it is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the deprecated package pynvml warns at its import
        return importlib.import_module("pynvml")


class NvmlLibrary:
    """Hold the initialised NVML library; `starts` counts the initialisations."""

    def __init__(self, nvml: Any) -> None:
        """Initialise NVML; raise UnavailableNvml with the fix if binding or driver do not work."""
        self.nvml, self.starts = nvml, 1
        self._starting = threading.Lock()
        if not hasattr(nvml, "nvmlDeviceGetTemperatureV"):
            raise UnavailableNvml(
                f"{getattr(nvml, '__file__', 'pynvml')} is not nvidia-ml-py 12.575.51 or newer: "
                "pip uninstall pynvml; pip install --force-reinstall nvidia-ml-py"
            )
        try:
            call_nvml(nvml, nvml.nvmlInit)
        except nvml.NVMLError as error:
            reason = ADVICE.get(error.value, f"NVML does not start: {words(error)}")
            raise UnavailableNvml(reason, error.value) from None

    def begin_again(self, seen: int) -> bool:
        """Initialise NVML again after other code shut it down; return False the second time.

        `seen` is the caller's `NvmlDevice.starts`. If `NvmlLibrary.starts` is higher, another
        thread has initialised NVML in the meantime.
        """
        with self._starting:
            if self.starts == seen:
                if self.starts > 1:
                    return False
                self.starts += 1
                self.nvml.nvmlInit()
            return True

    def close(self) -> None:
        """Shut NVML down; ignore errors."""
        try:
            self.nvml.nvmlShutdown()
        except self.nvml.NVMLError:
            return


@dataclass(kw_only=True, slots=True)
class NvmlDevice:
    """Identify a physical GPU to be read through NVML.

    Attributes:
        uuid: Requested UUID, of the GPU or of a MIG instance.
        handle: NVML handle of the physical GPU, because a MIG instance has no energy counter.
        instance: Whether the UUID is that of a MIG instance.
        instances: MIG instances on the GPU, 0 without MIG; None if they cannot be listed.
        starts: `NvmlLibrary.starts` when the handle was obtained.
        most: Highest plausible reading by quantity, if known.
    """

    library: NvmlLibrary
    uuid: str
    handle: Any
    instance: bool = False
    instances: int | None = 0
    starts: int = 1
    most: dict[str, float] = field(default_factory=dict)

    @property
    def shared(self) -> bool | None:
        """Whether readings may include other MIG instances; None if unknown."""
        return None if self.instances is None else self.instances > 1

    def find_again(self) -> None:
        """Get a new handle after NVML was initialised again."""
        fresh = find(self.library, self.uuid)
        self.handle, self.starts = fresh.handle, fresh.starts


def find(library: NvmlLibrary, uuid: str) -> NvmlDevice:
    """Return the physical GPU for a GPU or MIG UUID; raise UnavailableNvml if absent."""
    nvml, starts = library.nvml, library.starts
    try:
        handle = call_nvml(nvml, nvml.nvmlDeviceGetHandleByUUID, uuid)
    except nvml.NVMLError as error:
        if error.value in {NOT_FOUND, INVALID_ARGUMENT}:
            raise UnavailableNvml(f"there is no GPU {uuid} here", error.value) from None
        raise UnavailableNvml(f"{uuid}: {words(error)}", error.value) from None
    instance = False
    try:
        # The binding returns a ctypes number, which is truthy even if it is 0.
        instance = bool(call_nvml(nvml, nvml.nvmlDeviceIsMigDeviceHandle, handle).value)
        if instance:
            handle = call_nvml(nvml, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
    except nvml.NVMLError as error:
        if instance:
            reason = f"the GPU of instance {uuid} cannot be queried: {words(error)}"
            raise UnavailableNvml(reason, error.value) from None
    device = NvmlDevice(library=library, uuid=uuid, handle=handle, instance=instance, starts=starts)
    try:
        sliced = call_nvml(nvml, nvml.nvmlDeviceGetMigMode, handle)[0]
    except nvml.NVMLError as error:
        sliced = instance or error.value not in UNKNOWN_WAY | {NOT_SUPPORTED}
        device.instances = None if sliced else 0
        return device
    handles, complete = instances(nvml, handle) if sliced else ([], True)
    device.instances = len(handles) if complete else None
    return device


def instances(nvml: Any, handle: Any) -> tuple[list[Any], bool]:
    """Return the handles of a GPU's MIG instances, and whether all of them could be listed."""
    handles: list[Any] = []
    for index in range(MAX_INSTANCES):
        try:
            handles.append(call_nvml(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index))
        except nvml.NVMLError as error:
            if error.value == INVALID_ARGUMENT:
                break  # a product with fewer instances
            if error.value != NOT_FOUND:
                return handles, False
    return handles, True


def call_nvml(nvml: Any, function: Callable[..., Any], *arguments: Any, quantity: str = "") -> Any:
    """Call a function of NVML's binding; retry after transient errors and implausible values."""
    retries = RETRIES
    while True:
        try:
            answer = plausible_reading(quantity, function(*arguments))
            if quantity and answer is None:
                raise nvml.NVMLError(nvml.NVML_ERROR_UNKNOWN)
            return answer
        except nvml.NVMLError as error:
            if error.value in LASTING_ERRORS | {UNINITIALIZED} or not retries:
                raise
            retries -= 1


def words(error: Any) -> str:
    """Return an error of NVML as text with its code: "Not Supported (3)"."""
    text = str(error)
    # For codes that it does not know, the binding prints NVML's text as Python bytes.
    text = text[2:-1] if text.startswith("b'") else text
    return text if f"code {error.value}" in text else f"{text} ({error.value})"


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadMethod:
    """Hold a named reader of a quantity: `read(pynvml, handle)` returns None without a value."""

    name: str
    read: Callable[[Any, Any], Any]


@dataclass(kw_only=True, slots=True)
class Probe:
    """Read a quantity of one GPU by the first method that works.

    Attributes:
        ways: Remaining read methods, best first; reads use the first one.
        way: Name of the method that returned a value.
        failure: Why the quantity cannot be read; None while it may be readable.
        forbidden: Whether permission is missing; then no other quantity may replace this one.
        missed: Number of reads without a value since the first value.
    """

    device: NvmlDevice
    name: str
    ways: Sequence[ReadMethod]
    way: str | None = None
    failure: str | None = None
    forbidden: bool = False
    missed: int = 0
    last: str = "nothing"
    _refused: int = 0
    _well: bool = True

    def read(self) -> Any:
        """Return the quantity, or None if the read failed; raise Lost if the GPU is gone."""
        nvml, highest = self.device.library.nvml, self.device.most.get(self.name, inf)
        while self.ways and self.failure is None:
            try:
                value = plausible_reading(self.name, self._ask(self.ways[0]), highest)
            except nvml.NVMLError as error:
                if not self._record_failure(error):
                    return None
                continue
            self._well = value is not None
            if value is None:
                self.missed += 1
                self.last = IMPOSSIBLE_VALUE
            else:
                self.way, self._refused = self.ways[0].name, 0
            return value
        return None

    def answer(self) -> Any:
        """Try read methods, best first, until one gives a value; return it, or None if all fail."""
        tries = (self.read() for _ in range(REFUSALS * len(self.ways)))
        return next((value for value in tries if value is not None), None)

    def set_failure(self, *, at_end: bool = False) -> None:
        """Set `failure` if no method gave a value; after an implausible value only if `at_end`."""
        if self.way is None and self.failure is None and (at_end or self.last != IMPOSSIBLE_VALUE):
            self.failure = f"{self.ways[0].name} gave no value; last answer: {self.last}"

    def _ask(self, method: ReadMethod) -> Any:
        """Call a read method; retry only if the previous read succeeded, to limit the cost."""
        nvml, device = self.device.library.nvml, self.device
        retries = RETRIES if self._well else 0
        while True:
            try:
                return method.read(nvml, device.handle)
            except nvml.NVMLError as error:
                code = error.value
                if code in FATAL_ERRORS:
                    raise Lost(ADVICE.get(code, words(error)), code) from None
                if code == UNINITIALIZED:
                    self._begin_again()
                elif code in LASTING_ERRORS or not retries:
                    raise
                retries -= 1

    def _begin_again(self) -> None:
        nvml = self.device.library.nvml
        try:
            if self.device.library.begin_again(self.device.starts):
                self.device.find_again()
                return
        except (nvml.NVMLError, UnavailableNvml) as error:
            raise Lost(f"NVML was shut down and did not start again: {error}", 1) from None
        raise Lost("NVML was shut down twice by something in this process", UNINITIALIZED)

    def _record_failure(self, error: Any) -> bool:
        """Record a failed read; return whether to try the next read method at once."""
        code, self._well, self.last = error.value, False, words(error)
        if code == NO_PERMISSION:
            self.failure, self.forbidden = f"{self.ways[0].name}: {words(error)}", True
            return False
        if self.way is not None:
            self.missed += 1
            return False
        if code not in UNKNOWN_WAY:
            self._refused = self._refused + 1 if code == NOT_SUPPORTED else 0
            if self._refused < REFUSALS:
                return False
        self._refused, self._well = 0, True
        failed, *self.ways = self.ways
        if not self.ways:
            self.failure = f"{failed.name}: {words(error)}"
        return True


TIMEOUT = 10
"""NVML's code for "no event"."""

XID_CRITICAL_ERROR = 0x8
"""nvmlEventTypeXidCriticalError."""

MAX_READ_EVENTS = 64
"""Maximum events per reading, because a failing GPU may report events without end."""


def xids() -> ReadMethod:
    """Return a method to read a GPU's new XID errors without waiting; its first call registers."""
    registered: dict[int, Any] = {}

    def read(nvml: Any, handle: Any) -> list[int]:
        if id(handle) not in registered:  # also after NVML was initialised again
            events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(handle, XID_CRITICAL_ERROR, events)
            registered.clear()
            registered[id(handle)] = events
        xids: list[int] = []
        while len(xids) < MAX_READ_EVENTS:
            try:
                xids.append(nvml.nvmlEventSetWait_v2(registered[id(handle)], 0).eventData)
            except nvml.NVMLError as error:
                if error.value == TIMEOUT:
                    break
                raise
        return xids

    return ReadMethod(name="nvmlEventSetWait_v2", read=read)


Property = str | int | float | bool | list[int] | list[float] | None

AMPERE = 7


def measures_without_gaps(gpu: Mapping[str, Property]) -> bool:
    """Return whether the power sensor is known to measure without gaps.

    GA10x has no gaps. Volta, GA100 and Hopper measure 25 to 50 % of the time; others are unknown.
    """
    return gpu["architecture"] == AMPERE and not ga100(gpu)


def reports_mean_power(gpu: Mapping[str, Property]) -> bool:
    """Return whether `average_w` is the mean of the last second (Ampere and later, not GA100)."""
    architecture = gpu["architecture"]
    return isinstance(architecture, int) and architecture >= AMPERE and not ga100(gpu)


def power_scope(gpu: Mapping[str, Property], probe: Probe) -> str:
    """Return "module" if the GPU's power or energy includes CPU and memory, else "gpu"."""
    return "module" if "module" in (probe.way or "") or is_grace_superchip(gpu) else "gpu"


def is_grace_superchip(gpu: Mapping[str, Property]) -> bool:
    """Return whether the GPU shares a module and its energy counter with a CPU (GH200, GB200)."""
    return re.search(r"\bG[HB]\d", str(gpu["name"])) is not None


def ga100(gpu: Mapping[str, Property]) -> bool:
    """Return whether the GPU is a GA100: its power sensor differs from other Ampere chips'."""
    return re.search(r"\bA(100|800|30)\b", str(gpu["name"])) is not None
