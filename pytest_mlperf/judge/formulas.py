"""Define formulas that the rules share: Student's t, log ratios, one-way variance components."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, fmean

from pytest_mlperf.judge.inputs import Direction


def t_sf(t: float, df: float) -> float:
    """Return the probability that Student's t exceeds `t`; `df` may be fractional.

    Source: half the regularised incomplete beta function I_x(df/2, 1/2) at x = df/(df + t²).
    """
    if math.isnan(t) or not 0 < df < math.inf:
        raise ValueError(f"t must be a number and df positive and finite; got {t!r} and {df!r}")
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    half = _half_beta(t, df)
    return half if t >= 0 else 1 - half


@lru_cache(maxsize=4096)
def t_isf(p: float, df: float) -> float:
    """Return the value that Student's t with `df` exceeds with probability `p`.

    The relative error is below 1e-9 for p from 1e-12 to 0.49 and df (also fractional) from 1 to a
    million.

    Source: G. W. Hill, "Algorithm 396: Student's t-quantiles", CACM 13 (1970), refined by Newton's
        method on the logarithm of the tail.
    """
    if not (0 < p < 1 and 1 <= df < math.inf):
        raise ValueError(f"p must lie in (0, 1) and df be at least 1; got {p!r} and {df!r}")
    if p > 0.5:
        return -t_isf(1 - p, df)
    if p == 0.5:
        return 0.0
    t = _hill(p, df)
    for _ in range(20):
        tail = t_sf(t, df)
        step = tail / _pdf(t, df) * math.log(tail / p)
        t += step
        if abs(step) < 1e-12 * abs(t):
            break
    return t


def _hill(p: float, df: float) -> float:
    """Return Student's t quantile, 0 < p < 1/2, by Hill's expansion (source: `t_isf`)."""
    a = 1 / (df - 0.5)
    b = 48 / a**2
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * df
    y = (d * 2 * p) ** (2 / df)
    if y <= 0.05 + a:
        inner = 1 / (((df + 6) / (df * y) - 0.089 * d - 0.822) * (df + 2) * 3) + 0.5 / (df + 4)
        return math.sqrt(df * ((inner * y - 1) * (df + 1) / (df + 2) + 1 / y))
    x = NormalDist().inv_cdf(p)
    y = x * x
    if df < 5:
        c += 0.3 * (df - 4.5) * (x + 0.6)
    c += (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b
    y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
    return math.sqrt(df * math.expm1(a * y * y))


def _log_gamma_step(a: float) -> float:
    if a < 50:
        return math.lgamma(a + 0.5) - math.lgamma(a)
    # The two logarithms would cancel nearly all their digits.
    return math.log(a) / 2 - 1 / (8 * a) + 1 / (192 * a**3) - 1 / (640 * a**5)


def _pdf(t: float, df: float) -> float:
    log_peak = _log_gamma_step(df / 2) - math.log(df * math.pi) / 2
    return math.exp(log_peak - (df + 1) / 2 * math.log1p(t * t / df))


def _half_beta(t: float, df: float) -> float:
    a = df / 2
    ratio = t * t / df
    if ratio == 0:
        return 0.5
    x, rest = 1 / (1 + ratio), ratio / (1 + ratio)
    if x == 0:
        return 0.0
    # x^a (1-x)^½ / B(a, ½), with B's Γ(½) = √π
    log_front = _log_gamma_step(a) - math.log(math.pi) / 2 - a * math.log1p(ratio)
    front = math.exp(log_front) * math.sqrt(rest)
    if x < (a + 1) / (a + 2.5):
        return front * _beta_fraction(a, 0.5, x) / a / 2
    return 0.5 - front * _beta_fraction(0.5, a, rest)


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Evaluate the continued fraction of the incomplete beta function by Lentz's method.

    Source: https://dlmf.nist.gov/8.17#v
    """
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / (1 + term * d)
            c = 1 + term / c
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


def bound_of(direction: Direction, limit: float) -> float:
    """Return the log ratio of a drop: log(1 - limit), or -log(1 + limit) if lower is better."""
    if direction is Direction.HIGHER:
        if not 0 < limit < 1:
            raise ValueError(f"the largest drop is {limit!r}; it must lie between 0 and 1")
        return math.log1p(-limit)
    if not 0 < limit < math.inf:
        raise ValueError(f"the largest rise is {limit!r}; it must be finite and above 0")
    return -math.log1p(limit)


def to_relative_change(x: float, direction: Direction) -> float:
    """Convert a log ratio, below 0 if worse, to the relative change of the metric's value."""
    # exp overflows above 709; such a bound only means "huge".
    return math.expm1(min(x if direction is Direction.HIGHER else -x, 700.0))


def squares(xs: Sequence[float]) -> float:
    """Return the sum of squared deviations from the mean."""
    mean = fmean(xs)
    return math.fsum((x - mean) ** 2 for x in xs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scatter:
    """Hold the sums of squares of a one-way layout, inside and between sessions.

    `size` is the factor of the session variance in the mean square between sessions (n0).
    """

    inside: float
    across: float
    run_df: int
    between_df: int
    size: float


def scatter(sessions: Sequence[Sequence[float]]) -> Scatter:
    """Return the sums of squares within and between sessions; no session may be empty.

    Source: one-way random effects, mean squares and n0 for sessions of unequal size (S. R. Searle,
        G. Casella, C. E. McCulloch, Variance Components, 1992, 3.6).
    """
    total, between_df = sum(map(len, sessions)), len(sessions) - 1
    mean = fmean(x for xs in sessions for x in xs)
    share = math.fsum(len(xs) ** 2 for xs in sessions) / total
    return Scatter(
        inside=math.fsum(map(squares, sessions)),
        across=math.fsum(len(xs) * (fmean(xs) - mean) ** 2 for xs in sessions),
        run_df=total - len(sessions),
        between_df=between_df,
        size=(total - share) / between_df if between_df else float(total),
    )
