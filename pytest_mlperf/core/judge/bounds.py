"""What scores are held against, and the pass that gave them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_mlperf.core.measurement import Accuracy, Scored


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """What one score must keep within.

    Attributes:
        reference: The reference score.
        low: Lowest score that passes, or None.
        high: Highest score that passes, or None.
        least, most: Lowest and highest score that one sample can have; None: not known.
    """

    reference: float
    low: float | None
    high: float | None
    least: float | None = 0.0
    most: float | None = 100.0

    def missed(self, score: float) -> float | None:
        """Return the bound that a score does not keep, or None; NaN keeps none."""
        if self.low is not None and not score >= self.low:
            return self.low
        return self.high if self.high is not None and not score <= self.high else None


@dataclass(frozen=True, kw_only=True)
class Pass:
    """An accuracy pass and the data set that its gate is defined on.

    Attributes:
        accuracy: The scores by metric.
        scored: They by sample.
        order: Data set indices in the random order in which a pass measures them.
        total: Samples that the gate is defined on: MLPerf's data set may be larger than the one
            that was given.
    """

    accuracy: Accuracy
    scored: Scored
    order: Sequence[int]
    total: int

    @property
    def whole(self) -> bool:
        """Every sample that the gate is defined on was scored."""
        return self.accuracy.full and self.accuracy.samples >= self.total

    @property
    def chosen(self) -> bool:
        """Somebody gave a part of the data set, such as its first samples; none was drawn."""
        return self.accuracy.total < self.total
