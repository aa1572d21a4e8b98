"""Define `Decision`, the result of a statistical test in this package: outcome, interval, p."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Answer(StrEnum):
    """Name the possible outcomes of a statistical decision about a metric.

    MORE: a further run could decide. PROVISIONAL: it depends on the unknown between-session
    variance. SUSPECT: a fail on its own, but not after adjustment for the number of pairs.
    """

    PASS = "pass"  # noqa: S105 -- no password
    FAIL = "fail"
    MORE = "more"
    INCONCLUSIVE = "inconclusive"
    PROVISIONAL = "provisional"
    SUSPECT = "suspect"


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """Hold a decision with its figures; procedures add their own.

    Attributes:
        outcome: PASS, FAIL or another `Answer`.
        interval: Confidence interval that decided, on the scale of the procedure.
        direction: For a PROVISIONAL decision, the outcome at the expected between-session variance;
            for an INCONCLUSIVE one, "drop" if only the machine's load prevents a FAIL.
        p: Probability that an unchanged case looks this bad; 1 after a pass, or if the procedure
            computes no p value.
        robust_to: Relative standard deviation between sessions up to which the outcome is final;
            None if unknown.
        improved: Whether the decision is a pass with a proven improvement.
    """

    outcome: Answer
    interval: tuple[float, float] = (-math.inf, math.inf)
    direction: Literal["ok", "drop"] | None = None
    p: float = 1.0
    robust_to: float | None = None
    improved: bool = False

    @property
    def low(self) -> float:
        """Lower end of the confidence interval that decided."""
        return self.interval[0]

    @property
    def high(self) -> float:
        """Upper end of the confidence interval that decided."""
        return self.interval[1]
