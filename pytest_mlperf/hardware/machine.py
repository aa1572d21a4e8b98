"""Say which accelerators this machine has, and the identity a baseline is matched by."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from pytest_mlperf.hardware import cpu, nvidia

Property = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What is here.

    Attributes:
        cpu: Identity of the CPU.
        gpus: One entry per GPU, as `nvidia.read` gives it, in NVML's order.
    """

    cpu: Mapping[str, Property]
    gpus: tuple[Mapping[str, Property], ...] = ()

    @property
    def classes(self) -> Counter[str]:
        """GPU classes with their counts, e.g. {"H200": 8}."""
        return Counter(nvidia.accelerator_class(str(gpu["gpu"])) for gpu in self.gpus)

    @property
    def names(self) -> str:
        """What is here, in words, for messages."""
        return ", ".join([f"{n}x{c}" if n > 1 else c for c, n in self.classes.items()] + ["cpu"])

    def has(self, accelerator: str) -> bool:
        """Whether a suite's accelerator ("cpu", "H200", "8xH100") is here."""
        count, name = split(accelerator)
        return name == "cpu" or self.classes[name] >= count

    def identity(self, accelerator: str) -> dict[str, Property]:
        """Return the properties that must equal a baseline's; a pretended one equals none."""
        if accelerator == "cpu":
            return dict(self.cpu)
        used = self._used(accelerator)
        if not used:
            return {"pretended": accelerator}
        return {"gpus": len(used), **{k: v for k, v in used[0].items() if k != "uuid"}}

    def leases(self, accelerator: str) -> list[str]:
        """Return the names of the locks a run on an accelerator takes, sorted."""
        if accelerator == "cpu" or not self._used(accelerator):
            return ["cpu"]
        return sorted(str(gpu["uuid"]) for gpu in self._used(accelerator))

    def uuids(self, accelerator: str) -> list[str]:
        """Return the GPUs that a run on an accelerator uses, by UUID; none for the CPU."""
        return [str(gpu["uuid"]) for gpu in self._used(accelerator)]

    def _used(self, accelerator: str) -> list[Mapping[str, Property]]:
        count, name = split(accelerator)
        of_class = [g for g in self.gpus if nvidia.accelerator_class(str(g["gpu"])) == name]
        return of_class[:count]


def split(accelerator: str) -> tuple[int, str]:
    """Return (8, "H100") for "8xH100", (1, "H100") for "H100"."""
    found = re.fullmatch(r"(?:(\d+)x)?(.+)", accelerator)
    assert found is not None
    return int(found[1] or 1), found[2]


@cache
def detect(*, gpus: bool) -> Machine:
    """Look at this machine.

    Args:
        gpus: Also ask NVML, in a child process; skipped where only "cpu" is of interest.
    """
    return Machine(cpu=cpu.identity(), gpus=tuple(_ask_nvml()) if gpus else ())


def _ask_nvml() -> list[dict[str, Property]]:
    """Return what the NVML child prints; a driver that hangs or crashes counts as no GPU."""
    command = [sys.executable, "-m", "pytest_mlperf.hardware.nvidia"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        found: list[dict[str, Property]] = json.loads(done.stdout)
    except (subprocess.SubprocessError, OSError, ValueError):
        return []
    return found
