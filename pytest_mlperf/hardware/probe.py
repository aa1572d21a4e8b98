"""Print the accelerators and the CPU of the machine that runs this file, as one line of JSON.

This file needs Python 3.9 and its standard library only, so that a suite's `probe` can send it to
a Python beside a server: `ssh HOST python3 -`. NVIDIA GPUs are read through NVML, others through
Linux' sysfs. Names of hosts and users are not read; UUIDs are hashed.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

SCHEMA = 1
KIND = "pytest-mlperf machine"
NVIDIA, AMD = "0x10de", "0x1002"
GIB = 2**30
LINKS, SWITCH = 18, 2
"""Highest number of NVLinks of a GPU; NVML_NVLINK_DEVICE_TYPE_SWITCH."""

ANCESTORS = {0: "PSB", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""Closest common PCIe ancestor of two GPUs, in the terms of nvidia-smi topo -m."""

VIRTUALIZATION = ("none", "passthrough", "vgpu", "host vgpu", "host vsga")

Gpu = dict[str, Any]


class _Pci(ctypes.Structure):
    _fields_ = (
        ("legacy", ctypes.c_char * 16),
        *((name, ctypes.c_uint) for name in ("domain", "bus", "device", "product", "subsystem")),
        ("id", ctypes.c_char * 32),
    )


class _Memory(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_ulonglong) for name in ("total", "free", "used"))


