"""Identify NVIDIA GPUs through NVML, in a process of its own.

`python -m pytest_mlperf.hardware.nvidia` prints one JSON object; pytest itself never loads NVML.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, TypedDict

from pytest_mlperf.hardware.nvidia_identity import (
    Property,
    ask,
    decoded,
    hashed,
    linked,
    properties,
    surroundings,
)
from pytest_mlperf.hardware.nvml import (
    ADVICE,
    INVALID_ARGUMENT,
    NOT_FOUND,
    Device,
    Library,
    Lost,
    UnavailableNvml,
    patiently,
    words,
)
from pytest_mlperf.hardware.nvml_quantities import identity

BRANDS = {"NVIDIA", "GeForce", "Tesla", "Quadro"}

LONGEST_S = 90
"""The process ends itself by then, whatever a driver does; who started it waits less."""

MOST_INSTANCES = 7


class Gpu(TypedDict):
    """One GPU, or one MIG instance of a GPU.

    Attributes:
        uuid: "GPU-…" or "MIG-…".
        index: NVML's, of the physical GPU, which is its place in PCI order.
        parent: UUID of the physical GPU: its own without MIG; None where it may not be read.
        address: The older name of an instance, "MIG-GPU-…/gi/ci"; None without MIG.
        nvlink: Whether a link to another GPU is up; None: not known.
        identity: What must equal a baseline's; the unknown is None.
        surroundings: What is only shown when it changed; the unknown is left out.
    """

    uuid: str
    index: int
    parent: str | None
    address: str | None
    nvlink: bool | None
    identity: dict[str, Property]
    surroundings: dict[str, str]


class Found(TypedDict):
    """What NVML told.

    Attributes:
        gpus: In NVML's order, which is that of PCI.
        trouble: Why there is none, or why one is left out, in one sentence; None: all is well.
    """

    gpus: list[Gpu]
    trouble: str | None


def read(nvml: Any) -> Found:
    """Return every GPU with its identity and its surroundings.

    A GPU with MIG stands there as its instances. Every property may be unknown on its own.

    Args:
        nvml: The pynvml module.
    """
    try:
        library = Library(nvml)
    except UnavailableNvml as error:
        return {"gpus": [], "trouble": str(error)}
    try:
        return _read(library)
    finally:
        library.close()


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


def instance_class(name: str, mig: Property) -> str:
    """Return the suite's word for a GPU or a MIG instance: "H200", or "H200_1g.18gb".

    What follows a profile becomes legal in a name: "1g.18gb+me" is "1g.18gb_me" and "1g.18gb-me",
    which lacks what the other has, is "1g.18gb_no_me". A GPU whose instances may not be seen is
    "H200_mig": it is no whole one.

    Args:
        name: Product name.
        mig: The property of that name: a profile, True, False or None.
    """
    own = accelerator_class(name)
    if not mig:
        return own
    profile = mig if isinstance(mig, str) else "mig"
    return f"{own}_{re.sub(r'[^A-Za-z0-9._]', '_', profile.replace('-', '_no_'))}"


def _read(library: Library) -> Found:
    nvml = library.nvml
    gpus: list[Gpu] = []
    troubles = []
    try:
        count = patiently(nvml, nvml.nvmlDeviceGetCount)
    except nvml.NVMLError as error:
        return {"gpus": [], "trouble": f"GPUs may not be counted: {_advice(error)}"}
    versions = dict(_versions(nvml))
    for index in range(count):
        try:
            handle = patiently(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
            device = Device(library=library, uuid="", handle=handle)
            gpus += _gpus(device, index, versions)
        except nvml.NVMLError as error:
            troubles.append(f"GPU {index} may not be asked: {_advice(error)}")
        except (UnavailableNvml, Lost) as error:
            troubles.append(f"GPU {index}: {error}")
    if not count:
        troubles.append("NVIDIA's driver runs, and lists no GPU")
    return {"gpus": gpus, "trouble": "; ".join(troubles) or None}


def _advice(error: Any) -> str:
    return ADVICE.get(error.value, words(error))


def _versions(nvml: Any) -> Iterator[tuple[str, str]]:
    """Yield the versions of driver and of the newest CUDA that it knows, where they are told."""
    with contextlib.suppress(nvml.NVMLError):
        yield "driver", decoded(patiently(nvml, nvml.nvmlSystemGetDriverVersion)) or ""
    with contextlib.suppress(nvml.NVMLError):
        cuda = patiently(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
        yield "cuda", f"{cuda // 1000}.{cuda % 1000 // 10}"


def _gpus(device: Device, index: int, versions: Mapping[str, str]) -> Iterator[Gpu]:
    """Yield a GPU, or its instances.

    Raises:
        UnavailableNvml: It cannot be used.
        Lost: It is gone.
    """
    found = identity(device)
    mode = found["mig"]
    handles, seen = _instances(device)
    whole: Gpu = {
        "uuid": str(found["uuid"]),
        "index": index,
        "parent": None if found["uuid"] is None else str(found["uuid"]),
        "address": None,
        "nvlink": linked(device),
        "identity": properties(device, found, versions.get("driver", "")),
        "surroundings": {**versions, **surroundings(device, found)},
    }
    if handles:
        yield from (_instance(device, handle, whole) for handle in handles)
    elif isinstance(mode, list) and mode[0] and seen:
        raise UnavailableNvml("MIG is on and it has no instance: create one, or turn MIG off")
    elif found["uuid"] is None:
        raise UnavailableNvml("it does not tell its UUID, without which no process can be given it")
    else:
        yield whole


def _instances(device: Device) -> tuple[list[Any], bool]:
    """Return the handles of the MIG instances, and whether they could be looked for."""
    nvml, found = device.library.nvml, []
    get = nvml.nvmlDeviceGetMigDeviceHandleByIndex
    for index in range(MOST_INSTANCES):
        try:
            found.append(patiently(nvml, get, device.handle, index))
        except nvml.NVMLError as error:
            if error.value == INVALID_ARGUMENT:
                break  # a product with fewer
            if error.value != NOT_FOUND:
                return found, False
    return found, True


def _instance(device: Device, handle: Any, whole: Gpu) -> Gpu:
    """Return a MIG instance: its own name and memory, and all else of the GPU that it is on."""
    own = Device(library=device.library, uuid="", handle=handle)
    uuid, name = decoded(ask(own, "nvmlDeviceGetUUID")), decoded(ask(own, "nvmlDeviceGetName"))
    if uuid is None:
        raise UnavailableNvml("an instance of it does not tell its UUID")
    profile = re.search(r"\bMIG (\S+)$", name or "")
    memory = ask(own, "nvmlDeviceGetMemoryInfo")
    number = [ask(own, f"nvmlDeviceGet{kind}InstanceId") for kind in ("Gpu", "Compute")]
    known = whole["parent"] is not None and None not in number
    return {
        **whole,
        "uuid": uuid,
        "address": f"MIG-{whole['parent']}/{number[0]}/{number[1]}" if known else None,
        "nvlink": None,
        "identity": {
            **whole["identity"],
            "gpu": name or whole["identity"]["gpu"],
            "memory_gib": None if memory is None else round(memory.total / 2**30),
            "mig": profile[1] if profile else True,
        },
        "surroundings": {**whole["surroundings"], "card": hashed(whole["parent"] or uuid)},
    }


def main() -> None:
    """Print what NVML tells."""
    signal.alarm(LONGEST_S)  # its default action ends a process even inside a call that hangs
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the deprecated package pynvml warns at its import
            nvml = importlib.import_module("pynvml")
        found = read(nvml)
    except ImportError as error:
        found = {"gpus": [], "trouble": f"NVIDIA's binding: {error}; pip install nvidia-ml-py"}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
