"""Is one engine as many times better than another as is claimed, or worse, by runs in turns?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from pytest_mlperf.judge.decision import Answer, Decision
from pytest_mlperf.judge.formulas import bound_of, t_isf
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.judge.rule_r import RuleR, Value

FIRST_LOOK = 2
"""Pairs before anything is decided: in the order A B, B A a steady drift of the machine cancels."""

PRIOR_DF = 0.25
"""Degrees of freedom that the expected noise weighs. Rule R gives it 4, beside a baseline of eight
runs; here any more would break the promise on a machine five times as noisy as expected."""

MAX_NOISE_RATIO = 5.0
"""A machine is at most so many times as noisy as expected: what lies beyond even that is decided at
the first look, where two pairs alone say little about noise."""

WORST_SHARE = 0.1
"""Share of the error that is spent on that, evenly among the looks."""

_HUGE = 700.0
"""Largest logarithm of a ratio that is shown: exp overflows above 709."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio(Decision):
    """A decision on pairs of runs: PASS, a claim is proven or a drop of the limit excluded.

    Attributes:
        ratio: How many times better a is than b, geometric mean over the pairs; `interval` is its.
        pairs: Pairs up to the decision.
        sd: Relative standard deviation of a pair's ratio as estimated at the decision.
    """

    ratio: float
    pairs: int
    sd: float


def judge_ratio(
    a: Sequence[Value], b: Sequence[Value], *, direction: Direction, least: float, rule: RuleR
) -> Ratio:
    """Judge pairs of runs in the order they were made; the first pass or fail is final.

    Where a really is `least` times better the claim is refuted at most a share `alpha` of the time;
    where it is less it is taken as proven at most a share `beta`. A ratio close to `least` may stay
    undecided. Pairs after the decision are ignored. Each run is of a fresh process, and one of b
    next to that of a with the same index, in one session, so that what they have in common cancels.

    Source: moderated t (G. K. Smyth, 2004, doi:10.2202/1544-6115.1027) on the log ratio of each
        pair, two one-sided bounds at each look. The error is shared among the looks in proportion
        to the square of the degrees of freedom that the pairs give, for early looks know little
        about the noise; a tenth of it, evenly, goes to what holds whatever the noise may be.
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
    excluded at most a share `beta` of the time where it is there. In between either may come. Runs
    are as for `judge_ratio`, the limit as for `judge`.
    """
    bound = bound_of(direction, limit)
    return _judge(now, before, direction, passing=bound, failing=0.0, rule=rule)


@dataclass(frozen=True, kw_only=True, slots=True)
class _RatioLook:
    """The statistics after some pairs: log ratios, and the standard deviation of a pair's."""

    mean: float
    low: float
    high: float
    sd: float

    @property
    def improved(self) -> bool:
        """Whether the bound that failing needs, on the other side of the ratio, is above none."""
        return 2 * self.mean > self.high


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
    logs = [sign * (math.log(x.value) - math.log(y.value)) for x, y in zip(a, b, strict=True)]
    for k in range(1, min(len(logs), rule.max_runs) + 1):
        look = _look(logs[:k], [*a[:k], *b[:k]], rule)
        decision = Answer.MORE if k < rule.max_runs else Answer.INCONCLUSIVE
        if k >= FIRST_LOOK and look.low >= passing:
            decision = Answer.PASS
            break
        if k >= FIRST_LOOK and look.high < failing:
            decision = Answer.FAIL
            break
    return Ratio(
        outcome=decision,
        ratio=_ratio(look.mean),
        interval=(_ratio(look.low), _ratio(look.high)),
        pairs=k,
        sd=look.sd,
        improved=failing == 0 and decision is Answer.PASS and look.improved,
    )


def _look(logs: Sequence[float], runs: Sequence[Value], rule: RuleR) -> _RatioLook:
    k, mean = len(logs), fmean(logs)
    squares = math.fsum((x - mean) ** 2 for x in logs)
    within = fmean(run.within_se**2 for run in runs)
    sd, df = _spread(squares, k, within, PRIOR_DF, 1.0, rule)
    worst_sd, worst_df = _spread(squares, k, within, rule.prior_df, MAX_NOISE_RATIO, rule)

    def reach(error: float) -> float:
        """Return how far a one-sided bound lies from the mean."""
        usual, rare = ((1 - WORST_SHARE) * error, WORST_SHARE * error)
        far = t_isf(usual * _weight(k, rule.max_runs), df) * sd
        return min(far, t_isf(rare / (rule.max_runs - 1), worst_df) * worst_sd) / math.sqrt(k)

    return _RatioLook(mean=mean, low=mean - reach(rule.beta), high=mean + reach(rule.alpha), sd=sd)


def _spread(
    squares: float, k: int, within: float, prior_df: float, times: float, rule: RuleR
) -> tuple[float, float]:
    """Return the standard deviation of a pair's log ratio, moderated, and its degrees of freedom.

    The expected noise, taken so many times, weighs `prior_df`; `within` is inside the runs.
    """
    # Of two runs of one session; the share that they have in common is not in their ratio.
    expected = 2 * ((1 - rule.session_share) * (times * rule.prior_sd) ** 2 + within)
    df = max(prior_df + k - 1, 1.0)
    sd = math.sqrt((prior_df * expected + squares) / (prior_df + k - 1))
    return max(sd, math.sqrt(2) * rule.floor_sd), df


def _weight(k: int, last: int) -> float:
    """Return the share of the error that the look after k pairs may spend.

    One pair decides nothing; its bounds are as far off as if it could.
    """
    k = max(k, FIRST_LOOK)
    return (k - 1) ** 2 / sum((look - 1) ** 2 for look in range(FIRST_LOOK, last + 1))


def _ratio(log: float) -> float:
    return math.exp(max(-_HUGE, min(log, _HUGE)))


@dataclass(frozen=True, kw_only=True, slots=True)
class RelativeSpeed:
    """How many times better than another commit one is, with the ends of the interval."""

    ratio: float
    low: float
    high: float
