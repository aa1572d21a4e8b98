"""Identify NVIDIA GPUs through NVML, in a process of its own.

`python -m pytest_mlperf.hardware.nvidia` prints one JSON object; pytest itself never loads NVML.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, TypedDict

from pytest_mlperf.core.errors import TO_MEASURE
from pytest_mlperf.core.plausible import plausible_reading
from pytest_mlperf.hardware import _nvml
from pytest_mlperf.hardware.host import Property
from pytest_mlperf.hardware.nvml_quantities import identity, links_up, probes
from pytest_mlperf.hardware.probe import CLOCKS, SM, VIRTUALIZATION, hashed, pinned_clock, rounded_w

COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")


def properties(
    device: _nvml.NvmlDevice, gpu: Mapping[str, _nvml.Property], sampled: Mapping[str, _nvml.Probe]
) -> dict[str, Property]:
    """Return a GPU's properties that affect its speed, or scope and source of energy readings."""
    watts, joules, reasons = (sampled[n].answer() for n in ("power_w", "energy_j", "reasons"))
    limit, ecc, mig, memory_gib = (gpu[n] for n in ("limit_w", "ecc", "mig", "memory_gib"))
    pci_numbers = [n for n in (gpu["pci_device"], gpu["pci_subsystem"]) if isinstance(n, int)]
    # As in sampling, the trace does not replace a counter that exists but may not be read.
    traced = watts is not None and not sampled["energy_j"].forbidden
    counted = "counter" if joules is not None else None
    return {
        "gpu": decoded(gpu["name"]),
        "memory_gib": memory_gib if isinstance(memory_gib, int) else None,
        # Without the vendor ids, which NVML keeps in the lower half.
        "pci_id": ":".join(f"{number >> 16:04x}" for number in pci_numbers) or None,
        "mig": bool(mig[0]) if isinstance(mig, list) else None,
        "power_limit_w": rounded_w(limit) if isinstance(limit, float) else None,
        "ecc": bool(ecc[0]) if isinstance(ecc, list) else None,
        "clocks": pinned_clock(
            reasons, *(query(device, name, SM, quantity="sm_mhz") for name in CLOCKS)
        ),
        "virtualization": _choice(VIRTUALIZATION, gpu["virtualization"]),
        "power_scope": _nvml.power_scope(gpu, sampled["power_w"]) if gpu["name"] else None,
        "energy": counted or ("trace" if traced else None),
    }


def surroundings(device: _nvml.NvmlDevice, gpu: Mapping[str, _nvml.Property]) -> dict[str, str]:
    """Return a GPU's known firmware, PCIe link, modes and UUID hash, shown if they change."""
    generation, width = gpu["max_pcie_generation"], gpu["max_pcie_width"]
    facts = {
        "vbios": decoded(gpu["vbios"]),
        "gsp": decoded(query(device, "nvmlDeviceGetGspFirmwareVersion")),
        "pcie": None if generation is None or width is None else f"gen{generation} x{width}",
        "persistence": _choice(("off", "on"), gpu["persistence"]),
        "compute_mode": _choice(COMPUTE_MODES, gpu["compute_mode"]),
        "card": None if gpu["uuid"] is None else hashed(str(gpu["uuid"])),
    }
    return {name: value for name, value in facts.items() if value}


