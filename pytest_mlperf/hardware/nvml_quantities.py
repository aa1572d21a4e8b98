"""What is read of a GPU, each quantity with its ways from new to old.

Powers come in milliwatts and leave in watts, energies in millijoules and leave in joules. The
plain power reading of Ampere and later (but for GA100) is a mean of the last second: it is never
taken for the power of a moment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from pytest_mlperf.hardware.nvml import FUNCTION_NOT_FOUND, GONE, REFUSALS, Device
from pytest_mlperf.hardware.nvml_events import xids
from pytest_mlperf.hardware.nvml_probe import Probe, Way
from pytest_mlperf.hardware.nvml_sensor import AMPERE, Property, ga100, grace

KINDS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Member of the union that holds a field's value, by its NVML_VALUE_TYPE."""

POWER_AVERAGE, POWER_INSTANT, TOTAL_ENERGY, ENERGY, MEMORY_TEMPERATURE = 185, 186, 83, 191, 82
GPU_SCOPE, MODULE_SCOPE = 0, 1

POLICIES = (
    "sw_power_cap",
    "thermal",
    "sync_boost",
    "board_limit",
    "low_utilization",
    "reliability",
)
"""Fields 74 to 79, and the policies 0 to 5 of the older function: ns under each."""

SLOWDOWNS = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
"""Three fields in a row, ns under each; where they begin depends on the driver."""

