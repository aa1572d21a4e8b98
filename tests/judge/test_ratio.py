"""Test claims about two engines: the verdicts of interleaved runs."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_mlperf.bench.interleaved import metric_change
from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.judge.ratio import (
    FIRST_LOOK,
    Ratio,
    judge_drop,
    judge_ratio,
    pairs_to_decide,
)
from pytest_mlperf.judge.rule_r import RuleR
from tests.judge.test_rule_r import values

HIGHER, LOWER = Direction.HIGHER, Direction.LOWER
RULE = RuleR()

positive = st.floats(0.5, 2.0)
paired = st.lists(st.tuples(positive, positive), min_size=1, max_size=7)


def judged(
    a: Sequence[float], b: Sequence[float], least: float = 1.2, **more_options: object
) -> Ratio:
    options = {"direction": HIGHER, "rule": RULE, **more_options}
    return judge_ratio(values(*a), values(*b), least=least, **options)  # type: ignore[arg-type]


def test_the_interval_is_that_of_the_rule() -> None:
    """Ratio, low, high, standard deviation of a pair: from the formulas with numpy and scipy."""
    rates, times = ((130, 131), (100, 100)), ((0.010, 0.0101, 0.0099), (0.013, 0.0131, 0.0132))
    for sides, direction, within_se, expected in (
        (rates, HIGHER, 0.0, (1.304990421420785, 1.1207058095746976, 1.6206934988305008,
                              0.006179631662640871)),
        (times, LOWER, 0.004, (1.310018222942871, 1.2274246707510803, 1.4988534782331677,
                               0.014844375823497903)),
    ):  # fmt: skip
        a, b = (values(*side, within_se=within_se) for side in sides)
        verdict = judge_ratio(a, b, direction=direction, least=1.3, rule=RULE)
        assert (verdict.ratio, verdict.low, verdict.high, verdict.sd) == pytest.approx(
            expected, rel=1e-6
        )
        assert verdict.outcome is Answer.MORE


def test_nothing_is_decided_from_one_pair_and_the_first_decision_is_final() -> None:
    """First runs may stand at the ends of a drift, which cancels in the order a b b a."""
    runs = [120.0, 119.8, 120.2, 120.1, 119.9]

    assert judged([1000], [1]).outcome is Answer.MORE
    assert judged([1], [1000]).outcome is Answer.MORE
    assert judged([1000, 1000], [1, 1]).outcome is Answer.PASS
    assert judged([1, 1], [1000, 1000]).outcome is Answer.FAIL
    assert judged([150, 150, 1], [100, 100, 1000]) == judged([150, 150], [100, 100])
    assert judged(runs[:4], [100] * 4).outcome is Answer.MORE
    assert judged(runs, [100] * 5).outcome is Answer.INCONCLUSIVE

    drift = [0.9**turn for turn in range(4)]

    verdict = judged([1.5 * drift[0], 1.5 * drift[3]], [drift[1], drift[2]], least=1.1)

    assert verdict.ratio == pytest.approx(1.5)


@settings(max_examples=50)
@given(paired, st.floats(0.3, 3.0), st.floats(0.5, 100.0), st.sampled_from(Direction))
def test_the_interval_holds_the_ratio_and_decides_and_only_ratios_matter(
    pairs: list[tuple[float, float]], least: float, unit: float, direction: Direction
) -> None:
    """Neither the unit nor what both runs of a pair share changes anything."""
    a, b = zip(*pairs, strict=True)
    other = [unit * (1 + 0.1 * index) for index in range(len(a))]
    scaled = [[x * f for x, f in zip(side, other, strict=True)] for side in (a, b)]
    verdict = judged(a, b, least, direction=direction)
    turned = judged(b, a, least, direction=LOWER if direction is HIGHER else HIGHER)

    assert verdict.low < verdict.ratio < verdict.high
    assert 1 <= verdict.pairs <= min(len(pairs), RULE.max_runs)
    if verdict.outcome is Answer.PASS:
        assert verdict.low >= least
    if verdict.outcome is Answer.FAIL:
        assert verdict.high < least
    if verdict.outcome in (Answer.PASS, Answer.FAIL):
        assert verdict.pairs >= FIRST_LOOK
    for same in (turned, judged(scaled[0], scaled[1], least, direction=direction)):
        assert (same.outcome, same.pairs) == (verdict.outcome, verdict.pairs)
        assert (same.ratio, same.low) == pytest.approx((verdict.ratio, verdict.low))


anything = st.floats(min_value=5e-324, max_value=1.7e308)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(anything, anything), min_size=1, max_size=6),
    st.sampled_from((HIGHER, LOWER)),
)
@example(pairs=[(1e-300, 1e300)] * 2, direction=HIGHER)
@example(pairs=[(1e300, 1e-300)] * 2, direction=HIGHER)
def test_any_positive_numbers_are_judged(
    pairs: list[tuple[float, float]], direction: Direction
) -> None:
    a, b = zip(*pairs, strict=True)

    for verdict in (judged(a, b, direction=direction), drop(a, b, direction=direction)):
        assert all(0 < x < math.inf for x in (verdict.low, verdict.ratio, verdict.high))
        assert verdict.low <= verdict.ratio <= verdict.high
        assert all(
            map(
                math.isfinite,
                (*metric_change("throughput", verdict), *metric_change("latency_p50", verdict)),
            )
        )


@pytest.mark.parametrize("count", [100, pytest.param(1500, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("session", [0.0, 0.03])
def test_its_errors_are_as_rare_as_it_promises(session: float, count: int) -> None:
    """Also if runs are five times as noisy as expected.

    An effect of a session on all its runs is not an error. Simulated claims, each true to the
    digit.
    """
    for noise in (0.002, 0.007, 0.014, 0.035):
        rng = random.Random(20261121)
        decisions = []
        for _ in range(count):
            common = rng.gauss(0, session)
            a, b = (
                [
                    math.exp(math.log(level) + common + rng.gauss(0, noise))
                    for _ in range(RULE.max_runs)
                ]
                for level in (1.2, 1.0)
            )
            decisions.append(judged(a, b).outcome)
        assert decisions.count(Answer.FAIL) <= 0.01 * count
        assert decisions.count(Answer.PASS) <= 0.05 * count


def drop(
    current: Sequence[float],
    baseline: Sequence[float],
    limit: float = 0.03,
    direction: Direction = HIGHER,
    rule: RuleR = RULE,
) -> Ratio:
    return judge_drop(
        values(*current), values(*baseline), direction=direction, limit=limit, rule=rule
    )


def test_a_drop_is_proven_or_one_of_the_limit_excluded() -> None:
    """By the words of rule R: below no change it fails, above the limit it passes."""
    for current, baseline, decision, improved in (
        ([80, 80.2], [100, 100], Answer.FAIL, False),
        ([100.1] * 5, [100] * 5, Answer.PASS, False),
        ([130, 130.2], [100, 100], Answer.PASS, True),
        ([97, 103, 97, 103, 97], [100] * 5, Answer.INCONCLUSIVE, False),
        ([80], [100], Answer.MORE, False),
    ):
        for verdict in (drop(current, baseline), drop(baseline, current, direction=LOWER)):
            assert (verdict.outcome, verdict.improved) == (decision, improved)


@pytest.mark.parametrize("level", [0.0, -0.01, -0.05, -0.2])
def test_as_many_pairs_as_advised_decide(level: float) -> None:
    """With the same mean and about the same scatter, and twice as many surely."""
    scatter = (0.05, -0.05, 0.04, -0.04, 0.06, -0.06)
    limit, rule = 0.03, RuleR(max_runs=6)

    def over(pairs: int) -> Ratio:
        logs = [level + scatter[n % len(scatter)] for n in range(pairs)]
        new = values(*map(math.exp, logs))
        many = RuleR(max_runs=pairs)
        old = values(*[1.0] * pairs)
        return judge_drop(new, old, direction=HIGHER, limit=limit, rule=many)

    first = over(6)
    needed = pairs_to_decide(first, HIGHER, limit, rule)

    if first.outcome is Answer.INCONCLUSIVE:
        assert needed is not None
        assert over(2 * needed).outcome in {Answer.PASS, Answer.FAIL}
        assert needed > 6
    else:
        assert level == -0.2
    assert pairs_to_decide(replace(first, sd=3.0, ratio=1.0), HIGHER, limit, rule) is None


def test_invalid_values_are_refused() -> None:
    for a, b, least, message in (
        ([], [], 1.2, "on both sides, not 0 and 0"),
        ([1.0], [1.0, 1.0], 1.2, "on both sides, not 1 and 2"),
        ([1.0], [1.0], 0.0, "the claim is 0.0; it must be finite and above 0"),
        ([1.0], [1.0], math.nan, "the claim is nan"),
    ):
        with pytest.raises(ValueError, match=message):
            judged(a, b, least)
    for limit, direction, message in (
        (1.0, HIGHER, "the largest drop is 1.0; it must lie between 0 and 1"),
        (0.0, HIGHER, "the largest drop is 0.0"),
        (0.0, LOWER, "the largest rise is 0.0; it must be finite and above 0"),
        (math.inf, LOWER, "the largest rise is inf"),
    ):
        with pytest.raises(ValueError, match=message):
            drop([1.0], [1.0], limit, direction)


@settings(max_examples=50)
@given(paired, st.floats(0.01, 0.5), st.sampled_from((HIGHER, LOWER)))
def test_the_two_bounds_decide_about_a_drop(
    pairs: list[tuple[float, float]], limit: float, direction: Direction
) -> None:
    current, baseline = zip(*pairs, strict=True)
    verdict = drop(current, baseline, limit, direction)
    bound = 1 - limit if direction is HIGHER else 1 / (1 + limit)

    assert (verdict.low >= bound * (1 - 1e-12)) or verdict.outcome is not Answer.PASS
    assert verdict.high < 1 or verdict.outcome is not Answer.FAIL
    assert verdict.outcome is Answer.PASS or not verdict.improved
    if verdict.improved:
        assert verdict.low > 1


@pytest.mark.parametrize("count", [200, pytest.param(1500, marks=pytest.mark.nightly)])
def test_a_drop_is_confirmed_and_excluded_as_wrongly_as_it_promises(count: int) -> None:
    """No change is confirmed as a drop at most 1 % of the time, a drop of the limit excluded at
    most 5 %; whatever the session does to all runs. Drops of 5 % are confirmed on usual noise."""
    rng = random.Random(20261121)

    def share(level: float, decision: Answer, noise: float) -> float:
        hits = 0
        for _ in range(count):
            common = rng.gauss(0, 0.03)
            current, baseline = (
                [math.exp(math.log(x) + common + rng.gauss(0, noise)) for _ in range(5)]
                for x in (level, 1.0)
            )
            hits += drop(current, baseline).outcome is decision
        return hits / count

    for noise in (0.002, 0.007, 0.014, 0.035):
        assert share(1.0, Answer.FAIL, noise) <= 0.01
        assert share(0.97, Answer.PASS, noise) <= 0.05
    assert share(0.95, Answer.FAIL, 0.007) >= 0.95
