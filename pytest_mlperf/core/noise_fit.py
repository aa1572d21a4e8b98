"""How variances of many cases scatter about the expected one: Smyth's estimator, made cautious."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from pytest_mlperf.core.judge.rule_r import RuleR
from pytest_mlperf.core.polygamma import digamma, trigamma, trigamma_inverse

DEFAULT_CASES = 10
"""As many cases the default ν0 weighs: how cases differ is not seen in three of them."""

DEFAULT_FACTOR = 2.0
"""The default s0 counts as a guess whose standard deviation is this factor."""

FLOOR_SD = RuleR().floor_sd
FEWEST_DF, MOST_DF = 1.0, 30.0
"""Bounds of ν0: the upper one where the cases' variances differ by no more than chance."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The variance of one series.

    Attributes:
        variance: As its runs show it.
        df: Its degrees of freedom.
        within: The part of it that is known from inside the runs.
    """

    variance: float
    df: int
    within: float


@dataclass(frozen=True, slots=True)
class Fit:
    """What variances show of the noise of an accelerator.

    Attributes:
        df: ν0.
        variance: s0².
        log_se: Standard error of log s0².
        weight: Share of the data in s0²; the default has the rest.
        df_weight: Share of the data in ν0.
    """

    df: float
    variance: float
    log_se: float
    weight: float
    df_weight: float


def fit(units: Sequence[Unit], default_df: float, default: float, cases: int) -> Fit:
    """Fit V_c / (s0² + w_c²) ~ F(d_c, ν0), the model of rule R, by moments of log V.

    Args:
        units: One per series.
        default_df: ν0 to draw towards.
        default: s0² to draw towards.
        cases: Independent cases among the series: metrics of one case share its runs.

    Source: G. K. Smyth, 2004, section 6.2, with the expected variance of each case in the place of
        one for all; what is drawn towards defaults is ours.
    """

    def at(log_variance: float) -> tuple[float, float]:
        expected = math.exp(log_variance)
        logs = [_centred(unit, expected) for unit in units]
        excess = 0.0
        if len(units) > 1:
            excess = variance(logs) - fmean(trigamma(unit.df / 2) for unit in units)
        weighed = DEFAULT_CASES * trigamma(default_df / 2) + (cases - 1) * excess
        df = _df_of(weighed / (DEFAULT_CASES + cases - 1))
        return fmean(logs) + digamma(df / 2) - math.log(df / 2), df

    low, high = 2 * math.log(FLOOR_SD), math.log(1e4)
    found = _root(lambda x: at(x)[0], low, high)
    df, estimate = at(found)[1], math.exp(found)
    own = fmean(estimate / (estimate + unit.within) for unit in units)
    error = (trigamma(df / 2) + fmean(trigamma(unit.df / 2) for unit in units)) / cases / own**2
    guess = (2 * math.log(DEFAULT_FACTOR)) ** 2
    weight = guess / (guess + error)
    mixed = math.exp(weight * found + (1 - weight) * math.log(default))
    return Fit(
        df=df,
        variance=max(mixed, FLOOR_SD**2),
        log_se=math.sqrt(guess * error / (guess + error)),
        weight=weight,
        df_weight=(cases - 1) / (DEFAULT_CASES + cases - 1),
    )


def _centred(unit: Unit, expected: float) -> float:
    """Return log(V / (s0² + w²)), whose mean over cases is 0 but for ν0's part."""
    ratio = max(unit.variance, FLOOR_SD**2) / (expected + unit.within)
    return math.log(ratio) - digamma(unit.df / 2) + math.log(unit.df / 2)


def _df_of(excess: float) -> float:
    """Return ν0 from ψ'(ν0/2), finite where the variances differ by no more than chance."""
    if excess <= trigamma(MOST_DF / 2):
        return MOST_DF
    return max(FEWEST_DF, 2 * trigamma_inverse(excess))


def _root(falling: Callable[[float], float], low: float, high: float) -> float:
    """Return where a falling function crosses 0, or the end that is nearest to it."""
    if falling(low) <= 0:
        return low
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return low
