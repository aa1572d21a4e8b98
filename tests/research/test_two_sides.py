"""research/decisions_lib/two_sides.py simulates the shipped rules, and they keep their promises."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from pytest_mlperf.core.rulings.sides import pooled
from pytest_mlperf.judge import ratio
from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.judge.ratio import judge_drop, judge_ratio
from pytest_mlperf.judge.rule_r import RuleR, Value

pytestmark = pytest.mark.slow

CODES = {Answer.PASS: 0, Answer.FAIL: 1, Answer.INCONCLUSIVE: 2}


@pytest.fixture(scope="module")
def sides(lib: Any) -> Any:
    return lib("decisions_lib.two_sides")


def values(logs: Sequence[float], sizes: Sequence[int]) -> list[Value]:
    sessions = [str(number) for number, size in enumerate(sizes) for _ in range(size)]
    return [
        Value(value=math.exp(x), session=session) for x, session in zip(logs, sessions, strict=True)
    ]


DESIGNS = [((2,) * 4, (2,) * 4), ((2, 1, 3), (3,)), ((8,), (4,)), ((1,), (5, 1))]


def test_pooled_sides_on_arrays_are_the_shipped_ones(sides: Any) -> None:
    rules = [RuleR(), RuleR(prior_df=7, prior_sd=0.02, session_share=0.6)]
    for design, rule in product(DESIGNS, rules):
        rng = np.random.default_rng(3)
        drawn = [sides.drawn(rng, 40, sizes, (0.01, 0.005)) for sizes in design]
        pooled_sides = sides.judged(*drawn, design, rule)
        reach, p = pooled_sides.reach(0.01), pooled_sides.p()
        for case in range(40):
            a, b = (values(x[case], sizes) for x, sizes in zip(drawn, design, strict=True))
            shipped = pooled(a, b, rule=rule)
            assert pooled_sides.change[case] == pytest.approx(shipped.change)
            assert reach[case] == pytest.approx(shipped.reach(0.01))
            assert p[case] == pytest.approx(shipped.p(-1), rel=1e-6)


@pytest.mark.parametrize("rule", [RuleR(), RuleR(max_runs=2), RuleR(max_runs=8, prior_sd=0.05)])
def test_runs_in_turns_on_arrays_are_the_shipped_ones(sides: Any, rule: RuleR) -> None:
    rng = np.random.default_rng(4)
    sd = np.exp(rng.uniform(math.log(1e-4), math.log(0.1), (300, 1)))
    logs = sd * rng.standard_normal((300, rule.max_runs)) + rng.choice([0, -0.03, -0.2], (300, 1))
    drops = sides.in_turns(logs, passing=math.log(0.97), failing=0.0, rule=rule)
    claims = sides.in_turns(logs, passing=0.0, failing=0.0, rule=rule)
    ones = [Value(value=1.0)] * rule.max_runs

    assert set(drops[0]) == {0, 1, 2}
    for case, row in enumerate(logs):
        new_values = [Value(value=math.exp(x)) for x in row]
        drop = judge_drop(new_values, ones, direction=Direction.HIGHER, limit=0.03, rule=rule)
        claim = judge_ratio(new_values, ones, direction=Direction.HIGHER, least=1.0, rule=rule)
        assert (drops[0][case], drops[1][case]) == (CODES[drop.outcome], drop.pairs)
        assert (claims[0][case], claims[1][case]) == (CODES[claim.outcome], claim.pairs)


def test_every_promise_is_kept(sides: Any) -> None:
    """A tenth of the full number of cases, with the seed that ships."""
    rows = sides.rows(0.1)

    assert [row.text for row in rows if not row.met] == []
    assert {row.command.partition(":")[0] for row in rows} >= {"A/B", "[[pairs]]"}


def test_a_promise_that_is_broken_is_seen(sides: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the weight that rule R gives the expected noise runs in turns would break theirs."""
    rng, bound = np.random.default_rng(5), math.log(0.97)
    logs = sides.turns(rng, 20_000, "3.5 %") + bound
    monkeypatch.setattr(ratio, "PRIOR_DF", 4.0)
    decision, _ = sides.in_turns(logs, passing=bound, failing=0.0)
    row = sides.Row("A/B", "3.5 %", float((decision == sides.PASS).mean()), 0.05, len(logs))

    assert not row.met
