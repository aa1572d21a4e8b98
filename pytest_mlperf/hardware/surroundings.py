"""What else of a Linux machine may change a speed: shown when it changed, never part of a key.

No name of a host or of a user is read.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

LINUX = Path("/")


def read(root: Path = LINUX, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what is known; the unknown is left out.

    Args:
        root: Where /proc, /sys and /run are found; another folder in tests.
        environ: Of this process.

    Returns:
        kernel: its release; microcode: of the CPU; smt and boost: "on" or "off"; numa: nodes, and
        whether the kernel moves pages between them; container: image, else the kind of container;
        python: its version.
    """
    told = {
        "kernel": _line(root / "proc/sys/kernel/osrelease"),
        "microcode": _microcode(root),
        "smt": _switch(root / "sys/devices/system/cpu/smt/active"),
        "boost": _boost(root),
        "numa": _numa(root),
        "container": _container(root, environ),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }
    return {name: value for name, value in told.items() if value}


def _text(path: Path) -> str:
    """Return a file's text, "" where it cannot be read."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _line(path: Path) -> str:
    return " ".join(_text(path).split())


def _switch(path: Path) -> str | None:
    return {"1": "on", "0": "off"}.get(_line(path))


def _microcode(root: Path) -> str | None:
    found = re.search(r"^microcode\s*:\s*(\S+)", _text(root / "proc/cpuinfo"), re.MULTILINE)
    return found[1] if found else None


def _boost(root: Path) -> str | None:
    """Return whether cores may go above their base clock."""
    cpu = root / "sys/devices/system/cpu"
    kept_off = _switch(cpu / "intel_pstate/no_turbo")
    if kept_off:
        return "off" if kept_off == "on" else "on"
    return _switch(cpu / "cpufreq/boost")


def _numa(root: Path) -> str | None:
    """Return "2 nodes, balancing on"."""
    count = len([*(root / "sys/devices/system/node").glob("node[0-9]*")])
    if not count:
        return None
    nodes = f"{count} node{'s' if count > 1 else ''}"
    balancing = _switch(root / "proc/sys/kernel/numa_balancing")
    return f"{nodes}, balancing {balancing}" if balancing and count > 1 else nodes


def _container(root: Path, environ: Mapping[str, str]) -> str | None:
    """Return the container's image where it can be seen, else what kind it is; None outside."""
    podman = root / "run/.containerenv"
    told = dict(re.findall(r'^(image|imageid)="?([^"\n]*)"?$', _text(podman), re.MULTILINE))
    if told.get("image"):
        # The last part alone: what stands before may name a host or a user.
        name = told["image"].rsplit("/", 1)[-1]
        return "@".join(filter(None, (name, told.get("imageid", "")[:12])))
    apptainer = environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER")
    if apptainer:
        return apptainer.rstrip("/").rsplit("/", 1)[-1]
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    if podman.exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    return environ.get("container") or _line(root / "run/systemd/container") or None
