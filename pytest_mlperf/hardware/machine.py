"""Detect this machine's accelerators, and the identity that selects a baseline."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from pathlib import Path

from pytest_mlperf.core.server.identity import SOURCE, ServerIdentity
from pytest_mlperf.hardware import host, nvidia, power_limit
from pytest_mlperf.hardware.host import LINUX, Property, usable_cores
from pytest_mlperf.hardware.leases import lease_place
from pytest_mlperf.hardware.power_limit import LimitNote
from pytest_mlperf.hardware.probe import hashed, rounded_w, text_at
from pytest_mlperf.processes import answer_of, last_line

DEVICES_VARIABLE, ORDER_VARIABLE = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
PCI_ORDER = "PCI_BUS_ID"


class AmbiguousOrder(ValueError):
    """Report that only CUDA knows which GPU a number in CUDA_VISIBLE_DEVICES selects."""


def visible(devices: Sequence[nvidia.GpuState], environ: Mapping[str, str]) -> list[str]:
    """Return the UUIDs that a CUDA process with environment `environ` sees, in CUDA's order.

    Raises AmbiguousOrder for a GPU number if CUDA sorts by speed and the products differ.
    """
    listed = environ.get(DEVICES_VARIABLE)
    if listed is None:
        return [device["uuid"] for device in devices]
    uuids: list[str] = []
    for word in listed.split(","):
        uuid = _uuid_of(word.strip(), devices, environ)
        if uuid is None:
            break
        if uuid in uuids:
            return []
        uuids.append(uuid)
    return uuids


def _uuid_of(
    word: str, devices: Sequence[nvidia.GpuState], environ: Mapping[str, str]
) -> str | None:
    if word.startswith("MIG-"):
        fitting = [device for device in devices if word in (device["uuid"], device["address"])]
    elif word.startswith("GPU-"):
        fitting = [device for device in devices if (device["parent"] or "").startswith(word)]
        if len({device["parent"] for device in fitting}) > 1:
            return None
    else:
        digits = re.match(r"[+-]?[0-9]{1,9}", word)  # like C, which ignores what follows the digits
        number = int(digits[0]) if digits else None
        fitting = [device for device in devices if device["index"] == number]
        names = [str(device["identity"]["gpu"] or "an unknown GPU") for device in devices]
        products = sorted({name.partition(" MIG ")[0] for name in names})
        if fitting and environ.get(ORDER_VARIABLE) != PCI_ORDER and len(products) > 1:
            raise AmbiguousOrder(
                f"{DEVICES_VARIABLE} names GPU {word} by its index in CUDA's order, fastest "
                f"first, which is unknown for different products ({', '.join(products)}): set "
                f"{ORDER_VARIABLE}={PCI_ORDER}, or name GPUs by UUID as nvidia-smi -L prints them"
            )
    return fitting[0]["uuid"] if fitting else None


NVML_TIMEOUT_SECONDS = 60.0
"""NVML answers within two seconds; a driver that takes longer hangs."""

KILL_WAIT_SECONDS = 5.0
"""Maximum wait for a killed process, which may hang in a driver."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Describe the hardware of this machine.

    Attributes:
        gpus: GPUs and MIG instances visible by CUDA_VISIBLE_DEVICES, in CUDA's order. Each has the
            properties of `nvidia.read`, its "uuid", "bus" and "index": its CUDA number in PCI
            order, None if uncertain.
        host: Properties of Linux and the CPU that may change a speed but are not in the identity.
        cards: Properties of each GPU board outside the identity, by UUID.
        unread: Reason why a quantity of a GPU cannot be sampled, by UUID and quantity.
        paths: Connection of two GPUs by both UUIDs, see `nvidia.paths`.
        nvml_trouble: Reason why GPUs are missing; None if all are present or none is needed.
        shared: Whether other cases may run on its other GPUs at the same time.
        harness: The harness if it is not LoadGen; results of two harnesses are never compared.
        machine_id: systemd's id of the machine; stored only salted and hashed.
        limit_w: Power limit that a case sets on its GPUs [W]; None to leave it.
        server: Server on another machine, whose hardware is measured instead of this machine's.
    """

    cpu: Mapping[str, Property]
    gpus: tuple[Mapping[str, Property], ...] = ()
    host: Mapping[str, str] = field(default_factory=dict)
    cards: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    paths: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    unread: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    nvml_trouble: str | None = None
    shared: bool = False
    harness: str = ""
    machine_id: str = ""
    limit_w: int | None = None
    server: ServerIdentity | None = None

    @property
    def classes(self) -> Counter[str]:
        """GPU classes with their counts, e.g. {"H200": 8}, {"H200_1g.18gb": 7}."""
        return Counter(map(_class, self.gpus))

    @property
    def names(self) -> str:
        """Names of this machine's accelerators as text: "8xH200, cpu"."""
        return ", ".join([f"{n}x{c}" if n > 1 else c for c, n in self.classes.items()] + ["cpu"])

    @property
    def seen(self) -> str:
        """Accelerators of this machine as text, with the reason why some are missing."""
        return f"{self.names} ({self.nvml_trouble})" if self.nvml_trouble else self.names

    def has(self, accelerator: str) -> bool:
        """Return whether a suite's accelerator ("cpu", "H200", "8xH100") is present.

        A CUDA process sees at most one MIG instance, so several are never one accelerator.
        """
        count, name = split(accelerator)
        if name == "cpu" or self.server:
            return True
        used = self._used(accelerator)
        return len(used) == count and (count == 1 or not any(gpu.get("mig") for gpu in used))

    def identity(self, accelerator: str) -> dict[str, Property]:
        """Return the properties that must equal a baseline's; simulated accelerators match none.

        If the GPUs of the accelerator differ, a property lists all their values.
        """
        by: dict[str, Property] = {"harness": self.harness} if self.harness else {}
        if self.server:
            return {**self.server.properties, **by}
        if accelerator == "cpu":
            return {**self.cpu, **by}
        used = self._used(accelerator)
        if not used:
            return {"pretended": accelerator, **by}
        names = [name for name in used[0] if name not in {"uuid", "index", "bus"}]
        properties = {n: _common([gpu.get(n) for gpu in used]) for n in names}
        if len(used) > 1:
            properties["topology"] = self._topology([str(gpu["uuid"]) for gpu in used])
        if self.shared:
            properties["shared_host"] = True
        if self.limit_w is not None:
            properties["power_limit_set"] = True
        return {"gpus": len(used), **properties, **by}

    def _topology(self, uuids: Sequence[str]) -> str | None:
        pairs = [self.paths.get(one, {}).get(other) for one, other in combinations(uuids, 2)]
        counts = Counter(path for path in pairs if path is not None)
        if counts.total() < len(pairs):
            return None
        if len(counts) == 1:
            return pairs[0]
        return "; ".join(f"{counts[path]} x {path}" for path in sorted(counts))

    def leases(self, accelerator: str) -> list[str]:
        """Return the names of the locks (leases) for a run: its GPUs, else "cpu"."""
        return sorted(self.uuids(accelerator)) or ["cpu"]

    def matching_gpus(self, accelerator: str) -> list[str]:
        """Return UUIDs of all GPUs of an accelerator's class; [] if too few, or for the CPU."""
        count, name = split(accelerator)
        every = [str(gpu["uuid"]) for gpu in self.gpus if _class(gpu) == name]
        return every if len(every) >= count else []

    def with_identity(self, identity: Mapping[str, Property]) -> Machine:
        """Return a copy with the server, shared host, harness and power limit in `identity`."""
        if SOURCE in identity:
            theirs = {name: value for name, value in identity.items() if name != "harness"}
            server = self.with_server(ServerIdentity(properties=theirs))
            return replace(server, harness=str(identity.get("harness") or ""))
        limit_w = identity.get("power_limit_w") if identity.get("power_limit_set") else None
        return replace(
            self,
            shared=identity.get("shared_host") is True,
            harness=str(identity.get("harness") or ""),
            limit_w=limit_w if isinstance(limit_w, int) else None,
        )

    def with_server(self, server: ServerIdentity) -> Machine:
        """Return a copy with the identity of a remote server in place of this machine's GPUs."""
        return replace(self, gpus=(), server=server)

    def only(self, accelerator: str, uuids: Collection[str]) -> Machine:
        """Return a copy with only these GPUs of an accelerator's class; other classes are kept."""
        _, name = split(accelerator)
        gpus = [g for g in self.gpus if _class(g) != name or g["uuid"] in uuids]
        return replace(self, gpus=tuple(gpus))

    def uuids(self, accelerator: str) -> list[str]:
        """Return the UUIDs of the GPUs that a run on an accelerator uses; [] for the CPU."""
        return [str(gpu["uuid"]) for gpu in self._used(accelerator)]

    def hashes(self, accelerator: str) -> str:
        """Return hashes of the ids of this machine and of an accelerator's GPUs, as one text."""
        names = [self.machine_id and f"pytest-mlperf {self.machine_id}", *self.uuids(accelerator)]
        return " ".join(hashed(name) for name in names if name)

    def used(self, accelerator: str, replicas: int = 1) -> dict[str, UsedGpu]:
        """Return the GPUs that a run uses, by UUID, divided equally among the replicas."""
        gpus = self._used(accelerator)
        gpus_per_replica = len(gpus) // replicas or 1
        return {
            str(gpu["uuid"]): UsedGpu(
                uuid=str(gpu["uuid"]),
                name=f"GPU {_called(gpu)}",
                bus=gpu.get("bus"),
                limit_w=w if isinstance(w := gpu.get("power_limit_w"), int | float) else None,
                replica=f"replica {number // gpus_per_replica}" if replicas > 1 else "",
            )
            for number, gpu in enumerate(gpus)
        }

    def differing(self, accelerator: str) -> list[str]:
        """Return how the GPUs of an accelerator differ: "power_limit_w is 700, 500 on GPU 3".

        The most common value comes first. Bus addresses and serial numbers do not count.
        """
        used = self._used(accelerator)
        facts = [{**gpu, **self.cards.get(str(gpu["uuid"]), {})} for gpu in used]
        differences = []
        for name in dict.fromkeys(name for each in facts for name in each):
            values = [each.get(name) for each in facts]
            (common_value, count), *_ = Counter(values).most_common()
            if count < len(values) and name not in {"uuid", "index", "bus", "card"}:
                others = [
                    f"{value} on GPU {_called(gpu)}"
                    for gpu, value in zip(used, values, strict=True)
                    if value != common_value
                ]
                differences.append(f"{name} is {common_value}, {', '.join(others)}")
        return differences

    def environment(self, accelerator: str) -> dict[str, str]:
        """Return the variables that make the GPUs of an accelerator, and no others, visible.

        Whole GPUs are named by number, which every library reads (vLLM before 0.24 reads nothing
        else). If a MIG instance or an unreadable GPU makes numbers uncertain, all are named by
        UUID. The CPU and simulated accelerators need no variables.
        """
        return _environment(self._used(accelerator))

    def shares(self, accelerator: str, count: int) -> list[Share]:
        """Divide an accelerator into `count` equal shares, one per process.

        GPUs get the processors of their NUMA node; the CPU's processors are divided.
        """
        gpus, name = split(accelerator)
        if name == "cpu":
            cores = sorted(usable_cores())
            size = len(cores) // count
            return [Share(cpus=tuple(cores[n * size : (n + 1) * size])) for n in range(count)]
        used, size = self._used(accelerator), gpus // count
        shares = [used[n * size : (n + 1) * size] for n in range(count)]
        return [
            Share(
                gpus=tuple(str(gpu["uuid"]) for gpu in share),
                title=", ".join(f"GPU {_called(gpu)}" for gpu in share),
                environment=_environment(share),
                cpus=nearest(gpu.get("bus") for gpu in share),
            )
            for share in shares
        ]

    def surroundings(self, accelerator: str) -> dict[str, str]:
        """Return properties whose changes are reported, but which do not select a baseline.

        Keys are "machine.kernel", "machine.driver", …; unknown properties are left out. If the GPUs
        differ, a value lists all of theirs.
        """
        facts = dict(self.host)
        if self.server:
            client = {f"client.{name}": str(value) for name, value in self.cpu.items() if value}
            return {**self.server.surroundings, **client, **_named(facts)}
        if uuids := self.uuids(accelerator):
            about = [self.cards.get(uuid, {}) for uuid in uuids]
            names = {name for each in about for name in each}
            facts |= {n: ", ".join(sorted({a[n] for a in about if n in a})) for n in names}
            facts |= {
                name: str(self.cpu[name]) for name in ("cpu", "governor") if self.cpu.get(name)
            }
        return _named(facts)

    def _used(self, accelerator: str) -> list[Mapping[str, Property]]:
        count, name = split(accelerator)
        used = [gpu for gpu in self.gpus if _class(gpu) == name][:count]
        if self.limit_w is None:
            return used
        return [{**gpu, "power_limit_w": self.limit_w} for gpu in used]


