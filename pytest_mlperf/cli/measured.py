"""What both sides of a comparison are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_mlperf.core.baseline import Property
from pytest_mlperf.core.case import Case
from pytest_mlperf.core.measurement import Run

LOADED = frozenset({"Server", "Interactive"})
"""Scenarios whose latencies depend on the rate that is offered."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The runs of one case that belong together: one machine, rate and build.

    Attributes:
        case: What was measured.
        profile: "quick" or "official".
        identity: The hardware.
        fingerprint: Engine, versions, weights, options, data.
        rate: Offered rate, per second; None where it is no condition of the measurement.
        surroundings: Driver, kernel, card and the like.
        runs: Valid runs, oldest first; empty where nothing could be measured.
        limits: Gated metrics with their limits; None: not known here.
        gated: Metrics that these runs have enough queries for; None: the runs themselves tell.
        why: What is to be known about it: a handicap, or why there are no runs.
    """

    case: Case
    profile: str
    identity: Mapping[str, Property]
    fingerprint: Mapping[str, str]
    rate: float | None
    runs: tuple[Run, ...]
    limits: Mapping[str, float] | None = None
    gated: frozenset[str] | None = None
    why: str = ""
    surroundings: Mapping[str, str] = field(default_factory=dict)

    @property
    def find(self) -> str:
        """The conditions under which its throughput was found; "": it was not searched."""
        return self.fingerprint.get("find", "")

    @property
    def division(self) -> str:
        """The division; only the open one is recorded, with its techniques."""
        return self.fingerprint.get("division", "closed")


@dataclass(frozen=True, kw_only=True)
class Side:
    """What one argument of `compare` names.

    Attributes:
        name: The argument, with what it was taken for.
        cases: Measurements by case id; several where a case was measured under several conditions.
        notes: Sentences about what was left out.
    """

    name: str
    cases: Mapping[str, Sequence[Measured]]
    notes: tuple[str, ...] = ()
