"""Search for the first bad commit: choose the commit to compare next, and combine results.

Commits are numbered from 0, the good one, to `last`, the bad one. The search compares each commit
only with the good one. `smallest_drop`, and a direct comparison at the end, compare neighbouring
commits.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations

from pytest_mlperf.judge import Answer, RuleR
from pytest_mlperf.judge.ratio import Ratio, RelativeSpeed

SPARE_COMPARISONS = 4


class Mark(StrEnum):
    """Define the results of a bisect for a commit: good, bad, undecided, skipped."""

    GOOD = "good"
    BAD = "bad"
    UNDECIDED = "undecided"
    SKIPPED = "skipped"


def mark_of(decisions: Iterable[Answer]) -> Mark:
    """Return a commit's mark from the decisions on its metrics: bad if any metric dropped.

    It is good if a drop is excluded for all metrics, and undecided otherwise.
    """
    every = set(decisions)
    if Answer.FAIL in every:
        return Mark.BAD
    return Mark.GOOD if every == {Answer.PASS} else Mark.UNDECIDED


def comparison_count(last: int) -> int:
    """Return the number of comparisons of a bisect of `last` commits, if all are decided."""
    return math.ceil(math.log2(last))


def most_comparisons(last: int) -> int:
    """Return the maximum comparisons of a bisect of commits 0 to `last`, including repeats."""
    return 1 + comparison_count(last) + SPARE_COMPARISONS + 1


def divided_rule(rule: RuleR, last_build: int, metric_count: int) -> RuleR:
    """Divide the error probabilities of `rule` among all comparisons and metrics of a bisect.

    By Bonferroni's inequality, the guarantees then hold for the whole bisect: an unchanged build is
    a proven drop with a probability of at most `alpha`, and a drop of the limit is excluded with a
    probability of at most `beta`. Builds are numbered from 0 to `last_build`.
    """
    parts = most_comparisons(last_build)
    return replace(rule, alpha=rule.alpha / (parts * metric_count), beta=rule.beta / parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class BisectRange:
    """Hold the range with the first bad commit, by number: after `good`, up to and with `bad`.

    Attributes:
        next: Number of the commit to compare next; None if none is left or too many were undecided.
        left: Number of commits between `good` and `bad` that can still be compared.
    """

    good: int
    bad: int
    next: int | None
    left: int


def search_range(last: int, marks: Mapping[int, Mark], again: Collection[int] = ()) -> BisectRange:
    """Return the range of the first bad commit, given the marks of the compared commits.

    The next commit to compare is the middle one of those not compared yet; skipped commits do not
    count. An undecided commit splits the range, and the longer part is searched: if a drop has
    several steps, all commits on a step are undecided. At the end undecided commits are compared
    again, as the machine may be less busy then; `again` has the numbers already compared again.
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


Speed = Ratio | RelativeSpeed

AS_ITSELF = RelativeSpeed(ratio=1.0, low=1.0, high=1.0)
"""Speed of the good commit relative to itself."""


def relative_speed(before: Speed, now: Speed) -> RelativeSpeed:
    """Return the speed of `now` relative to `before`, given both relative to a third commit."""
    return RelativeSpeed(
        ratio=now.ratio / before.ratio, low=now.low / before.high, high=now.high / before.low
    )


def smallest_drop(speeds: Mapping[int, Speed]) -> tuple[int, int] | None:
    """Return the closest pair of commits of which the later one is proven slower, or None.

    `speeds` are relative to the good commit, by the commit's number.
    """
    proven = [
        (now - before, before, now)
        for before, now in combinations(sorted({0, *speeds}), 2)
        if relative_speed(speeds.get(before, AS_ITSELF), speeds[now]).high < 1
    ]
    return min(proven)[1:] if proven else None


_MAX_SHARE = 0.99


def excluded_by_good(limit: float, whole: Speed, *, falls: bool) -> float:
    """Return the drop, as a fraction, that a comparison must exclude for a commit to be good.

    This is the proven drop of the bad commit, `whole`: if one commit caused it, all later commits
    dropped by as much. If the proven drop is smaller than the limit, it is the limit, or the
    measured drop if that is smaller. `falls` is true if smaller values of the metric are better.
    """
    proven, mean = (
        1 / times - 1 if falls else min(1 - times, _MAX_SHARE)
        for times in (whole.high, whole.ratio)
    )
    return max(proven, min(limit, mean))


PARTIAL_DROP_SHARE = 0.75
"""Share of the drop's log ratio below which a change is reported as a part of the drop."""


def is_part(speed: Speed, whole: Speed) -> bool:
    """Return whether a drop's |log ratio| is below `PARTIAL_DROP_SHARE` of the whole drop's."""
    return math.log(speed.ratio) > PARTIAL_DROP_SHARE * math.log(whole.ratio)