@dataclass(frozen=True, kw_only=True, slots=True)
class UsedGpu:
    """Describe a GPU that a run uses.

    Attributes:
        name: "GPU 3", or "GPU" with the UUID if numbers are uncertain.
        bus: Bus address as in sysfs; None if unknown.
        limit_w: Power limit [W]; None if unknown.
        replica: Replica that uses it; "" if there is one process.
    """

    uuid: str
    name: str
    bus: Property = None
    limit_w: float | None = None
    replica: str = ""

    @property
    def title(self) -> str:
        """Full name: "GPU 3 (GPU-7f…, PCI 0000:3b:00.0) of replica 1"."""
        details = [self.uuid] if self.uuid not in self.name else []
        details += [f"PCI {self.bus}"] if self.bus else []
        title = f"{self.name} ({', '.join(details)})" if details else self.name
        return f"{title} of {self.replica}" if self.replica else title


@dataclass(frozen=True, kw_only=True)
class Share:
    """Hold the part of an accelerator for one of several processes.

    Attributes:
        gpus: UUIDs.
        title: "GPU 3, GPU 4"; "" without GPUs.
        environment: Variables that make these GPUs, and no others, visible.
        cpus: Processors to use; any if empty.
    """

    gpus: tuple[str, ...] = ()
    title: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    cpus: tuple[int, ...] = ()


