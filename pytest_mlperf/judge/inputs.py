"""Define inputs of the rules: direction, session noise, effect of one sample on a score."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Direction(StrEnum):
    """Name the direction in which a metric improves."""

    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"


def check(inputs: object, *rules: tuple[bool, str, str]) -> None:
    """Raise ValueError for the first rule that is not met: (met, attribute, valid values)."""
    for met, name, valid in rules:
        if not met:
            raise ValueError(f"{name} is {getattr(inputs, name)!r}; it must be {valid}")


DAYS = 4
"""Days with sessions that a final baseline needs to show between-session variance."""


MAX_NOISE = 1e6
"""Bound of ratios and degrees of freedom, above any machine and below overflow: estimates are
clipped to it, files with larger ones are rejected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionNoise:
    """Hold the between-session noise of one metric on one machine.

    Attributes:
        ratio: Variance of session effects, relative to the variance of runs within a session.
        df: Degrees of freedom of the ratio: effective number of days less one.
        by_days: Whether `df` counts days; in older files it counts sessions.
    """

    ratio: float
    df: float
    by_days: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= MAX_NOISE:
            raise ValueError(f"ratio is {self.ratio!r}; must be from 0 to {MAX_NOISE:,.0f}")
        if not 0 < self.df <= MAX_NOISE:
            raise ValueError(f"df is {self.df!r}; must be above 0, at most {MAX_NOISE:,.0f}")


def better_known(first: SessionNoise | None, second: SessionNoise | None) -> SessionNoise | None:
    """Return the estimate with more degrees of freedom, `first` if equal; None if both are None."""
    learnt = [noise for noise in (first, second) if noise]
    return max(learnt, key=lambda noise: noise.df, default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Leverage:
    """Hold the weight of single samples in a score that is not a sample mean (mAP, AUC).

    A sample that is a large part of a class moves the class's mean towards itself. So its
    pseudo-value varies less than its score. The pseudo-value of a class's only sample is constant.

    Attributes:
        seen: Share of the score's variance that the pseudo-values are expected to show, 0 to 1.
        df: Degrees of freedom of that variance, above 0: the equivalent number of samples of equal
            weight, less 1.
        hidden: Change of the score [points] by one sample that may change no pseudo-value.

    Raises:
        ValueError: An attribute is out of range.
    """

    seen: float
    df: float
    hidden: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.seen <= 1 and self.df > 0 and self.hidden >= 0):
            raise ValueError(
                f"seen={self.seen!r}, df={self.df!r}, hidden={self.hidden!r}: seen must be from 0 "
                "to 1, df above 0, hidden at least 0"
            )