REASONS = {
    0x1: "gpu_idle",
    0x2: "application_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Clock event reasons, by bit; the last two are newer than the oldest binding that is allowed."""


def identity(device: Device) -> dict[str, Property]:
    """Return what a GPU is and is set to; what it does not tell is None.

    Raises:
        Lost: The GPU is gone.
    """
    found: dict[str, Property] = {}
    for name, way in IDENTITY.items():
        probe = Probe(device=device, name=name, ways=[way])
        tries = (probe.read() for _ in range(REFUSALS))
        value = next((value for value in tries if value is not None), None)
        found[name] = value.decode() if isinstance(value, bytes) else value
    return found


def probes(device: Device, found: Mapping[str, Property], driver: str) -> dict[str, Probe]:
    """Return the quantities to sample.

    Args:
        device: The GPU.
        found: Its identity.
        driver: Version of the driver.
    """
    throttle = [
        Way(name="fields", read=_throttle_fields(driver)),
        Way(name="nvmlDeviceGetViolationStatus", read=_violations),
    ]
    average = [*_scopes(found, "POWER_AVERAGE", POWER_AVERAGE), *WAYS["average_w"]]
    own = {"average_w": average, "throttle_ns": throttle, "xids": [xids()]}
    ways = {"power_w": _power(found), **WAYS, **own}
    return {name: Probe(device=device, name=name, ways=list(w)) for name, w in ways.items()}


TRACE = ("power_w", "reasons")
COUNTER = ("energy_j",)
SLOW = ("processes", "ecc_uncorrected", "ecc_corrected", "pcie_replays", "limit_w", "xids")
STATE = (
    "sm_mhz",
    "memory_mhz",
    "temperature_c",
    "memory_temperature_c",
    "pstate",
    "average_w",
    "memory_used",
    "utilization_percent",
    "throttle_ns",
    "pcie_generation",
    "pcie_width",
)


def _power(found: Mapping[str, Property]) -> list[Way]:
    """Return the ways to the power of a moment."""
    ways = _scopes(found, "POWER_INSTANT", POWER_INSTANT)
    architecture = found["architecture"]
    old = isinstance(architecture, int) and architecture < AMPERE
    if old or (architecture == AMPERE and ga100(found)):
        ways.append(_call("nvmlDeviceGetPowerUsage", scale=1e-3))
    # A board that is polled faster than its sensor gives zeros; no board draws nothing.
    return [Way(name=way.name, read=_nonzero(way.read)) for way in ways]


def _scopes(found: Mapping[str, Property], name: str, number: int) -> list[Way]:
    """Return the ways to a power, that of the module first where the counter counts the module."""
    ways = [
        _field(name, number, scale=1e-3),
        _field(f"{name} of the module", number, MODULE_SCOPE, scale=1e-3),
    ]
    return ways[::-1] if grace(found) else ways


def _nonzero(read: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda nvml, handle: read(nvml, handle) or None


def read_field(number: int, scope: int = 0) -> Callable[[Any, Any], Any]:
    """Return what reads one field value, whatever type the driver gives it."""

    def read(nvml: Any, handle: Any) -> Any:
        (entry,) = nvml.nvmlDeviceGetFieldValues(handle, [(number, scope)])
        if entry.nvmlReturn:
            raise nvml.NVMLError(entry.nvmlReturn)
        return getattr(entry.value, KINDS[entry.valueType])

    return read


def _known(nvml: Any, function: str) -> Callable[..., Any]:
    """Return a function of the binding; its newer releases drop what is deprecated."""
    found: Callable[..., Any] | None = getattr(nvml, function, None)
    if found is None:
        raise nvml.NVMLError(FUNCTION_NOT_FOUND)
    return found


def _call(function: str, *more: int, scale: float | None = None) -> Way:
    """Return the way through one function of the binding."""

    def read(nvml: Any, handle: Any) -> Any:
        value = _known(nvml, function)(handle, *more)
        return value if scale is None else value * scale

    return Way(name=function, read=read)


def _field(name: str, number: int, in_scope: int = GPU_SCOPE, scale: float = 1) -> Way:
    """Return the way through one field value."""
    plain = read_field(number, in_scope)
    return Way(name=f"field {name}", read=lambda nvml, handle: plain(nvml, handle) * scale)


def _memory_used(nvml: Any, handle: Any) -> Any:
    # The older struct counts what the driver keeps for itself as used.
    return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used


def _throttle_fields(driver: str) -> Callable[[Any, Any], Any]:
    """Return what reads ns under each reason, from field values.

    The slowdowns' fields were renumbered within driver branch 580, and so were the constants of the
    binding, which need not be of the driver's age: the numbers go by the driver.
    """
    version = tuple(int(part) for part in re.findall(r"\d+", driver)[:2])
    first = 251 if version and version < (580, 82) else 269
    numbers = dict(
        zip((*POLICIES, *SLOWDOWNS), (*range(74, 80), *range(first, first + 3)), strict=True)
    )

    def read(nvml: Any, handle: Any) -> Any:
        entries = nvml.nvmlDeviceGetFieldValues(handle, list(numbers.values()))
        found = {}
        for name, entry in zip(numbers, entries, strict=True):
            if entry.nvmlReturn in GONE:
                raise nvml.NVMLError(entry.nvmlReturn)
            if not entry.nvmlReturn:
                found[name] = getattr(entry.value, KINDS[entry.valueType])
        if not found:
            raise nvml.NVMLError(entries[0].nvmlReturn)
        return found

    return read


def _violations(nvml: Any, handle: Any) -> Any:
    """Read ns under each policy, the older way; "thermal" is software and hardware together."""
    found, last = {}, None
    for policy, name in enumerate(POLICIES):
        try:
            ask = _known(nvml, "nvmlDeviceGetViolationStatus")
            found[name] = ask(handle, policy).violationTime
        except nvml.NVMLError as error:
            if error.value in GONE:
                raise
            last = error
    if not found and last is not None:
        raise last
    return found


def _processes(nvml: Any, handle: Any) -> Any:
    """Read the processes on a GPU: pid as the host knows it, and memory in bytes or None."""
    found = {}
    for kind in ("Compute", "Graphics", "MPSCompute"):
        try:
            listed = _known(nvml, f"nvmlDeviceGet{kind}RunningProcesses")(handle)
        except nvml.NVMLError:
            if kind == "Compute":
                raise
            continue
        found.update({entry.pid: entry.usedGpuMemory for entry in listed})
    return [[pid, found[pid]] for pid in sorted(found)]


def _pci(member: str) -> Way:
    return Way(
        name="nvmlDeviceGetPciInfo",
        read=lambda nvml, handle: getattr(nvml.nvmlDeviceGetPciInfo(handle), member),
    )


IDENTITY = {
    "uuid": _call("nvmlDeviceGetUUID"),
    "name": _call("nvmlDeviceGetName"),
    "architecture": _call("nvmlDeviceGetArchitecture"),
    "bus_id": _pci("busId"),
    "pci_device": _pci("pciDeviceId"),
    "pci_subsystem": _pci("pciSubSystemId"),
    "vbios": _call("nvmlDeviceGetVbiosVersion"),
    "memory_gib": Way(
        name="nvmlDeviceGetMemoryInfo",
        read=lambda nvml, handle: round(nvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30),
    ),
    "limit_w": _call("nvmlDeviceGetEnforcedPowerLimit", scale=1e-3),
    "default_limit_w": _call("nvmlDeviceGetPowerManagementDefaultLimit", scale=1e-3),
    "limit_range_mw": _call("nvmlDeviceGetPowerManagementLimitConstraints"),
    "ecc": _call("nvmlDeviceGetEccMode"),
    "mig": _call("nvmlDeviceGetMigMode"),
    "persistence": _call("nvmlDeviceGetPersistenceMode"),
    "compute_mode": _call("nvmlDeviceGetComputeMode"),
    "virtualization": _call("nvmlDeviceGetVirtualizationMode"),
    "max_sm_mhz": _call("nvmlDeviceGetMaxClockInfo", 1),
    "max_memory_mhz": _call("nvmlDeviceGetMaxClockInfo", 2),
    "max_pcie_generation": _call("nvmlDeviceGetMaxPcieLinkGeneration"),
    "max_pcie_width": _call("nvmlDeviceGetMaxPcieLinkWidth"),
    "remapped_rows_pending": Way(
        name="nvmlDeviceGetRemappedRows",
        read=lambda nvml, handle: bool(nvml.nvmlDeviceGetRemappedRows(handle)[2]),
    ),
    "slowdown_c": _call("nvmlDeviceGetTemperatureThreshold", 1),
}
"""How each property is read; of [current, pending] where a mode has both."""

WAYS: dict[str, list[Way]] = {
    "reasons": [
        _call("nvmlDeviceGetCurrentClocksEventReasons"),
        _call("nvmlDeviceGetCurrentClocksThrottleReasons"),
    ],
    "energy_j": [
        _call("nvmlDeviceGetTotalEnergyConsumption", scale=1e-3),
        _field("TOTAL_ENERGY_CONSUMPTION", TOTAL_ENERGY, scale=1e-3),
        _field("ENERGY", ENERGY, scale=1e-3),
    ],
    "sm_mhz": [_call("nvmlDeviceGetClockInfo", 1)],
    "memory_mhz": [_call("nvmlDeviceGetClockInfo", 2)],
    "temperature_c": [
        _call("nvmlDeviceGetTemperatureV", 0),
        _call("nvmlDeviceGetTemperature", 0),
    ],
    "memory_temperature_c": [_field("MEMORY_TEMP", MEMORY_TEMPERATURE)],
    "pstate": [_call("nvmlDeviceGetPerformanceState")],
    "average_w": [_call("nvmlDeviceGetPowerUsage", scale=1e-3)],
    "memory_used": [
        Way(name="nvmlDeviceGetMemoryInfo_v2", read=_memory_used),
        Way(
            name="nvmlDeviceGetMemoryInfo",
            read=lambda nvml, handle: nvml.nvmlDeviceGetMemoryInfo(handle).used,
        ),
    ],
    "utilization_percent": [
        Way(
            name="nvmlDeviceGetUtilizationRates",
            read=lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        )
    ],
    "limit_w": [_call("nvmlDeviceGetEnforcedPowerLimit", scale=1e-3)],
    "pcie_generation": [_call("nvmlDeviceGetCurrPcieLinkGeneration")],
    "pcie_width": [_call("nvmlDeviceGetCurrPcieLinkWidth")],
    "pcie_replays": [_call("nvmlDeviceGetPcieReplayCounter")],
    "ecc_uncorrected": [_call("nvmlDeviceGetTotalEccErrors", 1, 0)],
    "ecc_corrected": [_call("nvmlDeviceGetTotalEccErrors", 0, 0)],
    "processes": [Way(name="nvmlDeviceGetComputeRunningProcesses", read=_processes)],
}
"""How each quantity is read, new to old; power and throttling also depend on GPU and driver."""
