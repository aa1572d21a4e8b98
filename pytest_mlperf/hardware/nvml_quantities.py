"""Define the NVML calls that read each quantity of a GPU, the newest call first.

Power is converted from mW to W, energy from mJ to J. From Ampere on (except GA100),
nvmlDeviceGetPowerUsage returns a one-second mean; it is never used as instantaneous power.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import Any, TypeVar

from pytest_mlperf.core.plausible import plausible_reading
from pytest_mlperf.hardware import _nvml

Quantity = TypeVar("Quantity")

UNION_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
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
"""Fields 74 to 79, and policies 0 to 5 of the older function: ns under each."""

SLOWDOWN_FIELDS = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
"""Three consecutive fields, ns under each; the first number depends on the driver."""

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
"""Clock event reasons by bit; the last two are newer than the oldest supported binding."""


def identity(device: _nvml.NvmlDevice) -> dict[str, _nvml.Property]:
    """Return a GPU's properties and settings by name; a value is None if NVML cannot read it."""
    gpu: dict[str, _nvml.Property] = {}
    for name, way in IDENTITY_READERS.items():
        value = _nvml.Probe(device=device, name=name, ways=[way]).answer()
        gpu[name] = value.decode() if isinstance(value, bytes) else value
    return gpu


def probes(
    device: _nvml.NvmlDevice, gpu: Mapping[str, _nvml.Property], driver: str
) -> dict[str, _nvml.Probe]:
    """Return a reader for each NVML quantity by name; set `device.most`, the plausible maxima."""
    device.most = dict(reading_limits(gpu))
    throttle = [
        _nvml.ReadMethod(name="fields", read=_throttle_fields(driver)),
        _nvml.ReadMethod(name="nvmlDeviceGetViolationStatus", read=_violations),
    ]
    average = [*_scopes(gpu, "POWER_AVERAGE", POWER_AVERAGE), *QUANTITY_READERS["average_w"]]
    methods = {"average_w": average, "throttle_ns": throttle, "xids": [_nvml.xids()]}
    ways = {"power_w": _power(gpu), **QUANTITY_READERS, **methods}
    return {name: _nvml.Probe(device=device, name=name, ways=list(w)) for name, w in ways.items()}


def reading_limits(gpu: Mapping[str, _nvml.Property]) -> Iterator[tuple[str, float]]:
    """Yield (quantity, largest plausible reading) pairs; larger readings are sensor errors."""
    limits, gib = gpu.get("limit_range_mw"), gpu.get("memory_gib")
    # A module's power includes that of its CPU, which the limit does not count.
    if isinstance(limits, list) and limits[1] and not _nvml.is_grace_superchip(gpu):
        yield from dict.fromkeys(("power_w", "average_w"), 2e-3 * limits[1]).items()
    if isinstance(gib, int) and gib:
        yield "memory_used", (gib + 1) * 2**30


TRACE = ("power_w", "reasons")
COUNTER = ("energy_j",)
SLOW_QUANTITIES = (
    "processes",
    "ecc_uncorrected",
    "ecc_corrected",
    "pcie_replays",
    "limit_w",
    "xids",
    "nvlinks",
    "nvlink_bytes",
    "nvlink_errors",
    "fabric_health",
)
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


def _power(gpu: Mapping[str, _nvml.Property]) -> list[_nvml.ReadMethod]:
    ways = _scopes(gpu, "POWER_INSTANT", POWER_INSTANT)
    architecture = gpu["architecture"]
    old = isinstance(architecture, int) and architecture < _nvml.AMPERE
    if old or (architecture == _nvml.AMPERE and _nvml.ga100(gpu)):
        ways.append(_call("nvmlDeviceGetPowerUsage", scale=1e-3))
    return ways


def _scopes(gpu: Mapping[str, _nvml.Property], name: str, number: int) -> list[_nvml.ReadMethod]:
    """Return readers [W] of NVML field `number`: the GPU's, then the module's (Grace: reversed)."""
    ways = [
        _field(name, number, scale=1e-3),
        _field(f"{name} of the module", number, MODULE_SCOPE, scale=1e-3),
    ]
    return ways[::-1] if _nvml.is_grace_superchip(gpu) else ways


