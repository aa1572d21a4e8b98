"""Identify a CPU machine from what Linux tells."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

Property = str | int | float | bool | None


def identity(root: Path = Path("/")) -> dict[str, Property]:
    """Return the properties of this CPU that must equal a baseline's.

    Args:
        root: Where /proc and /sys are found; another folder in tests.

    Returns:
        cpu: model name; cores: cores this process may use (affinity and cgroup quota);
        governor: frequency governor of the first core, None where the kernel tells none.
    """
    return {"cpu": _model(root), "cores": _cores(root), "governor": _governor(root)}


def _model(root: Path) -> str:
    try:
        text = (root / "proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        text = ""
    found = re.search(r"^(?:model name|Processor|cpu model)\s*:\s*(.+)$", text, re.MULTILINE)
    return " ".join((found[1] if found else platform.machine() or "unknown").split())


def _cores(root: Path) -> float:
    cores: float = len(os.sched_getaffinity(0))
    try:
        quota, period = (root / "sys/fs/cgroup/cpu.max").read_text("ascii").split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else min(cores, round(int(quota) / int(period), 2))


def _governor(root: Path) -> str | None:
    path = root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    try:
        return path.read_text("ascii").strip() or None
    except OSError:
        return None
