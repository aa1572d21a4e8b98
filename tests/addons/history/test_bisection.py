"""Test the search for the first bad commit: its next step, and its error rate."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.addons.history.bisection import (
    SPARE_COMPARISONS,
    Mark,
    comparison_count,
    divided_rule,
    excluded_by_good,
    is_part,
    mark_of,
    most_comparisons,
    relative_speed,
    search_range,
    smallest_drop,
)
from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.judge.ratio import Ratio, RelativeSpeed, judge_drop
from pytest_mlperf.judge.rule_r import RuleR, Value

GOOD, BAD, UNDECIDED, SKIPPED = Mark.GOOD, Mark.BAD, Mark.UNDECIDED, Mark.SKIPPED


def searched(last: int, mark: Callable[[int], Mark]) -> tuple[int, int, dict[int, Mark]]:
    """Return the good and the bad end of the range that is left, and all that was tried."""
    marks: dict[int, Mark] = {}
    again: set[int] = set()
    while (index := search_range(last, marks, again).next) is not None:
        assert 0 < index < last
        assert index not in again
        if index in marks:
            assert marks[index] is UNDECIDED
            again.add(index)
        marks[index] = mark(index)
    left = search_range(last, marks, again)
    assert 1 + sum(m is not SKIPPED for m in marks.values()) + len(again) < most_comparisons(last)
    return left.good, left.bad, marks


@st.composite
def searches(draw: st.DrawFn) -> tuple[int, int, set[int]]:
    """A length, the place of the first bad commit, and commits that stand out."""
    last = draw(st.integers(1, 60))
    first_bad = draw(st.integers(1, last))
    others = draw(st.sets(st.integers(1, last)))
    return last, first_bad, others


def test_the_middle_of_the_untried_range_is_next() -> None:
    """One drop makes a commit bad."""
    cases: list[tuple[int, dict[int, Mark], int | None]] = [
        (1, {}, None),
        (2, {}, 1),
        (8, {}, 4),
        (8, {4: GOOD}, 6),
        (8, {4: BAD}, 2),
        (8, {4: SKIPPED}, 5),
        (8, {4: SKIPPED, 5: SKIPPED}, 3),
        (8, {4: SKIPPED, 5: BAD}, 2),
        (8, {4: UNDECIDED}, 2),
        (8, {4: UNDECIDED, 2: GOOD}, 6),
        (8, {4: UNDECIDED, 2: GOOD, 6: BAD}, 3),
        (3, {1: GOOD, 2: BAD}, None),
        (3, {1: SKIPPED, 2: SKIPPED}, None),
        (60, dict.fromkeys(range(1, 60), SKIPPED), None),
    ]
    next_builds = [search_range(last, marks).next for last, marks, _ in cases]
    most = {1: 0, 2: 1, 3: 2, 4: 2, 40: 6, 41: 6}

    assert next_builds == [index for *_, index in cases]
    assert {last: comparison_count(last) for last in most} == most
    assert {last: most_comparisons(last) - SPARE_COMPARISONS - 2 for last in most} == most

    for names, mark in (
        ("PASS", GOOD),
        ("PASS FAIL", BAD),
        ("MORE FAIL", BAD),
        ("PASS INCONCLUSIVE", UNDECIDED),
        ("INCONCLUSIVE", UNDECIDED),
    ):
        assert mark_of([Answer[name] for name in names.split()]) is mark


@given(searches(), st.sampled_from([SKIPPED, UNDECIDED]))
def test_skipped_and_undecided_commits_never_hide_the_first_bad_one(
    search: tuple[int, int, set[int]], other: Mark
) -> None:
    """If commits are skipped, the smallest possible range is left, in the fewest steps."""
    last, first_bad, others = search

    def mark(index: int) -> Mark:
        if index in others:
            return other
        return BAD if index >= first_bad else GOOD

    good, bad, marks = searched(last, mark)

    assert good < first_bad <= bad
    if other is SKIPPED:
        assert set(range(good + 1, bad)) <= others
        assert sum(one is not SKIPPED for one in marks.values()) <= comparison_count(last)


def test_steps_undecided_on_a_busy_machine_are_judged_again() -> None:
    """Any one of 40 commits may be: but for few of all places the first bad one is named.

    Where half the drop is at 10 and half at 30, what lies between is neither good nor bad.
    """
    last, named = 40, 0
    places = [(first, one) for first in range(1, last + 1) for one in range(1, last)]
    for first_bad, busy in places:
        once = {busy}

        def mark(index: int, first_bad: int = first_bad, once: set[int] = once) -> Mark:
            if index in once:
                once.discard(index)
                return UNDECIDED
            return BAD if index >= first_bad else GOOD

        good, bad, _ = searched(last, mark)
        assert good < first_bad <= bad
        named += bad - good == 1

    assert named >= 0.995 * len(places)

    good, bad, _ = searched(40, lambda i: GOOD if i < 10 else BAD if i >= 30 else UNDECIDED)

    assert (good, bad) == (8, 30)


def speed(low: float, high: float) -> RelativeSpeed:
    return RelativeSpeed(ratio=math.sqrt(low * high), low=low, high=high)


def test_the_smallest_range_is_that_of_intervals_that_do_not_touch() -> None:
    for speeds, ends in (
        ({}, None),
        ({3: speed(0.9, 1.1)}, None),
        ({3: speed(0.7, 0.9)}, (0, 3)),
        ({3: speed(0.97, 1.03), 4: speed(0.7, 0.9)}, (3, 4)),
        ({3: speed(0.85, 1.03), 4: speed(0.7, 0.9)}, (0, 4)),
        ({1: speed(0.85, 1.03), 2: speed(0.8, 0.99), 8: speed(0.6, 0.7)}, (0, 2)),
        ({2: speed(0.96, 1.04), 4: speed(0.8, 0.9), 8: speed(0.6, 0.7)}, (2, 4)),
        ({2: speed(0.7, 0.9), 4: speed(1.0, 1.2)}, (0, 2)),
    ):
        assert smallest_drop(speeds) == ends


def test_the_interval_across_two_commits_holds_where_theirs_do() -> None:
    """Half a drop is a part of it; all comparisons share the error.

    A good commit excludes the proven drop or the limit.
    """
    lower, upper, rule = speed(0.6, 0.7), speed(0.9, 1.0), divided_rule(RuleR(), 40, 3)

    between = relative_speed(upper, lower)
    parts = {one: is_part(speed(one, one), speed(0.66, 0.66)) for one in (0.66, 0.7, 0.75, 1.1)}

    assert (between.low, between.high) == pytest.approx((0.6 / 1.0, 0.7 / 0.9))
    assert between.low < between.ratio < between.high
    assert parts == {0.66: False, 0.7: False, 0.75: True, 1.1: True}
    assert rule.alpha * 3 * most_comparisons(40) == pytest.approx(0.01)
    assert rule.beta * most_comparisons(40) == pytest.approx(0.05)

    small = RelativeSpeed(ratio=0.98, low=0.97, high=0.99)
    for whole, direction, drop in (
        (speed(0.6, 0.7), Direction.HIGHER, 0.3),
        (speed(0.6, 0.99), Direction.HIGHER, 0.05),
        (small, Direction.HIGHER, 0.02),
        (speed(1e-300, 1e-290), Direction.HIGHER, 0.99),
        (speed(0.25, 0.5), Direction.LOWER, 1.0),
        (speed(0.6, 0.99), Direction.LOWER, 0.05),
    ):
        assert excluded_by_good(0.05, whole, falls=direction is Direction.LOWER) == pytest.approx(
            drop
        )


LIMIT = 0.05


def whole_search(chance: random.Random, first_bad: int, drop: float, sd: float) -> int | None:
    """Return the commit that a search names, or None; only `first_bad` drops."""
    last = 40
    rule = divided_rule(RuleR(max_runs=6), last, 1)

    def compared(good: int, bad: int, limit: float) -> Ratio:
        fall = math.log1p(-drop) if good < first_bad <= bad else 0.0
        runs = [
            [Value(value=math.exp(chance.gauss(level, sd))) for _ in range(rule.max_runs)]
            for level in (fall, 0.0)
        ]
        return judge_drop(*runs, direction=Direction.HIGHER, limit=limit, rule=rule)

    end = compared(0, last, LIMIT)
    if end.outcome is not Answer.FAIL:
        return None
    limit = excluded_by_good(LIMIT, end, falls=False)

    def mark(good: int, bad: int) -> Mark:
        return mark_of([compared(good, bad, limit).outcome])

    good, bad, marks = searched(last, lambda index: mark(0, index))
    direct = marks.get(bad, BAD) if good == 0 else mark(good, bad)
    return bad if direct is BAD and bad - good == 1 else None


@pytest.mark.parametrize("searches", [30, pytest.param(400, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("sd", [0.003, 0.007, 0.014])
def test_a_whole_search_keeps_its_promise(sd: float, searches: int) -> None:
    """One commit drops by exactly the limit, on machines quieter and noisier than expected.

    An innocent commit is named at most 1 % of the time. The guilty one is not named at most 5 % of
    the time, where the noise lets runs decide: with twice the noise that is expected it need not.
    """
    chance = random.Random(20261127)
    names = [
        (first, whole_search(chance, first, LIMIT, sd))
        for first in (chance.randint(1, 40) for _ in range(searches))
    ]

    wrong = sum(name not in (None, first) for first, name in names)
    missed = sum(name is None for _, name in names)
    assert wrong <= most_of(searches, 0.01)
    if sd <= 0.007:
        assert missed <= most_of(searches, 0.05)


def most_of(tries: int, rate: float) -> float:
    """Return the count that this rate exceeds once in a thousand."""
    return tries * rate + NormalDist().inv_cdf(0.999) * math.sqrt(tries * rate * (1 - rate))
