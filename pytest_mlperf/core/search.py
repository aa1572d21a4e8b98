"""Which rate to offer next, and the rate found: the highest that holds a latency limit.

Every try is one run of normal length in a fresh process, so tries are few and noisy. The search
works on the logarithm of the rate. From its start it steps outwards, each step twice as long as the
one before, until one rate holds and a higher one does not; between the two it goes where the
limiting latency should meet its limit, by interpolation of log(latency / limit), and keeps both
ends. The rate found lies between the ends, where that line meets 0.

Source of the interpolation: regula falsi, with a bisection where two tries did not halve the
bracket, and an excess that counts up to `CLAMP` only: beyond saturation the latency says how long
the run was, not how far off the limit is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_mlperf.core.found import Found, Tried
from pytest_mlperf.core.numbers import quantity

LONGEST_STEP = math.log(2)
"""A step outwards at most doubles the rate or halves it."""

WIDE = math.log(1.25)
"""The first step where nothing is known but a start; 0.8 of a peak is one such step below it."""

NARROW = (0.02, 0.25)
"""Bounds of the first step from a baseline's rate, which is twice the limit of throughput."""

HELD_AFTER = 3
"""A miss that so many further rates below it all held is measured again: something else may have
disturbed that one run."""

_ROUNDING = 1e-9


class NoRate(Exception):
    """No rate was found: every rate that was tried held, or none did."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How to search.

    Attributes:
        start: The first rate, per second.
        step: The first step outwards, as a logarithm of the rate.
        precision: Width of the final bracket, as a share of the rate.
        max_runs: Tries at most.

    Raises:
        ValueError: A value is out of range.
    """

    start: float
    step: float = WIDE
    precision: float = 0.02
    max_runs: int = 8

    def __post_init__(self) -> None:
        for ok, name, valid in (
            (0 < self.start < math.inf, "start", "finite and above 0"),
            (0 < self.step <= LONGEST_STEP, "step", "above 0 and at most log 2"),
            (0 < self.precision < 1, "precision", "between 0 and 1"),
            (self.max_runs >= 2, "max_runs", "at least 2: a bracket has two ends"),
        ):
            if not ok:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be {valid}")


def narrow_step(limit: float) -> float:
    """Return the first step from a rate that was found before.

    Args:
        limit: The smallest change of throughput that matters, as a share; two of them are the step.
    """
    least, most = NARROW
    return math.log1p(min(max(2 * limit, least), most))


def next_rate(tries: Sequence[Tried], plan: Plan) -> float | None:
    """Return the rate to try next, or None: the search is over.

    Args:
        tries: The runs so far, in order.
        plan: How to search.
    """
    if not tries:
        return plan.start
    if len(tries) >= plan.max_runs:
        return None
    low, high = bracket(tries)
    if high is None:
        assert low is not None
        return low.rate * math.exp(_step(low.rate, plan))
    if low is None:
        return high.rate * math.exp(-_step(high.rate, plan))
    if _is_narrow(low, high, plan.precision):
        return high.rate if _is_doubtful(tries, high) else None
    return low.rate * math.exp(_inside(tries, low, high, math.log1p(plan.precision)))


def bracket(tries: Sequence[Tried]) -> tuple[Tried | None, Tried | None]:
    """Return the highest rate that held and the lowest that did not, where there are such.

    Of a rate that was measured again its last run counts.
    """
    latest = {one.rate: one for one in tries}.values()
    missed = [one for one in latest if not one.held]
    high = min(missed, key=lambda one: one.rate, default=None)
    held = [one for one in latest if one.held and (high is None or one.rate < high.rate)]
    return max(held, key=lambda one: one.rate, default=None), high


def result(tries: Sequence[Tried], plan: Plan, at: str) -> Found:
    """Return what a search found.

    Args:
        tries: Its runs, at least one.
        plan: How it searched.
        at: The conditions in words.

    Raises:
        NoRate: All rates held, or none did; says which and what to do.
    """
    low, high = bracket(tries)
    if high is None:
        assert low is not None
        raise NoRate(
            f"no rate found: {quantity('', low.rate)}/s, the highest of {len(tries)} tried, still "
            f"holds {at} ({_measured(low)}); set start nearer to the rate that is looked for"
        )
    if low is None:
        raise NoRate(
            f"no rate found: {quantity('', high.rate)}/s, the lowest of {len(tries)} tried, does "
            f"not hold {at} ({_measured(high)}); set a lower start, or a higher limit"
        )
    return Found(
        at=at,
        rate=low.rate * math.exp(_meeting(low, high)),
        low=low.rate,
        high=high.rate,
        metric=high.metric,
        precision=plan.precision,
        reached=_is_narrow(low, high, plan.precision),
        tried=tuple(tries),
    )


def _measured(one: Tried) -> str:
    return f"{one.metric} {quantity(one.metric, one.value)}"


def _step(end: float, plan: Plan) -> float:
    """Return the next step outwards: 1, 2, 4, … times the first one, as a logarithm."""
    return min(abs(math.log(end / plan.start)) + plan.step, LONGEST_STEP)


def _width(low: Tried, high: Tried) -> float:
    return math.log(high.rate / low.rate)


def _is_narrow(low: Tried, high: Tried, precision: float) -> bool:
    return _width(low, high) <= math.log1p(precision) + _ROUNDING


def _is_doubtful(tries: Sequence[Tried], high: Tried) -> bool:
    """Whether a miss stands alone against several rates just below it that all held."""
    places = [index for index, one in enumerate(tries) if one.rate == high.rate]
    after = tries[places[0] + 1 :]
    return len(places) == 1 and len(after) >= HELD_AFTER and all(one.held for one in after)


def _meeting(low: Tried, high: Tried) -> float:
    """Return how far above the lower end the excess should be 0, as a logarithm."""
    return _width(low, high) * -low.excess / (high.excess - low.excess)


def _inside(tries: Sequence[Tried], low: Tried, high: Tried, narrow: float) -> float:
    """Return the next rate between two ends, as a logarithm above the lower one.

    It lies beside the place where the excess should be 0, on the side of the middle, by half the
    width that is wanted: one more try at its other side then ends the search. Where an end is that
    near already, it lies just so far from that end.
    """
    width, meeting = _width(low, high), _meeting(low, high)
    if width <= 2 * narrow or _stalls(tries, width):
        return width / 2
    if meeting <= 0.75 * narrow:
        return narrow
    if width - meeting <= 0.75 * narrow:
        return width - narrow
    beside = meeting + math.copysign(narrow / 2, width / 2 - meeting)
    return min(max(beside, narrow), width - narrow)


def _stalls(tries: Sequence[Tried], width: float) -> bool:
    """Whether the last two tries did not halve the bracket together."""
    low, high = bracket(tries[:-2]) if len(tries) > 2 else (None, None)
    return low is not None and high is not None and width > _width(low, high) / 2
