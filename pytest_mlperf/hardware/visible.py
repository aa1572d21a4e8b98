"""Which GPUs a CUDA process would see, by CUDA's own rules for CUDA_VISIBLE_DEVICES.

| entry | means |
|---|---|
| none: the variable is not set | every GPU |
| 2 | GPU 2 in CUDA's order, which is that of PCI under CUDA_DEVICE_ORDER=PCI_BUS_ID |
| GPU-8932f937-… | that GPU; fewer characters do where no other GPU begins with them |
| MIG-41b3e… | that MIG instance |
| MIG-GPU-8932f937-…/1/0 | the same as drivers before 470 named it, by its two numbers there |
| anything else, such as -1 or NoDevFiles | nothing, and the list ends there |

A GPU that is named twice is an error to CUDA: there is none then. A GPU that is divided by MIG,
named as a whole, stands for its first instance, for CUDA shows a process no more than one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

DEVICES, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
PCI_ORDER = "PCI_BUS_ID"


class AmbiguousOrder(ValueError):
    """A GPU is named by its place in an order that cannot be told from outside of CUDA."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A GPU or a MIG instance that can be named.

    Attributes:
        uuid: "GPU-…" or "MIG-…".
        index: Place of its physical GPU in PCI order.
        product: Name of the physical GPU's product; None: not known.
        gpu: UUID of its physical GPU, its own without MIG; None: not known.
        address: "MIG-GPU-…/gi/ci" of an instance.
    """

    uuid: str
    index: int
    product: str | None = None
    gpu: str | None = None
    address: str | None = None


def visible(devices: Sequence[Device], environ: Mapping[str, str]) -> list[str]:
    """Return the UUIDs of what a CUDA process sees, in its order.

    Args:
        devices: All that is here, in PCI order.
        environ: Of the process; CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER are read.

    Raises:
        AmbiguousOrder: A number, where CUDA puts the fastest first and products differ.
    """
    wanted = environ.get(DEVICES)
    if wanted is None:
        return [device.uuid for device in devices]
    found: list[str] = []
    for word in wanted.split(","):
        uuid = _named(word.strip(), devices, environ)
        if uuid is None:
            break
        if uuid in found:
            return []
        found.append(uuid)
    return found


def _named(word: str, devices: Sequence[Device], environ: Mapping[str, str]) -> str | None:
    """Return the UUID that one entry means, or None."""
    if word.startswith("MIG-"):
        fitting = [device for device in devices if word in (device.uuid, device.address)]
    elif word.startswith("GPU-"):
        fitting = [device for device in devices if (device.gpu or "").startswith(word)]
        if len({device.gpu for device in fitting}) > 1:
            return None
    else:
        number = _number(word)
        fitting = [device for device in devices if device.index == number]
        if fitting:
            _require_an_order(devices, environ, word)
    return fitting[0].uuid if fitting else None


def _number(word: str) -> int | None:
    """Read a number as C does: what follows its digits is not looked at."""
    found = re.match(r"[+-]?[0-9]{1,9}", word)
    return int(found[0]) if found else None


def _require_an_order(devices: Sequence[Device], environ: Mapping[str, str], word: str) -> None:
    """Refuse a number where it may mean one GPU to CUDA and another to NVML."""
    products = sorted({device.product or "an unknown GPU" for device in devices})
    if environ.get(ORDER) == PCI_ORDER or len(products) == 1:
        return
    raise AmbiguousOrder(
        f"{DEVICES} names GPU {word} by its place in CUDA's order, fastest first, which is not "
        f"known where products differ ({', '.join(products)}): set {ORDER}={PCI_ORDER}, or name "
        "GPUs by UUID as nvidia-smi -L prints them"
    )
