"""Define a GPU's datasheet figures: dense peaks, bandwidth, memory; and its price."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import reduce
from typing import Any

from pytest_mlperf.core.case import PRECISION_NAMES, PrecisionName
from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.core.numbers import MAX_RATE, MIN_RATE, AtLeastOne, NotNegative, Positive

PEAKS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4", "int4")
"""Precisions of peaks in FLOP/s, integers in OP/s, which count alike."""

_SCALES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


@dataclass(frozen=True, slots=True)
class _Figure:
    """Describe a GPU property in suites: its units (base unit first), an example, its minimum."""

    units: tuple[str, ...]
    example: str
    least: float


_FIGURES = {
    "peak": _Figure(("FLOP/s", "FLOPS", "OP/s", "OPS"), '1979e12 or "1979 TFLOP/s"', 1e10),
    "bandwidth": _Figure(("B/s",), '4800e9 or "4.8 TB/s"', 1e9),
    "memory": _Figure(("B",), '141e9 or "141 GB"', 1e8),
    "cache": _Figure(("B",), '50e6 or "50 MB"', 1e4),
    "clock": _Figure(("Hz",), '1.98e9 or "1.98 GHz"', 1e8),
}

EXAMPLE = "fp16 = 989e12, fp8 = 1979e12, bandwidth = 4.8e12, memory = 141e9"


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuSpec:
    """Hold the datasheet figures of one GPU model; unknown ones are None or absent.

    Attributes:
        accelerator: Class of the GPU in suites: "H100".
        peaks: Dense peak by precision [FLOP/s], never the doubled figure "with sparsity".
        bandwidth: Memory bandwidth [B/s].
        memory: Memory as the vendor counts it [B]: "141 GB" is 141e9.
        cache: Last-level cache, where weights may stay between steps [B].
        stated_clock, highest_clock: SM clock of the stated peaks, and highest SM clock [Hz].
        marks: Words in product names that identify this model within its class.
    """

    name: str
    accelerator: str
    peaks: Mapping[str, float]
    bandwidth: float | None = None
    memory: float | None = None
    cache: float = 0.0
    stated_clock: float | None = None
    highest_clock: float | None = None
    marks: frozenset[str] = field(default_factory=frozenset)
    source: str = ""

    @property
    def headroom(self) -> float:
        """Ratio of the highest clock to the clock at which the peaks are stated; 1 if unknown."""
        if self.stated_clock is None or self.highest_clock is None:
            return 1.0
        return max(1.0, self.highest_clock / self.stated_clock)


def parse_gpu(accelerator: str, figures: Mapping[str, Any]) -> GpuSpec:
    """Parse the figures that a suite gives for a GPU that the tables lack.

    Args:
        figures: Peaks by precision in FLOP/s, `bandwidth` in B/s, `memory` in B, and optionally
            `cache` in B, `stated_clock` and `highest_clock` in Hz, `source`; numbers, or text with
            a unit.

    Raises:
        SuiteError: A name, a unit or a value is invalid; the message does not name the GPU.
    """
    keys = (*PEAKS, "bandwidth", "memory", "cache", "stated_clock", "highest_clock", "source")
    if unknown := sorted(set(figures) - set(keys)):
        raise SuiteError(f"unknown {unknown[0]!r}; known: {', '.join(keys)}")
    source = figures.get("source", "the suite")
    if not isinstance(source, str):
        raise SuiteError(f"source must be text, not {source!r}")
    values: dict[str, Any] = {
        key: _value(key, figures[key]) for key in keys if key in figures and key != "source"
    }
    peaks = {key: values.pop(key) for key in PEAKS if key in values}
    if not peaks:
        raise SuiteError(f"set at least one dense peak, e.g. {EXAMPLE} (FLOP/s, B/s, B)")
    _refuse_sparse(peaks)
    if ("stated_clock" in values) is not ("highest_clock" in values):
        raise SuiteError(
            "set both stated_clock, for which the peaks are stated, and highest_clock, the "
            "highest in use, or neither"
        )
    return GpuSpec(
        name=accelerator,
        accelerator=accelerator,
        peaks=peaks,
        source=source,
        **values,
    )


def any_of(specs: Sequence[GpuSpec]) -> GpuSpec:
    """Return the upper bound of each figure over all `specs`, to use for an unknown GPU model."""
    return reduce(_upper_bounds, specs)


def _upper_bounds(a: GpuSpec, b: GpuSpec) -> GpuSpec:
    """Return upper bounds over two GPU models; a figure is None if unknown for one of them."""
    peaks = {key: max(a.peaks[key], b.peaks[key]) for key in a.peaks if key in b.peaks}
    bandwidth, memory = _most(a.bandwidth, b.bandwidth), _most(a.memory, b.memory)
    highest = (
        max(a.peaks[key] * a.headroom, b.peaks[key] * b.headroom) / peaks[key] for key in peaks
    )
    headroom = max(highest, default=1.0)
    for spec in (a, b):
        mine = {key: spec.peaks[key] for key in peaks}
        has_all = (mine, spec.bandwidth, spec.memory) == (peaks, bandwidth, memory)
        if has_all and spec.headroom >= headroom and spec.cache >= max(a.cache, b.cache):
            return spec
    return GpuSpec(
        name=f"{a.name} or {b.name}",
        accelerator=a.accelerator,
        peaks=peaks,
        bandwidth=bandwidth,
        memory=memory,
        cache=max(a.cache, b.cache),
        # Only the ratio of the two counts: the fastest kind's clock over the highest peak.
        stated_clock=1.0,
        highest_clock=headroom,
        source="; ".join(dict.fromkeys((a.source, b.source))),
    )


def _most(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else max(a, b)


def _value(where: str, figure: Any) -> float:
    kind = _FIGURES["peak" if where in PEAKS else "clock" if where.endswith("clock") else where]
    expected = f"{where} must be a number in {kind.units[0]}, or a text with its unit: "
    expected += kind.example
    if isinstance(figure, str):
        units = "|".join(map(re.escape, kind.units))
        matched = re.fullmatch(rf"\s*([\d.,]+(?:e\d+)?)\s*([kMGTP]?)({units})?\s*", figure)
        if matched is None:
            raise SuiteError(f"{expected}, not {figure!r}")
        try:
            value = float(matched[1].replace(",", "")) * _SCALES[matched[2]]
        except ValueError:
            raise SuiteError(f"{expected}, not {figure!r}") from None
    elif isinstance(figure, int | float) and not isinstance(figure, bool):
        value = float(figure)
    else:
        raise SuiteError(f"{expected}, not {figure!r}")
    if not kind.least <= value < math.inf:
        raise SuiteError(f"{expected}; {figure!r} is too small for a value in {kind.units[0]}")
    return value


def _refuse_sparse(peaks: Mapping[str, float]) -> None:
    """Raise SuiteError if the 8-bit peak is above 2.5 times the 16-bit peak, as with sparsity."""
    wide = max((peaks[key] for key in ("fp16", "bf16") if key in peaks), default=None)
    narrow = max((peaks[key] for key in ("fp8", "int8") if key in peaks), default=None)
    if wide is not None and narrow is not None and narrow > 2.5 * wide:
        raise SuiteError(
            f"fp8 or int8 is {narrow / wide:.3g} times fp16, so it is probably a peak with 2:4 "
            "sparsity; set dense peaks, which are half as high"
        )


_NARROW = ("int8", "fp8", "fp16", "bf16")


@dataclass(frozen=True, slots=True)
class Precision:
    """Describe a precision, such as "fp8", for the roofline.

    Attributes:
        units: Names of the peaks that can do the work; a GPU's highest one counts (4-bit weights
            may be computed in 8 or 16 bits).
        weight, sparse: Smallest size of a weight including scales [B], dense and with 2:4 sparsity.
    """

    units: tuple[str, ...]
    weight: float
    sparse: float


_BY_NAME: Mapping[PrecisionName, Precision] = {
    "fp64": Precision(("fp64",), 8.0, 4.125),
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
"""Sizes of weights. NVFP4 has a scale of 8 bits for 16 weights, MX formats for 32; INT4 in groups
of g has a scale of 16 bits and a zero of 4 per group; open choices count nothing. GPTQ has 2 bits
or more. 2:4 keeps half of the weights, with two bits of position from 8 bits on."""

PRECISIONS: Mapping[str, Precision] = {name: _BY_NAME[name] for name in PRECISION_NAMES}

KV_BYTES: Mapping[str, float] = {"fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5}
"""Size of one element of the key-value cache [B]."""


def peak(gpu: GpuSpec, precision: str | None) -> float | None:
    """Return a GPU's dense peak at a precision [FLOP/s]; for None its highest peak."""
    if precision is None:
        return max(gpu.peaks.values(), default=None)
    about = PRECISIONS.get(precision)
    units = about.units if about else ()
    return max((gpu.peaks[unit] for unit in units if unit in gpu.peaks), default=None)


SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuPrice:
    """Hold the price of one GPU.

    Attributes:
        usd_per_gpu_hour: Price in the suite's price table; no prices are built in.
        as_of: Date of the price, shown with every figure made from it.
        source: Source of the price; "" if unknown.
    """

    usd_per_gpu_hour: Positive
    as_of: date
    source: str = ""

    def __post_init__(self) -> None:
        if not MIN_RATE <= self.usd_per_gpu_hour <= MAX_RATE:
            raise ValueError(
                f"usd_per_gpu_hour is {self.usd_per_gpu_hour!r}; must be positive and finite"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class PerDollar:
    """Hold the output per dollar.

    Attributes:
        value: Samples or tokens per dollar.
        of: Unit of the output: "samples" or "tokens".
        gpus: Number of GPUs paid for.
        price: Price of each GPU, with its date.
    """

    value: NotNegative
    of: str
    gpus: AtLeastOne
    price: GpuPrice


def fewest_gpus(weight_bytes: float, memory: float) -> int:
    """Return the fewest GPUs, of `memory` bytes, that hold a model's weights with all experts."""
    if not (0 < weight_bytes < math.inf and 0 < memory < math.inf):
        raise ValueError(f"weight_bytes={weight_bytes!r}, memory={memory!r}; both must be positive")
    return math.ceil(weight_bytes / memory)


def per_dollar(
    rate: float, price: GpuPrice, *, gpus: int, weight_gpus: int = 1, unit: str = "tokens"
) -> PerDollar:
    """Return output per dollar: rate x 3600 s / (USD per GPU-hour x max(gpus, weight_gpus)).

    `weight_gpus` is the smallest number of GPUs whose memory can hold the weights.
    """
    if not 0 <= rate < math.inf:
        raise ValueError(f"the rate is {rate!r}; must be finite, at least 0")
    if gpus < 1 or weight_gpus < 1:
        raise ValueError(f"gpus={gpus}, weight_gpus={weight_gpus}; both must be at least 1")
    paid = max(gpus, weight_gpus)
    dollars_per_s = price.usd_per_gpu_hour * paid / SECONDS_PER_HOUR
    return PerDollar(value=rate / dollars_per_s, of=unit, gpus=paid, price=price)