def read_field(number: int, scope: int = 0) -> Callable[[Any, Any], Any]:
    """Return a function that reads the value of an NVML field by its number and scope."""
    return lambda nvml, handle: _fields(nvml, handle, {number: (number, scope)})[number]


def _fields(
    nvml: Any, handle: Any, fields: Mapping[Quantity, int | tuple[int, int]]
) -> dict[Quantity, Any]:
    """Read NVML fields, each an id or (id, scope); NVMLError if all fail or the GPU is lost."""
    entries = nvml.nvmlDeviceGetFieldValues(handle, list(fields.values()))
    codes = [entry.nvmlReturn for entry in entries]
    fatal = next(filter(_nvml.FATAL_ERRORS.__contains__, codes), 0)
    if fatal or all(codes):
        raise nvml.NVMLError(fatal or codes[0])
    return {
        quantity: getattr(entry.value, UNION_MEMBERS[entry.valueType])
        for quantity, entry in zip(fields, entries, strict=True)
        if not entry.nvmlReturn
    }


def _answers(
    nvml: Any, quantities: Iterable[Quantity], ask: Callable[[Quantity], Any]
) -> dict[Quantity, Any]:
    """Return `ask(quantity)` by readable quantity; NVMLError if the GPU is lost or none is."""
    answers, last = {}, None
    for quantity in quantities:
        try:
            answers[quantity] = ask(quantity)
        except nvml.NVMLError as error:
            if error.value in _nvml.FATAL_ERRORS:
                raise
            last = error
    if not answers and last is not None:
        raise last
    return answers


def _function(nvml: Any, function: str) -> Callable[..., Any]:
    getter: Callable[..., Any] | None = getattr(nvml, function, None)
    if getter is None:
        raise nvml.NVMLError(_nvml.FUNCTION_NOT_FOUND)
    return getter


def _call(function: str, *more: int, scale: float | None = None) -> _nvml.ReadMethod:
    def read(nvml: Any, handle: Any) -> Any:
        value = _function(nvml, function)(handle, *more)
        return value if scale is None else value * scale

    return _nvml.ReadMethod(name=function, read=read)


def _field(name: str, number: int, in_scope: int = GPU_SCOPE, scale: float = 1) -> _nvml.ReadMethod:
    plain = read_field(number, in_scope)
    return _nvml.ReadMethod(
        name=f"field {name}", read=lambda nvml, handle: plain(nvml, handle) * scale
    )


def _memory_used(nvml: Any, handle: Any) -> Any:
    # The older struct counts the driver's reserved memory as used.
    return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used


def _throttle_fields(driver: str) -> Callable[[Any, Any], Any]:
    """Return a function that reads the throttled time [ns] by throttle reason from NVML fields.

    The slowdown fields were renumbered within driver branch 580. The binding may be older or newer
    than the driver, so the driver's version decides, not the binding's constants.
    """
    version = tuple(int(part) for part in re.findall(r"\d+", driver)[:2])
    first = 251 if version and version < (580, 82) else 269
    numbers = dict(
        zip((*POLICIES, *SLOWDOWN_FIELDS), (*range(74, 80), *range(first, first + 3)), strict=True)
    )

    return lambda nvml, handle: _fields(nvml, handle, numbers)


def _violations(nvml: Any, handle: Any) -> Any:
    """Return throttled times [ns] by policy, from old drivers; "thermal" is SW plus HW slowdown."""
    ask = _function(nvml, "nvmlDeviceGetViolationStatus")
    counted = _answers(nvml, range(len(POLICIES)), lambda policy: ask(handle, policy).violationTime)
    return {POLICIES[policy]: held_ns for policy, held_ns in counted.items()}


