"""How far a case is measured now, and beside how many others it is judged."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.judge.many import FEW
from pytest_mlperf.suite.pairs import PlannedPair, Testable


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One of the two phases of a session of many pairs, or the only one of any other.

    Attributes:
        pairs: Gated pairs of case and metric that are judged together; up to `FEW` each alone.
        once: Every case is run once before any is run again.
    """

    pairs: int = 1
    once: bool = False

    @property
    def many(self) -> bool:
        """Whether the pairs are judged together at the end of the session."""
        return self.pairs > FEW

    @property
    def together(self) -> int:
        """The pairs that are judged together, 0 where each is judged alone."""
        return self.pairs if self.many else 0


ALONE = Phase()


def gated_pairs(planned: Testable, kind: Kind, *, power: bool, meter: bool) -> int:
    """Return how many pairs of case and metric one test adds to those that are judged together.

    Args:
        planned: What is tested.
        kind: Which test of it.
        power: GPUs are asked for their energy.
        meter: A wall meter is read.
    """
    if isinstance(planned, PlannedPair):
        return 0  # a claim has no baseline
    if kind == "performance":
        return len(planned.limits)
    source = meter or (power and planned.case.accelerator != "cpu")
    return len(planned.efficiency_limits) if kind == "efficiency" and source else 0
