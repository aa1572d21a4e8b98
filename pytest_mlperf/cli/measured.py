"""Hold the runs of one case, and check whether two sets of runs are comparable."""

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
    """Hold runs of one case on one machine, at one rate, with one build.

    Attributes:
        rate: Offered rate (queries per second); None if the scenario measures the rate.
        limits: Limits of gated metrics, or None if unknown.
        gated: Metrics that a committed baseline can gate; None for the runs of sessions.
        reason: A handicap, or the reason for missing runs.
        price: Price of one GPU, if the suite states it.
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
        """Conditions of the rate search, or "" if the rate was not searched."""
        return self.fingerprint.get("find", "")

    @property
    def division(self) -> str:
        """The MLPerf division; fingerprints record only the open one."""
        return self.fingerprint.get("division", "closed")


def why_not(a: Measured, b: Measured, *, hardware: bool = True) -> str:
    """Return why two measurements cannot be compared, or ""; `hardware` False ignores hardware."""
    for label, side in (("A", a), ("B", b)):
        if not side.runs:
            return f"{label} has no runs: {side.reason}"
    if a.profile != b.profile:
        return f"different profiles: {a.profile} → {b.profile}"
    if a.division != b.division:
        return f"different divisions: {a.division} → {b.division}"
    if hardware and (others := differences(a.identity, b.identity)):
        return "different hardware: " + ", ".join(f"{d.name} {d.theirs} → {d.ours}" for d in others)
    if condition := other_condition(a.fingerprint, b.fingerprint):
        return condition
    old, new = ("unknown" if rate is None else f"{rate:g}/s" for rate in (a.rate, b.rate))
    return "" if a.rate == b.rate else f"offered rate differs: {old} → {new}"