def _processes(nvml: Any, handle: Any) -> Any:
    """Return [pid on the host, memory in bytes or None] of each process on a GPU."""
    memory = {}
    for kind in ("Compute", "Graphics", "MPSCompute"):
        try:
            listed = _function(nvml, f"nvmlDeviceGet{kind}RunningProcesses")(handle)
        except nvml.NVMLError:
            if kind == "Compute":
                raise
            continue
        memory.update({e.pid: plausible_reading("memory_used", e.usedGpuMemory) for e in listed})
    return [[pid, memory[pid]] for pid in sorted(memory)]


MAX_LINKS = 36

ALL_LINKS = 0xFFFFFFFF


def links_up(nvml: Any, handle: Any) -> dict[int, bool]:
    """Return by link number whether each NVLink is up; raise NVMLError if the board has none."""
    state = nvml.nvmlDeviceGetNvLinkState
    return _answers(nvml, range(MAX_LINKS), lambda link: bool(state(handle, link)))


def _used_links(nvml: Any, handle: Any) -> list[int]:
    up = [link for link, is_up in links_up(nvml, handle).items() if is_up]
    if not up:
        raise nvml.NVMLError(_nvml.NOT_SUPPORTED)
    return up


def _link_bytes(sent: int, received: int, unit: int) -> _nvml.ReadMethod:
    ways = [read_field(number, ALL_LINKS) for number in (sent, received)]

    def read(nvml: Any, handle: Any) -> list[int]:
        _used_links(nvml, handle)
        return [unit * way(nvml, handle) for way in ways]

    return _nvml.ReadMethod(name=f"fields {sent} and {received}", read=read)


def _link_errors(numbers: Mapping[str, int]) -> _nvml.ReadMethod:
    """Return a method that reads NVLink error counts above 0, as {kind of error: {link: count}}."""

    def read(nvml: Any, handle: Any) -> dict[str, dict[int, int]]:
        counters = {
            (kind, link): (number, link)
            for link in _used_links(nvml, handle)
            for kind, number in numbers.items()
        }
        return _by_kind(_fields(nvml, handle, counters))

    return _nvml.ReadMethod(name=f"fields {', '.join(map(str, numbers.values()))}", read=read)


def _link_errors_by_function(nvml: Any, handle: Any) -> dict[str, dict[int, int]]:
    ask = _function(nvml, "nvmlDeviceGetNvLinkErrorCounter")
    counters = product(_used_links(nvml, handle), range(len(LINK_COUNTERS)))
    counted = _answers(nvml, counters, lambda counter: ask(handle, *counter))
    by_kind: Counter[tuple[str, int]] = Counter()
    for (link, counter), count in counted.items():
        by_kind[LINK_COUNTERS[counter], link] += count
    return _by_kind(by_kind)


def _by_kind(counts: Mapping[tuple[str, int], int]) -> dict[str, dict[int, int]]:
    by_kind: dict[str, dict[int, int]] = {}
    for (kind, link), count in counts.items():
        if count:
            by_kind.setdefault(kind, {})[link] = count
    return by_kind


RECOVERY = "recovery"
"""Kind of error after which a link is retrained; until then it carries no traffic."""

LINK_COUNTERS = ("replay", RECOVERY, "crc", "crc")
"""Counters of NVML's function; flits and data have a checksum each."""

LINK_FIELDS_5 = {"packet": 206, "overrun": 207, "receive": 208, "integrity": 211, RECOVERY: 215}
"""Fields per link of NVLink 5 (Blackwell)."""

LINK_FIELDS_4 = {"replay": 161, RECOVERY: 162, "crc": 163}
"""Fields per link of NVLink 4 (Hopper)."""


FABRIC_COMPLETED = 3
"""NVML_GPU_FABRIC_STATE_COMPLETED; 0 is a board without an NVSwitch."""


