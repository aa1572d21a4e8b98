"""Map the decision of a statistical rule to the outcome that a user reads."""

from __future__ import annotations

from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.judge.decision import Answer, Decision

_OUTCOMES = {Answer.PROVISIONAL: Outcome.PROVISIONAL, Answer.SUSPECT: Outcome.SUSPECT}


def outcome_of(decision: Decision, failing: Outcome, *, advisory: bool = False) -> Outcome:
    """Return the outcome of a decision: `failing` for a drop, but INCONCLUSIVE if `advisory`."""
    answer = decision.outcome
    if answer is Answer.PASS:
        return Outcome.IMPROVED if decision.improved else Outcome.OK
    if advisory and (answer is Answer.FAIL or decision.direction == "drop"):
        return Outcome.INCONCLUSIVE
    return failing if answer is Answer.FAIL else _OUTCOMES.get(answer, Outcome.INCONCLUSIVE)
