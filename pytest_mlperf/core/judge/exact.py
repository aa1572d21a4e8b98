"""Exact counters: samples, tokens, bytes. They are compared with the baseline's, never tested."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Counted(StrEnum):
    """How a counter stands to the baseline's."""

    SAME = "same"
    LESS = "less"
    MORE = "more"


@dataclass(frozen=True, kw_only=True, slots=True)
class Exact:
    """What the comparison of a counter says.

    Attributes:
        counted: The worst that any run shows; LESS before MORE, as less work looks like speed.
        now: The value that shows it; of SAME, the first run's.
        low, high: What the baseline allows, its own spread and the tolerance included.
    """

    counted: Counted
    now: float
    low: float
    high: float

    def in_words(self, title: str) -> str | None:
        """Return a sentence where the counter is another one, else None."""
        if self.counted is Counted.SAME:
            return None
        known = f"{self.low:.7g}"
        if self.high > self.low:
            known += f" to {self.high:.7g}"
        return f"{title} {self.now:.7g}, {self.counted} than the baseline's {known}"


def compare(before: Sequence[float], now: Sequence[float], *, tolerance: float = 0.0) -> Exact:
    """Compare a counter of some runs with the baseline's.

    Noise is no excuse for a counter: a run that does less work is faster, and no test of its speed
    would see why.

    Args:
        before: The counter in each run of the baseline, at least one.
        now: The same in the runs to be judged, at least one.
        tolerance: How far it may lie outside the baseline's values, as a share of them.

    Raises:
        ValueError: There is nothing to compare, or a number is not finite.
    """
    if not before or not now:
        raise ValueError(f"nothing to compare: {len(before)} baseline values and {len(now)} now")
    if not all(math.isfinite(value) for value in (*before, *now, tolerance)) or tolerance < 0:
        raise ValueError(f"counters {[*before, *now]}, tolerance {tolerance!r}: must be finite")
    low = min(value - tolerance * abs(value) for value in before)
    high = max(value + tolerance * abs(value) for value in before)
    least, most = min(now), max(now)
    if least < low:
        return Exact(counted=Counted.LESS, now=least, low=low, high=high)
    if most > high:
        return Exact(counted=Counted.MORE, now=most, low=low, high=high)
    return Exact(counted=Counted.SAME, now=now[0], low=low, high=high)
