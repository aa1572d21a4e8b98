"""Judge an accuracy pass against accepted scores: every metric by rule A, then the case."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from pytest_mlperf.core.accuracy_baseline import AccuracyBaseline, kept
from pytest_mlperf.core.judge.accuracy_notes import Beside, notes_of_outputs, notes_of_scores
from pytest_mlperf.core.judge.rule_a import DEFAULT, Paired, Pairs, RuleA, judge_pairs, looks
from pytest_mlperf.core.judge.rule_r import Decision
from pytest_mlperf.core.measurement import Accuracy, Scored
from pytest_mlperf.core.metrics import COUNTS
from pytest_mlperf.core.numbers import points
from pytest_mlperf.core.verdict import Outcome, PairedVerdict, worst

WORDS = {
    Decision.PASS: Outcome.OK,
    Decision.FAIL: Outcome.ACC_DROP,
    Decision.MORE: Outcome.INCONCLUSIVE,
    Decision.INCONCLUSIVE: Outcome.INCONCLUSIVE,
}

NOTHING_BESIDE = Beside()


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
    before: Mapping[str, Sequence[float | None]],
    accuracy: Accuracy,
    scored: Scored,
    order: Sequence[int],
    *,
    margin: Callable[[str], Margin],
    sequential: bool,
    rule: RuleA = DEFAULT,
    beside: Beside = NOTHING_BESIDE,
) -> AccuracyRuling:
    """Judge the scores of a pass, in the order in which its samples were measured.

    Metrics that only a whole data set has are judged at its end, by their pseudo-values; alpha is
    shared with the others.

    Args:
        baseline: The accepted scores; a relative margin refers to their aggregate.
        before: Its scores by metric and data set index.
        accuracy: Which metrics are better when lower, and which only a whole data set has.
        scored: The scores of this build; of a part of the data set, or of all of it.
        order: The fixed order of the whole data set.
        margin: By metric, the change for the worse that does not matter.
        sequential: The pass may stop at any of the rule's looks; else it has one, at the end.
        rule: Error rates.
        beside: What is known besides the scores; it makes sentences, never the verdict.
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
    judged = [name for name in names if name not in COUNTS]
    if not judged:
        return _no_answer(Outcome.NO_BASELINE, "the baseline has no scores by sample")
    for name in names:
        if other := _applies_otherwise(*series[name], there, full=len(there) == len(order)):
            return _no_answer(Outcome.INVALID, f"{name} {other}")
    pairs = {
        name: Pairs(
            before=_up(series[name][0], lower=name in accuracy.lower),
            now=_up(series[name][1], lower=name in accuracy.lower),
            margin=max(margin(name).points(baseline.scores[name]), 1e-9),
        )
        for name in judged
    }
    found = _judge(pairs, accuracy.whole, len(there), len(order), rule, sequential=sequential)
    if not found:
        why = f"only the whole data set has {', '.join(judged)}"
        return replace(_no_answer(Outcome.INCONCLUSIVE, why), more=len(there) < len(order))
    verdicts = [
        _verdict(name, paired, pairs[name].margin, lower=name in accuracy.lower)
        for name, paired in found.items()
    ]
    outcome = worst([verdict.outcome for verdict in verdicts if verdict.outcome])
    deciding = next(verdict for verdict in verdicts if verdict.outcome is outcome)
    counts = [_count(name, *series[name]) for name in names if name in COUNTS]
    decisions = {paired.decision for paired in found.values()}
    due = set(judged) - set(found)
    return AccuracyRuling(
        outcome=outcome,
        headline=_headline(deciding, len(order)),
        paired=(*verdicts, *counts),
        more=(Decision.MORE in decisions or bool(due)) and Decision.FAIL not in decisions,
        notes=(
            *notes_of_scores(verdicts, found, beside),
            *notes_of_outputs(scored, _rescored([series[name] for name in judged]), beside),
        ),
    )


def _rescored(series: Sequence[tuple[Sequence[float | None], Sequence[float | None]]]) -> int:
    """Return how many samples of a pass have another score in any metric, judged so far or not."""
    changed = set[int]()
    for before, now in series:
        for place, (old, new) in enumerate(zip(before, now, strict=True)):
            if old is not None and new is not None and old != new:
                changed.add(place)
    return len(changed)


