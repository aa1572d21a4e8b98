"""The answer to one test of a case; for its accuracy, gate and accepted scores together."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_mlperf.core.gate import Gate, GateState
from pytest_mlperf.core.judge.accuracy import AccuracyRuling
from pytest_mlperf.core.judge.gate import GateRuling
from pytest_mlperf.core.verdict import MetricVerdict, Outcome, PairedVerdict


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the rules say of accuracy, performance or efficiency.

    Attributes:
        outcome: The word.
        headline: What follows it on the first line.
        metrics: One entry per metric, gated first; of accuracy the gate's.
        paired: Of accuracy, the comparisons with the accepted scores.
        notes: Sentences for the message.
        gate: Of accuracy, whether the gate was evaluated, and on how many samples.
    """

    outcome: Outcome
    headline: str
    metrics: tuple[MetricVerdict, ...] = ()
    paired: tuple[PairedVerdict, ...] = ()
    notes: tuple[str, ...] = ()
    gate: Gate | None = None

    @property
    def failed(self) -> bool:
        """Accuracy is not what it was: performance may not be judged."""
        return self.outcome in {Outcome.GATE_FAIL, Outcome.ACC_DROP}


def combine(gated: GateRuling, ruling: AccuracyRuling | None, missing: str) -> Answer:
    """Return the answer of gate and baseline: neither excuses the other.

    Args:
        gated: The gate.
        ruling: The comparison with the accepted scores, or None where there are none.
        missing: What to do about that, in words.
    """
    paired = ruling.paired if ruling else ()
    if gated.outcome is Outcome.GATE_FAIL:
        notes = (f"against the baseline: {ruling.outcome} {ruling.headline}",) if ruling else ()
        return Answer(
            outcome=gated.outcome,
            headline=gated.headline,
            metrics=gated.metrics,
            paired=paired,
            notes=(*gated.notes, *notes),
            gate=gated.gate,
        )
    if ruling is None:
        kept = gated.gate.state is GateState.KEPT
        return Answer(
            outcome=Outcome.OK if kept else Outcome.NO_BASELINE,
            headline=gated.headline,
            metrics=gated.metrics,
            notes=(*gated.notes, f"only the gate was checked: {missing}" if kept else missing),
            gate=gated.gate,
        )
    return Answer(
        outcome=ruling.outcome,
        headline=ruling.headline,
        metrics=tuple(metric for metric in gated.metrics if metric.outcome is not None),
        paired=paired,
        notes=(*gated.notes, *ruling.notes),
        gate=gated.gate,
    )
