"""Apply rule A: a sequential paired test of each sample's score against its baseline score."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import StatisticsError, correlation, fmean
from typing import TypeVar

from pytest_mlperf.judge.decision import Answer, Decision
from pytest_mlperf.judge.inputs import Leverage
from pytest_mlperf.judge.mean_change import ErrorProbabilities, change_bounds, with_rare_losses

LOOK_SAMPLES = (1024, 3072, 8192, 16384)
"""Samples after which a sequential pass may stop; the last analysis is the whole data set."""


FIRST_LOOK, LATER_LOOKS = 0.6, 0.2
"""Shares of beta for losses of few samples at the first analysis, and at each later one before the
last. A number of losses that is small enough at one analysis mostly was so at the one before: with
four analyses 4.93 % of all drops of the margin pass, below the allowed 5 %."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleA:
    """Hold risks: `alpha`: FAIL for equal scores; `beta`: PASS for a drop of the allowed margin."""

    alpha: float = 0.01
    beta: float = 0.05


DEFAULT = RuleA()

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScorePairs:
    """Hold one metric's baseline and present scores of the same samples, in measured order.

    Attributes:
        before: Scores of the baseline; None if the metric does not apply to a sample.
        margin: Largest drop that does not matter, in the score's own points, above 0.
        groups: The group of each sample, such as its article; None for independent samples.
        leverage: Weight of samples if the scores are pseudo-values; None for ordinary scores.
    """

    before: Sequence[float | None]
    now: Sequence[float | None]
    margin: float
    groups: Sequence[int] | None = None
    leverage: Leverage | None = None

    def __post_init__(self) -> None:
        if len(self.before) != len(self.now) or not self.before:
            raise ValueError(f"{len(self.before)} and {len(self.now)} scores cannot be paired")
        if self.groups is not None and len(self.groups) != len(self.now):
            raise ValueError(
                f"{len(self.groups)} groups for {len(self.now)} samples; each sample needs one"
            )
        if not 0 < self.margin < math.inf:
            raise ValueError(f"margin={self.margin!r}; it must be positive and finite")


@dataclass(frozen=True, kw_only=True, slots=True)
class Paired(Decision):
    """Hold the paired comparison of one metric; the defaults are for a metric without samples.

    `p` is the one-sided p value of a drop of any size. `groups`, `widened`: see `ChangeBounds`.

    Attributes:
        change: Mean difference [points]; negative is worse.
        correlation: Correlation of the scores of both passes; None if those of one pass are equal.
        unseen: Mean drop that unscored samples may have, if no score changed [points].
    """

    outcome: Answer = Answer.MORE
    before: float = 0.0
    now: float = 0.0
    change: float = 0.0
    samples: int = 0
    changed: int = 0
    down: int = 0
    up: int = 0
    correlation: float | None = None
    groups: int | None = None
    widened: float = 1.0
    leverage: Leverage | None = None
    unseen: float | None = None


def analysis_sizes(samples: int, *, sequential: bool) -> tuple[int, ...]:
    """Return the number of samples at each interim analysis (if `sequential`), and at the end."""
    return (*(look for look in LOOK_SAMPLES if sequential and look < samples), samples)


def errors_at(
    position: int, sample_counts: Sequence[int], rule: RuleA = DEFAULT
) -> ErrorProbabilities:
    """Return the error probabilities allowed at interim analysis `position`, counted from 0."""
    last = position == len(sample_counts) - 1
    early = FIRST_LOOK if position == 0 else LATER_LOOKS
    return ErrorProbabilities(
        alpha=rule.alpha / len(sample_counts),
        beta=rule.beta / len(sample_counts),
        rare=rule.beta / len(sample_counts) if last else rule.beta * early,
    )


