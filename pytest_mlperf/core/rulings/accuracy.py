"""Judge scores against those of the baseline by rule A, a paired test of each metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from pytest_mlperf.core.baseline import GENERATION, AccuracyBaseline, Rerun, rounded_scores
from pytest_mlperf.core.measurement import Accuracy, Scored, Subject, changed_outputs
from pytest_mlperf.core.metrics import COUNTS, OUTPUT_TOKENS
from pytest_mlperf.core.notes import Note, NoteKey
from pytest_mlperf.core.rulings.outcomes import outcome_of
from pytest_mlperf.core.rulings.ruling import Ruling
from pytest_mlperf.core.verdict import Outcome, PairedVerdict, worst
from pytest_mlperf.judge import rule_a
from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.mean_change import MIN_VARIANCE_SHARE

NONDETERMINISTIC = 0.8
"""Correlation of two passes of one build below which its scores count as nondeterministic."""

GROUPED_ERROR_RATIO = 1.5
"""Ratio of standard errors from which a note reports that groups change together."""


@dataclass(frozen=True, kw_only=True)
class PassContext:
    """Hold facts on a baseline's accuracy pass that decide how a score difference is judged.

    Attributes:
        same_build: Whether the baseline has the same build.
        outputs: Baseline's hash of each answer; None if unknown.
        drawn: Whether answers are sampled at random, and the suite sets no margin.
    """

    same_build: bool = False
    outputs: Sequence[int] | None = None
    drawn: bool = False


def below_chance(accuracy: Accuracy, scored: Scored) -> tuple[Note, ...]:
    """Return a note on each score that is three standard errors below random guessing."""
    return tuple(
        Note.of("below_chance", metric=name, score=score, chance=chance)
        for name, chance in scored.chance.items()
        if (score := accuracy.scores[name])
        < chance - 3 * math.sqrt(chance * (100 - chance) / accuracy.samples)
    )


EMPTY_SHARE, CUT_SHARE = 0.01, 0.05
"""Tolerated shares of empty and cut answers in a first baseline; the latter unless the workload's
reference cuts more."""


def _limit(subject: Subject) -> str:
    return subject.fingerprint.get(f"{GENERATION}max_new_tokens", "")


def unfit_answers(
    accuracy: Accuracy, subject: Subject, cut_share: float | None = None
) -> Note | None:
    """Return why answers are unfit for a first baseline (too many empty or truncated), or None."""
    counts, allowed = accuracy.answers, CUT_SHARE if cut_share is None else cut_share
    answers, empty, cut = (counts.get(name, 0) for name in ("answers", "empty", "cut"))
    if accuracy.fixed_lengths:
        return None
    values = {"of": answers, "limit": _limit(subject)}
    if empty > EMPTY_SHARE * answers:
        reasoning = counts.get("cut_reasoning", 0)
        return Note.of("empty_answers", count=empty, reasoning=reasoning, **values)
    if cut > allowed * answers:
        return Note.of("cut_answers", count=cut, allowed=allowed, **values)
    return None


def risen_flaws(accuracy: Accuracy, subject: Subject) -> Note | None:
    """Return a note if the share of empty or cut answers rose by > 3 standard errors, or None."""
    counts, baseline = accuracy.answers, accuracy.baseline_answers
    n, m = (side.get("answers", 0) for side in (counts, baseline))
    for name in ("empty", "cut") if n and m and not accuracy.fixed_lengths else ():
        more, fewer = (side.get(name, 0) for side in (counts, baseline))
        share = (more + fewer) / (n + m)
        if more / n - fewer / m > 3 * math.sqrt(share * (1 - share) * (1 / n + 1 / m)):
            values = {"count": more, "of": n, "limit": _limit(subject)}
            baseline = {"baseline": fewer, "baseline_of": m}
            if name == "cut":
                return Note.of("more_cut", **values, **baseline)
            reasoning = counts.get("cut_reasoning", 0)
            return Note.of("more_empty", reasoning=reasoning, **values, **baseline)
    return None


def notes_of_outputs(scored: Scored, rescored: int, context: PassContext) -> tuple[Note, ...]:
    """Return a note if outputs changed, or the scores of equal outputs; () if neither did."""
    changed = changed_outputs(context.outputs, scored)
    if changed is None:
        return ()
    key: NoteKey = "scores_only"
    if changed:
        key = "outputs_changed" if rescored else "outputs_only"
    values = {"changed": changed, "of": len(scored.indices), "rescored": rescored}
    return (Note.of(key, **values),) if changed or rescored else ()


def _of_metric(
    verdict: PairedVerdict, judgements: Mapping[str, rule_a.Paired], context: PassContext
) -> Iterator[Note]:
    paired = judgements[verdict.metric]
    values: dict[str, object] = {"metric": verdict.metric, "samples": verdict.samples}
    unseen = paired.unseen
    if unseen is not None and verdict.margin is not None and unseen > verdict.margin:
        yield Note.of("scored_alike", unseen=unseen, **values)
    seen = 1.0 if paired.leverage is None else paired.leverage.seen
    if seen < MIN_VARIANCE_SHARE and paired.changed:
        yield Note.of("chance_unseen", seen=seen, needed=MIN_VARIANCE_SHARE, **values)
    if paired.groups is not None and paired.widened >= GROUPED_ERROR_RATIO:
        groups, widened = paired.groups, paired.widened
        yield Note.of("grouped", metric=verdict.metric, groups=groups, widened=widened)
    smaller = verdict.outcome is Outcome.OK and verdict.p is not None and verdict.p < 0.01
    if smaller and verdict.change and (verdict.change > 0) == verdict.lower:
        yield Note.of("small_drop", metric=verdict.metric, p=verdict.p)
    if paired.correlation is not None and verdict.changed:
        values = {"metric": verdict.metric, "correlation": paired.correlation}
        if paired.correlation < NONDETERMINISTIC:
            yield Note.of("passes_disagree", same_build=context.same_build, **values)
        elif context.same_build:
            counts = {"changed": verdict.changed, "samples": verdict.samples}
            yield Note.of("near_deterministic", **values, **counts)


def _of_chance(verdict: PairedVerdict) -> Note:
    margin = verdict.margin or 0.0
    return Note.of("sampled_answers", metric=verdict.metric, samples=verdict.samples, margin=margin)


Values = Sequence[float | None]

NOTHING_BESIDE = PassContext()


@dataclass(frozen=True, kw_only=True)
class Margin:
    """Hold the tolerated drop of a score: a share of the baseline's score, or points."""

    value: float
    is_share: bool

    def points(self, score: float) -> float:
        """Return the margin in points; a relative margin is a share of `score`, the baseline's."""
        return abs(score) * self.value if self.is_share else self.value