def _fabric_health(nvml: Any, handle: Any) -> int | None:
    from ctypes import byref

    kind = getattr(nvml, "c_nvmlGpuFabricInfo_v2_t", None)
    if kind is None:
        raise nvml.NVMLError(_nvml.FUNCTION_NOT_FOUND)
    _function(nvml, "nvmlDeviceGetGpuFabricInfoV")(handle, byref(info := kind()))
    if not info.state:
        raise nvml.NVMLError(_nvml.NOT_SUPPORTED)
    return int(info.healthMask) if info.state == FABRIC_COMPLETED else None


def _member(function: str, member: str) -> _nvml.ReadMethod:
    return _nvml.ReadMethod(
        name=function, read=lambda nvml, handle: getattr(getattr(nvml, function)(handle), member)
    )


OLDER_MEMORY = "nvmlDeviceGetMemoryInfo"

IDENTITY_READERS = {
    "uuid": _call("nvmlDeviceGetUUID"),
    "index": _call("nvmlDeviceGetIndex"),
    "name": _call("nvmlDeviceGetName"),
    "architecture": _call("nvmlDeviceGetArchitecture"),
    "bus_id": _member("nvmlDeviceGetPciInfo", "busId"),
    "pci_device": _member("nvmlDeviceGetPciInfo", "pciDeviceId"),
    "pci_subsystem": _member("nvmlDeviceGetPciInfo", "pciSubSystemId"),
    "vbios": _call("nvmlDeviceGetVbiosVersion"),
    "memory_gib": _nvml.ReadMethod(
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
    "remapped_rows_pending": _nvml.ReadMethod(
        name="nvmlDeviceGetRemappedRows",
        read=lambda nvml, handle: bool(nvml.nvmlDeviceGetRemappedRows(handle)[2]),
    ),
    "slowdown_c": _call("nvmlDeviceGetTemperatureThreshold", 1),
}
"""Read method of each property; some modes are [current, pending]."""

QUANTITY_READERS: dict[str, list[_nvml.ReadMethod]] = {
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
    "temperature_c": [_call("nvmlDeviceGetTemperatureV", 0), _call("nvmlDeviceGetTemperature", 0)],
    "memory_temperature_c": [_field("MEMORY_TEMP", MEMORY_TEMPERATURE)],
    "pstate": [_call("nvmlDeviceGetPerformanceState")],
    "average_w": [_call("nvmlDeviceGetPowerUsage", scale=1e-3)],
    "memory_used": [
        _nvml.ReadMethod(name="nvmlDeviceGetMemoryInfo_v2", read=_memory_used),
        _member(OLDER_MEMORY, "used"),
    ],
    "utilization_percent": [_member("nvmlDeviceGetUtilizationRates", "gpu")],
    "limit_w": [_call("nvmlDeviceGetEnforcedPowerLimit", scale=1e-3)],
    "pcie_generation": [_call("nvmlDeviceGetCurrPcieLinkGeneration")],
    "pcie_width": [_call("nvmlDeviceGetCurrPcieLinkWidth")],
    "pcie_replays": [_call("nvmlDeviceGetPcieReplayCounter")],
    "ecc_uncorrected": [_call("nvmlDeviceGetTotalEccErrors", 1, 0)],
    "ecc_corrected": [_call("nvmlDeviceGetTotalEccErrors", 0, 0)],
    "processes": [_nvml.ReadMethod(name="nvmlDeviceGetComputeRunningProcesses", read=_processes)],
    "nvlinks": [_nvml.ReadMethod(name="nvmlDeviceGetNvLinkState", read=links_up)],
    "nvlink_bytes": [_link_bytes(138, 139, 1024), _link_bytes(202, 204, 1)],
    "nvlink_errors": [
        _link_errors(LINK_FIELDS_5),
        _link_errors(LINK_FIELDS_4),
        _nvml.ReadMethod(name="nvmlDeviceGetNvLinkErrorCounter", read=_link_errors_by_function),
    ],
    "fabric_health": [_nvml.ReadMethod(name="nvmlDeviceGetGpuFabricInfoV", read=_fabric_health)],
}
"""Read methods, newest first; those of power and throttling also depend on GPU and driver."""
