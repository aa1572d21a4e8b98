"""Look up GPUs in the table of datasheet figures by product name."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from pytest_mlperf.core.roofline.gpu import PEAKS, GpuSpec, any_of
from pytest_mlperf.hardware.nvidia import accelerator_class, model_words

_MEMORY_SLACK = 0.09
"""NVML shows up to 8 % less than the vendor's figure if ECC uses part of the memory."""


@cache
def known_gpus() -> Mapping[str, GpuSpec]:
    """Return the GPUs of the table by name."""
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
    """Return the GPU classes with known peaks, and "cpu", by their names in lower case."""
    classes = {spec.accelerator for spec in known_gpus().values()}
    return {name.lower(): name for name in sorted(classes | {"cpu"})}


def find_gpu(product: str, *, memory_gib: float | None = None) -> GpuSpec | None:
    """Find a GPU by a product name, a name in MLPerf results, its class or its table name.

    If several GPUs match, the result has the highest value of each figure; None if none matches.
    NVML counts memory in GiB: a vendor's "141 GB" is about 140 GiB.
    """
    specs = known_gpus()
    if product in specs:
        return specs[product]
    words = {word.upper() for word in re.findall(r"\w+", product)}
    classes = {spec.accelerator for spec in specs.values()}
    # A board's name may contain its chip's: "NVIDIA Jetson AGX Thor 128G". A system with two kinds
    # of GPUs has both names, and then there is no single limit.
    gpu_classes = {name for name in classes if name.upper() in words} | (
        {accelerator_class(product)} & classes
    )
    if len(gpu_classes) > 1 or model_words(product)[1]:
        return None
    kinds = [spec for spec in specs.values() if spec.accelerator in gpu_classes]
    marks = words.intersection(*[[mark for kind in kinds for mark in kind.marks]])
    match = re.search(r"\b(\d+)GB\b", product)  # 80 of "A100-SXM4-80GB"
    size = memory_gib or (float(match[1]) if match and match[0].upper() not in marks else None)
    if size is not None:
        kinds = [k for k in kinds if k.memory and abs(size * 1e9 / k.memory - 1) <= _MEMORY_SLACK]
    # A form that no GPU of this memory has belongs to another board.
    kinds = [kind for kind in kinds if kind.marks & marks or not marks]
    return any_of(kinds) if kinds else None


def class_of(product: str) -> str:
    """Return a product's accelerator class from the table, else derived from its name."""
    gpu = find_gpu(product)
    return gpu.accelerator if gpu else re.sub(r"\W+", "_", accelerator_class(product)).strip("_")


def gpu_in(identity: Mapping[str, object]) -> GpuSpec | None:
    """Return the datasheet figures of a machine's GPU; None if it has none or it is unknown."""
    product, memory = identity.get("gpu"), identity.get("memory_gib")
    if not isinstance(product, str):
        return None
    return find_gpu(product, memory_gib=memory if isinstance(memory, int | float) else None)
