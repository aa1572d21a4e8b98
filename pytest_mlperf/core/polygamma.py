"""Digamma, trigamma and the inverse of trigamma, without scipy."""

from __future__ import annotations

import math

_LARGE = 12.0
"""From here on the asymptotic series is good to 1e-13."""


def digamma(x: float) -> float:
    """Return ψ(x), the derivative of log Γ(x), for x > 0.

    Raises:
        ValueError: `x` is not positive and finite.

    Source: recurrence and asymptotic series, https://dlmf.nist.gov/5.5#E2 and 5.11#E2
    """
    _require_positive(x)
    below = 0.0
    while x < _LARGE:
        below += 1 / x
        x += 1
    y = 1 / (x * x)
    series = y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y * (1 / 240 - y / 132))))
    return math.log(x) - 0.5 / x - series - below


def trigamma(x: float) -> float:
    """Return ψ'(x) for x > 0: it falls from infinity towards 0.

    Raises:
        ValueError: `x` is not positive and finite.

    Source: the derivative of the series of `digamma`.
    """
    _require_positive(x)
    below = 0.0
    while x < _LARGE:
        below += 1 / (x * x)
        x += 1
    y = 1 / (x * x)
    series = y * (1 / 6 - y * (1 / 30 - y * (1 / 42 - y * (1 / 30 - y * 5 / 66))))
    return below + 1 / x + y / 2 + series / x


def trigamma_inverse(value: float) -> float:
    """Return the x > 0 with ψ'(x) = value, for value > 0.

    Raises:
        ValueError: `value` is not positive and finite.

    Source: bisection between 1/value and 1/value + 1/√value, which hold the root because
        1/x + 1/(2x²) < ψ'(x) < 1/x + 1/x².
    """
    _require_positive(value)
    low, high = 1 / value, 1 / value + 1 / math.sqrt(value)
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if trigamma(middle) > value else (low, middle)
    return low


def _require_positive(x: float) -> None:
    if not 0 < x < math.inf:
        raise ValueError(f"must be positive and finite, not {x!r}")
