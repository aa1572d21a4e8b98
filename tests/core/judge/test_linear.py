"""Rule R on values that may be 0: the same rule, differences in the metric's own unit."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.judge.linear import Reading, judge_linear
from pytest_mlperf.core.judge.rule_r import Decision, RuleR, Value, judge
from pytest_mlperf.core.metrics import Direction

HIGHER, LOWER = Direction.HIGHER, Direction.LOWER
DEGREES = RuleR(prior_sd=0.5, floor_sd=0.05)

numbers = st.floats(-3, 3, allow_subnormal=False)
samples = st.lists(numbers, min_size=1, max_size=8)


def readings(*values: float, session: str = "") -> list[Reading]:
    return [Reading(value=value, session=session) for value in values]


@pytest.mark.parametrize(
    ("before", "now", "direction", "decision"),
    [
        # temperatures, °C, 3 matter
        ((61, 60, 60, 61, 60), (60, 61), LOWER, Decision.PASS),
        ((61, 60, 60, 61, 60), (69, 70), LOWER, Decision.FAIL),
        ((61, 60, 60, 61, 60), (69,), LOWER, Decision.MORE),
        ((61, 60, 60, 61, 60), (50, 51), LOWER, Decision.PASS),
        # about 0, where ratios say nothing
        ((0, 0, 0, 0, 0), (0,), LOWER, Decision.PASS),
        ((0, 0, 0, 0, 0), (8, 8), LOWER, Decision.FAIL),
        ((-2, 2, -1, 1, 0), (-20, -21), HIGHER, Decision.FAIL),
    ],
)
def test_differences_decide(
    before: tuple[float, ...], now: tuple[float, ...], direction: Direction, decision: Decision
) -> None:
    found = judge_linear(
        readings(*before), readings(*now), direction=direction, limit=3.0, rule=DEGREES
    )

    assert found.decision is decision
    assert found.low <= found.change <= found.high
    assert found.limit == 3.0


def test_the_change_is_in_the_metrics_unit_and_sign() -> None:
    found = judge_linear(
        readings(60, 60, 60, 60, 60), readings(70, 70), direction=LOWER, limit=3.0, rule=DEGREES
    )

    assert found.change == pytest.approx(10.0)
    assert 0 < found.low < 10 < found.high
    # t(1 %/4, 12) and t(5 %, 12); sqrt(0.25 + 0.75/5 + 0.25 + 0.75/5) of the prior's 0.5 °C,
    # which has 4 of the baseline's 8 degrees of freedom
    assert found.mde == pytest.approx((3.428444 + 1.782288) * 0.5 * math.sqrt(0.5) * math.sqrt(0.8))


@given(before=samples, now=samples, direction=st.sampled_from([HIGHER, LOWER]))
def test_it_is_rule_r_of_exponentials(
    before: list[float], now: list[float], direction: Direction
) -> None:
    """The logarithmic rule on exp(x) with the limit's logarithm must find the same."""
    rule, limit = RuleR(prior_sd=0.3, floor_sd=0.01), 0.5
    share = 1 - math.exp(-limit) if direction is HIGHER else math.exp(limit) - 1
    logs = judge(
        [Value(value=math.exp(x)) for x in before],
        [Value(value=math.exp(x)) for x in now],
        direction=direction,
        limit=share,
        rule=rule,
    )

    found = judge_linear(
        readings(*before), readings(*now), direction=direction, limit=limit, rule=rule
    )

    assert (found.decision, found.improved, found.runs_used, found.advisory) == (
        logs.decision,
        logs.improved,
        logs.runs_used,
        logs.advisory,
    )
    assert found.change == pytest.approx(math.log1p(logs.change), abs=1e-9)
    assert found.p_value == pytest.approx(logs.p_value, rel=1e-6)
    assert -math.expm1(-found.mde) == pytest.approx(logs.mde, rel=1e-9)


@given(before=samples, now=samples, shift=st.floats(-100, 100))
def test_where_zero_lies_does_not_matter(
    before: list[float], now: list[float], shift: float
) -> None:
    first = judge_linear(
        readings(*before), readings(*now), direction=LOWER, limit=0.7, rule=DEGREES
    )
    moved = judge_linear(
        readings(*(x + shift for x in before)),
        readings(*(x + shift for x in now)),
        direction=LOWER,
        limit=0.7,
        rule=DEGREES,
    )

    assert moved.sd == pytest.approx(first.sd) or moved.runs_used != first.runs_used
    assert {first.decision, moved.decision} != {Decision.PASS, Decision.FAIL}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        Reading(value=value)


@pytest.mark.parametrize("within_se", [-0.1, math.nan, math.inf])
def test_an_impossible_standard_error_is_refused(within_se: float) -> None:
    with pytest.raises(ValueError, match="within_se"):
        Reading(value=0.0, within_se=within_se)


@pytest.mark.parametrize("limit", [0.0, -1.0, math.inf, math.nan])
def test_an_impossible_limit_is_refused(limit: float) -> None:
    with pytest.raises(ValueError, match="largest change is"):
        judge_linear(readings(0), readings(0), direction=LOWER, limit=limit, rule=DEGREES)


@pytest.mark.parametrize(("before", "now"), [([], readings(1)), (readings(1), [])])
def test_nothing_to_compare_is_refused(before: list[Reading], now: list[Reading]) -> None:
    with pytest.raises(ValueError, match="nothing to compare"):
        judge_linear(before, now, direction=LOWER, limit=1.0, rule=DEGREES)
