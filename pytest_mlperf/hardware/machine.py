"""Say which accelerators this machine has, and the identity a baseline is matched by."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from pytest_mlperf.hardware import cpu, nvidia, surroundings
from pytest_mlperf.hardware.visible import (
    DEVICES,
    ORDER,
    PCI_ORDER,
    AmbiguousOrder,
    Device,
    visible,
)

Property = str | int | float | bool | None

LIMIT_S = 60.0
"""NVML answers within a second or two; a driver that needs longer hangs."""

KILLED_S = 5.0
"""A process that hangs in a driver may outlive its end; nobody waits for it longer."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What is here.

    Attributes:
        cpu: Identity of the CPU.
        gpus: One entry per GPU or MIG instance that CUDA_VISIBLE_DEVICES leaves visible, in CUDA's
            order: the identity that `nvidia.read` gives, with "uuid", "nvlink" and "index" beside
            it, which is its number to CUDA in PCI order; None where that is not certain.
        host: What may change a speed and is no part of an identity, of Linux and the CPU.
        cards: The same of each GPU, by UUID.
        nvml_trouble: Why there is no GPU, or why one is left out, in one sentence; None: all is
            well, or nobody asked.
    """

    cpu: Mapping[str, Property]
    gpus: tuple[Mapping[str, Property], ...] = ()
    host: Mapping[str, str] = field(default_factory=dict)
    cards: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    nvml_trouble: str | None = None

    @property
    def classes(self) -> Counter[str]:
        """GPU classes with their counts, e.g. {"H200": 8}, {"H200_1g.18gb": 7}."""
        return Counter(map(_class, self.gpus))

    @property
    def names(self) -> str:
        """What is here, in words, for messages."""
        return ", ".join([f"{n}x{c}" if n > 1 else c for c, n in self.classes.items()] + ["cpu"])

    @property
    def seen(self) -> str:
        """The same, with why some of it may not be seen."""
        return f"{self.names} ({self.nvml_trouble})" if self.nvml_trouble else self.names

    def has(self, accelerator: str) -> bool:
        """Whether a suite's accelerator ("cpu", "H200", "8xH100") is here.

        CUDA shows a process one MIG instance at most: several are never one accelerator.
        """
        count, name = split(accelerator)
        if name == "cpu":
            return True
        used = self._used(accelerator)
        return len(used) == count and (count == 1 or not any(gpu.get("mig") for gpu in used))

    def identity(self, accelerator: str) -> dict[str, Property]:
        """Return the properties that must equal a baseline's; a pretended one equals none.

        Where the GPUs of one accelerator differ, a property is the list of what they have.
        """
        if accelerator == "cpu":
            return dict(self.cpu)
        used = self._used(accelerator)
        if not used:
            return {"pretended": accelerator}
        beside = {"uuid", "index"} if len(used) > 1 else {"uuid", "index", "nvlink"}
        names = [name for name in used[0] if name not in beside]
        return {"gpus": len(used), **{n: _common([gpu.get(n) for gpu in used]) for n in names}}

    def leases(self, accelerator: str) -> list[str]:
        """Return the names of the locks a run on an accelerator takes, sorted."""
        return sorted(self.uuids(accelerator)) or ["cpu"]

    def uuids(self, accelerator: str) -> list[str]:
        """Return the GPUs that a run on an accelerator uses, by UUID; none for the CPU."""
        return [str(gpu["uuid"]) for gpu in self._used(accelerator)]

    def power_limits_w(self, accelerator: str) -> dict[str, float | None]:
        """Return the power limit of each GPU that a run uses, by UUID; None: not known."""
        used = ((str(gpu["uuid"]), gpu.get("power_limit_w")) for gpu in self._used(accelerator))
        return {uuid: w if isinstance(w, int | float) else None for uuid, w in used}

    def environment(self, accelerator: str) -> dict[str, str]:
        """Return the variables by which a process sees the GPUs of an accelerator, and no other.

        Whole GPUs go by their numbers, which every library reads: vLLM before 0.24 takes nothing
        else. A MIG instance has none, and beside one, or beside a GPU that may not be asked, those
        of others are not certain: then all go by UUID.

        None are needed for the CPU, nor for an accelerator that is pretended.
        """
        used = self._used(accelerator)
        names = [gpu.get("index") for gpu in used]
        if None in names:
            names = [gpu["uuid"] for gpu in used]
        return {DEVICES: ",".join(map(str, names)), ORDER: PCI_ORDER} if used else {}

    def surroundings(self, accelerator: str) -> dict[str, str]:
        """Return what is shown when it changed and is no part of the identity.

        Keys are "machine.kernel", "machine.driver", …; what is not known is left out. Of several
        GPUs that differ, a value is the list of theirs.
        """
        told = dict(self.host)
        if uuids := self.uuids(accelerator):
            about = [self.cards.get(uuid, {}) for uuid in uuids]
            names = {name for each in about for name in each}
            told |= {n: ", ".join(sorted({a[n] for a in about if n in a})) for n in names}
            told |= {
                name: str(self.cpu[name]) for name in ("cpu", "governor") if self.cpu.get(name)
            }
        return {f"machine.{name}": told[name] for name in sorted(told)}

    def _used(self, accelerator: str) -> list[Mapping[str, Property]]:
        count, name = split(accelerator)
        return [gpu for gpu in self.gpus if _class(gpu) == name][:count]


def split(accelerator: str) -> tuple[int, str]:
    """Return (8, "H100") for "8xH100", (1, "H100") for "H100"."""
    found = re.fullmatch(r"(?:(\d+)x)?(.*)", accelerator, re.DOTALL)
    assert found is not None
    return int(found[1] or 1), found[2]


@cache
def detect(*, gpus: bool) -> Machine:
    """Look at this machine.

    Args:
        gpus: Also ask NVML, in a child process; skipped where only "cpu" is of interest.
    """
    here, host = cpu.identity(), surroundings.read()
    if not gpus:
        return Machine(cpu=here, host=host)
    found = ask_nvml()
    try:
        seen = visible([_device(gpu) for gpu in found["gpus"]], os.environ)
        trouble = found["trouble"] or (None if seen else _all_hidden(found["gpus"]))
    except AmbiguousOrder as error:
        seen, trouble = [], str(error)
    by_uuid = {gpu["uuid"]: gpu for gpu in found["gpus"]}
    # CUDA need not count what is divided or may not be asked, and numbers behind it would shift.
    counted = not found["trouble"] and not any(gpu["identity"]["mig"] for gpu in found["gpus"])
    return Machine(
        cpu=here,
        gpus=tuple(
            {
                "uuid": uuid,
                **by_uuid[uuid]["identity"],
                "nvlink": by_uuid[uuid]["nvlink"],
                "index": by_uuid[uuid]["index"] if counted else None,
            }
            for uuid in seen
        ),
        host=host,
        cards={uuid: by_uuid[uuid]["surroundings"] for uuid in seen},
        nvml_trouble=trouble,
    )


def ask_nvml(limit_s: float = LIMIT_S) -> nvidia.Found:
    """Return what the NVML child prints; a driver that hangs or crashes counts as no GPU."""
    command = [sys.executable, "-m", nvidia.__name__]
    silent, pipe = subprocess.DEVNULL, subprocess.PIPE
    try:
        child = subprocess.Popen(
            command, stdin=silent, stdout=pipe, stderr=pipe, text=True, errors="replace"
        )
    except OSError as error:
        return _none(f"no process could be started to ask NVML: {error.strerror}")
    try:
        printed, said = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=KILLED_S)
        return _none(f"NVIDIA's driver did not answer within {limit_s:g} s: see dmesg, or reboot")
    if child.returncode < 0:
        how = signal.strsignal(-child.returncode)
        return _none(f"NVIDIA's library crashed when it was asked for GPUs: {how}")
    try:
        found: nvidia.Found = json.loads(printed)
    except ValueError:
        return _none(f"NVML could not be asked: {(said.strip().splitlines() or ['no word'])[-1]}")
    return found


def _none(trouble: str) -> nvidia.Found:
    return {"gpus": [], "trouble": trouble}


def _all_hidden(found: Sequence[nvidia.Gpu]) -> str:
    return f"{DEVICES}={os.environ.get(DEVICES)!r} leaves none of {len(found)} GPUs visible"


def _device(gpu: nvidia.Gpu) -> Device:
    """Return how CUDA may be told to use a GPU."""
    product = gpu["identity"]["gpu"]
    return Device(
        uuid=gpu["uuid"],
        index=gpu["index"],
        product=None if product is None else re.sub(r" MIG \S+$", "", str(product)),
        gpu=gpu["parent"],
        address=gpu["address"],
    )


def _class(gpu: Mapping[str, Property]) -> str:
    return nvidia.instance_class(str(gpu["gpu"]), gpu.get("mig"))


def _common(values: Sequence[Property]) -> Property:
    """Return the value of all, else what there is of it: "500, 700"."""
    return values[0] if len(set(values)) == 1 else ", ".join(sorted({str(v) for v in values}))