def judge_pairs(
    metrics: Mapping[str, ScorePairs], at: Sequence[int], rule: RuleA = DEFAULT
) -> dict[str, Paired]:
    """Judge paired scores at the sample counts `at`; a metric's first decision is final.

    The case passes if every lower bound excludes a drop of the margin. A metric fails if a drop is
    proven and a drop of the margin is not excluded. Holm's procedure keeps alpha over all metrics.
    """
    there = min(len(pairs.now) for pairs in metrics.values())
    decided: dict[str, Paired] = {}
    for position, look in enumerate(look for look in at if look <= there):
        errors, last = errors_at(position, at, rule), look == at[-1]
        open_ = {
            name: _weigh(pairs, look, errors, all_seen=last)
            for name, pairs in metrics.items()
            if name not in decided or decided[name].outcome is not Answer.PASS
        }
        # A metric that passed stays in the family: otherwise the others would get its alpha.
        p_values = {name: open_[name].p if name in open_ else 1.0 for name in metrics}
        failed = holm(p_values, errors.alpha)
        for name, paired in open_.items():
            decided[name] = _decide(paired, metrics[name].margin, name in failed, last=last)
        if all(paired.outcome is not Answer.MORE for paired in decided.values()):
            break
        if any(paired.outcome is Answer.FAIL for paired in decided.values()):
            break
    return decided


def smallest_margin(pairs: ScorePairs, share: float, analyses: Sequence[int]) -> float:
    """Return the smallest margin that rule A can decide with sampled answers [points].

    It is twice the half-width of the bound at the last of the `analyses` (sample counts). With it
    an unchanged model passes with probability 1 - beta, a drop of the margin with probability beta.
    `share` is the number of scored samples, relative to the data set.
    """
    errors = errors_at(len(analyses) - 1, analyses)
    no_margin = replace(pairs, margin=sys.float_info.max)
    paired = _weigh(no_margin, len(pairs.now), errors, all_seen=True)
    reach = paired.change - paired.low
    return 2 * reach * math.sqrt(share) if math.isfinite(reach) else 0.0


def holm(p_values: Mapping[Name, float], alpha: float) -> set[Name]:
    """Return the hypotheses that Holm's step-down procedure rejects.

    Source: S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal
        of Statistics 6 (1979).
    """
    rejected: set[Name] = set()
    ordered = sorted(p_values, key=lambda name: p_values[name])
    for position, name in enumerate(ordered):
        if p_values[name] > alpha / (len(ordered) - position):
            break
        rejected.add(name)
    return rejected


def score_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Pearson's r of two passes' scores; None if all scores of a pass are equal."""
    try:
        return correlation(first, second)
    except StatisticsError:
        return None


def _weigh(pairs: ScorePairs, look: int, errors: ErrorProbabilities, *, all_seen: bool) -> Paired:
    groups = range(look) if pairs.groups is None else pairs.groups[:look]
    there = [
        (old, new, group)
        for old, new, group in zip(pairs.before[:look], pairs.now[:look], groups, strict=True)
        if old is not None and new is not None
    ]
    if not there:
        return Paired()
    baseline, current = [old for old, _, _ in there], [new for _, new, _ in there]
    of_groups = None if pairs.groups is None else [group for _, _, group in there]
    bounds = change_bounds(baseline, current, of_groups, errors, pairs.leverage)
    low, values, unseen = bounds.low, {*baseline, *current}, None
    changes = Counter(new - old for old, new in zip(baseline, current, strict=True))
    if low > -pairs.margin:  # else the metric cannot pass anyway
        worst = min(0.0, *values)
        possible = Counter(old - worst for old in baseline)
        low = with_rare_losses(low, changes, possible, errors, all_seen=all_seen)
        if all_seen and len(changes) == 1 and 0.0 in changes:
            unseen = -with_rare_losses(low, changes, possible, errors, all_seen=False)
    down = sum(count for change, count in changes.items() if change < 0)
    up = sum(count for change, count in changes.items() if change > 0)
    return Paired(
        before=fmean(baseline),
        now=fmean(current),
        change=fmean(new - old for old, new in zip(baseline, current, strict=True)),
        interval=(low, bounds.high),
        p=bounds.p,
        samples=len(there),
        changed=down + up,
        down=down,
        up=up,
        correlation=score_correlation(baseline, current),
        groups=bounds.groups,
        widened=bounds.widened,
        leverage=pairs.leverage,
        unseen=unseen,
    )


def _decide(paired: Paired, margin: float, failed: bool, *, last: bool) -> Paired:
    if paired.low > -margin:
        decision = Answer.PASS
    elif failed and paired.change < 0:
        decision = Answer.FAIL
    else:
        decision = Answer.INCONCLUSIVE if last else Answer.MORE
    return replace(paired, outcome=decision)