class Nvml:
    """Call NVIDIA's library without a binding; a missing or failing function returns None."""

    def __init__(self) -> None:
        """Load and start the library; raise OSError if there is no driver."""
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        if self._library.nvmlInitWithFlags(0):
            raise OSError("NVIDIA's driver does not start: run nvidia-smi there")

    def call(self, name: str, *arguments: Any, kind: Any = ctypes.c_uint, count: int = 1) -> Any:
        """Call a function with `count` outputs of type `kind`; return the first output."""
        outputs = [kind() for _ in range(count)]
        function = getattr(self._library, name, None)
        failed = function is None or function(*arguments, *map(ctypes.byref, outputs))
        return None if failed else getattr(outputs[0], "value", outputs[0])

    def text(self, name: str, *arguments: Any) -> str | None:
        """Call a function that writes a text; return the text."""
        buffer = ctypes.create_string_buffer(96)
        function = getattr(self._library, name, None)
        failed = function is None or function(*arguments, buffer, 96)
        return None if failed else buffer.value.decode("utf-8", "replace")

    def devices(self) -> list[Any]:
        """Return the handles of the GPUs, in PCI order."""
        numbers = range(self.call("nvmlDeviceGetCount_v2") or 0)
        handles = (
            self.call("nvmlDeviceGetHandleByIndex_v2", n, kind=ctypes.c_void_p) for n in numbers
        )
        return [ctypes.c_void_p(handle) for handle in handles if handle is not None]

    def energy(self, device: Any) -> Gpu:
        """Return a GPU's energy counter [J] and power [W]; None for values that it lacks."""
        milliwatts = self.call("nvmlDeviceGetPowerUsage", device)
        total = "nvmlDeviceGetTotalEnergyConsumption"
        millijoules = self.call(total, device, kind=ctypes.c_ulonglong)
        return {
            "uuid": hashed(self.text("nvmlDeviceGetUUID", device) or ""),
            "gpu": self.text("nvmlDeviceGetName", device),
            "watts": None if milliwatts is None else milliwatts / 1000,
            "joules": None if millijoules is None else millijoules / 1000,
        }

    def identity(self, device: Any) -> Gpu:
        """Return a GPU's properties as `hardware.nvidia.properties`, without those on sampling."""
        memory = self.call("nvmlDeviceGetMemoryInfo", device, kind=_Memory)
        pci = self.call("nvmlDeviceGetPciInfo_v3", device, kind=_Pci)
        limit_mw = self.call("nvmlDeviceGetEnforcedPowerLimit", device)
        modes = [self.call(f"nvmlDeviceGet{n}Mode", device, count=2) for n in ("Ecc", "Mig")]
        virtual = self.call("nvmlDeviceGetVirtualizationMode", device)
        return {
            "gpu": self.text("nvmlDeviceGetName", device),
            "memory_gib": memory and round(memory.total / GIB),
            "pci_id": pci and f"{pci.product >> 16:04x}:{pci.subsystem >> 16:04x}",
            "mig": self._instances(device) if modes[1] else None if modes[1] is None else False,
            "power_limit_w": None if limit_mw is None else round(limit_mw / 5000) * 5,
            "ecc": None if modes[0] is None else bool(modes[0]),
            "clocks": self._clocks(device),
            "virtualization": VIRTUALIZATION[virtual] if virtual in range(5) else None,
        }

    def _instances(self, device: Any) -> Any:
        """Return the profiles of a GPU's MIG instances: "1g.18gb, 1g.18gb"; True if none."""
        get = "nvmlDeviceGetMigDeviceHandleByIndex"
        handles = (self.call(get, device, n, kind=ctypes.c_void_p) for n in range(7))
        names = [self.text("nvmlDeviceGetName", ctypes.c_void_p(h)) for h in handles if h]
        return ", ".join(str(name).partition("MIG ")[2] for name in names) or True

    def _clocks(self, device: Any) -> Any:
        """Return "free", or the SM clock that a user pinned [MHz]; see `hardware.nvidia`."""
        applied, default, current = (
            self.call(f"nvmlDeviceGet{name}", device, 1)
            for name in ("ApplicationsClock", "DefaultApplicationsClock", "ClockInfo")
        )
        if None not in (applied, default) and applied != default:
            return applied
        for name in ("Event", "Throttle"):
            get = f"nvmlDeviceGetCurrentClocks{name}Reasons"
            reasons = self.call(get, device, kind=ctypes.c_ulonglong)
            if reasons is not None:
                return current if reasons & 0x2 and current != default else "free"
        return None

    def topology(self, devices: Sequence[Any]) -> str | None:
        """Return how GPUs are connected, in the form of `hardware.machine`; None if unknown."""
        ends = [self._ends(device) for device in devices]
        buses = [self._bus(self.call("nvmlDeviceGetPciInfo_v3", d, kind=_Pci)) for d in devices]
        counts: Counter[str] = Counter()
        for one, other in combinations(range(len(devices)), 2):
            pair = devices[one], devices[other]
            through = min(ends[one]["switch"], ends[other]["switch"])
            direct = ends[one][buses[other]]
            path = f"NV{through} NVSwitch" if through else f"NV{direct}" if direct else None
            path = path or ANCESTORS.get(self.call("nvmlDeviceGetTopologyCommonAncestor", *pair))
            if path is None:
                return None
            denied = self.call("nvmlDeviceGetP2PStatus", *pair, 0)
            counts[f"{path}, no P2P" if denied else path] += 1
        if len(counts) == 1:
            return next(iter(counts))
        return "; ".join(f"{counts[path]} x {path}" for path in sorted(counts)) or None

    def _ends(self, device: Any) -> Counter[str]:
        """Count the remote ends of a GPU's active NVLinks: the switch, or bus addresses."""
        ends: Counter[str] = Counter()
        for link in range(LINKS):
            if self.call("nvmlDeviceGetNvLinkState", device, link):
                kind = self.call("nvmlDeviceGetNvLinkRemoteDeviceType", device, link)
                pci = self.call("nvmlDeviceGetNvLinkRemotePciInfo_v2", device, link, kind=_Pci)
                ends["switch" if kind == SWITCH else self._bus(pci)] += 1
        return ends

    @staticmethod
    def _bus(pci: Any) -> str:
        return pci.id.decode("utf-8", "replace")[-12:].lower() if pci else ""


