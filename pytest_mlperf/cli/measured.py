"""The runs of one case that belong together, and what keeps two of them from being compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_mlperf.core.baseline import Property, differences
from pytest_mlperf.core.case import Case
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.roofline.gpu import GpuPrice
from pytest_mlperf.core.search import other_condition


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The runs of one case that belong together: one machine, rate and build.

    Attributes:
        rate: Offered rate, per second; None where it is no condition of the measurement.
        limits: Gated metrics with their limits; None: not known here.
        gated: Metrics that these runs have enough queries for; None: the runs themselves tell.
        reason: What is to be known about it: a handicap, or why there are no runs.
        price: What one of its GPUs costs, where the suite said so.
    """

    case: Case
    profile: str
    identity: Mapping[str, Property]
    fingerprint: Mapping[str, str]
    rate: float | None
    runs: tuple[Run, ...]
    limits: Mapping[str, float] | None = None
    gated: frozenset[str] | None = None
    reason: str = ""
    surroundings: Mapping[str, str] = field(default_factory=dict)
    price: GpuPrice | None = None

    @property
    def find(self) -> str:
        """The conditions under which its throughput was found; "": it was not searched."""
        return self.fingerprint.get("find", "")

    @property
    def division(self) -> str:
        """The division; only the open one is recorded, with its techniques."""
        return self.fingerprint.get("division", "closed")


def why_not(a: Measured, b: Measured) -> str:
    """Return why two measurements of a case may not be judged together; "" where they may."""
    return why_not_alike(a, b, hardware=True)


def why_not_alike(a: Measured, b: Measured, *, hardware: bool = False) -> str:
    """Return why two measurements are not of the same work, or hardware if asked; "": they are."""
    for label, one in (("A", a), ("B", b)):
        if not one.runs:
            return f"{label} has no run: {one.reason}"
    if a.profile != b.profile:
        return f"another profile: {a.profile} → {b.profile}"
    if a.division != b.division:
        return f"another division: {a.division} → {b.division}"
    if hardware and (others := differences(a.identity, b.identity)):
        shown = ", ".join(f"{d.name} {d.theirs} → {d.ours}" for d in others)
        return f"other hardware: {shown}"
    if condition := other_condition(a.fingerprint, b.fingerprint):
        return condition
    same = a.rate == b.rate
    return "" if same else f"offered rate differs: {_rate(a.rate)} → {_rate(b.rate)}"


def _rate(rate: float | None) -> str:
    return "unknown" if rate is None else f"{rate:g}/s"
