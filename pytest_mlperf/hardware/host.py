"""Read properties of a Linux machine that may affect speed, without host and user names."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Set
from pathlib import Path

from pytest_mlperf.hardware.probe import cores, cpu_model, line_at, text_at

Property = str | int | float | bool | None


LINUX = Path("/")


def identity(root: Path = LINUX) -> dict[str, Property]:
    """Return the properties of this CPU that must equal a baseline's."""
    governor = line_at(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or None
    return {"cpu": cpu_model(root), "cores": cores(root), "governor": governor}


def int8_can_saturate(root: Path = LINUX) -> bool:
    """Return whether ONNX Runtime's int8 sums can saturate on this CPU.

    On x86 CPUs with AVX2 and without VNNI it adds products in 16 bits. Source: ONNX Runtime's
    documentation, "Quantize ONNX models", on VPMADDUBSW and reduce_range.
    """
    features = set((_of_cpu(root, "flags") or "").split())
    return "avx2" in features and features.isdisjoint({"avx512_vnni", "avx_vnni"})


def usable_cores() -> Set[int]:
    """Return the cores that this thread may use; all if the system has no affinity."""
    affinity = getattr(os, "sched_getaffinity", None)
    return frozenset(affinity(0) if affinity else range(os.cpu_count() or 1))


def read(root: Path = LINUX, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the readable properties of the system, such as kernel and NUMA nodes, as text."""
    facts = {
        "kernel": line_at(root / "proc/sys/kernel/osrelease"),
        "microcode": _of_cpu(root, "microcode"),
        "smt": _switch(root / "sys/devices/system/cpu/smt/active"),
        "boost": _boost(root),
        "numa": _numa(root),
        "container": _container(root, environ),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }
    return {name: value for name, value in facts.items() if value}


def _switch(path: Path) -> str | None:
    return {"1": "on", "0": "off"}.get(line_at(path))


def _of_cpu(root: Path, key: str) -> str | None:
    match = re.search(rf"^{key}[ \t]*:[ \t]*(.*)$", text_at(root / "proc/cpuinfo"), re.MULTILINE)
    return match[1].strip() if match else None


def _boost(root: Path) -> str | None:
    cpu = root / "sys/devices/system/cpu"
    kept_off = _switch(cpu / "intel_pstate/no_turbo")
    if kept_off:
        return "off" if kept_off == "on" else "on"
    return _switch(cpu / "cpufreq/boost")


def _numa(root: Path) -> str | None:
    count = len([*(root / "sys/devices/system/node").glob("node[0-9]*")])
    if not count:
        return None
    nodes = f"{count} node{'s' if count > 1 else ''}"
    balancing = _switch(root / "proc/sys/kernel/numa_balancing")
    return f"{nodes}, balancing {balancing}" if balancing and count > 1 else nodes


def _container(root: Path, environ: Mapping[str, str]) -> str | None:
    podman = root / "run/.containerenv"
    labels = dict(re.findall(r'^(image|imageid)="?([^"\n]*)"?$', text_at(podman), re.MULTILINE))
    if labels.get("image"):
        # Only the last part: the others may contain a host or a user.
        name = labels["image"].rsplit("/", 1)[-1]
        return "@".join(filter(None, (name, labels.get("imageid", "")[:12])))
    apptainer = environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER")
    if apptainer:
        return apptainer.rstrip("/").rsplit("/", 1)[-1]
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    if podman.exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    return environ.get("container") or line_at(root / "run/systemd/container") or None
