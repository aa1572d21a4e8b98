"""Inputs of the rules: a metric's direction, noise between sessions, the leverage of samples."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Direction(StrEnum):
    """Which way a metric gets better."""

    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"


DAYS = 4
"""Days whose sessions a final baseline needs: fewer cannot show what sessions differ by."""


MAX_NOISE = 1e6
"""Beyond any machine, and far below what arithmetic bears: larger ratios and degrees of freedom are
taken for it when they are learnt, and for a damaged file when they are read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionNoise:
    """What was learnt of one metric on one machine.

    Attributes:
        ratio: Variance of what the runs of a session have in common over the variance of the runs
            inside a session; 1 says that both matter alike.
        df: Degrees of freedom that it rests on: days less one, as far as they count.
        by_days: They are days; older files counted sessions, also those of one day.
    """

    ratio: float
    df: float
    by_days: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= MAX_NOISE:
            raise ValueError(f"ratio is {self.ratio!r}; must be from 0 to {MAX_NOISE:,.0f}")
        if not 0 < self.df <= MAX_NOISE:
            raise ValueError(f"df is {self.df!r}; must be above 0, at most {MAX_NOISE:,.0f}")


def surer(one: SessionNoise | None, other: SessionNoise | None) -> SessionNoise | None:
    """Return what rests on more days: the first of equals, None where nothing was learnt."""
    learnt = [noise for noise in (one, other) if noise]
    return max(learnt, key=lambda noise: noise.df, default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Leverage:
    """What single samples weigh in a score that is no mean over samples, such as mAP or AUC.

    A sample that holds much of a class moves the class's mean towards itself, so that its
    pseudo-value deviates less than its chance does; alone in its class it does not deviate at all.

    Attributes:
        seen: Share of the score's variance that the variance of the pseudo-values is expected to
            show, 0 to 1.
        df: Degrees of freedom of that variance, above 0: how many samples of equal weight would
            know it as well, less 1.
        hidden: Points by which one sample may move the score without any pseudo-value's deviating.

    Raises:
        ValueError: A figure is out of its range.
    """

    seen: float
    df: float
    hidden: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.seen <= 1 and self.df > 0 and self.hidden >= 0):
            raise ValueError(
                f"{self!r} is no leverage: seen must be 0 to 1, df above 0, hidden 0 or more"
            )
