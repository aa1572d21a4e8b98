"""What sessions differ by is learnt from stored runs, in terms of what runs differ by."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.baseline import SessionNoise
from pytest_mlperf.core.judge.rule_r import RuleR, Value
from pytest_mlperf.core.noise import session_noise

RULE = RuleR(prior_sd=0.005)


def build(*sessions: Sequence[float]) -> list[Value]:
    """Return the runs of one build, by session, in percent of 1 above it."""
    return [
        Value(value=math.exp(x / 100), session=str(number))
        for number, session in enumerate(sessions)
        for x in session
    ]


def drawn(chance: random.Random, sessions: int, runs: int, ratio: float) -> list[Value]:
    """Return runs whose sessions differ by the root of `ratio` as much as they."""
    groups = []
    for _ in range(sessions):
        common = chance.gauss(0, 0.4 * math.sqrt(ratio))
        groups.append([common + chance.gauss(0, 0.4) for _ in range(runs)])
    return build(*groups)


def test_nothing_is_learnt_where_no_build_has_two_sessions() -> None:
    assert session_noise([], rule=RULE) is None
    assert session_noise([build([0.1, -0.1, 0.2])], rule=RULE) is None
    assert session_noise([build([0.1]), build([5.0])], rule=RULE) is None


def test_sessions_that_agree_say_so() -> None:
    found = session_noise([build([0.4, -0.4], [0.3, -0.3], [0.5, -0.5])], rule=RULE)

    assert found == SessionNoise(ratio=0.0, df=2.0)


def test_a_build_of_another_level_is_no_difference_between_sessions() -> None:
    quiet = build([0.4, -0.4], [0.3, -0.3])
    faster = [Value(value=1.5 * one.value, session=f"later {one.session}") for one in quiet]

    found = session_noise([quiet, faster], rule=RULE)

    assert found == SessionNoise(ratio=0.0, df=2.0)


@pytest.mark.parametrize("ratio", [0.0, 1.0, 4.0, 16.0])
@pytest.mark.parametrize("runs", [1, 2, 8])
def test_the_ratio_comes_back(ratio: float, runs: int) -> None:
    """Whatever the runs a session, also from one run each, where only rule R's prior says sd."""
    chance = random.Random(7)
    rule = RuleR(prior_sd=0.004, session_share=0.0)
    found = [session_noise([drawn(chance, 40, runs, ratio)], rule=rule) for _ in range(60)]

    ratios = [one.ratio for one in found if one]
    assert median(ratios) == pytest.approx(ratio, rel=0.25, abs=0.25)
    assert {one.df for one in found if one} == {39.0}


def test_other_cases_count_by_a_quarter_and_as_one_however_many_they_are() -> None:
    far = [build([3.0, 3.1], [-3.0, -3.1], [0.0, 0.1]) for _ in range(50)]
    quiet = build([0.4, -0.4], [0.3, -0.3])

    alone = session_noise([], far, rule=RULE)
    both = session_noise([quiet], far, rule=RULE)

    assert alone is not None
    assert both is not None
    assert alone.df == 0.5
    assert both.df == 1.5
    assert 0 < both.ratio < alone.ratio / 2


@given(
    st.lists(st.lists(st.floats(-20, 20), min_size=1, max_size=4), min_size=2, max_size=6),
    st.floats(1e-6, 1e6),
)
def test_the_unit_of_the_metric_and_the_order_of_runs_do_not_matter(
    sessions: list[list[float]], unit: float
) -> None:
    plain = build(*sessions)
    other = [
        Value(value=unit * one.value, session=one.session, within_se=one.within_se)
        for one in reversed(plain)
    ]

    found, again = (session_noise([runs], rule=RULE) for runs in (plain, other))

    assert found is not None
    assert again is not None
    assert found.df == again.df == len(sessions) - 1
    assert again.ratio == pytest.approx(found.ratio, rel=1e-6, abs=1e-6)
