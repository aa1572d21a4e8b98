"""The area under a curve by its definition, with the pseudo-value of each sample."""

from __future__ import annotations

import random
from collections.abc import Sequence

Sample = tuple[bool, float]


def population(r: random.Random, size: int) -> list[Sample]:
    """Return samples of which one of five is positive and scores somewhat higher."""
    return [(yes, r.gauss(1.2 * yes, 1)) for yes in (n % 5 == 0 for n in range(size))]


def area(samples: Sequence[Sample]) -> tuple[float, list[float]]:
    """Return the share of pairs in order, 0 to 100, and the pseudo-values, whose mean it is."""
    positive = [score for yes, score in samples if yes]
    negative = [score for yes, score in samples if not yes]
    n = len(samples)

    def won(yes: bool, score: float) -> float:
        others = negative if yes else positive
        wins = sum((score > other) if yes else (other > score) for other in others)
        return wins / len(others)

    shares = [(yes, won(yes, score)) for yes, score in samples]
    value = sum(share for yes, share in shares if yes) / len(positive)
    own = {True: len(positive), False: len(negative)}
    return 100 * value, [100 * (value + n * (share - value) / own[yes]) for yes, share in shares]