LEVELS = {0: "PSB", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""Closest common PCIe ancestor of two GPUs, in the terms of nvidia-smi topo -m."""

SWITCH = "NVSwitch"

SWITCH_TYPE, READ_PEER = 2, 0
"""NVML_NVLINK_DEVICE_TYPE_SWITCH, NVML_P2P_CAPS_INDEX_READ (a tuple in the binding)."""


def paths(
    gpus: Mapping[str, tuple[_nvml.NvmlDevice, str | None]],
) -> dict[str, dict[str, str | None]]:
    """Return how each pair of GPUs is connected, by UUIDs; None if unknown.

    "NV18 NVSwitch" is 18 links through switches, "NV4" four direct links; without links it is the
    PCIe level, "PIX" to "SYS". "no P2P" means that one may not read the other's memory, so that
    copies go through the host.

    Args:
        gpus: Device and bus address in sysfs, by UUID.
    """
    buses = {bus for _, bus in gpus.values() if bus}
    ends = {uuid: _links_by_end(device, buses) for uuid, (device, _) in gpus.items()}
    reached: dict[str, dict[str, str | None]] = {uuid: {} for uuid in gpus}
    for uuid, peer in combinations(gpus, 2):
        path = _path(gpus[uuid][0], gpus[peer][0], ends[uuid], ends[peer], gpus[peer][1])
        reached[uuid][peer] = reached[peer][uuid] = path
    return reached


def _path(
    device: _nvml.NvmlDevice,
    peer: _nvml.NvmlDevice,
    device_ends: Counter[str] | None,
    peer_ends: Counter[str] | None,
    peer_bus: str | None,
) -> str | None:
    if device_ends is None or peer_ends is None:
        return None
    if through := min(device_ends[SWITCH], peer_ends[SWITCH]):
        path: str | None = f"NV{through} {SWITCH}"
    elif peer_bus and device_ends[peer_bus]:
        path = f"NV{device_ends[peer_bus]}"
    else:
        path = LEVELS.get(_or_none(device, "nvmlDeviceGetTopologyCommonAncestor", peer.handle))
    denied = _or_none(device, "nvmlDeviceGetP2PStatus", peer.handle, READ_PEER)
    return f"{path}, no P2P" if path and denied else path


def _links_by_end(device: _nvml.NvmlDevice, gpu_buses: Collection[str]) -> Counter[str] | None:
    """Count a GPU's active NVLinks by remote end: SWITCH or a GPU's bus; None if unknown."""
    nvml, ends = device.library.nvml, Counter[str]()
    try:
        links = _nvml.call_nvml(nvml, links_up, nvml, device.handle)
    except nvml.NVMLError as error:
        return ends if error.value in _nvml.UNKNOWN_WAY | {_nvml.NOT_SUPPORTED} else None
    for link in (link for link, up in links.items() if up):
        kind = _or_none(device, "nvmlDeviceGetNvLinkRemoteDeviceType", link)
        remote = _or_none(device, "nvmlDeviceGetNvLinkRemotePciInfo", link)
        bus = _bus(remote.busId) if remote else None
        if kind is None and bus not in gpu_buses:
            return None  # a switch, or a GPU that is hidden from here
        ends[SWITCH if kind == SWITCH_TYPE else bus or ""] += 1
    return ends


def _or_none(device: _nvml.NvmlDevice, function: str, *more: Any) -> Any:
    with contextlib.suppress(_nvml.Lost):
        return query(device, function, *more)
    return None


def _bus(written: Any) -> str | None:
    text = decoded(written)
    return text[-12:].lower() if text else None


def query(device: _nvml.NvmlDevice, function: str, *more: Any, quantity: str = "") -> Any:
    """Return an NVML function's result (`quantity` in errors); None if it fails or is absent."""
    if not hasattr(device.library.nvml, function):
        return None  # newer bindings drop deprecated functions
    way = _nvml.ReadMethod(
        name=function, read=lambda nvml, handle: getattr(nvml, function)(handle, *more)
    )
    return _nvml.Probe(device=device, name=quantity or function, ways=[way]).answer()


def read_failures(probes: Mapping[str, _nvml.Probe]) -> dict[str, str]:
    """Read unread quantities a last time; return by name why each is still unread."""
    for probe in probes.values():
        probe.answer()
        probe.set_failure(at_end=True)
    return {name: probe.failure for name, probe in probes.items() if probe.failure}


def decoded(value: Any) -> str | None:
    """Return text as str; old releases of the binding return bytes."""
    text = value.decode() if isinstance(value, bytes) else value
    return None if text is None else str(text)


def _choice(words: Sequence[str], number: Any) -> str | None:
    return words[number] if isinstance(number, int) and number < len(words) else None


BRANDS = {"nvidia", "geforce", "tesla", "quadro"}

FORM_WORDS = re.compile(
    r"\d{4}|\d+(GB?|W|e)|AC|OAM|SXM\d?|PCIe|NVL|HBM\d?e?|CTS|NPS\d|SPX|x\d+|Power|Cap|W|Tensor|Core|GPU|Grace|"
    r"Hopper|Superchip|Blackwell|Server|Workstation|Edition",
    re.IGNORECASE,
)
"""Words in product names for form, memory, power or count, not for another model."""

MAX_SECONDS = 90
"""The process ends itself after this time; its parent waits less."""


class GpuState(TypedDict):
    """Describe a GPU or a MIG instance as reported by NVML.

    Attributes:
        index: NVML's index of the physical GPU, which is its position in PCI order.
        parent: UUID of the physical GPU, its own without MIG; None if it cannot be read.
        address: Older name of an instance, "MIG-GPU-…/gi/ci"; None without MIG.
        bus: Bus address in sysfs, "0000:3b:00.0"; None if unknown.
        paths: Connection to each other GPU by its UUID, e.g. "NV18 NVSwitch"; None if unknown.
        unread: Reasons why quantities cannot be sampled, by name.
        identity: Properties that must equal a baseline's; None if unknown.
        surroundings: Known properties outside the identity whose changes are reported.
    """

    uuid: str
    index: int
    parent: str | None
    address: str | None
    bus: str | None
    paths: dict[str, str | None]
    unread: dict[str, str]
    identity: dict[str, Property]
    surroundings: dict[str, str]


class NvmlReport(TypedDict):
    """Hold the GPUs in PCI order, and why GPUs are missing; None if all are present."""

    gpus: list[GpuState]
    trouble: str | None


def read(nvml: Any) -> NvmlReport:
    """Return all GPUs or their MIG instances, with properties; "trouble" is why NVML fails."""
    try:
        library = _nvml.NvmlLibrary(nvml)
    except _nvml.UnavailableNvml as error:
        return {"gpus": [], "trouble": str(error)}
    with contextlib.closing(library):
        return _read(library)


def accelerator_class(name: str) -> str:
    """Return a suite's name for a product: "NVIDIA H200" is "H200".

    The first word that is a model name decides: "NVIDIA A100-SXM4-80GB" is "A100", "NVIDIA GH200
    480GB" is "GH200". Otherwise the words up to the number count: "NVIDIA GeForce RTX 4090" is
    "RTX_4090". Words of a variant follow: "RTX_4090_Laptop", "A40_48Q".
    """
    model, variant = model_words(name)
    return "_".join([*model, *variant])


def model_words(name: str) -> tuple[list[str], list[str]]:
    """Split a product name into the words of its model and of its variant (not `FORM_WORDS`)."""
    words = re.findall(r"\w+", name.partition(" MIG ")[0])
    words = [word for word in words if word.lower() not in BRANDS]
    hits = [n for n, word in enumerate(words) if re.fullmatch(r"[A-Z]{1,3}\d{1,4}[A-Z]?", word)]
    numbers = [n for n, word in enumerate(words) if word.isdigit()]
    end = (hits or numbers or [len(words) - 1])[0] + 1
    model = words[hits[0] : end] if hits else words[:end]
    virtual = [word for word in words[:end] if word == "GRID" and word not in model]
    return model, [*virtual, *(word for word in words[end:] if not FORM_WORDS.fullmatch(word))]


def instance_class(name: str, mig: Property) -> str:
    """Return a suite's name for a GPU or a MIG instance: "H200", or "H200_1g.18gb".

    The profile "1g.18gb+me" becomes "1g.18gb_me"; "1g.18gb-me", which lacks that part, becomes
    "1g.18gb_no_me". A GPU whose instances are hidden is "H200_mig".
    """
    base = accelerator_class(name)
    if not mig:
        return base
    profile = mig if isinstance(mig, str) else "mig"
    return f"{base}_{re.sub(r'[^A-Za-z0-9._]', '_', profile.replace('-', '_no_'))}"


def _read(library: _nvml.NvmlLibrary) -> NvmlReport:
    nvml = library.nvml
    gpus: list[GpuState] = []
    devices: dict[str, tuple[_nvml.NvmlDevice, str | None]] = {}
    troubles = []
    try:
        count = _nvml.call_nvml(nvml, nvml.nvmlDeviceGetCount, quantity="gpus")
    except nvml.NVMLError as error:
        return {"gpus": [], "trouble": f"GPUs cannot be counted: {_advice(error)}"}
    versions = dict(_versions(nvml))
    for index in range(count):
        try:
            handle = _nvml.call_nvml(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
            device = _nvml.NvmlDevice(library=library, uuid="", handle=handle)
            states = list(_gpus(device, index, versions))
            devices |= {gpu["uuid"]: (device, gpu["bus"]) for gpu in states if not gpu["address"]}
            gpus += states
        except nvml.NVMLError as error:
            troubles.append(f"GPU {index} cannot be queried: {_advice(error)}")
        except (_nvml.UnavailableNvml, _nvml.Lost) as error:
            troubles.append(f"GPU {index}: {error}")
    reached = paths(devices)
    for gpu in gpus:
        gpu["paths"] = reached.get(gpu["uuid"], {})
    if not count:
        troubles.append("NVIDIA's driver is loaded, but lists no GPU")
    return {"gpus": gpus, "trouble": "; ".join(troubles) or None}


def _advice(error: Any) -> str:
    return _nvml.ADVICE.get(error.value, _nvml.words(error))


def _versions(nvml: Any) -> Iterator[tuple[str, str]]:
    with contextlib.suppress(nvml.NVMLError):
        yield "driver", decoded(_nvml.call_nvml(nvml, nvml.nvmlSystemGetDriverVersion)) or ""
    with contextlib.suppress(nvml.NVMLError):
        cuda = _nvml.call_nvml(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
        yield "cuda", f"{cuda // 1000}.{cuda % 1000 // 10}"


def _gpus(device: _nvml.NvmlDevice, index: int, versions: Mapping[str, str]) -> Iterator[GpuState]:
    gpu = identity(device)
    mode = gpu["mig"]
    handles, complete = _nvml.instances(device.library.nvml, device.handle)
    sampled = probes(device, gpu, versions.get("driver", ""))
    whole: GpuState = {
        "uuid": str(gpu["uuid"]),
        "index": index,
        "parent": None if gpu["uuid"] is None else str(gpu["uuid"]),
        "address": None,
        "bus": _bus(gpu["bus_id"]),
        "paths": {},
        "unread": read_failures(sampled),
        "identity": properties(device, gpu, sampled),
        "surroundings": {**versions, **surroundings(device, gpu)},
    }
    if handles:
        yield from (_instance(device, handle, whole) for handle in handles)
    elif isinstance(mode, list) and mode[0] and complete:
        raise _nvml.UnavailableNvml(
            "MIG is on, but there is no instance: create one, or turn MIG off"
        )
    elif gpu["uuid"] is None:
        raise _nvml.UnavailableNvml(
            "it does not report its UUID, so no process can be assigned to it"
        )
    else:
        yield whole


def _instance(device: _nvml.NvmlDevice, handle: Any, whole: GpuState) -> GpuState:
    instance = _nvml.NvmlDevice(library=device.library, uuid="", handle=handle)
    uuid = decoded(query(instance, "nvmlDeviceGetUUID"))
    name = decoded(query(instance, "nvmlDeviceGetName"))
    if uuid is None:
        raise _nvml.UnavailableNvml("one of its MIG instances does not report a UUID")
    profile = re.search(r"\bMIG (\S+)$", name or "")
    memory = query(instance, "nvmlDeviceGetMemoryInfo")
    number = [query(instance, f"nvmlDeviceGet{kind}InstanceId") for kind in ("Gpu", "Compute")]
    is_certain = whole["parent"] is not None and None not in number
    return {
        **whole,
        "uuid": uuid,
        "address": f"MIG-{whole['parent']}/{number[0]}/{number[1]}" if is_certain else None,
        "identity": {
            **whole["identity"],
            "gpu": name or whole["identity"]["gpu"],
            "memory_gib": memory and plausible_reading("memory_gib", round(memory.total / 2**30)),
            "mig": profile[1] if profile else True,
        },
        "surroundings": {**whole["surroundings"], "card": hashed(whole["parent"] or uuid)},
    }


def main() -> None:
    """Print NVML's report as JSON."""
    signal.alarm(MAX_SECONDS)  # its default action ends a process even inside a call that hangs
    try:
        report = read(_nvml.binding())
    except ImportError as error:
        report = {"gpus": [], "trouble": f"NVIDIA's binding: {error}; {TO_MEASURE}"}
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
