"""What all pairs of a session show of unchanged ones."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.judge.formulas import t_sf
from pytest_mlperf.core.judge.many import (
    FALSE_SHARE,
    FEW,
    Compared,
    Null,
    benjamini_hochberg,
    estimate,
)
from pytest_mlperf.core.judge.rule_r import RuleR

RULE = RuleR()
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
    null = estimate(normal(random.Random(2)), baselines(), RULE)
    few = estimate(normal(random.Random(2), 5 * SE)[:FEW], baselines(), RULE)

    assert null.scale == pytest.approx(1, abs=0.06)
    assert null.excess == pytest.approx(0, abs=0.06)
    assert ALONE <= null.p_value(looks(-0.03), RULE) < 5 * ALONE
    assert few == Null()
    assert few.p_value(looks(-0.03), RULE) == ALONE


def test_runs_that_scatter_more_than_expected_widen_it() -> None:
    for times in (2.0, 3.0):
        null = estimate(normal(random.Random(2), times * SE), baselines(), RULE)
        assert null.scale == pytest.approx(times, rel=0.15)


def test_drops_do_not_widen_it() -> None:
    rng, before = random.Random(2), baselines()
    for fell in (30, PAIRS // 2, PAIRS):
        firsts = [(c - 0.03 * (n < fell), se, df) for n, (c, se, df) in enumerate(normal(rng))]

        null = estimate(firsts, before, RULE)

        assert null.scale < 1.15
        assert null.p_value(looks(-0.03), RULE) < 1e-4


def test_a_shift_of_all_is_the_machines_where_its_sessions_differ_as_much() -> None:
    alone = 4 * t_sf(0.02 / (SE / 2), DF + 1)
    for machine, shift in ((0.01, -0.01), (0.01, 0.01)):
        null = estimate(normal(random.Random(2), shift=shift), baselines(machine=machine), RULE)
        assert (null.is_machines, null.shift) == (True, pytest.approx(shift, abs=0.001))
        assert null.p_value(looks(-0.02), RULE) > 20 * alone
    for machine, shift in ((0.0, -0.02), (0.01, -0.06)):
        null = estimate(normal(random.Random(2), shift=shift), baselines(machine=machine), RULE)
        assert (null.is_machines, null.shift) == (False, pytest.approx(shift, abs=0.001))
        assert null.p_value(looks(shift), RULE) < 2e-3


def test_one_session_allows_much_and_takes_scatter_for_what_sessions_differ_by() -> None:
    null = estimate(normal(random.Random(2), 2 * SE), {}, RULE)

    assert null.allowed > 0.1
    assert (null.scale, null.sessions, null.shows_sessions) == (1.0, 0, False)
    assert null.excess == pytest.approx(3, abs=0.8)


def test_a_drop_is_larger_than_what_nothing_did() -> None:
    """One in 300 of the baselines' sessions fell by 12 standard errors."""
    before = baselines()
    for looks_ in before.values():
        looks_[:2] = [(-0.1, SE, DF)] * 2
    null = estimate(normal(random.Random(2)), before, RULE)

    assert null.p_value(looks(-0.04), RULE) >= 8 / (2 * 4 * PAIRS)
    assert null.p_value(looks(-0.08), RULE) < 8 / (2 * 4 * PAIRS)


def heavy(rng: random.Random) -> list[Compared]:
    """Return changes by Student's t with 3 degrees of freedom, of about the same spread."""
    chi = [math.sqrt(rng.gammavariate(1.5, 2) / 3) for _ in range(PAIRS)]
    return [(rng.gauss(0, SE) / c, SE, DF) for c in chi]


def away(null: Null, times: float) -> list[Compared]:
    """Return looks at a drop that lies so many times as far out as the farthest that was seen."""
    se = null.scale * math.sqrt((SE / 2) ** 2 + null.excess * SE**2)
    return [(-times * null.seen[-1] * se, SE, DF), (-times * null.seen[-1] * se, SE / 2, 1e3)]


FEWEST = 3 / (2 * 4 * PAIRS)
"""Three of the baselines' sessions, on either side: the metrics of one case."""


def test_a_drop_that_is_alone_lies_farther_out_where_tails_are_heavy() -> None:
    rng = random.Random(3)
    light = estimate(normal(rng), baselines(), RULE)
    wild = estimate(normal(rng), {name: heavy(rng) for name in SESSIONS}, RULE)

    assert light.p_value(away(light, 1.1), RULE) < FEWEST
    assert wild.p_value(away(wild, 1.1), RULE) == FEWEST
    assert wild.p_value(away(wild, 1.6), RULE) < FEWEST


def test_metrics_of_a_case_that_jump_together_are_one_jump() -> None:
    """Three drops as far out as what nothing did are not enough among 600 pairs; eight are."""
    before = baselines()
    before["a"][0] = (-8 * SE, SE, DF)
    null = estimate(normal(random.Random(2)), before, RULE)

    p = null.p_value(away(null, 0.99), RULE)

    others = dict.fromkeys(range(PAIRS), 1.0)
    assert p == FEWEST
    assert benjamini_hochberg(others | dict.fromkeys(range(3), p), FALSE_SHARE) == set()
    assert len(benjamini_hochberg(others | dict.fromkeys(range(8), p), FALSE_SHARE)) == 8


looks_at = st.tuples(st.floats(-0.1, 0.1), st.floats(1e-4, 0.1), st.floats(1, 40))


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
