"""Describe a machine for MLPerf, without names of hosts or users."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from pytest_mlperf.hardware.host import text_at
from pytest_mlperf.hardware.machine import Machine, split


def described(machine: Machine, accelerator: str, root: Path = Path("/")) -> dict[str, str]:
    """Return the keys of MLPerf's system description that this machine reports."""
    cpus = text_at(root / "proc/cpuinfo")
    memory = re.search(r"^MemTotal:\s*(\d+) kB", text_at(root / "proc/meminfo"), re.MULTILINE)
    system = re.search(r'^PRETTY_NAME="?([^"\n]+)', text_at(root / "etc/os-release"), re.MULTILINE)
    sockets = set(re.findall(r"^physical id\s*:\s*(\d+)", cpus, re.MULTILINE))
    cores = re.search(r"^cpu cores\s*:\s*(\d+)", cpus, re.MULTILINE)
    kernel = machine.host.get("kernel", "")
    facts = {
        "number_of_nodes": "1",
        "host_processor_model_name": str(machine.cpu.get("cpu") or ""),
        "host_processors_per_node": str(len(sockets) or ""),
        "host_processor_core_count": cores[1] if cores else str(os.cpu_count() or ""),
        "host_memory_capacity": f"{int(memory[1]) * 1024 / 2**30:.0f} GiB" if memory else "",
        "operating_system": ", ".join(
            filter(None, (system[1] if system else "", kernel and f"Linux {kernel}"))
        ),
        **_accelerator(machine, accelerator),
    }
    python = machine.host.get("python", "")
    driver = machine.surroundings(accelerator).get("driver", "")
    stack = ", ".join(filter(None, (python, driver and f"driver {driver}")))
    return {key: text for key, text in {**facts, "other_software_stack": stack}.items() if text}


def _accelerator(machine: Machine, accelerator: str) -> Mapping[str, str]:
    if accelerator == "cpu":
        none = dict.fromkeys(
            (
                "accelerator_model_name",
                "accelerator_memory_capacity",
                "accelerator_memory_configuration",
                "accelerator_host_interconnect",
                "accelerator_interconnect",
            ),
            "N/A",
        )
        return {"accelerators_per_node": "0", **none}
    identity = machine.identity(accelerator)
    memory = identity.get("memory_gib")
    return {
        "accelerators_per_node": str(split(accelerator)[0]),
        "accelerator_model_name": str(identity.get("gpu") or ""),
        "accelerator_memory_capacity": f"{memory:g} GiB" if isinstance(memory, int | float) else "",
        "accelerator_interconnect": str(identity.get("topology") or ""),
    }
