"""The search for the first bad commit: which one is next, and what all comparisons prove together.

Commits are numbered from 0, which is the good one, to `last`, which is the bad one. Each is judged
against the good one alone, so a mark says nothing of its neighbours: that is what `smallest_drop`
and a comparison of the two commits at the end are for.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations

from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.judge.ratio import Ratio, RelativeSpeed
from pytest_mlperf.judge.rule_r import RuleR

SPARE_COMPARISONS = 4


class Mark(StrEnum):
    """What a commit is, beside the good one."""

    GOOD = "good"
    BAD = "bad"
    UNDECIDED = "undecided"
    SKIPPED = "skipped"


def mark_of(decisions: Iterable[Answer]) -> Mark:
    """Return what the decisions of all metrics make of a commit; one drop is enough."""
    every = set(decisions)
    if Answer.FAIL in every:
        return Mark.BAD
    return Mark.GOOD if every == {Answer.PASS} else Mark.UNDECIDED


def steps(last: int) -> int:
    """Return how many commits are judged at most where each is decided."""
    return math.ceil(math.log2(last))


def most_comparisons(last: int) -> int:
    """Return the most comparisons of a search, which share its error.

    These are the bad commit, the steps of the search, some undecided ones, and the last two
    commits.
    """
    return 1 + steps(last) + SPARE_COMPARISONS + 1


def shared(rule: RuleR, last: int, metrics: int) -> RuleR:
    """Return the rule of one comparison, so that its promises hold for the search as a whole.

    By Bonferroni's inequality, for all comparisons and metrics together: without a change a drop is
    proven at most a share `alpha` of the time, and a drop of the limit is excluded at most a share
    `beta` of the time.
    """
    parts = most_comparisons(last)
    return replace(rule, alpha=rule.alpha / (parts * metrics), beta=rule.beta / parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class BisectRange:
    """Where the first bad commit lies: behind `good`, up to `bad`; `next` is to be judged now.

    Attributes:
        next: None: nothing is left to judge, or as much was undecided as may be.
        left: How many commits in between could still be judged.
    """

    good: int
    bad: int
    next: int | None
    left: int


def search_range(last: int, marks: Mapping[int, Mark], again: Collection[int] = ()) -> BisectRange:
    """Return the range that is left after some commits between the first and the last were marked.

    The next commit is the middle of the untried ones. Skipped commits do not count. An undecided
    one cuts the range in two, of which the longer is searched: if a drop has several steps, all
    commits on a step are undecided. At the end it is judged again, when the machine may be less
    busy. Those in `again` have their second marks.
    """
    good = max((i for i, mark in marks.items() if mark is Mark.GOOD), default=0)
    bad = min((i for i, mark in marks.items() if mark is Mark.BAD), default=last)
    stretches: list[list[int]] = [[]]
    for index in range(good + 1, bad):
        if index not in marks:
            stretches[-1].append(index)
        elif marks[index] is Mark.UNDECIDED:
            stretches.append([])
    doubtful = [i for i, mark in marks.items() if mark is Mark.UNDECIDED and good < i < bad]
    longest = max(stretches, key=len) or sorted(set(doubtful) - set(again))
    judged = 1 + sum(mark is not Mark.SKIPPED for mark in marks.values()) + len(again)
    may = judged < most_comparisons(last) - 1
    return BisectRange(
        good=good,
        bad=bad,
        next=longest[len(longest) // 2] if longest and may else None,
        left=sum(map(len, stretches)),
    )


AS_ITSELF = RelativeSpeed(ratio=1.0, low=1.0, high=1.0)
"""The good commit, beside itself."""


def speed_of(ratio: Ratio) -> RelativeSpeed:
    """Return what runs in turns say of a metric."""
    return RelativeSpeed(ratio=ratio.ratio, low=ratio.low, high=ratio.high)


def across(before: RelativeSpeed, now: RelativeSpeed) -> RelativeSpeed:
    """Combine two commits' comparisons with a third; the interval holds if theirs do."""
    return RelativeSpeed(
        ratio=now.ratio / before.ratio, low=now.low / before.high, high=now.high / before.low
    )


def smallest_drop(speeds: Mapping[int, RelativeSpeed]) -> tuple[int, int] | None:
    """Return the nearest two commits of which the later one is certainly worse, or None.

    Their intervals do not touch; of several pairs it is the first.
    """
    proven = [
        (now - before, before, now)
        for before, now in combinations(sorted({0, *speeds}), 2)
        if across(speeds.get(before, AS_ITSELF), speeds[now]).high < 1
    ]
    return min(proven)[1:] if proven else None


_MAX_SHARE = 0.99


def excluded_by_good(limit: float, whole: RelativeSpeed, direction: Direction) -> float:
    """Return the drop that must be excluded of a good commit, as a share.

    It is what is proven of the bad commit's drop: where one commit made it, whatever lies behind
    that one dropped by as much. Where less than the limit is proven it is the limit; or the drop as
    it was measured, if that is smaller.
    """
    proven, mean = (
        min(1 - times, _MAX_SHARE) if direction is Direction.HIGHER else 1 / times - 1
        for times in (whole.high, whole.ratio)
    )
    return max(proven, min(limit, mean))


PARTIAL_DROP_SHARE = 0.75
"""A smaller share of the drop, on the scale of logarithms, is said to be a part of it."""


def is_part(one: RelativeSpeed, whole: RelativeSpeed) -> bool:
    """Whether a change looks like a part of the whole drop only, by their means."""
    return math.log(one.ratio) > PARTIAL_DROP_SHARE * math.log(whole.ratio)
