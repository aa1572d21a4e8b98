"""What a GPU can do at most: dense peaks, bandwidth of memory and memory, as its vendor says."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from pytest_mlperf.core.errors import SuiteError

PEAKS = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4", "int4")
"""What a GPU may have a peak for, in FLOP/s; of integers in OP/s, which count alike."""

_SCALES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}

_UNITS = {
    "peak": ("FLOP/s", "FLOPS", "OP/s", "OPS"),
    "bandwidth": ("B/s",),
    "memory": ("B",),
    "cache": ("B",),
}
_LEAST = {"peak": 1e10, "bandwidth": 1e9, "memory": 1e8, "cache": 1e4, "clock": 1e8}
"""Below these a figure is in another unit: no GPU is that slow or small."""

_EXAMPLES = {
    "peak": '1979e12 or "1979 TFLOP/s"',
    "bandwidth": '4800e9 or "4.8 TB/s"',
    "memory": '141e9 or "141 GB"',
    "cache": '50e6 or "50 MB"',
    "clock": '1.98e9 or "1.98 GHz"',
}

EXAMPLE = "fp16 = 989e12, fp8 = 1979e12, bandwidth = 4.8e12, memory = 141e9"
"""The figures of an unknown GPU, as a suite gives them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuSpec:
    """One kind of GPU; what is unknown is None or absent.

    Attributes:
        name: Tells it from others of its class: "H100-PCIe".
        accelerator: The suite's word for its class: "H100".
        peaks: Dense peak in FLOP/s by precision: never the figure "with sparsity", which is twice.
        bandwidth: Of its memory, B/s.
        memory: B, as the vendor counts: "141 GB" is 141e9.
        cache: B of its last cache, where weights may stay from step to step.
        stated_clock: SM clock in Hz that the peaks are stated for.
        highest_clock: SM clock in Hz that it can reach.
        marks: Words of product names that mean it and no other of its class.
        source: Who says so.
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
        """How far the highest clock is above that of the stated peaks; 1 where nobody says."""
        if self.stated_clock is None or self.highest_clock is None:
            return 1.0
        return max(1.0, self.highest_clock / self.stated_clock)


def parse_gpu(accelerator: str, figures: Mapping[str, Any]) -> GpuSpec:
    """Build a GPU from the figures that a suite gives for one that the tables lack.

    Args:
        accelerator: Class, as in the suite: "RTX_4090".
        figures: Peaks by precision in FLOP/s, `bandwidth` in B/s, `memory` in B, and optionally
            `cache` in B, `stated_clock` and `highest_clock` in Hz, `source`; numbers, or text
            with a unit.

    Raises:
        SuiteError: A name, a unit or a value cannot be; it says what is needed.
    """
    known = (*PEAKS, "bandwidth", "memory", "cache", "stated_clock", "highest_clock", "source")
    if unknown := sorted(set(figures) - set(known)):
        raise SuiteError(f"GPU {accelerator}: unknown {unknown[0]!r}; known: {', '.join(known)}")
    source = figures.get("source", "the suite")
    if not isinstance(source, str):
        raise SuiteError(f"GPU {accelerator}: source must be text, not {source!r}")
    values = {
        key: _value(f"GPU {accelerator}: {key}", _kind(key), figures[key])
        for key in known
        if key in figures and key != "source"
    }
    peaks = {key: values.pop(key) for key in PEAKS if key in values}
    if not peaks:
        raise SuiteError(
            f"GPU {accelerator}: give at least one dense peak, as {EXAMPLE} (FLOP/s, B/s, B)"
        )
    _refuse_sparse(accelerator, peaks)
    _refuse_half_of_the_clocks(accelerator, values)
    return GpuSpec(
        name=accelerator,
        accelerator=accelerator,
        peaks=peaks,
        bandwidth=values.get("bandwidth"),
        memory=values.get("memory"),
        cache=values.get("cache", 0.0),
        stated_clock=values.get("stated_clock"),
        highest_clock=values.get("highest_clock"),
        source=source,
    )


def any_of(specs: Sequence[GpuSpec]) -> GpuSpec:
    """Return what no GPU of several kinds exceeds: for a class whose kind is not known."""
    return reduce(_either, specs)


def _either(a: GpuSpec, b: GpuSpec) -> GpuSpec:
    """Return the better figure of two each, unknown where one does not say; one, if it has all."""
    peaks = {key: max(a.peaks[key], b.peaks[key]) for key in a.peaks if key in b.peaks}
    bandwidth, memory = _most(a.bandwidth, b.bandwidth), _most(a.memory, b.memory)
    highest = (
        max(a.peaks[key] * a.headroom, b.peaks[key] * b.headroom) / peaks[key] for key in peaks
    )
    headroom = max(highest, default=1.0)
    for own in (a, b):
        mine = {key: own.peaks[key] for key in peaks}
        has_all = (mine, own.bandwidth, own.memory) == (peaks, bandwidth, memory)
        if has_all and own.headroom >= headroom and own.cache >= max(a.cache, b.cache):
            return own
    return GpuSpec(
        name=f"{a.name} or {b.name}",
        accelerator=a.accelerator,
        peaks=peaks,
        bandwidth=bandwidth,
        memory=memory,
        cache=max(a.cache, b.cache),
        # Only the ratio of the two counts: how far the fastest kind is above the highest peak.
        stated_clock=1.0,
        highest_clock=headroom,
        source="; ".join(dict.fromkeys((a.source, b.source))),
    )


def _most(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else max(a, b)


def _kind(key: str) -> str:
    if key in PEAKS:
        return "peak"
    return "clock" if key.endswith("clock") else key


def _value(where: str, kind: str, given: Any) -> float:
    """Return a figure in its base unit, from a number or a text with a unit."""
    wanted = f"{where} must be a number in {_base(kind)}, or a text with its unit: "
    wanted += _EXAMPLES[kind]
    if isinstance(given, str):
        units = "|".join(map(re.escape, _UNITS.get(kind, ("Hz",))))
        matched = re.fullmatch(rf"\s*([\d.,]+(?:e\d+)?)\s*([kMGTP]?)({units})?\s*", given)
        if matched is None:
            raise SuiteError(f"{wanted}, not {given!r}")
        try:
            value = float(matched[1].replace(",", "")) * _SCALES[matched[2]]
        except ValueError:
            raise SuiteError(f"{wanted}, not {given!r}") from None
    elif isinstance(given, int | float) and not isinstance(given, bool):
        value = float(given)
    else:
        raise SuiteError(f"{wanted}, not {given!r}")
    if not _LEAST[kind] <= value < math.inf:
        raise SuiteError(f"{wanted}; {given!r} is too little for {_base(kind)}")
    return value


def _base(kind: str) -> str:
    return _UNITS.get(kind, ("Hz",))[0]


def _refuse_half_of_the_clocks(accelerator: str, values: Mapping[str, float]) -> None:
    if ("stated_clock" in values) is not ("highest_clock" in values):
        raise SuiteError(
            f"GPU {accelerator}: give both stated_clock, which the peaks are stated for, and "
            "highest_clock, which it can reach, or neither"
        )


def _refuse_sparse(accelerator: str, peaks: Mapping[str, float]) -> None:
    """Refuse a dense peak beside one "with sparsity": each halving of the width at most doubles."""
    wide = max((peaks[key] for key in ("fp16", "bf16") if key in peaks), default=None)
    narrow = max((peaks[key] for key in ("fp8", "int8") if key in peaks), default=None)
    if wide is None or narrow is None:
        return
    if narrow > 2.5 * wide:
        raise SuiteError(
            f"GPU {accelerator}: fp8 or int8 is {narrow / wide:.3g} times fp16, so one figure is "
            "dense and the other with 2:4 sparsity; give dense ones, half of those with sparsity"
        )