def other_accelerators(root: Path) -> list[Gpu]:
    """Return AMD's GPUs, and accelerators of other vendors by PCI class, from sysfs."""
    found = []
    for place in sorted((root / "sys/bus/pci/devices").glob("*")):
        vendor, kind = _line(place / "vendor"), _line(place / "class")
        vram = int(_line(place / "mem_info_vram_total") or 0)
        if vendor == NVIDIA or not (kind.startswith("0x12") or (vendor == AMD and vram >= 8 * GIB)):
            continue
        sensors = next(iter(sorted(place.glob("hwmon/hwmon*"))), place)
        cap, watts = (
            next((int(text) for name in names if (text := _line(sensors / name)).isdigit()), None)
            for names in (["power1_cap"], ["power1_input", "power1_average"])
        )
        number = f"{_line(place / 'device')[2:]}:{_line(place / 'subsystem_device')[2:]}"
        found.append(
            {
                "uuid": hashed(_line(place / "unique_id") or place.name),
                "memory_used_gib": int(_line(place / "mem_info_vram_used") or 0) / GIB,
                "watts": None if watts is None else watts / 1e6,
                "joules": None,
                "identity": {
                    "gpu": _line(place / "product_name") or f"{vendor} {number}",
                    "memory_gib": round(vram / GIB) or None,
                    "pci_id": number,
                    "partition": _line(place / "current_compute_partition") or None,
                    "power_limit_w": None if cap is None else round(cap / 5e6) * 5,
                },
            }
        )
    return found


def hashed(name: str) -> str:
    """Return a short hash that distinguishes hardware but does not identify it."""
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def _line(path: Path) -> str:
    try:
        return " ".join(path.read_text("utf-8", "replace").split())
    except (OSError, ValueError):
        return ""


def _cores(root: Path) -> float:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota, _, period = _line(root / "sys/fs/cgroup/cpu.max").partition(" ")
    cores = int(quota) / int(period) if quota.isdigit() else float("inf")
    return min(usable or 1, round(cores, 2))


def _ports(root: Path) -> list[int]:
    """Return the TCP ports on which this machine, or this container, listens."""
    tables = [_line(root / f"proc/net/{name}") for name in ("tcp", "tcp6")]
    return sorted({int(p, 16) for t in tables for p in re.findall(r":(\w{4}) \w+:0000 0A ", t)})


def report(root: Path = Path("/")) -> Gpu:
    """Return the CPU and the accelerators of this machine, and why accelerators are missing."""
    gpus, trouble, facts, topology = [], None, {"kernel": os.uname().release}, None
    try:
        nvml = Nvml()
        devices = nvml.devices()
        topology = nvml.topology(devices) if len(devices) > 1 else None
        facts["driver"] = nvml.text("nvmlSystemGetDriverVersion") or ""
        for device in devices:
            memory = nvml.call("nvmlDeviceGetMemoryInfo", device, kind=_Memory)
            used = {"memory_used_gib": memory and memory.used / GIB}
            gpus.append({**nvml.energy(device), **used, "identity": nvml.identity(device)})
    except OSError as error:
        pci = (root / "sys/bus/pci/devices").glob("*/vendor")
        trouble = f"NVIDIA's GPUs: {error}" if NVIDIA in map(_line, pci) else None
    gpus += other_accelerators(root)
    model = re.search(r"^(?:model name|Processor|cpu model)\s*:\s*(.+)$", _info(root), re.MULTILINE)
    ids = "".join(sorted(gpu["uuid"] for gpu in gpus))
    return {
        "kind": KIND,
        "schema": SCHEMA,
        # In a container the machine's id is that of the image, if there is any.
        "node": hashed(ids or f"pytest-mlperf {_line(root / 'etc/machine-id')}"),
        "cpu": " ".join((model[1] if model else os.uname().machine).split()),
        "cores": _cores(root),
        "gpus": gpus,
        "topology": topology,
        "facts": facts,
        "ports": _ports(root),
        "trouble": trouble,
    }


def _info(root: Path) -> str:
    try:
        return (root / "proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        return ""


def watch(period_s: float) -> None:
    """Print energy and power of all GPUs every `period_s` until stdout is closed."""
    nvml = Nvml()
    devices = nvml.devices()
    while True:
        print(json.dumps({"kind": KIND, "gpus": list(map(nvml.energy, devices))}), flush=True)
        time.sleep(period_s)


def main(arguments: Sequence[str]) -> None:
    """Print this machine as JSON; with --watch SECONDS print its energy repeatedly."""
    try:
        if "--watch" in arguments:
            watch(float(arguments[list(arguments).index("--watch") + 1]))
        print(json.dumps(report()))
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(0)
    except OSError as error:
        print(json.dumps({"kind": KIND, "gpus": [], "trouble": str(error)}))


if __name__ == "__main__":
    main(sys.argv[1:])
