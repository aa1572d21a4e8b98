"""Two pooled sides: the statistic, its bounds, and all metrics of a comparison together."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.rulings.sides import Pooled, judge_together, pooled
from pytest_mlperf.core.verdict import MetricVerdict, Outcome
from pytest_mlperf.judge.robustness import MAX_SPREAD_RATIO
from pytest_mlperf.judge.rule_r import RuleR, Value

RULE = RuleR()
Side = Sequence[Sequence[float]]
"""Values by session."""


def values(side: Side, within_se: float = 0.0) -> list[Value]:
    return [
        Value(value=value, within_se=within_se, session=str(number))
        for number, session in enumerate(side)
        for value in session
    ]


def pooled_sides(baseline: Side, current: Side, rule: RuleR = RULE) -> Pooled:
    return pooled(values(baseline), values(current), rule=rule)


def by_hand(baseline: Side, current: Side, rule: RuleR) -> tuple[float, float, float, float]:
    """Return change, standard error by sessions, and v_r with its degrees of freedom."""
    ratio = rule.session_share / (1 - rule.session_share)
    means, squares, between, of_sessions, of_runs = [], 0.0, np.zeros(3), 0.0, 0.0
    runs = sessions = 0
    for side in (baseline, current):
        logs = [np.log(session) for session in side]
        m = np.array([len(x) for x in logs])
        x = np.array([log.mean() for log in logs])
        w = 1 / (ratio + 1 / m)
        w /= w.sum()
        means.append(float(w @ x))
        squares += sum(float(((log - log.mean()) ** 2).sum()) for log in logs)
        v = w * (1 - w) * len(x)
        between += (len(x) * float(w @ (x - w @ x) ** 2), v.sum(), (v / m).sum())
        of_sessions, of_runs = of_sessions + (w**2).sum(), of_runs + (w**2 / m).sum()
        runs, sessions = runs + m.sum(), sessions + len(x)
    df = rule.prior_df + runs - sessions
    v_r = (rule.prior_df * (1 - rule.session_share) * rule.prior_sd**2 + squares) / df
    beyond = of_runs - of_sessions * between[2] / between[1] if between[1] else 0.0
    mean_square = between[0] / between[1] if between[1] else 0.0
    se = math.sqrt(mean_square * of_sessions + max(beyond, 0.0) * v_r)
    return means[1] - means[0], se, v_r, df


EIGHT = [[100.0, 101.0], [99.0, 99.5], [102.0, 101.5], [100.2, 99.9]]


def test_the_variance_of_sessions_is_learnt_from_the_sessions() -> None:
    from scipy import stats

    for current in ([[97.0, 98.0, 97.5]], [[97.0]], [[98.0], [96.0, 97.0], [99.0] * 5]):
        judged = pooled_sides(EIGHT, current)
        change, se, _, df = by_hand(EIGHT, current, RULE)
        spare = 4 + len(current) - 2
        sides = ((spare, se), (df, judged.least.se), (judged.separate.df, judged.separate.se))

        assert judged.by_sessions
        assert judged.change == pytest.approx(change)
        assert (judged.spread.se, judged.spread.df) == pytest.approx((se, spare))
        assert judged.least.df == df
        reach = max(stats.t.isf(0.01, freedom) * error for freedom, error in sides)
        assert judged.reach(0.01) == pytest.approx(reach)


def test_of_a_session_a_side_they_may_lie_as_far_apart_as_sessions_may() -> None:
    """Three runs that vary by 9 % are not judged by how quiet the eight before them were."""
    baseline, current = [[100.0, 101.0, 99.0]], [[90.0, 91.0]]
    judged = pooled_sides(baseline, current)
    change, _, v_r, df = by_hand(baseline, current, RULE)

    assert not judged.by_sessions
    assert judged.change == pytest.approx(change)
    assert judged.spread.df == df == 4 + 3
    assert judged.spread.se == pytest.approx(
        math.sqrt(v_r * (2 * MAX_SPREAD_RATIO**2 + 1 / 3 + 1 / 2))
    )
    assert judged.plain.se == pytest.approx(math.sqrt(v_r * (2 / 3 + 1 / 3 + 1 / 2)))

    quiet, noisy = ([[100.0, 100.1]] * 4, [[90.0, 100.0, 108.0]])
    judged = pooled_sides(quiet, noisy)
    logs = np.log(noisy[0])
    variance_of_runs = (4 * 0.75 * 0.007**2 + 4 * math.log(100.1 / 100.0) ** 2 / 2) / 8
    theirs = (variance_of_runs + ((logs - logs.mean()) ** 2).sum()) / 3

    assert judged.separate.se == pytest.approx(math.sqrt(theirs / 3), rel=0.05)
    assert 3 <= judged.separate.df < 4
    assert judged.reach(0.01) > 0.15


side = st.lists(st.lists(st.floats(50.0, 200.0), min_size=1, max_size=4), min_size=1, max_size=4)


@settings(max_examples=30)
@given(side, side, st.randoms(use_true_random=False), st.floats(0.1, 10))
def test_neither_order_nor_unit_nor_side_matters(
    baseline: Side, current: Side, rng: random.Random, unit: float
) -> None:
    there = pooled_sides(baseline, current)
    a, b = values(baseline), values(current)
    rng.shuffle(a)
    rng.shuffle(b)
    again = pooled(
        *([replace(run, value=unit * run.value) for run in runs] for runs in (a, b)), rule=RULE
    )
    back = pooled_sides(current, baseline)

    for other, sign in ((again, 1), (back, -1)):
        assert sign * other.change == pytest.approx(there.change, abs=1e-9)
        assert other.reach(0.05) == pytest.approx(there.reach(0.05))
    assert there.p(1) + there.p(-1) >= 1 - 1e-9
    for error in (0.01, 0.05):
        worse = there.change + there.reach(error) < 0
        assert worse is (there.p(-1) < error) or math.isclose(there.p(-1), error, rel_tol=1e-6)


def test_runs_without_any_scatter_are_judged_and_unchanged_ones_seldom_show_a_drop() -> None:
    """At most one comparison in twenty of each size, their p values uniform."""
    for old in range(1, 5):
        for new in range(1, 5):
            assert 0 < pooled_sides([[100.0] * 2] * old, [[100.0]] * new).reach(0.01) < math.inf
    for share in (0.0, 0.9, 0.99):
        judged = pooled_sides(EIGHT, [[97.0]], RuleR(session_share=share))
        assert 0 < judged.reach(0.01) < math.inf
    with pytest.raises(ValueError, match="nothing to compare: 8 baseline runs, 0 current runs"):
        pooled_sides(EIGHT, [])

    rng = random.Random(20261122)
    for count, times in ((1, 1000), (5, 600), (50, 200)):
        alarms = sum(
            Outcome.PERF_DROP in words(*(rng.random() for _ in range(count))) for _ in range(times)
        )
        rate = 0.01 if count == 1 else 0.05
        assert alarms <= rate * times + 2 * (rate * times) ** 0.5


@pytest.mark.parametrize("count", [25, pytest.param(1500, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("old", "new"), [((2,) * 4, (2,) * 4), ((2,) * 4, (3,)), ((8,), (2,) * 10), ((8,), (4,))]
)
def test_the_bounds_hold_for_any_variance_of_sessions(
    old: tuple[int, ...], new: tuple[int, ...], count: int
) -> None:
    """Simulated, also if sessions differ by more than expected, or only one made a side."""
    for session_sd, run_sd in ((0.0, 0.021), (0.01, 0.005), (0.0045, 0.0078), (0.1, 0.05)):
        rng = random.Random(20261122)

        def made(sizes: tuple[int, ...], rng: random.Random, *sds: float) -> Side:
            return [
                [math.exp(common + rng.gauss(0, sds[1])) for _ in range(size)]
                for size in sizes
                for common in [rng.gauss(0, sds[0])]
            ]

        sds = (session_sd, run_sd)
        judged = [pooled_sides(made(old, rng, *sds), made(new, rng, *sds)) for _ in range(count)]
        fell = sum(one.change + one.reach(0.01) < 0 for one in judged)
        rose = sum(one.change - one.reach(0.05) > 0 for one in judged)
        assert fell <= 0.01 * count + 2.4 * (0.01 * count) ** 0.5
        assert rose <= 0.05 * count + 2.4 * (0.05 * count) ** 0.5


def metric(p: float, name: str = "throughput") -> MetricVerdict:
    outcome = Outcome.PERF_DROP if p < 0.01 else Outcome.INCONCLUSIVE
    return MetricVerdict(metric=name, outcome=outcome, now=1.0, p=p)


def words(*p: float) -> list[Outcome | None]:
    return [one.outcome for (one,) in judge_together([[metric(each)] for each in p], 0.01)]


def test_a_drop_must_stand_out_among_all_and_its_note_says_among_how_many() -> None:
    drop, suspect = Outcome.PERF_DROP, Outcome.SUSPECT
    judged = judge_together([[metric(1e-6), metric(0.5, "latency_p50")], [metric(2e-6)]], 0.01)

    assert words(0.009) == [drop]
    assert words(0.009, 0.009) == [drop, drop]
    assert words(0.009, *[0.5] * 9) == [suspect, *[Outcome.INCONCLUSIVE] * 9]
    assert words(1e-6, 0.009, *[0.5] * 9)[:2] == [drop, drop]
    assert words(0.02) == [Outcome.INCONCLUSIVE]
    assert judged[0][0].note == Note.of("drop_among", drops=2, among=3, noun="metrics", p=1e-6)
    assert judge_together([[metric(1e-6)]], 0.01)[0][0].note is None
    assert judge_together([(), [metric(0.5)]], 0.01)[0] == ()
