"""Whether an accuracy pass was held against its gate, and on how many samples."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pytest_mlperf.core.ranges import Count

UNKNOWN = "no reference score is known"
"""Why there is no gate."""


class GateState(StrEnum):
    """What the gate says of a pass."""

    KEPT = "kept"
    FAILED = "failed"
    UNDECIDED = "not decided"
    NONE = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """What was said of the gate, and on what.

    Attributes:
        state: The answer. KEPT needs the whole data set and all scores; FAILED on a part is proven;
            NONE: nobody gave a reference score.
        samples: Samples scored.
        total: Samples that the gate is defined on; more than `samples` for a part of them.
        unscored: Scores of the gate that the scorer did not give.
    """

    state: GateState
    samples: Count
    total: Count
    unscored: tuple[str, ...] = ()

    @property
    def evaluated(self) -> bool:
        """There is an answer."""
        return self.state in {GateState.KEPT, GateState.FAILED}

    @property
    def answer(self) -> str:
        """What stands behind a label: "kept on 50,000 samples"."""
        if self.state is GateState.NONE:
            return f"none: {UNKNOWN}"
        on = f"on {self.samples:,} samples"
        if self.samples < self.total:
            on = f"on {self.samples:,} of {self.total:,} samples"
        lacks = f", without {', '.join(self.unscored)}" if self.unscored else ""
        return f"{self.state} {on}{lacks}"

    @property
    def in_words(self) -> str:
        """The answer for people: "gate kept on 50,000 samples"."""
        return f"no gate: {UNKNOWN}" if self.state is GateState.NONE else f"gate {self.answer}"
