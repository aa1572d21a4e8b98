"""What one NVIDIA GPU is and is set to, as a baseline's identity and beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_mlperf.hardware.nvml import NOT_SUPPORTED, REFUSALS, Device, patiently
from pytest_mlperf.hardware.nvml_probe import Probe, Way
from pytest_mlperf.hardware.nvml_quantities import probes
from pytest_mlperf.hardware.nvml_sensor import Property as Quantity
from pytest_mlperf.hardware.nvml_sensor import scope

Property = str | int | float | bool | None

VIRTUALIZATION = ("none", "passthrough", "vgpu", "host vgpu", "host vsga")
"""NVML's virtualization modes; "none" is bare metal, and None would be "not known"."""

COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")

PINNED = 0x2
"""The clock event reason of clocks that someone has set."""

MOST_LINKS = 36


def properties(device: Device, found: Mapping[str, Quantity], driver: str) -> dict[str, Property]:
    """Return what decides how fast a GPU is and what its energy means."""
    asked = probes(device, found, driver)
    watts, joules, reasons = (_settled(asked[n]) for n in ("power_w", "energy_j", "reasons"))
    limit, ecc, mig = found["limit_w"], found["ecc"], found["mig"]
    # The trace is no stand-in for a counter that exists and may not be read, as when sampling.
    traced = watts is not None and not asked["energy_j"].forbidden
    counted = "counter" if joules is not None else None
    return {
        "gpu": decoded(found["name"]),
        "memory_gib": _number(found["memory_gib"]),
        "pci_id": _pci_id(found),
        "mig": bool(mig[0]) if isinstance(mig, list) else None,
        "power_limit_w": round(limit / 5) * 5 if isinstance(limit, float) else None,
        "ecc": bool(ecc[0]) if isinstance(ecc, list) else None,
        "clocks": _clocks(device, reasons),
        "virtualization": _choice(VIRTUALIZATION, found["virtualization"]),
        "power_scope": scope(found, asked["power_w"]) if found["name"] else None,
        "energy": counted or ("trace" if traced else None),
    }


def surroundings(device: Device, found: Mapping[str, Quantity]) -> dict[str, str]:
    """Return what is only shown when it changed; what is not known is left out."""
    generation, width = found["max_pcie_generation"], found["max_pcie_width"]
    told = {
        "vbios": decoded(found["vbios"]),
        "gsp": decoded(ask(device, "nvmlDeviceGetGspFirmwareVersion")),
        "pcie": None if generation is None or width is None else f"gen{generation} x{width}",
        "persistence": _choice(("off", "on"), found["persistence"]),
        "compute_mode": _choice(COMPUTE_MODES, found["compute_mode"]),
        "card": None if found["uuid"] is None else hashed(str(found["uuid"])),
    }
    return {name: value for name, value in told.items() if value}


def _clocks(device: Device, reasons: int | None) -> Property:
    """Return "free", or the SM clock in MHz that someone pinned; None: not known.

    Application clocks have a getter; locked ones are only seen by their event reason, where the
    clock is the one of this moment. A board whose default application clock is what holds it is
    as it came: free.
    """
    sm = 1
    wanted = ask(device, "nvmlDeviceGetApplicationsClock", sm)
    default = ask(device, "nvmlDeviceGetDefaultApplicationsClock", sm)
    if wanted is not None and default is not None and wanted != default:
        return int(wanted)
    if reasons is None:
        return None
    if not reasons & PINNED:
        return "free"
    now = ask(device, "nvmlDeviceGetClockInfo", sm)
    return "free" if now is not None and now == default else _number(now)


def linked(device: Device) -> bool | None:
    """Return whether some NVLink is up; False where the board has none."""
    nvml, links = device.library.nvml, []
    get = nvml.nvmlDeviceGetNvLinkState
    for link in range(MOST_LINKS):
        try:
            links.append(bool(patiently(nvml, get, device.handle, link)))
        except nvml.NVMLError as error:
            if not links and error.value != NOT_SUPPORTED:
                return None
            break
    return any(links)


def _pci_id(found: Mapping[str, Quantity]) -> str | None:
    """Return device and subsystem, without the vendors that NVML keeps in the lower half."""
    numbers = [found["pci_device"], found["pci_subsystem"]]
    return ":".join(f"{n >> 16:04x}" for n in numbers if isinstance(n, int)) or None


def ask(device: Device, function: str, *more: int) -> Any:
    """Return what one function says, None where it will not."""
    if not hasattr(device.library.nvml, function):
        return None  # a newer binding may have dropped what was deprecated
    way = Way(name=function, read=lambda nvml, handle: getattr(nvml, function)(handle, *more))
    return _settled(Probe(device=device, name=function, ways=[way]))


def _settled(probe: Probe) -> Any:
    """Read a quantity until it answers or has run out of ways."""
    tries = (probe.read() for _ in range(REFUSALS * len(probe.ways)))
    return next((value for value in tries if value is not None), None)


def hashed(uuid: str) -> str:
    """Return what tells one card from another, and does not name it."""
    return hashlib.sha256(uuid.encode()).hexdigest()[:8]


def decoded(value: Any) -> str | None:
    """Return what the binding gives as text or as bytes, by its age."""
    found = value.decode() if isinstance(value, bytes) else value
    return None if found is None else str(found)


def _number(value: Any) -> int | float | None:
    return value if isinstance(value, int | float) else None


def _choice(words: Sequence[str], number: Any) -> str | None:
    return words[number] if isinstance(number, int) and number < len(words) else None