DEFAULT_MARGIN = Margin(value=0.005, is_share=True)


def rule_on_scores(
    baseline: AccuracyBaseline,
    baseline_scores: Mapping[str, Values],
    accuracy: Accuracy,
    scored: Scored,
    order: Sequence[int],
    *,
    margin: Callable[[str], Margin],
    sequential: bool,
    context: PassContext = NOTHING_BESIDE,
) -> Ruling:
    """Judge the scores of a pass by rule A, in the order in which its samples were measured.

    Metrics that only a whole data set has (mAP) are judged by pseudo-values after the last sample,
    with their share of alpha. A sequential pass may stop at any interim analysis. `context` adds
    notes, and widens the margins for sampled answers.
    """
    position = {index: place for place, index in enumerate(scored.indices)}
    there = [index for index in order if index in position]
    series = {
        name: (
            [baseline_scores[name][index] for index in there],
            rounded_scores([values[position[index]] for index in there], baseline.steps[name]),
        )
        for name, values in scored.per_sample.items()
        if name in baseline_scores and name != OUTPUT_TOKENS
    }
    of = scored.groups
    groups = None if of is None else [of[position[index]] for index in there]
    judged = [name for name in series if name not in COUNTS]
    if not judged:
        return Ruling(outcome=Outcome.NO_BASELINE, headline=Note.of("no_scores"))
    for name, both in series.items():
        if other := _scored_samples_note(name, *both, there, full=len(there) == len(order)):
            return Ruling(outcome=Outcome.INVALID, headline=other)
    pairs = {
        name: rule_a.ScorePairs(
            before=_up(series[name][0], lower=name in accuracy.lower),
            now=_up(series[name][1], lower=name in accuracy.lower),
            margin=max(margin(name).points(baseline.scores[name]), 1e-9),
            groups=groups,
            leverage=scored.leverage.get(name),
        )
        for name in judged
    }
    hidden: dict[str, float] = {}
    if context.drawn:
        at, share = (
            rule_a.analysis_sizes(len(order), sequential=sequential),
            len(there) / len(order),
        )
        detectable = {name: rule_a.smallest_margin(one, share, at) for name, one in pairs.items()}
        hidden = {name: drop for name, drop in detectable.items() if drop > pairs[name].margin}
        pairs |= {name: replace(pairs[name], margin=drop) for name, drop in hidden.items()}
    judgements = _judge(pairs, accuracy.whole, len(there), len(order), sequential=sequential)
    if not judgements:
        reason = Note.of("whole_only", metrics=tuple(judged))
        more = len(there) < len(order)
        return Ruling(outcome=Outcome.INCONCLUSIVE, headline=reason, more=more)
    verdicts = [
        _verdict(name, paired, pairs[name].margin, lower=name in accuracy.lower)
        for name, paired in judgements.items()
    ]
    outcome = worst([verdict.outcome for verdict in verdicts if verdict.outcome])
    deciding = next(verdict for verdict in verdicts if verdict.outcome is outcome)
    counts = [_count(name, *both) for name, both in series.items() if name in COUNTS]
    decisions = {paired.outcome for paired in judgements.values()}
    undecided = len(judgements) < len(judged) or Answer.MORE in decisions
    return Ruling(
        outcome=outcome,
        headline=_headline(deciding, len(order)),
        paired=(*verdicts, *counts),
        more=undecided and Answer.FAIL not in decisions,
        notes=(
            *(_of_chance(verdict) for verdict in verdicts if verdict.metric in hidden),
            *(note for one in verdicts for note in _of_metric(one, judgements, context)),
            *notes_of_outputs(scored, _rescored([series[name] for name in judged]), context),
        ),
    )


