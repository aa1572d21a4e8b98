"""Judge an accuracy pass against accepted scores: every metric by rule A, then the case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_mlperf.core.accuracy_baseline import AccuracyBaseline, kept
from pytest_mlperf.core.judge.gate import GateRuling
from pytest_mlperf.core.judge.rule_a import DEFAULT, Paired, Pairs, RuleA, judge_pairs, looks
from pytest_mlperf.core.judge.rule_r import Decision
from pytest_mlperf.core.measurement import Scored
from pytest_mlperf.core.metrics import COUNTS
from pytest_mlperf.core.numbers import points
from pytest_mlperf.core.verdict import MetricVerdict, Outcome, PairedVerdict, worst

WORDS = {
    Decision.PASS: Outcome.OK,
    Decision.FAIL: Outcome.ACC_DROP,
    Decision.MORE: Outcome.INCONCLUSIVE,
    Decision.INCONCLUSIVE: Outcome.INCONCLUSIVE,
}

NONDETERMINISTIC = 0.8
"""Below this correlation two passes of one build hardly measure the same thing."""


@dataclass(frozen=True, kw_only=True)
class Margin:
    """The drop that does not matter.

    Attributes:
        value: A share of the baseline's score, or points.
        is_share: Which of the two.
    """

    value: float
    is_share: bool

    def points(self, score: float) -> float:
        """Return the margin in points of a score."""
        return abs(score) * self.value if self.is_share else self.value


DEFAULT_MARGIN = Margin(value=0.005, is_share=True)


@dataclass(frozen=True, kw_only=True)
class AccuracyRuling:
    """What the scores so far say.

    Attributes:
        outcome: The word.
        headline: What follows it on the first line.
        paired: One entry per metric; counts of output last, without an outcome.
        more: More samples could decide.
        notes: Sentences for the message.
    """

    outcome: Outcome
    headline: str
    paired: tuple[PairedVerdict, ...]
    more: bool
    notes: tuple[str, ...]


def rule_on_scores(
    baseline: AccuracyBaseline,
    before: Mapping[str, Sequence[float]],
    scored: Scored,
    order: Sequence[int],
    *,
    margin: Margin,
    sequential: bool,
    rule: RuleA = DEFAULT,
) -> AccuracyRuling:
    """Judge the scores of a pass, in the order in which its samples were measured.

    Args:
        baseline: The accepted scores; a relative margin refers to their aggregate.
        before: Its scores by metric and data set index.
        scored: Those of this build; a part of the data set, or all of it.
        order: The fixed order of the whole data set.
        margin: The drop that does not matter.
        sequential: The pass may stop at any of the rule's looks; else it has one, at the end.
        rule: Error rates.
    """
    position = {index: place for place, index in enumerate(scored.indices)}
    there = [index for index in order if index in position]
    steps = baseline.steps
    names = [name for name in scored.per_sample if name in before]
    series = {
        name: (
            [before[name][index] for index in there],
            kept([scored.per_sample[name][position[index]] for index in there], steps[name]),
        )
        for name in names
    }
    pairs = {
        name: Pairs(before=old, now=new, margin=max(margin.points(baseline.scores[name]), 1e-9))
        for name, (old, new) in series.items()
        if name not in COUNTS
    }
    if not pairs:
        return AccuracyRuling(
            outcome=Outcome.NO_BASELINE,
            headline="the baseline has no scores by sample",
            paired=(),
            more=False,
            notes=(),
        )
    found = judge_pairs(pairs, looks(len(order), sequential=sequential), rule)
    verdicts = [_verdict(name, paired, pairs[name].margin) for name, paired in found.items()]
    outcome = worst([verdict.outcome for verdict in verdicts if verdict.outcome])
    deciding = next(verdict for verdict in verdicts if verdict.outcome is outcome)
    counts = [_count(name, *series[name]) for name in names if name in COUNTS]
    decisions = {paired.decision for paired in found.values()}
    return AccuracyRuling(
        outcome=outcome,
        headline=_headline(deciding, len(order)),
        paired=(*verdicts, *counts),
        more=Decision.MORE in decisions and Decision.FAIL not in decisions,
        notes=_notes(verdicts, found),
    )


def _verdict(name: str, found: Paired, margin: float) -> PairedVerdict:
    return PairedVerdict(
        metric=name,
        outcome=WORDS[found.decision],
        baseline=found.before,
        now=found.now,
        change=found.change,
        low=found.low,
        high=found.high,
        margin=margin,
        samples=found.samples,
        changed=found.changed,
        down=found.down,
        up=found.up,
        p=found.p,
    )


def _count(name: str, before: Sequence[float], now: Sequence[float]) -> PairedVerdict:
    """Return a count of output, compared and not judged."""
    samples = len(now)
    old, new = sum(before) / samples, sum(now) / samples
    changes = [b - a for a, b in zip(before, now, strict=True)]
    return PairedVerdict(
        metric=name,
        outcome=None,
        baseline=old,
        now=new,
        change=new - old,
        low=None,
        high=None,
        margin=None,
        samples=samples,
        changed=sum(change != 0 for change in changes),
        down=sum(change < 0 for change in changes),
        up=sum(change > 0 for change in changes),
        p=None,
    )


def _headline(verdict: PairedVerdict, total: int) -> str:
    assert verdict.low is not None
    assert verdict.high is not None
    assert verdict.margin is not None
    if verdict.changed == 0:
        of = f" of {verdict.samples:,}" if verdict.samples < total else ""
        return f"{verdict.metric} {verdict.now:.3f}, every sample{of} scored as in the baseline"
    shown = (
        f"{verdict.metric} {points(verdict.change)} points "
        f"({points(verdict.low)} to {points(verdict.high)})"
    )
    bound = points(-verdict.margin)
    if verdict.outcome is Outcome.OK:
        why = f"inside {bound}"
    elif verdict.outcome is Outcome.ACC_DROP:
        why = f"{bound} exceeded" if verdict.high < -verdict.margin else f"{bound} not excluded"
    else:
        why = f"{bound} undecided"
    return f"{shown}; {why}"


def _notes(verdicts: Sequence[PairedVerdict], found: Mapping[str, Paired]) -> tuple[str, ...]:
    notes = []
    for verdict in verdicts:
        smaller = verdict.outcome is Outcome.OK and verdict.p is not None and verdict.p < 0.01
        if smaller and verdict.change < 0:
            notes.append(
                f"{verdict.metric}: a drop smaller than the margin is certain "
                f"(plain paired test p = {verdict.p:.2g})"
            )
        correlation = found[verdict.metric].correlation
        if correlation is not None and correlation < NONDETERMINISTIC and verdict.changed:
            notes.append(
                f"{verdict.metric}: scores of the two passes hardly agree sample by sample "
                f"(correlation {correlation:.2f}): other outputs, or nondeterministic generation"
            )
    return tuple(notes)


@dataclass(frozen=True, kw_only=True)
class AccuracyAnswer:
    """What the gate and the baseline say together.

    Attributes:
        outcome: The word.
        headline: What follows it on the first line.
        metrics: The gate's entries.
        paired: The baseline's.
        notes: Sentences for the message.
    """

    outcome: Outcome
    headline: str
    metrics: tuple[MetricVerdict, ...]
    paired: tuple[PairedVerdict, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Accuracy is not what it was: performance may not be judged."""
        return self.outcome in {Outcome.GATE_FAIL, Outcome.ACC_DROP}


def combine(gated: GateRuling, ruling: AccuracyRuling | None, missing: str) -> AccuracyAnswer:
    """Return the answer of gate and baseline: neither excuses the other.

    Args:
        gated: The gate.
        ruling: The comparison with the accepted scores, or None where there are none.
        missing: What to do about that, in words.
    """
    paired = ruling.paired if ruling else ()
    if gated.outcome is Outcome.GATE_FAIL:
        notes = (f"against the baseline: {ruling.outcome} {ruling.headline}",) if ruling else ()
        return AccuracyAnswer(
            outcome=gated.outcome,
            headline=gated.headline,
            metrics=gated.metrics,
            paired=paired,
            notes=notes,
        )
    if ruling is None:
        return AccuracyAnswer(
            outcome=Outcome.OK if gated.evaluated else Outcome.NO_BASELINE,
            headline=gated.headline,
            metrics=gated.metrics,
            notes=(f"only the gate was checked: {missing}",) if gated.evaluated else (missing,),
        )
    return AccuracyAnswer(
        outcome=ruling.outcome,
        headline=ruling.headline,
        metrics=gated.metrics if gated.evaluated else (),
        paired=paired,
        notes=ruling.notes,
    )
