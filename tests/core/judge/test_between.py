"""The sessions of a baseline beside each other."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pytest_mlperf.core.judge.formulas import t_sf
from pytest_mlperf.core.judge.rule_r import RuleR, Value, judge
from pytest_mlperf.core.judge.ruling import between_sessions, looks_at
from pytest_mlperf.core.metrics import Direction

RULE = RuleR()


def runs(**sessions: list[float]) -> list[Value]:
    """Return the runs of sessions."""
    return [
        Value(value=value, session=name) for name, values in sessions.items() for value in values
    ]


def test_a_session_is_compared_as_runs_of_now_are() -> None:
    baseline = runs(a=[100, 101], b=[99, 100.5], c=[97, 96.5])

    *_, last = between_sessions(baseline, direction=Direction.HIGHER, rule=RULE)
    first, second = looks_at(baseline[:4], baseline[4:], direction=Direction.HIGHER, rule=RULE)

    assert last == replace(second, session="c")
    assert last.change == pytest.approx(
        math.log(97 * 96.5) / 2 - sum(math.log(run.value) for run in baseline[:4]) / 4
    )
    assert (first.df, first.se > second.se) == (second.df - 1, True)


def test_below_zero_is_worse_whichever_way_is_better() -> None:
    """One session shows nothing."""
    baseline, one = runs(a=[100, 100], b=[110, 110]), runs(a=[1, 2, 3])

    higher, lower = (
        between_sessions(baseline, direction=direction, rule=RULE)
        for direction in (Direction.HIGHER, Direction.LOWER)
    )

    assert [look.change > 0 for look in higher] == [False, True]
    assert [look.change > 0 for look in lower] == [True, False]
    assert between_sessions(one, direction=Direction.HIGHER, rule=RULE) == ()


def test_the_last_look_is_what_rule_r_decided_by() -> None:
    baseline, now = runs(a=[100, 101, 99], b=[100, 100]), runs(now=[80, 81, 82])

    judged = judge(baseline, now, direction=Direction.HIGHER, limit=0.05, rule=RULE)
    looks = looks_at(baseline, now[:2], direction=Direction.HIGHER, rule=RULE)

    assert judged.runs_used == len(looks) == 2
    assert math.expm1(looks[-1].change) == pytest.approx(judged.change)
    assert looks[-1].df == judged.df
    p = (RULE.max_runs - 1) * t_sf(-looks[-1].change / looks[-1].se, looks[-1].df)
    assert p == pytest.approx(judged.p_value)
