"""What the name of a precision says: which units compute, and how many bytes a weight takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_mlperf.core.roofline.gpu import GpuSpec

_NARROW = ("int8", "fp8", "fp16", "bf16")


@dataclass(frozen=True, slots=True)
class Precision:
    """One name.

    Attributes:
        units: Peaks of a GPU that may do the work; the fastest of those it has counts, because
            weights in 4 bits are often widened before the multiplication.
        weight: Bytes of a weight, with its share of scales: the fewest that the name allows.
        sparse: Bytes of a weight with 2:4 sparsity, with the positions where their format is set.
    """

    units: tuple[str, ...]
    weight: float
    sparse: float


PRECISIONS: Mapping[str, Precision] = {
    "fp32": Precision(("fp32", "tf32"), 4.0, 2.125),
    "tf32": Precision(("tf32",), 4.0, 2.125),
    "fp16": Precision(("fp16", "bf16"), 2.0, 1.125),
    "bf16": Precision(("bf16", "fp16"), 2.0, 1.125),
    "fp8": Precision(("fp8",), 1.0, 0.625),
    "int8": Precision(("int8",), 1.0, 0.625),
    "fp4": Precision(("fp4", *_NARROW), 0.5 + 1 / 32, 0.25 + 1 / 32),
    "nvfp4": Precision(("fp4", *_NARROW), 0.5 + 1 / 16, 0.25 + 1 / 16),
    "mxfp4": Precision(("fp4", *_NARROW), 0.5 + 1 / 32, 0.25 + 1 / 32),
    "int4": Precision(("int4", *_NARROW), 0.5, 0.25),
    "int4-awq": Precision(("int4", *_NARROW), 0.5, 0.25),
    "w4a8-awq": Precision(("fp8", "int8"), 0.5, 0.25),
    "gptq": Precision(("int4", *_NARROW), 0.25, 0.125),
    "mixed": Precision(("fp4", "int4", *_NARROW), 0.5, 0.25),
    "int4-g128": Precision(("int4", *_NARROW), 0.5 + 2.5 / 128, 0.25 + 2.5 / 128),
}
"""Bytes of a weight. NVFP4 has a scale of 8 bits for 16 weights, MX formats for 32; INT4 in groups
of g has a scale of 16 bits and a zero of 4 for each group; where a name leaves that open, none is
counted. GPTQ has 2 bits or more. 2:4 keeps half of the weights; at 8 bits
and more two bits say the place of each, at 4 bits that share is left out, so as never to count too
many bytes.
"""

KV_BYTES: Mapping[str, float] = {"fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5}
"""Bytes of one element of the key-value cache."""


def peak(gpu: GpuSpec, precision: str | None) -> float | None:
    """Return a GPU's dense peak in FLOP/s at a precision, its fastest where none is stated.

    None: the name is unknown, or the GPU has no figure for it.
    """
    if precision is None:
        return max(gpu.peaks.values(), default=None)
    about = PRECISIONS.get(precision)
    units = about.units if about else ()
    return max((gpu.peaks[unit] for unit in units if unit in gpu.peaks), default=None)
