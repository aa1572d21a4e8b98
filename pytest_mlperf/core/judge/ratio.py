"""Is one engine as many times better than another as is claimed, or worse, by runs in turns?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from pytest_mlperf.core.judge.quantiles import t_isf
from pytest_mlperf.core.judge.rule_r import Decision, RuleR, Value
from pytest_mlperf.core.metrics import Direction

FIRST_LOOK = 2
"""Pairs before anything is decided: in the order A B, B A a steady drift of the machine cancels."""

PRIOR_DF = 1.0
"""Degrees of freedom that the expected noise weighs. Rule R gives it 4, beside a baseline of eight
runs; here a machine twice as noisy as expected would then refute 4 % of the claims that hold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """The decision and the numbers it rests on.

    Attributes:
        decision: PASS: the claim is proven; FAIL: it is refuted. Of a drop, PASS: one of the limit
            is excluded; FAIL: a drop is proven.
        ratio: How many times better a is than b, geometric mean over the pairs.
        low: Lower end of its interval; the two ends are the bounds that decide.
        high: Upper end of its interval.
        pairs: Pairs up to the decision.
        sd: Relative standard deviation of a pair's ratio as estimated at the decision.
        improved: Of a drop: it is excluded, and better is proven.
    """

    decision: Decision
    ratio: float
    low: float
    high: float
    pairs: int
    sd: float
    improved: bool = False


def judge_ratio(
    a: Sequence[Value],
    b: Sequence[Value],
    *,
    direction: Direction,
    least: float,
    rule: RuleR,
) -> Ratio:
    """Judge pairs of runs in the order they were made; the first pass or fail is final.

    Where a really is `least` times better the claim is refuted at most a share `alpha` of the time;
    where it is less it is taken as proven at most a share `beta`. A ratio close to `least` may stay
    undecided. Pairs after the decision are ignored.

    Args:
        a: Runs of a, each of a fresh process, oldest first.
        b: Runs of b, each made next to the run of a with the same index.
        direction: Which way the metric gets better.
        least: The claim: a is at least so many times better, above 0.
        rule: The settings. All runs are of one session, so that what they have in common cancels.

    Raises:
        ValueError: There are no pairs, or the claim is no positive number.

    Source: moderated t (G. K. Smyth, 2004, doi:10.2202/1544-6115.1027) on the log ratio of each
        pair, two one-sided bounds, error shared evenly among the looks.
    """
    if not 0 < least < math.inf:
        raise ValueError(f"the claim is {least!r}; it must be finite and above 0")
    bound = math.log(least)
    return _judge(a, b, direction, passing=bound, failing=bound, rule=rule)


def judge_drop(
    now: Sequence[Value],
    before: Sequence[Value],
    *,
    direction: Direction,
    limit: float,
    rule: RuleR,
) -> Ratio:
    """Judge pairs of runs of two builds by the limits of rule R; the first decision is final.

    Where both are as fast a drop is proven at most a share `alpha` of the time; one of `limit` is
    excluded at most a share `beta` of the time where it is there. In between either may come.

    Args:
        now: Runs of the build that may be worse, each of a fresh process, oldest first.
        before: Runs of the other one, each made next to the run of `now` with the same index.
        direction: Which way the metric gets better.
        limit: Smallest change that matters, as a share: a drop where higher is better (then
            below 1), a rise where lower is better.
        rule: The settings. All runs are of one session, so that what they have in common cancels.

    Raises:
        ValueError: There are no pairs, or the limit is out of range.
    """
    if direction is Direction.HIGHER:
        if not 0 < limit < 1:
            raise ValueError(f"the largest drop is {limit!r}; it must lie between 0 and 1")
        bound = math.log1p(-limit)
    elif 0 < limit < math.inf:
        bound = -math.log1p(limit)
    else:
        raise ValueError(f"the largest rise is {limit!r}; it must be finite and above 0")
    found = _judge(now, before, direction, passing=bound, failing=0.0, rule=rule)
    # The bound that failing needs, on the other side of the ratio.
    better = found.decision is Decision.PASS and found.ratio**2 > found.high
    return replace(found, improved=better)


def _judge(
    a: Sequence[Value],
    b: Sequence[Value],
    direction: Direction,
    *,
    passing: float,
    failing: float,
    rule: RuleR,
) -> Ratio:
    """Look after each pair: a pass reaches the log ratio `passing`, a fail ends below `failing`."""
    if not a or len(a) != len(b):
        raise ValueError(f"{len(a)} runs of a and {len(b)} of b are no pairs")
    sign = 1 if direction is Direction.HIGHER else -1
    logs = [sign * math.log(x.value / y.value) for x, y in zip(a, b, strict=True)]
    for k in range(1, min(len(logs), rule.max_runs) + 1):
        mean, low, high, sd = _look(logs[:k], [*a[:k], *b[:k]], rule)
        decision = Decision.MORE if k < rule.max_runs else Decision.INCONCLUSIVE
        if k >= FIRST_LOOK and low >= passing:
            decision = Decision.PASS
            break
        if k >= FIRST_LOOK and high < failing:
            decision = Decision.FAIL
            break
    return Ratio(
        decision=decision,
        ratio=math.exp(mean),
        low=math.exp(low),
        high=math.exp(min(high, 700.0)),
        pairs=k,
        sd=sd,
    )


def _look(
    logs: Sequence[float], runs: Sequence[Value], rule: RuleR
) -> tuple[float, float, float, float]:
    """Return mean, lower and upper bound of the log ratio, and the standard deviation of a pair."""
    k, mean = len(logs), fmean(logs)
    squares = math.fsum((x - mean) ** 2 for x in logs)
    within = fmean(run.within_se**2 for run in runs)
    # Of two runs of one session; the share that they have in common is not in their ratio.
    expected = 2 * ((1 - rule.session_share) * rule.prior_sd**2 + within)
    df = PRIOR_DF + k - 1
    sd = max(math.sqrt((PRIOR_DF * expected + squares) / df), math.sqrt(2) * rule.floor_sd)
    looks, se = rule.max_runs - 1, sd / math.sqrt(k)
    low = mean - t_isf(rule.beta / looks, df) * se
    high = mean + t_isf(rule.alpha / looks, df) * se
    return mean, low, high, sd
