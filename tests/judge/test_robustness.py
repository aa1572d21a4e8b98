"""What stands of a difference whatever sessions differ by."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.inputs import Direction, SessionNoise
from pytest_mlperf.judge.robustness import (
    MAX_SPREAD_RATIO,
    Robustness,
    Sample,
    final_until,
    robustness,
)
from pytest_mlperf.judge.rule_r import Judged, RuleR, Value, judge

RULE = RuleR()
KNOWN = replace(RULE, session_noise=SessionNoise(ratio=0.0, df=20.0))
FOUR, ONE = "aabbccdd", "aaaaaaaa"


def stands(
    *sessions: list[float], current: list[float], noise: SessionNoise | None = None
) -> Robustness:
    sample = Sample(
        baseline=sessions,
        now=current,
        expected=0.75 * 0.007**2,
        prior_df=4.0,
        ratio=1 / 3,
        noise=noise,
        floor=0.001,
        old=False,
    )
    return robustness(sample, bound=-0.03, alpha=0.01, beta=0.05)


def judged(
    baseline_logs: list[float],
    current: list[float],
    sessions: str,
    rule: RuleR = RULE,
    age: float = 0.0,
) -> Judged:
    runs = zip(baseline_logs, sessions, strict=True)
    baseline = [Value(value=math.exp(x), session=s, day=100.0 + ord(s) - ord("a")) for x, s in runs]
    later = [Value(value=math.exp(x), session="now", day=103.0 + age) for x in current]
    return judge(baseline, later, direction=Direction.HIGHER, limit=0.03, rule=rule)


FLAT = [0.001, -0.001] * 4
WIDE = [0.02, 0.021, -0.02, -0.021, 0.01, 0.011, -0.01, -0.011]
"""Eight runs; in `WIDE` the sessions of `FOUR` differ by far more than their runs."""


def test_a_word_is_final_where_sessions_cannot_turn_it() -> None:
    """From four sessions that agree or differ, and from one, whose variance is unknown."""
    few, provisional = "few sessions", Answer.PROVISIONAL
    for baseline, current, sessions, rule, decision, leans, lacking in (
        (FLAT, [0.0], FOUR, RULE, Answer.PASS, None, None),
        (FLAT, [0.0], ONE, RULE, provisional, "ok", few),
        (FLAT, [-0.05, -0.05], FOUR, RULE, provisional, "drop", few),
        (FLAT, [-0.05, -0.05], ONE, RULE, provisional, "drop", few),
        (FLAT, [-0.05, -0.05, -0.05], FOUR, KNOWN, Answer.FAIL, None, None),
        # What no session explains.
        (FLAT, [-0.30, -0.30], ONE, RULE, Answer.FAIL, None, few),
        (FLAT, [0.20, 0.20], ONE, RULE, Answer.PASS, None, few),
        (WIDE, [-0.09, -0.09], FOUR, RULE, provisional, "drop", few),
        (WIDE, [0.015], FOUR, RULE, provisional, "ok", None),
    ):
        verdict = judged(baseline, current, sessions, rule)
        assert (verdict.outcome, verdict.direction, verdict.lacks) == (decision, leans, lacking), (
            current
        )


def test_a_baseline_is_old_by_its_age_and_the_span_of_its_sessions() -> None:
    """Four days in a row speak for six more."""
    assert judged(FLAT, [0.0], FOUR, age=6.9).outcome is Answer.PASS
    old = judged(FLAT, [0.0], FOUR, age=7.0)

    assert (old.outcome, old.direction, old.lacks) == (Answer.PROVISIONAL, "ok", "old")
    assert judged(FLAT, [-0.05, -0.05], FOUR, age=7.0).lacks == "old"
    assert judged(FLAT, [0.0], ONE, age=7.0).lacks == "few sessions"
    same_day = judged(FLAT, [0.0], ONE, KNOWN)
    assert (same_day.outcome, same_day.lacks) == (Answer.PROVISIONAL, "old")


def test_a_baseline_is_final_for_twice_its_span_and_less_with_a_trend() -> None:
    """At most a week, or the span; whatever the order, also of clocks that went backwards."""

    def ends(*days: float | None, step: float = 0.0) -> float | None:
        steady = (0.001, -0.001, -0.001, 0.001)
        return final_until(
            (day, step * (day or 0.0) + x) for day, x in zip(days, itertools.cycle(steady))
        )

    assert ends(100.0, 101.0, 102.0, 103.0) == ends(103.9, 102.9, 101.9, 100.1) == 109.0
    assert ends(100.0, 101.0, 102.0, 103.0, step=-0.01) == 105.0
    assert ends(100.0, 101.0, 102.0, 103.0, step=0.0005) == 109.0, "as far as chance explains"
    assert ends(100.0, 102.0, 107.0, 110.0) == 120.0
    assert ends(*map(float, range(100, 110))) == 118.0
    assert ends(*map(float, range(100, 110)), step=0.01) == 111.0
    assert ends(100.0, 107.0, 114.0, 121.0) == 142.0
    assert ends(100.0, 101.0) == ends(100.0, 101.0, step=0.1) == 103.0
    assert ends(100.0, 100.9) == 99.0, "one day speaks for none"
    assert ends(100.0, None, 101.0) == 103.0
    assert ends(None) is ends() is None


@settings(max_examples=60)
@given(
    st.lists(st.floats(-0.05, 0.05), min_size=2, max_size=4),
    st.floats(0.0, 0.5),
    st.sampled_from([1, 2, 4]),
)
def test_a_robust_verdict_states_the_variance_that_it_holds_up_to(
    current: list[float], away: float, sessions: int
) -> None:
    runs = [[0.001, -0.001]] * sessions
    verdict = stands(*runs, current=[x - away for x in current])

    assert verdict.failing.robust_to >= 0 <= verdict.passing.robust_to
    assert not (verdict.failing.robust and verdict.passing.robust)
    if sessions == 1:
        # One session says nothing of the others: only the widest may decide.
        run = np.var([0.001, -0.001], ddof=1)
        scatter = 4 * 0.75 * 0.007**2 + run + np.var(current, ddof=1) * (len(current) - 1)
        widest = MAX_SPREAD_RATIO * math.sqrt(scatter / (4 + 1 + len(current) - 1))
        assert verdict.failing.robust == (verdict.failing.robust_to >= widest)
        assert verdict.passing.robust == (verdict.passing.robust_to >= widest)


@settings(max_examples=50)
@given(st.floats(0.0, 0.2), st.floats(0.0, 0.2))
def test_a_larger_drop_stands_where_a_smaller_does(first_drop: float, other: float) -> None:
    runs = [[0.002, -0.002], [0.001, 0.0], [-0.001, 0.001], [0.0, 0.002]]
    small, large = (
        stands(*runs, current=[0.001 - drop, -0.001 - drop]).failing.robust
        for drop in sorted((first_drop, other))
    )

    assert large or not small


def estimated(
    days: int,
    *,
    run: float,
    new_runs: list[float],
    ratio: float,
    df: float,
    size: int = 2,
) -> Sample:
    """Return runs whose variance inside sessions is `run`, with sessions that were seen elsewhere.

    The new runs scatter by `run` or more, so that further days change no estimate but by weight.
    """
    half = math.sqrt(run * (size - 1) / size)
    inside = [half * (-1) ** place for place in range(size)]
    return Sample(
        baseline=[inside] * days,
        now=new_runs,
        expected=run,
        prior_df=4.0,
        ratio=1 / 3,
        noise=SessionNoise(ratio=ratio, df=df),
        floor=1e-6,
        old=False,
    )


def final_drop(sample: Sample) -> bool:
    return robustness(sample, bound=-0.03, alpha=0.01, beta=0.05).failing.robust


@settings(max_examples=300)
@given(st.data())
def test_better_knowledge_never_makes_a_drop_harder_to_prove(data: st.DataObject) -> None:
    """More degrees of freedom, more days and sessions that differ by less, with estimates fixed."""

    def draw(low: float, high: float) -> float:
        return data.draw(st.floats(low, high))

    run, k = draw(0.001, 0.02) ** 2, data.draw(st.integers(2, 5))
    scatter = math.sqrt(run * (k - 1) / k) * draw(1.0, 4.0) * math.sqrt(k)
    new_runs = [scatter * (place - (k - 1) / 2) / (k - 1) for place in range(k)]
    away = draw(0.0, 25.0) * math.sqrt(run)
    new_runs = [x - away for x in new_runs]
    days, size = data.draw(st.integers(2, 8)), 2 * data.draw(st.integers(1, 4))
    more_days = days + data.draw(st.integers(0, 8))
    ratio, df = draw(0.0, 20.0), draw(more_days - 1.0, 30.0)
    alike: dict[str, Any] = {"run": run, "new_runs": new_runs, "size": size}
    less = final_drop(estimated(days, **alike, ratio=ratio, df=df))

    for better in (
        estimated(days, **alike, ratio=ratio, df=df + draw(0.0, 30.0)),
        estimated(more_days, **alike, ratio=ratio, df=df),
        estimated(days, **alike, ratio=ratio * draw(0.0, 1.0), df=df),
    ):
        assert final_drop(better) or not less


@settings(max_examples=100)
@given(st.data())
def test_a_larger_ratio_of_sessions_never_makes_a_drop_final(data: st.DataObject) -> None:
    """Rule R with the learnt variance of sessions, on the same runs."""
    sd = data.draw(st.floats(0.0005, 0.01))
    deviations = st.floats(-2.0, 2.0).map(lambda x: sd * x)
    baseline = data.draw(st.lists(deviations, min_size=8, max_size=8))
    drop, df = data.draw(st.floats(0.0, 0.2)), data.draw(st.floats(3.0, 30.0))
    current = [x - drop for x in data.draw(st.lists(deviations, min_size=5, max_size=5))]
    small, large = sorted(data.draw(st.tuples(st.floats(0.0, 20.0), st.floats(0.0, 20.0))))

    def decision(ratio: float, df: float) -> Answer:
        noise = SessionNoise(ratio=ratio, df=df)
        return judged(baseline, current, FOUR, replace(RULE, session_noise=noise)).outcome

    if decision(large, df) is Answer.FAIL:
        assert decision(small, df) is Answer.FAIL
        assert decision(large, df + data.draw(st.floats(0.0, 30.0))) is Answer.FAIL


def test_sessions_known_to_be_alike_prove_a_drop_after_two_runs() -> None:
    """Ten sessions of two runs that do not differ, -3.5 %: it was provisional after five runs."""
    baseline, ten = [0.004, -0.004] * 10, "".join(2 * name for name in "abcdefghij")
    current = [-0.035 + x for x in (0.003, -0.003, 0.002, -0.002, 0.0)]
    for ratio in (0.0, 1 / 3, 1.0):
        noise = SessionNoise(ratio=ratio, df=9.0)
        verdict = judged(baseline, current, ten, replace(RULE, session_noise=noise))
        assert (verdict.outcome, verdict.runs_used) == (Answer.FAIL, 2), ratio


def test_new_runs_that_scatter_more_widen_their_own_share() -> None:
    noise = SessionNoise(ratio=0.1, df=20.0)
    alike, wide = (
        stands(*[[0.001, -0.001]] * 4, current=now, noise=noise).failing.robust
        for now in ([-0.04, -0.04, -0.04], [-0.01, -0.07, -0.04])
    )

    assert (alike, wide) == (True, False)