def _named(facts: Mapping[str, str]) -> dict[str, str]:
    return {f"machine.{name}": facts[name] for name in sorted(facts)}


def _called(gpu: Mapping[str, Property]) -> Property:
    index = gpu.get("index")
    return gpu["uuid"] if index is None else index


def nearest(buses: Iterable[Property], root: Path = Path("/")) -> tuple[int, ...]:
    """Return the processors of the GPUs' NUMA nodes, by PCI addresses; () if unknown."""
    cpus: set[int] = set()
    for bus in buses:
        try:
            text = (root / f"sys/bus/pci/devices/{bus}/local_cpulist").read_text("utf-8")
            cpus |= set(_listed(text))
        except (OSError, ValueError):
            return ()
    return tuple(sorted(cpus & usable_cores()))


def _listed(text: str) -> Iterator[int]:
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _environment(used: Sequence[Mapping[str, Property]]) -> dict[str, str]:
    names = [gpu.get("index") for gpu in used]
    if None in names:
        names = [gpu["uuid"] for gpu in used]
    return {DEVICES_VARIABLE: ",".join(map(str, names)), ORDER_VARIABLE: PCI_ORDER} if used else {}


def split(accelerator: str) -> tuple[int, str]:
    """Split an accelerator into count and class: "8xH100" is (8, "H100"), "H100" (1, "H100")."""
    match = re.fullmatch(r"(?:(\d+)x)?(.*)", accelerator, re.DOTALL)
    assert match is not None
    return int(match[1] or 1), match[2]


