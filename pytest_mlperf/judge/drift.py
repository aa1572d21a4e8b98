"""Detect changes of level in a history of sessions, by exact rank tests at every split.

A session is one value, so between-session variance is part of the noise. Ranks work for any
distribution and bound the effect of outliers. `research/drift.py` measures the error rates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, islice, pairwise
from operator import sub
from statistics import NormalDist, median

ALPHA = 5e-6
"""p value below which a change is proven. Every session tests the whole history again, at every
split: at this p an unchanged case of independent sessions raises an alarm in at most 1 of 100
histories of 100 further sessions (measured, not derived)."""

MIN_SIDE_SESSIONS = 4
MIN_WINDOW_SESSIONS = 20
"""Sessions of the shortest window, counted from the end: an old dip that recovered does not hide a
present one."""

MIN_CHANGE_SHARE = 0.005
MEMORY = 200
"""Newest sessions that are tested."""

RARE_DEVIATIONS, EDGE_SHARE = 3.7, 0.16
"""Standard deviations of a rank sum, and squared share of the largest possible one, from which its
p value is computed."""

NEAR_PEAK_DEVIATIONS = 1.0
"""Standard deviations below the farthest rank sum of a window within which p values are computed:
none nearer to the middle ever had the smallest p."""

_Z = NormalDist()


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelChange:
    """Hold one change of level.

    Attributes:
        index: Index of the first session of the new level.
        change: Relative change of the level: median ratio over pairs of an old and a new session.
        low, high: 95 % confidence interval of the change.
        p: p value of the rank test at this split, adjusted for correlated neighbouring sessions.
    """

    index: int
    change: float
    low: float
    high: float
    p: float


def level_changes(values: Sequence[float]) -> list[LevelChange]:
    """Return the changes of level in a history of positive values, oldest first.

    The search looks for the split with the smallest p, in windows that end with the history and
    halve in length. It then searches the parts before and after a proven split in the same way. A
    slow ramp gives several changes.

    Source: binary segmentation (A. J. Scott, M. Knott, Biometrics 30, 1974) with H. B. Mann's and
        D. R. Whitney's test at every split (A. N. Pettitt, Applied Statistics 28, 1979).
    """
    begin = max(0, len(values) - MEMORY)
    logs = [math.log(value) for value in values[begin:]]
    splits = sorted(_splits(logs, 0, len(logs)))
    ends = [0, *splits, len(logs)]
    changes = []
    for (low, at), (_, high) in pairwise(pairwise(ends)):
        left, right = logs[low:at], logs[at:high]
        change = _shift(left, right)
        if abs(change[1]) >= MIN_CHANGE_SHARE:
            ends_of = [math.expm1(x) for x in change]
            p = _adjusted(_p_of(left, right), left, right)
            changes.append(
                LevelChange(
                    index=begin + at, low=ends_of[0], change=ends_of[1], high=ends_of[2], p=p
                )
            )
    return changes


def _splits(logs: Sequence[float], low: int, high: int) -> list[int]:
    length = high - low
    while length >= 2 * MIN_SIDE_SESSIONS:
        at = _split(logs[high - length : high])
        if at is not None:
            at += high - length
            return [*_splits(logs, low, at), at, *_splits(logs, at, high)]
        if length // 2 < MIN_WINDOW_SESSIONS:
            return []
        length //= 2
    return []


def _split(xs: Sequence[float]) -> int | None:
    count = len(xs)
    sums = islice(accumulate(_ranks(xs)), MIN_SIDE_SESSIONS - 1, count - MIN_SIDE_SESSIONS)
    far = [
        (((total - middle) / sd) ** 2, at, total)
        for at, (total, (middle, least, sd)) in enumerate(
            zip(sums, _split_thresholds(count), strict=True), MIN_SIDE_SESSIONS
        )
        if (total - middle) ** 2 >= least
    ]
    farthest = math.sqrt(max(far, default=(0.0,))[0])
    best, smallest = None, ALPHA
    for squared, at, total in far:
        if math.sqrt(squared) < farthest - NEAR_PEAK_DEVIATIONS:
            continue
        p = _mann_whitney_p(total - at * (at + 1) / 2, at, count - at)
        if p < smallest:
            best, smallest = at, p
    if best is None or _adjusted(smallest, xs[:best], xs[best:]) >= ALPHA:
        return None
    return best


@lru_cache(maxsize=1024)
def _split_thresholds(count: int) -> tuple[tuple[float, float, float], ...]:
    """Return (mean, threshold, sd) of the rank sum for each split of `count` sessions in two.

    The exact Mann-Whitney test is made only if the squared deviation reaches the threshold.
    """
    pairs = [at * (count - at) for at in range(MIN_SIDE_SESSIONS, count - MIN_SIDE_SESSIONS + 1)]
    most = RARE_DEVIATIONS**2 * (count + 1) / 12
    return tuple(
        (at * (count + 1) / 2, both * min(EDGE_SHARE * both, most), _sd(at, count - at))
        for at, both in enumerate(pairs, MIN_SIDE_SESSIONS)
    )


def _sd(m: int, n: int) -> float:
    return math.sqrt(m * n * (m + n + 1) / 12)


def _ranks(xs: Sequence[float]) -> list[float]:
    order = sorted(range(len(xs)), key=xs.__getitem__)
    ranks = [0.0] * len(xs)
    for number, index in enumerate(order, start=1):
        ranks[index] = number
    begin = 0 if len(set(xs)) < len(xs) else len(order)
    while begin < len(order):
        end = begin + 1
        while end < len(order) and xs[order[end]] == xs[order[begin]]:
            end += 1
        for index in order[begin:end]:
            ranks[index] = (begin + end + 1) / 2
        begin = end
    return ranks


def _p_of(left: Sequence[float], right: Sequence[float]) -> float:
    ranks = _ranks([*left, *right])
    m = len(left)
    return _mann_whitney_p(sum(ranks[:m]) - m * (m + 1) / 2, m, len(right))


def _mann_whitney_p(u: float, m: int, n: int) -> float:
    """Return the exact two-sided p value of Mann and Whitney's `u`; ties: the next larger p value.

    Source: the number of orders with a given U is a coefficient of the Gaussian binomial (m+n, m).
    """
    tail = math.ceil(min(u, m * n - u))
    return min(1.0, 2 * _tail(tail, min(m, n), max(m, n)))


@lru_cache(maxsize=16_384)
def _tail(u: int, m: int, n: int) -> float:
    ways = [1.0] + [0.0] * u
    for i in range(1, m + 1):
        step = n + i
        if step <= u:
            ways[step:] = map(sub, ways[step:], ways[:-step])
        for first in range(min(i, u + 1)):
            ways[first::i] = accumulate(ways[first::i])
    log_all = math.lgamma(m + n + 1) - math.lgamma(m + 1) - math.lgamma(n + 1)
    return min(1.0, math.exp(math.log(math.fsum(ways)) - log_all))


def _adjusted(p: float, left: Sequence[float], right: Sequence[float]) -> float:
    """Return two-sided p value `p` of a split, adjusted for correlated neighbouring sessions.

    Machines stay fast or slow for some days. This widens the standard deviation of sums by a factor
    √((1+r)/(1-r)); r is the rank correlation of neighbours in `left` and in `right` of the split.

    Source: the long-run variance of an autoregressive process of the first order.
    """
    r = _autocorrelation(left, right)
    z = -_Z.inv_cdf(max(p, 1e-300) / 2) * math.sqrt((1 - r) / (1 + r))
    return 2 * _Z.cdf(-z)


def _autocorrelation(left: Sequence[float], right: Sequence[float]) -> float:
    """Return the lag-1 rank autocorrelation within `left` and `right`, pooled, in 0 to 0.9."""
    products = squares = 0.0
    for side in (left, right):
        middle = (len(side) + 1) / 2
        ranks = [(rank - middle) / len(side) for rank in _ranks(side)]
        squares += sum(x * x for x in ranks)
        products += sum(x * y for x, y in pairwise(ranks))
    count = len(left) + len(right)
    # The estimate is biased downwards by about (1+3r)/n per side, and scatters by 1/√n.
    return min(0.9, max(0.0, products / squares if squares else 0.0)) if count else 0.0


def _shift(left: Sequence[float], right: Sequence[float]) -> tuple[float, float, float]:
    """Return the Hodges-Lehmann estimate of right minus left: (lower 95 % bound, value, upper).

    Source: J. L. Hodges, E. L. Lehmann, Annals of Mathematical Statistics 34 (1963); the interval
        by the normal approximation of U.
    """
    apart = sorted(y - x for x in left for y in right)
    m, n = len(left), len(right)
    reach = math.floor(m * n / 2 - _Z.inv_cdf(0.975) * _sd(m, n))
    index = min(max(reach, 0), len(apart) // 2)
    return apart[index], median(apart), apart[-1 - index]
