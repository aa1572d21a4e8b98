"""Judge by interleaved runs whether one engine is better than another by a claimed ratio."""

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
"""Pairs before a decision: in the order A B, B A a steady drift of the machine cancels."""

PRIOR_DF = 0.25
"""Degrees of freedom of the expected noise. Rule R uses 4, with a baseline of eight runs; more than
this would break the error rates on a machine five times as noisy as expected."""

MAX_NOISE_RATIO = 5.0
"""Assumed upper bound of a machine's noise over the expected noise: a result beyond it is decided
at the first look, where two pairs determine the noise poorly."""

WORST_SHARE = 0.1
"""Share of the error for that bound, evenly over the looks."""

_HUGE = 700.0
"""Largest shown logarithm of a ratio: exp overflows above 709."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio(Decision):
    """Hold a decision on pairs of runs; PASS proves the claim, or excludes a drop by the limit.

    Attributes:
        ratio: Ratio of a to b, above 1 if a is better; geometric mean over the pairs.
        pairs: Number of pairs up to the decision.
        sd: Relative standard deviation of a pair's ratio as estimated at the decision.
    """

    ratio: float
    pairs: int
    sd: float


def judge_ratio(
    a: Sequence[Value], b: Sequence[Value], *, direction: Direction, least: float, rule: RuleR
) -> Ratio:
    """Test pairs of runs for the claim that `a` is `least` times better than `b`.

    The first pass or fail is final. A true claim is refuted with probability `alpha` at most, and a
    false one proven with probability `beta` at most. Runs with the same index are neighbours in one
    session, each a fresh process, so that common effects cancel.

    Source: moderated t (G. K. Smyth, 2004, doi:10.2202/1544-6115.1027) on the log ratio of each
        pair, two one-sided bounds at each interim analysis. Of the error, 90 %
        are spent in proportion to (k - 1)² after k pairs, and 10 % evenly on bounds whose prior has
        `MAX_NOISE_RATIO` times the noise.
    """
    if not 0 < least < math.inf:
        raise ValueError(f"the claim is {least!r}; it must be finite and above 0")
    bound = math.log(least)
    return _judge(a, b, direction, passing=bound, failing=bound, rule=rule)


def judge_drop(
    current: Sequence[Value],
    baseline: Sequence[Value],
    *,
    direction: Direction,
    limit: float,
    rule: RuleR,
) -> Ratio:
    """Test for a drop by one-sided moderated t tests of paired log ratios, after each new pair.

    The first pass or fail is final. Equal builds fail with probability `alpha` at most; a true drop
    of `limit` passes with probability `beta` at most.
    """
    bound = bound_of(direction, limit)
    return _judge(current, baseline, direction, passing=bound, failing=0.0, rule=rule)


def _judge(
    a: Sequence[Value],
    b: Sequence[Value],
    direction: Direction,
    *,
    passing: float,
    failing: float,
    rule: RuleR,
) -> Ratio:
    if not a or len(a) != len(b):
        raise ValueError(f"pairs need equally many runs on both sides, not {len(a)} and {len(b)}")
    sign = 1 if direction is Direction.HIGHER else -1
    logs = [sign * (math.log(x.value) - math.log(y.value)) for x, y in zip(a, b, strict=True)]
    for k in range(1, min(len(logs), rule.max_runs) + 1):
        low, mean, high, sd = _estimate(logs[:k], [*a[:k], *b[:k]], rule)
        decision = Answer.MORE if k < rule.max_runs else Answer.INCONCLUSIVE
        if k >= FIRST_LOOK and low >= passing:
            decision = Answer.PASS
            break
        if k >= FIRST_LOOK and high < failing:
            decision = Answer.FAIL
            break
    return Ratio(
        outcome=decision,
        ratio=_ratio(mean),
        interval=(_ratio(low), _ratio(high)),
        pairs=k,
        sd=sd,
        improved=failing == 0 and decision is Answer.PASS and 2 * mean > high,
    )


def _estimate(
    logs: Sequence[float], runs: Sequence[Value], rule: RuleR
) -> tuple[float, float, float, float]:
    """Return the log ratio's lower t bound at beta, mean, upper bound at alpha, and a pair's sd."""
    k, mean = len(logs), fmean(logs)
    squares = math.fsum((x - mean) ** 2 for x in logs)
    within = fmean(run.within_se**2 for run in runs)
    sd, df = _pair_sd(squares, k, within, PRIOR_DF, 1.0, rule)
    worst_sd, worst_df = _pair_sd(squares, k, within, rule.prior_df, MAX_NOISE_RATIO, rule)

    def reach(error: float) -> float:
        """Return t·se of the mean log ratio at one-sided `error`, adjusted for interim analyses."""
        usual, rare = ((1 - WORST_SHARE) * error, WORST_SHARE * error)
        far = t_isf(usual * _error_share(k, rule.max_runs), df) * sd
        return min(far, t_isf(rare / (rule.max_runs - 1), worst_df) * worst_sd) / math.sqrt(k)

    return mean - reach(rule.beta), mean, mean + reach(rule.alpha), sd


MAX_PAIRS = 1000
"""Largest number of pairs that `pairs_to_decide` recommends: that of `--mlperf-max-runs`."""


def pairs_to_decide(ratio: Ratio, direction: Direction, limit: float, rule: RuleR) -> int | None:
    """Estimate how many pairs prove or exclude a drop if the observed mean and noise persist.

    With this number as maximum, a session decides at its last analysis. Returns None if more than
    `MAX_PAIRS` are needed.
    """
    mean, bound = math.log(ratio.ratio), bound_of(direction, limit)
    for pairs in range(ratio.pairs + 1, MAX_PAIRS + 1):
        share = (1 - WORST_SHARE) * _error_share(pairs, pairs)
        se = ratio.sd / math.sqrt(pairs)
        if mean - t_isf(rule.beta * share, pairs - 1) * se >= bound:
            return pairs
        if mean + t_isf(rule.alpha * share, pairs - 1) * se < 0:
            return pairs
    return None


def _pair_sd(
    sum_of_squares: float,
    pairs: int,
    within_variance: float,
    prior_df: float,
    sd_factor: float,
    rule: RuleR,
) -> tuple[float, float]:
    """Return (moderated standard deviation of a pair's log ratio, its degrees of freedom)."""
    # For two runs of one session, whose common part cancels in their ratio.
    expected = 2 * ((1 - rule.session_share) * (sd_factor * rule.prior_sd) ** 2 + within_variance)
    df = max(prior_df + pairs - 1, 1.0)
    sd = math.sqrt((prior_df * expected + sum_of_squares) / (prior_df + pairs - 1))
    return max(sd, math.sqrt(2) * rule.floor_sd), df


def _error_share(k: int, last: int) -> float:
    """Return the share of the error probability spent at k pairs: (k-1)² / Σ(i-1)², i <= last."""
    k = max(k, FIRST_LOOK)
    return (k - 1) ** 2 / sum((look - 1) ** 2 for look in range(FIRST_LOOK, last + 1))


def _ratio(log: float) -> float:
    return math.exp(max(-_HUGE, min(log, _HUGE)))


@dataclass(frozen=True, kw_only=True, slots=True)
class RelativeSpeed:
    """Hold the speed relative to another commit, above 1 if faster, and its confidence interval."""

    ratio: float
    low: float
    high: float