@cache
def detect(*, gpus: bool) -> Machine:
    """Return this machine; if `gpus` is true, a child process queries NVML."""
    cpu, system = host.identity(), host.read()
    name = text_at(LINUX / "etc/machine-id").strip()
    if not gpus:
        return Machine(cpu=cpu, host=system, machine_id=name)
    notes = power_limit.saved_limits(lease_place())
    report = ask_nvml()
    try:
        uuids = visible(report["gpus"], os.environ)
        trouble = report["trouble"] or _hidden(uuids, report["gpus"])
    except AmbiguousOrder as error:
        uuids, trouble = [], str(error)
    for gpu in report["gpus"]:
        gpu["identity"] |= _limit_before(gpu, {**notes, **power_limit.saved_limits(lease_place())})
    by_uuid = {gpu["uuid"]: gpu for gpu in report["gpus"]}
    # CUDA may leave out MIG or unreadable GPUs, which would shift the numbers of later ones.
    counted = not report["trouble"] and not any(gpu["identity"]["mig"] for gpu in report["gpus"])
    return Machine(
        cpu=cpu,
        gpus=tuple(
            {
                "uuid": uuid,
                **by_uuid[uuid]["identity"],
                "index": by_uuid[uuid]["index"] if counted else None,
                "bus": by_uuid[uuid]["bus"],
            }
            for uuid in uuids
        ),
        host=system,
        machine_id=name,
        cards={uuid: by_uuid[uuid]["surroundings"] for uuid in uuids},
        unread={uuid: by_uuid[uuid]["unread"] for uuid in uuids},
        paths={uuid: by_uuid[uuid]["paths"] for uuid in uuids},
        nvml_trouble=trouble,
    )


