"""What a part of a data set proves about the score of the whole: no assumption on its shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

LARGEST_BET = 0.75
"""Share of the capital that one sample may lose; anything below 1 keeps the test right."""

ROUNDING = 1e-6
"""Points by which the sums of floating point numbers may be off."""

LOOKS = 5
"""Looks at a part that a pass may end at, at most: what other tests than `below` share."""


def below(excess: Sequence[float | None], most: float, total: int) -> float:
    """Return the p that the mean of a whole data set is below 0, from a part of it.

    A bettor bets on each sample, before it is seen, that it falls below what the rest of the data
    set must have on average for its mean to be 0 or more. If that is so, no strategy is expected to
    gain, so capital of 1/p is reached with a probability of p at most, however often one looks and
    whatever the scores are: graded, right or wrong, skewed, or the same but for rare ones. The
    samples are drawn without replacement, so the last ones are certain.

    Args:
        excess: What each sample has above the bound, in the random order in which it was measured;
            None where the metric does not apply to a sample, which then counts for neither side.
        most: Largest value that a sample can have, above 0.
        total: Samples of the whole data set.

    Returns:
        1 / the largest capital: holds at all looks together.

    Source: I. Waudby-Smith, A. Ramdas, "Estimating means of bounded random variables by betting",
        Journal of the Royal Statistical Society B 86 (2024), sections 4 and 5.
    """
    capital = largest = 0.0  # logarithms
    seen = mean = 0.0
    spread, count = (most / 2) ** 2, 1
    for place, value in enumerate(0.0 if one is None else one for one in excess):
        needed = -seen / (total - place)
        room = most - needed
        if room < -ROUNDING:
            return 0.0  # were all others as good as can be, it would not suffice
        gap = max(0.0, needed - mean)
        bet = min(gap / (spread + gap * gap), LARGEST_BET / room) if room > ROUNDING else 0.0
        capital += math.log1p(bet * (needed - value))
        largest = max(largest, capital)
        seen += value
        count += 1
        before, mean = mean, mean + (value - mean) / count
        spread += ((value - before) * (value - mean) - spread) / count
    return math.exp(-largest)


def below_by_influence(values: Sequence[float], bound: float, width: float) -> float:
    """Return the p that a score that is no mean over samples is below a bound, from a part.

    Args:
        values: Pseudo-values of the samples, see `Scores.whole`; their mean is the score.
        bound: What the score of the whole data set is held against.
        width: How far apart the lowest and the highest possible score are; pseudo-values may lie
            further apart.

    Returns:
        By the empirical Bernstein bound, for `LOOKS` looks: wider than by the normal distribution,
        which a few pseudo-values far out deceive.

    Source: A. Maurer, M. Pontil, "Empirical Bernstein bounds and sample variance penalization",
        COLT 2009, theorem 4.
    """
    n = len(values)
    if n < 2:
        return 1.0
    mean = fmean(values)
    gap = bound - mean
    if gap <= 0:
        return 1.0
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    # gap = sqrt(2 variance L / n) + 7 width L / (3 (n - 1)) with p = 2 exp(-L)
    widest = max(width, max(values) - min(values))
    b, a = math.sqrt(2 * variance / n), 7 * widest / (3 * (n - 1))
    root = (math.sqrt(b * b + 4 * a * gap) - b) / (2 * a)
    return min(1.0, LOOKS * 2 * math.exp(-root * root))
