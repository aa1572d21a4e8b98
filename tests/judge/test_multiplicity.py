"""Test many pairs in one session.

Which drops stand out, and their distribution without a change.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.formulas import t_sf
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.judge.multiplicity import (
    FALSE_SHARE,
    MAX_LONE_PAIRS,
    Compared,
    Null,
    benjamini_hochberg,
    estimate,
    judge_jointly,
    rule_among,
)
from pytest_mlperf.judge.rule_r import RuleR, judge
from tests.judge.test_rule_r import WAVY, quiet, values

RULE = RuleR()
MANY = MAX_LONE_PAIRS + 1

p_lists = st.lists(st.floats(0, 1) | st.sampled_from([0.0, 0.001, 0.009, 1.0]), max_size=60)


def answers(p_values: Mapping[Any, float]) -> dict[Any, Answer]:
    decisions = judge_jointly(p_values, RULE)
    assert {pair: decision.p for pair, decision in decisions.items()} == p_values
    return {pair: decision.outcome for pair, decision in decisions.items()}


def named(p_values: Sequence[float]) -> dict[int, float]:
    return dict(enumerate(p_values))


def test_step_up_rejects_by_rank() -> None:
    """The example of Benjamini and Hochberg's paper, 15 hypotheses: the first four at 5 %.

    The larger of 0.04 and 0.05 carries the smaller one: step-up.
    """
    paper = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240]
    paper += [0.4262, 0.5719, 0.6528, 0.7590, 1.0000]
    cases: list[tuple[list[float], set[int]]] = [
        (paper, {0, 1, 2, 3}),
        *(([0.05], {0}), ([0.0501], set()), ([0.04, 0.05], {0, 1}), ([0.03, 0.06], set())),
        *(([0.02, 0.02, 0.5], {0, 1}), ([1.0, 1.0], set()), ([], set())),
    ]

    for p_values, rejected in cases:
        assert benjamini_hochberg(named(p_values), 0.05) == rejected


@given(p_values=p_lists, share=st.floats(0.001, 0.5), better=st.floats(0, 1))
def test_step_up_is_that_of_scipy_between_bonferroni_and_no_correction(
    p_values: list[float], share: float, better: float
) -> None:
    """scipy's adjusted p values lie below the share for the same hypotheses.

    A p value below share / M is rejected whatever the others say, one above the share never is,
    and a smaller one clears no other pair.
    """
    from scipy.stats import false_discovery_control

    rejected = benjamini_hochberg(named(p_values), share)
    adjusted = false_discovery_control(p_values) if p_values else []
    near = [abs(p - share) < 1e-12 for p in adjusted]

    assert any(near) or rejected == {i for i, p in enumerate(adjusted) if p <= share}
    assert {i for i, p in enumerate(p_values) if p <= share / len(p_values)} <= rejected
    assert all(p_values[i] <= share for i in rejected)
    assert rejected <= benjamini_hochberg(named([p * better for p in p_values]), share)


def test_few_pairs_are_each_judged_alone_and_among_many_a_drop_must_stand_out() -> None:
    """Up to twenty keep rule R's error rate; of 21 one that would have failed alone is suspect.

    Drops support each other, and a pass has p = 1, which stands for nothing.
    """
    for count in (1, MAX_LONE_PAIRS):
        p_values = named([0.0099] + [0.01] * (count - 1))
        assert answers(p_values) == {
            i: Answer.INCONCLUSIVE if i else Answer.FAIL for i in range(count)
        }
    outcomes = answers({"drop": 0.001, "doubt": 0.009} | named([1.0] * (MANY - 2)))
    few = {"x": 0.009} | named([0.001] * 2 + [1.0] * 37)
    more = {"x": 0.009} | named([0.001] * 9 + [1.0] * 30)

    assert [outcomes["drop"], outcomes["doubt"]] == [Answer.FAIL, Answer.SUSPECT]
    assert {outcomes[i] for i in range(MANY - 2)} == {Answer.INCONCLUSIVE}
    assert answers(few)["x"] is Answer.SUSPECT
    assert answers(more)["x"] is Answer.FAIL
    assert answers({"passed": 1.0} | named([1e-9] * MANY))["passed"] is Answer.INCONCLUSIVE


def test_many_pairs_are_measured_until_they_stand_out() -> None:
    """Only alpha is another: a tenth of the 5 % that all pairs share, as they may widen it.

    Two runs at -3.5 % are a drop of a pair alone; among 600 its p value asks for more.
    """
    for pairs, alpha in ((1, 0.01), (MAX_LONE_PAIRS, 0.01), (MANY, 0.005 / 21), (600, 0.005 / 600)):
        rule = rule_among(RULE, pairs)
        assert rule.alpha == pytest.approx(alpha)
        assert (rule.beta, rule.max_runs) == (RULE.beta, RULE.max_runs)

    runs = values(96.0, 97.0, 96.4, 96.6, 96.5)

    def at(pairs: int, k: int) -> tuple[Answer, float]:
        judged = judge(
            WAVY, runs[:k], direction=Direction.HIGHER, limit=0.03, rule=rule_among(RULE, pairs)
        )
        return judged.outcome, judged.p

    assert at(1, 2)[0] is Answer.PROVISIONAL
    assert at(600, 2)[0] is Answer.MORE
    assert at(600, 2)[1] == pytest.approx(0.0020450981779556923)
    assert at(600, 5)[1] < at(600, 2)[1]


def test_the_p_value_is_the_smallest_of_its_looks_and_one_after_a_pass() -> None:
    """(K - 1) · min over looks of Student's tail, from figures computed by hand.

    Baseline without spread, two runs at -1 %: d = log 0.99, ν = 4 + 7 + 1, s² = 4 · 0.7 %² / 12,
    v0 = 0.25 / 4 + 0.75 / 8, se = s · √(0.25 + 0.75 / 2 + v0)."""
    flat = quiet(100.0)
    se = 0.007 * math.sqrt(4 / 12) * math.sqrt(0.25 + 0.375 + 0.0625 + 0.09375)
    expected = 4 * t_sf(-math.log(0.99) / se, 12)
    rule = rule_among(RULE, 600)
    tight = judge(flat, values(99, 99), direction=Direction.HIGHER, limit=0.005, rule=rule)
    wide = judge(flat, values(99, 99), direction=Direction.HIGHER, limit=0.03, rule=rule)

    assert tight.p == pytest.approx(expected)
    assert (wide.outcome, wide.p) == (Answer.PASS, 1.0)

    for p in (-0.1, 1.1, math.nan):
        for others in (0, MANY):
            with pytest.raises(ValueError, match=r"p value of 'x' is .*from 0 to 1"):
                judge_jointly({"x": p} | named([1.0] * others), RULE)
    with pytest.raises(ValueError, match="pairs is 0; it must be at least 1"):
        rule_among(RULE, 0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        benjamini_hochberg({}, 1.0)


PAIRS = 600
SE, DF = 0.008, 12.0
SESSIONS = "abcd"


def normal(rng: random.Random, sd: float = SE, shift: float = 0.0) -> list[Compared]:
    return [(shift + rng.gauss(0, sd), SE, DF) for _ in range(PAIRS)]


def baselines(seed: int = 1, sd: float = SE, machine: float = 0.0) -> dict[str, list[Compared]]:
    rng = random.Random(seed)
    shifts = [machine * x for x in (1, -1, 0.5, -0.5)]
    return {name: normal(rng, sd, shift) for name, shift in zip(SESSIONS, shifts, strict=True)}


def looks(change: float) -> list[Compared]:
    """Return two looks at a change, of half the standard error of the first one."""
    return [(change, SE, DF), (change, SE / 2, DF + 1)]


ALONE = (RULE.max_runs - 1) * t_sf(0.03 / (SE / 2), DF + 1)


def test_pairs_as_expected_are_judged_as_alone_and_few_show_nothing() -> None:
    """Runs that scatter more than expected widen it; one session allows much."""
    null = estimate(normal(random.Random(2)), baselines(), RULE)
    few = estimate(normal(random.Random(2), 5 * SE)[:MAX_LONE_PAIRS], baselines(), RULE)

    assert null.scale == pytest.approx(1, abs=0.06)
    assert null.excess == pytest.approx(0, abs=0.06)
    assert ALONE <= null.p_value(looks(-0.03), RULE) < 5 * ALONE
    assert few == Null()
    assert few.p_value(looks(-0.03), RULE) == ALONE

    for times in (2.0, 3.0):
        null = estimate(normal(random.Random(2), times * SE), baselines(), RULE)
        assert null.scale == pytest.approx(times, rel=0.15)

    null = estimate(normal(random.Random(2), 2 * SE), {}, RULE)

    assert null.allowed > 0.1
    assert (null.scale, null.sessions, null.shows_sessions) == (1.0, 0, False)
    assert null.excess == pytest.approx(3, abs=0.8)


def test_drops_do_not_widen_it_and_exceed_unchanged_pairs() -> None:
    """One in 300 of the baselines' sessions fell by 12 standard errors."""
    rng, baseline_runs = random.Random(2), baselines()
    for fell in (30, PAIRS // 2, PAIRS):
        firsts = [(c - 0.03 * (n < fell), se, df) for n, (c, se, df) in enumerate(normal(rng))]

        null = estimate(firsts, baseline_runs, RULE)

        assert null.scale < 1.15
        assert null.p_value(looks(-0.03), RULE) < 1e-4

    baseline_runs = baselines()
    for looks_ in baseline_runs.values():
        looks_[:2] = [(-0.1, SE, DF)] * 2
    null = estimate(normal(random.Random(2)), baseline_runs, RULE)

    assert null.p_value(looks(-0.04), RULE) >= 8 / (2 * 4 * PAIRS)
    assert null.p_value(looks(-0.08), RULE) < 8 / (2 * 4 * PAIRS)


def test_a_shift_of_all_is_the_machines_where_its_sessions_differ_as_much() -> None:
    alone = 4 * t_sf(0.02 / (SE / 2), DF + 1)
    for machine, shift in ((0.01, -0.01), (0.01, 0.01)):
        null = estimate(normal(random.Random(2), shift=shift), baselines(machine=machine), RULE)
        assert null.machine_explains_shift is True
        assert null.shift == pytest.approx(shift, abs=0.001)
        assert null.p_value(looks(-0.02), RULE) > 20 * alone
    for machine, shift in ((0.0, -0.02), (0.01, -0.06)):
        null = estimate(normal(random.Random(2), shift=shift), baselines(machine=machine), RULE)
        assert null.machine_explains_shift is False
        assert null.shift == pytest.approx(shift, abs=0.001)
        assert null.p_value(looks(shift), RULE) < 2e-3


def heavy(rng: random.Random) -> list[Compared]:
    """Return changes by Student's t with 3 degrees of freedom, of about the same spread."""
    chi = [math.sqrt(rng.gammavariate(1.5, 2) / 3) for _ in range(PAIRS)]
    return [(rng.gauss(0, SE) / c, SE, DF) for c in chi]


def away(null: Null, times: float) -> list[Compared]:
    """Return the analyses of a drop that lies `times` times as far out as the farthest seen."""
    se = null.scale * math.sqrt((SE / 2) ** 2 + null.excess * SE**2)
    return [(-times * null.seen[-1] * se, SE, DF), (-times * null.seen[-1] * se, SE / 2, 1e3)]


FEWEST = 3 / (2 * 4 * PAIRS)
"""Three of the baselines' sessions, on either side: the metrics of one case."""


def test_a_drop_that_is_alone_lies_farther_out_where_tails_are_heavy() -> None:
    """Metrics of a case that jump together are one jump.

    Three drops as far out as what nothing did are not enough among 600 pairs; eight are.
    """
    rng = random.Random(3)
    light = estimate(normal(rng), baselines(), RULE)
    wild = estimate(normal(rng), {name: heavy(rng) for name in SESSIONS}, RULE)

    assert light.p_value(away(light, 1.1), RULE) < FEWEST
    assert wild.p_value(away(wild, 1.1), RULE) == FEWEST
    assert wild.p_value(away(wild, 1.6), RULE) < FEWEST

    baseline_runs = baselines()
    baseline_runs["a"][0] = (-8 * SE, SE, DF)
    null = estimate(normal(random.Random(2)), baseline_runs, RULE)

    p = null.p_value(away(null, 0.99), RULE)

    others = dict.fromkeys(range(PAIRS), 1.0)
    assert p == FEWEST
    assert benjamini_hochberg(others | dict.fromkeys(range(3), p), FALSE_SHARE) == set()
    assert len(benjamini_hochberg(others | dict.fromkeys(range(8), p), FALSE_SHARE)) == 8


looks_at = st.tuples(st.floats(-0.1, 0.1), st.floats(1e-4, 0.1), st.floats(1, 40))


@settings(max_examples=50)
@given(
    st.lists(looks_at, min_size=2, max_size=5),
    st.floats(1, 10),
    st.floats(0, 10),
    st.floats(-0.1, 0.1),
)
def test_it_never_makes_a_drop_surer(
    seen: list[Compared], scale: float, excess: float, shift: float
) -> None:
    null = Null(pairs=PAIRS, scale=scale, excess=excess, shift=shift, allowed=math.inf)

    if all(look[0] < 0 for look in seen):
        assert null.p_value(seen, RULE) >= Null(pairs=PAIRS).p_value(seen, RULE)