def _limit_before(gpu: nvidia.GpuState, notes: Mapping[str, LimitNote]) -> dict[str, Property]:
    """Return {"power_limit_w": limit before a case changed it}; {} if no case changed it."""
    note, watts = notes.get(gpu["uuid"]), gpu["identity"].get("power_limit_w")
    if note is None or watts != rounded_w(note.set_mw / 1000):
        return {}
    return {"power_limit_w": rounded_w(note.enforced_mw / 1000)}


def ask_nvml(limit_s: float = NVML_TIMEOUT_SECONDS) -> nvidia.NvmlReport:
    """Return the report of the NVML child; a driver that hangs or crashes counts as no GPU."""
    command = [sys.executable, "-m", nvidia.__name__]
    try:
        answer = answer_of(command, limit_s=limit_s, killed_s=KILL_WAIT_SECONDS)
    except OSError as error:
        return _none(f"no process could be started to ask NVML: {error.strerror}")
    if answer is None:
        return _none(f"NVIDIA's driver did not answer within {limit_s:g} s: see dmesg, or reboot")
    code, printed, errors = answer
    if code < 0:
        cause = signal.strsignal(-code)
        return _none(f"NVIDIA's library crashed when it was asked for GPUs: {cause}")
    try:
        report: nvidia.NvmlReport = json.loads(printed)
    except ValueError:
        return _none(f"NVML could not be queried: {last_line(errors) or 'no error message'}")
    return report


def _none(trouble: str) -> nvidia.NvmlReport:
    return {"gpus": [], "trouble": trouble}


def _hidden(uuids: Sequence[str], gpus: Sequence[nvidia.GpuState]) -> str | None:
    if len(uuids) == len(gpus):
        return None
    count = f"{len(uuids)} of {len(gpus)}" if uuids else f"none of {len(gpus)}"
    return f"{DEVICES_VARIABLE}={os.environ.get(DEVICES_VARIABLE)!r} leaves {count} GPUs visible"


def _class(gpu: Mapping[str, Property]) -> str:
    return nvidia.instance_class(str(gpu["gpu"]), gpu.get("mig"))


def _common(values: Sequence[Property]) -> Property:
    return values[0] if len(set(values)) == 1 else ", ".join(sorted({str(v) for v in values}))
