"""How far a case is measured now, and beside how many others it is judged."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_mlperf.core.judge.many import FEW


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