def _no_answer(outcome: Outcome, headline: str) -> AccuracyRuling:
    return AccuracyRuling(outcome=outcome, headline=headline, paired=(), more=False, notes=())


def _up(values: Sequence[float | None], *, lower: bool) -> list[float | None]:
    """Return scores that are better when higher."""
    return [-value if lower and value is not None else value for value in values]


def _applies_otherwise(
    before: Sequence[float | None],
    now: Sequence[float | None],
    indices: Sequence[int],
    *,
    full: bool,
) -> str | None:
    """Return the first sample that a metric applies to in one pass only, in words.

    A part of a data set may lack what a sample's score also needs: such a pair waits.
    """
    for index, old, new in zip(indices, before, now, strict=True):
        if old is None and new is not None:
            return f"has a score of sample {index}, and had none in the baseline: other data?"
        if full and new is None and old is not None:
            return f"has no score of sample {index}, and had one in the baseline: other data?"
    return None


def _judge(
    pairs: Mapping[str, Pairs],
    whole: Collection[str],
    there: int,
    total: int,
    rule: RuleA,
    *,
    sequential: bool,
) -> dict[str, Paired]:
    """Judge additive metrics at every look, those of a whole data set once it is there."""
    additive = {name: own for name, own in pairs.items() if name not in whole}
    at_the_end = {name: own for name, own in pairs.items() if name in whole}
    found: dict[str, Paired] = {}
    for group, at in (
        (additive, looks(total, sequential=sequential)),
        (at_the_end, (total,)),
    ):
        if group and (group is additive or there == total):
            alpha = rule.alpha * len(group) / len(pairs)
            found |= judge_pairs(group, at, replace(rule, alpha=alpha))
    return {name: found[name] for name in pairs if name in found}


def _verdict(name: str, found: Paired, margin: float, *, lower: bool) -> PairedVerdict:
    ends = (-found.high, -found.low) if lower else (found.low, found.high)
    low, high = (end if math.isfinite(end) else None for end in ends)  # too few samples
    sign = -1 if lower else 1
    return PairedVerdict(
        metric=name,
        outcome=WORDS[found.decision],
        baseline=sign * found.before,
        now=sign * found.now,
        change=sign * found.change,
        low=low,
        high=high,
        margin=margin,
        samples=found.samples,
        changed=found.changed,
        down=found.down,
        up=found.up,
        p=found.p,
        lower=lower,
        correlation=found.correlation,
    )


def _count(name: str, before: Sequence[float | None], now: Sequence[float | None]) -> PairedVerdict:
    """Return a count of output, compared and not judged."""
    pairs = [
        (a, b) for a, b in zip(before, now, strict=True) if a is not None and b is not None
    ] or [(0.0, 0.0)]
    samples = len(pairs)
    old, new = fmean(a for a, _ in pairs), fmean(b for _, b in pairs)
    changes = [b - a for a, b in pairs]
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
    assert verdict.bound is not None
    if verdict.changed == 0:
        of = f" of {verdict.samples:,}" if verdict.samples < total else ""
        return f"{verdict.metric} {verdict.now:.3f}, every sample{of} scored as in the baseline"
    shown = f"{verdict.metric} {points(verdict.change)} points"
    if verdict.low is not None and verdict.high is not None:
        shown += f" ({points(verdict.low)} to {points(verdict.high)})"
    bound = points(verdict.bound)
    if verdict.outcome is Outcome.OK:
        why = f"inside {bound}"
    elif verdict.outcome is Outcome.ACC_DROP:
        why = f"{bound} exceeded" if _beyond(verdict, verdict.bound) else f"{bound} not excluded"
    else:
        why = f"{bound} undecided"
    return f"{shown}; {why}"


def _beyond(verdict: PairedVerdict, bound: float) -> bool:
    """Whether the change exceeds the margin even at its best."""
    if verdict.best is None:
        return False
    return verdict.best > bound if verdict.lower else verdict.best < bound
