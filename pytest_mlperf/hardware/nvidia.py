"""Identify NVIDIA GPUs through NVML, in a process of its own: the only module that imports pynvml.

`python -m pytest_mlperf.hardware.nvidia` prints one JSON list; pytest itself never loads NVML.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from typing import Any

BRANDS = {"NVIDIA", "GeForce", "Tesla", "Quadro"}

Property = str | int | float | bool | None


def read(nvml: Any) -> list[dict[str, Property]]:
    """Return one entry per GPU: uuid, name and the properties that a baseline's must equal.

    Args:
        nvml: The pynvml module, or a fake of it.

    Returns:
        An empty list where there is no driver. Unknown properties are None.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        return [_gpu(nvml, handle) for handle in handles]
    finally:
        nvml.nvmlShutdown()


def accelerator_class(name: str) -> str:
    """Return the suite's word for a product name: "NVIDIA H200" is "H200".

    The first word that is a model name decides: "NVIDIA A100-SXM4-80GB" is "A100", "NVIDIA GH200
    480GB" is "GH200". Without one it is the words up to the number: "NVIDIA GeForce RTX 4090" is
    "RTX_4090".
    """
    found = re.search(r"\b([A-Z]{1,3}\d{1,4}[A-Z]?)\b", name.replace("-", " "))
    if found:
        return found[1]
    words = [word for word in re.findall(r"\w+", name) if word not in BRANDS]
    numbers = [position for position, word in enumerate(words) if word.isdigit()]
    return "_".join(words[: numbers[0] + 1] if numbers else words)


def _gpu(nvml: Any, handle: Any) -> dict[str, Property]:
    def ask(function: str, *more: Any) -> Any:
        try:
            return getattr(nvml, function)(handle, *more)
        except (nvml.NVMLError, AttributeError):
            return None

    def text(value: Any) -> str | None:
        return value.decode() if isinstance(value, bytes) else value

    memory, limit, ecc, mig = (
        ask("nvmlDeviceGetMemoryInfo"),
        ask("nvmlDeviceGetEnforcedPowerLimit"),
        ask("nvmlDeviceGetEccMode"),
        ask("nvmlDeviceGetMigMode"),
    )
    return {
        "uuid": text(ask("nvmlDeviceGetUUID")),
        "gpu": text(ask("nvmlDeviceGetName")),
        "memory_gib": round(memory.total / 2**30) if memory else None,
        "power_limit_w": round(limit / 5000) * 5 if limit else None,
        "ecc": bool(ecc[0]) if ecc else None,
        "mig": bool(mig[0]) if mig else None,
    }


if __name__ == "__main__":
    json.dump(read(importlib.import_module("pynvml")), sys.stdout)
