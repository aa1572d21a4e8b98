"""Print the accelerators and the CPU of the machine that runs this file, as one line of JSON.

This file needs only Python 3.9 and its standard library, so that a suite's `probe` command can send
it to the server's machine: `ssh HOST python3 -`. It reads NVIDIA GPUs through NVML and other
accelerators from Linux' sysfs. It reads no host or user names, and prints UUIDs only as hashes.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

SCHEMA = 1
KIND = "pytest-mlperf machine"
NVIDIA, AMD, ACCELERATOR_CLASS = "0x10de", "0x1002", "0x12"
GIB = 2**30
VIRTUALIZATION = ("none", "passthrough", "vgpu", "host vgpu", "host vsga")
"""NVML's virtualization modes; "none" is bare metal."""

CLOCKS = tuple(
    f"nvmlDeviceGet{n}" for n in ("ApplicationsClock", "DefaultApplicationsClock", "ClockInfo")
)
SM, PINNED = 1, 0x2
"""Functions and number of the SM clock; event reason for clocks that were set by a user."""

MAX_INSTANCES = 7
MIN_PERIOD_S = 0.05
PCI_INFO = "16s5I32s"
"""Old address; domain, bus, device, ids of product and subsystem; address (nvmlPciInfo_t)."""


class Nvml:
    """Call libnvidia-ml through ctypes; a call returns None if the function is missing or fails."""

    def __init__(self) -> None:
        import ctypes  # this module's other users do without

        self._buffer, self._pointer = ctypes.create_string_buffer, ctypes.c_void_p
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        if self._library.nvmlInitWithFlags(0):
            raise OSError("the NVIDIA driver does not start: run nvidia-smi on that host")

    def call(self, name: str, *arguments: Any, form: str = "I", count: int = 1) -> Any:
        """Call an NVML function with `count` outputs of struct format `form`; return the first."""
        buffers = [self._buffer(struct.calcsize(form)) for _ in range(count)]
        function = getattr(self._library, name, None)
        if function is None or function(*arguments, *buffers):
            return None
        values = struct.unpack(form, buffers[0].raw)
        return values if len(values) > 1 else values[0]

    def text(self, name: str, *arguments: Any) -> str | None:
        """Call an NVML function that returns a string; return None if it fails."""
        buffer, function = self._buffer(96), getattr(self._library, name, None)
        failed = function is None or function(*arguments, buffer, 96)
        return None if failed else buffer.value.decode("utf-8", "replace")

    def devices(self) -> Iterator[tuple[Any, Any]]:
        """Yield (GPU, MIG instance) pairs, or (GPU, GPU) for a GPU without instances."""
        for number in range(self.call("nvmlDeviceGetCount_v2") or 0):
            get = "nvmlDeviceGetMigDeviceHandleByIndex"
            gpu = self._handle("nvmlDeviceGetHandleByIndex_v2", number)
            parts = (self._handle(get, gpu, n) for n in range(MAX_INSTANCES if gpu else 0))
            yield from ((gpu, part) for part in [p for p in parts if p] or [gpu] if gpu)

    def _handle(self, name: str, *arguments: Any) -> Any:
        handle = self.call(name, *arguments, form="P")
        return handle and self._pointer(handle)

    def energy(self, part: Any) -> dict[str, Any]:
        """Return a GPU's "uuid" (hash), "gpu" (name), "watts", "joules"; None where unknown."""
        total = "nvmlDeviceGetTotalEnergyConsumption"
        milliwatts = self.call("nvmlDeviceGetPowerUsage", part)
        millijoules = self.call(total, part, form="Q")
        return {
            "uuid": hashed(self.text("nvmlDeviceGetUUID", part) or ""),
            "gpu": self.text("nvmlDeviceGetName", part),
            "watts": None if milliwatts is None else milliwatts / 1000,
            "joules": None if millijoules is None else millijoules / 1000,
        }

    def gpu(self, gpu: Any, part: Any) -> dict[str, Any]:
        """Return properties, memory use, energy and power of a GPU or its MIG instance `part`."""
        memory = self.call("nvmlDeviceGetMemoryInfo", part, form="3Q")  # total, free, used
        pci = self.call("nvmlDeviceGetPciInfo_v3", gpu, form=PCI_INFO)
        limit_mw = self.call("nvmlDeviceGetEnforcedPowerLimit", gpu)
        ecc, mig = (self.call(f"nvmlDeviceGet{n}Mode", gpu, count=2) for n in ("Ecc", "Mig"))
        virtual, energy = self.call("nvmlDeviceGetVirtualizationMode", gpu), self.energy(part)
        profile = str(energy["gpu"]).partition(" MIG ")[2]
        return {
            **energy,
            "board": hashed(self.text("nvmlDeviceGetUUID", gpu) or ""),
            "memory_used_gib": memory and memory[2] / GIB,
            "identity": {
                "gpu": energy["gpu"],
                "memory_gib": memory and round(memory[0] / GIB),
                "pci_id": pci and f"{pci[4] >> 16:04x}:{pci[5] >> 16:04x}",
                "mig": profile or (None if mig is None else bool(mig)),
                "power_limit_w": None if limit_mw is None else rounded_w(limit_mw / 1000),
                "ecc": None if ecc is None else bool(ecc),
                "clocks": self._clocks(gpu),
                "virtualization": VIRTUALIZATION[virtual] if virtual in range(5) else None,
            },
        }

    def _clocks(self, gpu: Any) -> Any:
        gets = (f"nvmlDeviceGetCurrentClocks{name}Reasons" for name in ("Event", "Throttle"))
        answers = (self.call(get, gpu, form="Q") for get in gets)
        reasons = next((answer for answer in answers if answer is not None), None)
        return pinned_clock(reasons, *(self.call(name, gpu, SM) for name in CLOCKS))