def _rescored(series: Sequence[tuple[Values, Values]]) -> int:
    return len(
        {
            place
            for before, now in series
            for place, (old, new) in enumerate(zip(before, now, strict=True))
            if None not in (old, new) and old != new
        }
    )


def _up(values: Values, *, lower: bool) -> list[float | None]:
    return [-value if lower and value is not None else value for value in values]


def _scored_samples_note(
    metric: str, baseline: Values, current: Values, indices: Sequence[int], *, full: bool
) -> Note | None:
    """Return a note on the first sample whose score is new or, if `full`, missing; else None."""
    for index, old, new in zip(indices, baseline, current, strict=True):
        if old is None and new is not None:
            return Note.of("score_added", metric=metric, sample=index)
        if full and new is None and old is not None:
            return Note.of("score_lost", metric=metric, sample=index)
    return None


def _judge(
    pairs: Mapping[str, rule_a.ScorePairs],
    whole: Collection[str],
    there: int,
    total: int,
    *,
    sequential: bool,
) -> dict[str, rule_a.Paired]:
    additive = {name: own for name, own in pairs.items() if name not in whole}
    at_the_end = {name: own for name, own in pairs.items() if name in whole}
    judgements: dict[str, rule_a.Paired] = {}
    for group, at in (
        (additive, rule_a.analysis_sizes(total, sequential=sequential)),
        (at_the_end, (total,)),
    ):
        if group and (group is additive or there == total):
            alpha = rule_a.DEFAULT.alpha * len(group) / len(pairs)
            rule = replace(rule_a.DEFAULT, alpha=alpha)
            judgements |= rule_a.judge_pairs(group, at, rule)
    return {name: judgements[name] for name in pairs if name in judgements}


