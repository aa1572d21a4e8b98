"""One thing that doctor looked at, and what it looks at on the machine itself."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.run import lease

State = Literal["ok", "note", "missing", "broken"]

ENOUGH_GIB = 1.0
"""Less free space than this is worth a note."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at.

    Attributes:
        group: "tools", "machine", "engines" or "libraries".
        name: What was looked at.
        state: "ok"; "note": works, but read it; "missing": optional and not here; "broken":
            nothing can be measured.
        text: What was found.
        do: What to do about it; "" where nothing is to be done.
    """

    group: str
    name: str
    state: State
    text: str
    do: str = ""


def gpus(machine: Machine) -> Check:
    """Return which GPUs there are, or why none is seen."""
    if machine.gpus:
        about = [
            f"{name}: {machine.identity(name).get('gpu')}"
            for name in (f"{n}x{c}" if n > 1 else c for c, n in machine.classes.items())
        ]
        state: State = "note" if machine.nvml_trouble else "ok"
        text = "; ".join(filter(None, (*about, machine.nvml_trouble)))
        return Check(group="machine", name="GPUs", state=state, text=text)
    why = machine.nvml_trouble or "NVML finds no driver or no GPU"
    return Check(
        group="machine",
        name="GPUs",
        state="note",
        text=f"none: {why}; only cases on cpu run here",
        do="where there should be one: nvidia-smi must list it, in this container too",
    )


def cpu(machine: Machine) -> Check:
    """Return the CPU, and whether its clocks stand still."""
    governor = machine.cpu["governor"] or "unknown"
    text = f"{machine.cpu['cpu']}, {machine.cpu['cores']} cores, governor {governor}"
    if governor in {"powersave", "ondemand", "conservative", "schedutil"}:
        return Check(
            group="machine",
            name="CPU",
            state="note",
            text=f"{text}: clocks follow the load, so figures vary more",
            do="sudo cpupower frequency-set -g performance",
        )
    return Check(group="machine", name="CPU", state="ok", text=text)


def memory() -> Check:
    """Return how much memory is free."""
    try:
        rows = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return Check(group="machine", name="memory", state="note", text="unknown")
    kib = {name: int(rest.split()[0]) for name, _, rest in (row.partition(":") for row in rows)}
    free, total = kib["MemAvailable"] / 2**20, kib["MemTotal"] / 2**20
    state: State = "ok" if free >= ENOUGH_GIB else "note"
    text = f"{free:.1f} GiB free of {total:.1f} GiB"
    return Check(group="machine", name="memory", state=state, text=text)


def space(runs_dir: Path) -> Check:
    """Return how much room there is for results and logs."""
    place = runs_dir.absolute()
    folder = next(parent for parent in (place, *place.parents) if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return Check(
            group="machine",
            name="runs folder",
            state="broken",
            text=f"{runs_dir} cannot be written",
            do="name another with --mlperf-runs-dir",
        )
    free = shutil.disk_usage(folder).free / 2**30
    state: State = "ok" if free >= ENOUGH_GIB else "note"
    text = f"{runs_dir}, {free:.1f} GiB free"
    return Check(group="machine", name="runs folder", state=state, text=text)


def leases() -> Check:
    """Return whether leases can be taken."""
    try:
        folder = lease.folder()
    except (RunError, OSError) as error:
        return Check(
            group="machine",
            name="leases",
            state="broken",
            text=str(error),
            do="set PYTEST_MLPERF_LEASES to a folder that all users share",
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        return Check(
            group="machine",
            name="leases",
            state="broken",
            text=f"{folder} cannot be written",
            do=f"sudo chmod 1777 {folder}",
        )
    return Check(group="machine", name="leases", state="ok", text=f"{folder} can be written")
