"""The table of known GPUs, and which of them a product name means."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from pytest_mlperf.core.roofline.gpu import PEAKS, GpuSpec, any_of
from pytest_mlperf.hardware.nvidia import accelerator_class, model_words

_MEMORY_SLACK = 0.09
"""NVML shows up to 8 % less than the vendor's figure, where ECC takes its part of the memory."""


@cache
def known_gpus() -> Mapping[str, GpuSpec]:
    """Return every kind of GPU that the table has, by name."""
    raw = tomllib.loads(files(__package__).joinpath("gpus.toml").read_text("utf-8"))
    return {
        name: GpuSpec(
            name=name,
            peaks={key: own[key] for key in PEAKS if key in own},
            marks=frozenset(mark.upper() for mark in own["marks"]),
            **{key: own[key] for key in own if key not in (*PEAKS, "marks")},
        )
        for name, own in raw.items()
    }


@cache
def known_classes() -> Mapping[str, str]:
    """Return the classes of the table, and "cpu", each by its name in lower case."""
    classes = {spec.accelerator for spec in known_gpus().values()}
    return {name.lower(): name for name in sorted(classes | {"cpu"})}


def find_gpu(product: str, *, memory_gib: float | None = None) -> GpuSpec | None:
    """Return the kind of GPU that a product's, MLPerf's, a class's or the table's name means.

    Where the name leaves several kinds open, what none of them exceeds; None: an unknown GPU. NVML
    counts memory in GiB: a vendor's "141 GB" is about 140 GiB.
    """
    specs = known_gpus()
    if product in specs:
        return specs[product]
    words = {word.upper() for word in re.findall(r"\w+", product)}
    classes = {spec.accelerator for spec in specs.values()}
    # A board's name may have its chip's in it, "NVIDIA Jetson AGX Thor 128G"; a system's has two
    # where it has GPUs of two kinds, of which it says no limit.
    named = {name for name in classes if name.upper() in words} | (
        {accelerator_class(product)} & classes
    )
    if len(named) > 1 or model_words(product)[1]:
        return None
    kinds = [spec for spec in specs.values() if spec.accelerator in named]
    marks = words.intersection(*[[mark for kind in kinds for mark in kind.marks]])
    says = re.search(r"\b(\d+)GB\b", product)  # 80 of "A100-SXM4-80GB"
    size = memory_gib or (float(says[1]) if says and says[0].upper() not in marks else None)
    if size is not None:
        kinds = [k for k in kinds if k.memory and abs(size * 1e9 / k.memory - 1) <= _MEMORY_SLACK]
    # A form that no kind of this memory has is another board's.
    kinds = [kind for kind in kinds if kind.marks & marks or not marks]
    return any_of(kinds) if kinds else None


def gpu_in(identity: Mapping[str, object]) -> GpuSpec | None:
    """Return the kind of GPU that a machine's identity names; None: none, or an unknown one."""
    product, memory = identity.get("gpu"), identity.get("memory_gib")
    if not isinstance(product, str):
        return None
    return find_gpu(product, memory_gib=memory if isinstance(memory, int | float) else None)