def _verdict(name: str, paired: rule_a.Paired, margin: float, *, lower: bool) -> PairedVerdict:
    ends = (-paired.high, -paired.low) if lower else (paired.low, paired.high)
    low, high = (end if math.isfinite(end) else None for end in ends)  # too few samples
    sign = -1 if lower else 1
    return PairedVerdict(
        metric=name,
        outcome=outcome_of(paired, Outcome.ACC_DROP),
        baseline=sign * paired.before,
        now=sign * paired.now,
        change=sign * paired.change,
        low=low,
        high=high,
        margin=margin,
        samples=paired.samples,
        changed=paired.changed,
        down=paired.down,
        up=paired.up,
        p=paired.p,
        lower=lower,
        correlation=paired.correlation,
    )


def _count(name: str, baseline: Values, current: Values) -> PairedVerdict:
    pairs = _in_both(baseline, current) or [(0.0, 0.0)]
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


def _in_both(baseline: Values, current: Values) -> list[tuple[float, float]]:
    return [
        (a, b) for a, b in zip(baseline, current, strict=True) if a is not None and b is not None
    ]


def _headline(verdict: PairedVerdict, total: int) -> Note:
    if verdict.changed == 0 and verdict.outcome is Outcome.OK:
        values = {"metric": verdict.metric, "score": verdict.now}
        return Note.of("unchanged_scores", samples=verdict.samples, total=total, **values)
    best, bound = verdict.best, verdict.bound
    assert bound is not None
    return Note.of(
        "score_change",
        metric=verdict.metric,
        outcome=str(verdict.outcome),
        change=verdict.change,
        low=verdict.low,
        high=verdict.high,
        bound=bound,
        beyond=best is not None and (best > bound if verdict.lower else best < bound),
    )


def rerun_noise(
    baseline: AccuracyBaseline, accepted_scores: Mapping[str, Values], second_pass: Scored
) -> dict[str, Rerun]:
    """Return by metric the sd and correlation of scores between two full passes of one build."""
    reruns = {}
    for name, values in second_pass.per_sample.items():
        if name in accepted_scores and name not in {*COUNTS, OUTPUT_TOKENS}:
            both = _in_both(accepted_scores[name], rounded_scores(values, baseline.steps[name]))
            if len(both) > 1:
                reruns[name] = _rerun_noise([a for a, _ in both], [b for _, b in both])
    return reruns


def pooled(old: Mapping[str, Rerun], new: Mapping[str, Rerun]) -> dict[str, Rerun]:
    """Pool the scatter between repeated passes, `old` and `new`, by metric, weighted by passes."""
    reruns = dict(old)
    for name, added in new.items():
        earlier = old.get(name)
        if earlier is None:
            reruns[name] = added
            continue
        passes = earlier.passes + added.passes
        variance = (earlier.passes * earlier.sd**2 + added.passes * added.sd**2) / passes
        there = [one for one in (earlier, added) if one.correlation is not None]
        weights = sum(one.passes for one in there)
        total = sum(one.passes * (one.correlation or 0.0) for one in there)
        correlation = total / weights if there else None
        reruns[name] = Rerun(sd=math.sqrt(variance), correlation=correlation, passes=passes)
    return reruns


def _rerun_noise(first: Sequence[float], second: Sequence[float]) -> Rerun:
    """Return a mean score's sd over reruns, sd(differences) / √(2 n), and passes' correlation."""
    n = len(first)
    differences = [b - a for a, b in zip(first, second, strict=True)]
    mean = fmean(differences)
    variance = math.fsum((d - mean) ** 2 for d in differences) / (n - 1)
    return Rerun(
        sd=math.sqrt(variance / (2 * n)),
        correlation=rule_a.score_correlation(first, second),
        passes=1,
    )