def pinned_clock(reasons: Any, applied: Any, default: Any, current: Any) -> Any:
    """Return "free", or the SM clock that a user pinned [MHz]; None if unknown.

    Application clocks have a getter. Locked clocks are visible only by their event reason, and the
    current clock is returned. A board that is held at its default application clock is free.
    """
    if None not in (applied, default) and applied != default:
        return applied
    is_pinned = reasons is not None and reasons & PINNED and current != default
    return None if reasons is None else current if is_pinned else "free"


def rounded_w(limit_w: float) -> int:
    """Return a power limit rounded to 5 W, as in an identity."""
    return round(limit_w / 5) * 5


def other_accelerators(root: Path) -> Iterator[dict[str, Any]]:
    """Yield AMD's GPUs, and accelerators of other vendors by PCI class, from sysfs."""
    for place in sorted((root / "sys/bus/pci/devices").glob("*")):
        vendor, vram = line_at(place / "vendor"), int(line_at(place / "mem_info_vram_total") or 0)
        is_accelerator = line_at(place / "class").startswith(ACCELERATOR_CLASS)
        if vendor == NVIDIA or not (is_accelerator or (vendor == AMD and vram >= 8 * GIB)):
            continue
        sensors = "hwmon/hwmon*/power1_"
        limit_uw, *_ = [*map(line_at, place.glob(f"{sensors}cap")), ""]
        power_uw, *_ = [*map(line_at, place.glob(f"{sensors}[ia][nv]*")), ""]  # input or average
        number = f"{line_at(place / 'device')[2:]}:{line_at(place / 'subsystem_device')[2:]}"
        uuid = hashed(line_at(place / "unique_id") or place.name)
        name = line_at(place / "product_name") or f"{vendor} {number}"
        yield {
            "uuid": uuid,
            "board": uuid,
            "gpu": name,
            "joules": None,
            "watts": int(power_uw) / 1e6 if power_uw else None,
            "memory_used_gib": int(line_at(place / "mem_info_vram_used") or 0) / GIB or None,
            "identity": {
                "gpu": name,
                "memory_gib": round(vram / GIB) or None,
                "pci_id": number,
                "partition": line_at(place / "current_compute_partition") or None,
                "power_limit_w": rounded_w(int(limit_uw) / 1e6) if limit_uw else None,
            },
        }


def hashed(name: str) -> str:
    """Return a short hash of a UUID, which distinguishes devices without disclosing the UUID."""
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def text_at(path: Path) -> str:
    """Return the text of a system file; "" if it cannot be read."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def line_at(path: Path) -> str:
    """Return the words of a system file in one line; "" if it cannot be read."""
    return " ".join(text_at(path).split())


def cpu_model(root: Path) -> str:
    """Return the name of the processor."""
    text = text_at(root / "proc/cpuinfo")
    match = re.search(r"^(?:model name|Processor|cpu model)\s*:\s*(.+)$", text, re.MULTILINE)
    return " ".join((match[1] if match else platform.machine() or "unknown").split())


def cores(root: Path) -> float:
    """Return how many cores this process may use, by affinity and the cgroup quota below `root`."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota, _, period = line_at(root / "sys/fs/cgroup/cpu.max").partition(" ")
    return min(count, round(int(quota) / int(period), 2)) if quota.isdigit() else count


def report(root: Path = Path("/")) -> dict[str, Any]:
    """Describe this machine: CPU, accelerators, and why some accelerators may be missing."""
    gpus, trouble, facts = [], None, {"kernel": platform.release()}
    try:
        nvml = Nvml()
        facts["driver"] = nvml.text("nvmlSystemGetDriverVersion") or ""
        gpus = [nvml.gpu(*device) for device in nvml.devices()]
    except OSError as error:
        if NVIDIA in map(line_at, (root / "sys/bus/pci/devices").glob("*/vendor")):
            trouble = f"NVIDIA's GPUs cannot be read: {error}"
    gpus += other_accelerators(root)
    boards = "".join(sorted({gpu["board"] for gpu in gpus}))
    tables = " ".join(line_at(root / f"proc/net/{name}") for name in ("tcp", "tcp6"))
    return {
        "kind": KIND,
        "schema": SCHEMA,
        # The machine's id in a container is that of the image, if there is any.
        "node": hashed(boards or f"pytest-mlperf {line_at(root / 'etc/machine-id')}"),
        "cpu": cpu_model(root),
        "cores": cores(root),
        "gpus": gpus,
        "facts": facts,
        # TCP ports on which this machine, or this container, listens.
        "ports": sorted({int(p, 16) for p in re.findall(r":(\w{4}) \w+:0000 0A ", tables)}),
        "trouble": trouble,
    }


def watch(period_s: float) -> None:
    """Print energy and power of all GPUs every `period_s` until stdout is closed."""
    nvml = Nvml()
    parts = [part for _, part in nvml.devices()]
    while True:
        print(json.dumps({"kind": KIND, "gpus": list(map(nvml.energy, parts))}), flush=True)
        time.sleep(max(MIN_PERIOD_S, period_s))


def main(arguments: Sequence[str]) -> None:
    """Print this machine as JSON; with --watch SECONDS print its energy repeatedly."""
    try:
        if "--watch" in arguments:
            watch(float(arguments[list(arguments).index("--watch") + 1]))
        print(json.dumps(report()))
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(0)
    except OSError as error:
        sys.exit(f"the energy of NVIDIA's GPUs cannot be read: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
