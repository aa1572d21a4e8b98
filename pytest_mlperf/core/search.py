"""Search the highest rate, or the most requests in flight, that meets a latency limit.

Each try is one run of normal length in a fresh process, so tries are few and noisy. The search is
on the logarithm of the rate. It steps outwards with doubled steps until a rate meets the limit and
a higher rate does not. Then it interpolates log(latency / limit) to 0 between them. Requests in
flight are whole numbers: the result is the highest number that met the limit.

Source: regula falsi, with a bisection if two tries did not halve the bracket, and an excess clipped
    to `CLAMP`: beyond saturation the latency depends on the length of the run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from pytest_mlperf.core.numbers import Positive, plural, quantity
from pytest_mlperf.judge.inputs import check

CLAMP = 1.0
"""Largest excess log(latency / limit) that counts: 2.7 times the limit, or its inverse."""

MIN_EXCESS = 0.02
"""Smallest excess that counts, so that the two ends of a bracket always differ."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """Hold a latency metric and its limit [s]."""

    metric: str
    below: Positive

    @property
    def in_words(self) -> str:
        """The condition as in a suite: "ttft_p99 < 1 s"."""
        return f"{self.metric} < {quantity(self.metric, self.below)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchRun:
    """Hold one run of a search.

    Attributes:
        rate: Offered rate, per second, or requests in flight.
        metric: Name of the latency metric nearest to its limit, or farthest beyond it.
        value, limit: Measured value and limit of that metric [s].
        held: Whether every limit was met.
        folder: Folder with the run's logs.
    """

    rate: Positive
    metric: str
    value: Positive
    limit: Positive
    held: bool
    folder: str = ""

    @property
    def excess(self) -> float:
        """log(latency / limit); its size is clamped, and it is below 0 if all limits were met."""
        size = min(max(abs(math.log(self.value / self.limit)), MIN_EXCESS), CLAMP)
        if self.held:
            return -size
        # A run may be late by LoadGen's own count, although not by this value.
        return size if self.value > self.limit else MIN_EXCESS


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchOutcome:
    """Hold the outcome of a search.

    Attributes:
        at: The latency conditions as text.
        rate: The result [1/s], interpolated between `low` and `high`; `low` for requests in flight.
        low: The highest rate that met the limits.
        high: The lowest rate above `low` that missed a limit.
        metric: The latency metric that exceeded its limit at `high`.
        precision: The requested width of the bracket, as a share of the rate.
        reached: Whether the final bracket is as narrow as `precision`.
        tried: Every run, in order.
        whole: Whether the rates are (whole) numbers of requests in flight.
    """

    at: str
    rate: Positive
    low: Positive
    high: Positive
    metric: str
    precision: Positive
    reached: bool
    tried: tuple[SearchRun, ...]
    whole: bool = False

    @property
    def resolution(self) -> float:
        """Relative standard error of the rate, if uniform in the search's bracket: width / √12."""
        return math.log((self.high - self.whole) / self.low) / math.sqrt(12)

    @property
    def scatter(self) -> float:
        """Relative standard error of the rate by the scatter of the runs near the limit.

        It is from the least-squares line of log excess over log rate, and at most the range of the
        runs. 0 with fewer than three runs near the limit, or without a rise.
        """
        of_it = [run for run in self.tried if run.metric == self.metric]
        near = [run for run in of_it if abs(math.log(run.value / run.limit)) < CLAMP]
        if len(near) < 3:
            return 0.0
        x = [math.log(run.rate / self.rate) for run in near]
        y = [math.log(run.value / run.limit) for run in near]
        x0, y0 = fmean(x), fmean(y)
        spread = math.fsum((a - x0) ** 2 for a in x)
        slope = math.fsum((a - x0) * (b - y0) for a, b in zip(x, y, strict=True))
        if spread <= 0 or slope <= 0:
            return 0.0
        slope /= spread
        squares = math.fsum((b - y0 - slope * (a - x0)) ** 2 for a, b in zip(x, y, strict=True))
        off = math.sqrt(squares / (len(near) - 2)) / slope
        return min(off * math.sqrt(1 / len(near) + x0**2 / spread), max(x) - min(x))

    @property
    def standard_error(self) -> float:
        """Relative standard error of the rate: √(`resolution`² + `scatter`²)."""
        return math.hypot(self.resolution, self.scatter)


def search_entry(
    rate: float,
    metrics: Mapping[str, float],
    conditions: Sequence[Condition],
    *,
    is_invalid: bool = False,
    folder: str = "",
) -> SearchRun:
    """Return a search run with the latency nearest its limit; `held` if below and not invalid."""
    first = max(conditions, key=lambda condition: metrics[condition.metric] / condition.below)
    value = metrics[first.metric]
    return SearchRun(
        rate=rate,
        metric=first.metric,
        value=value,
        limit=first.below,
        held=value < first.below and not is_invalid,
        folder=folder,
    )


MAX_LOG_STEP = math.log(2)
FIRST_LOG_STEP = math.log(1.25)
"""The first step without further knowledge; 0.8 of a peak is one such step below it."""

BASELINE_STEP_BOUNDS = (0.02, 0.25)
"""Bounds of the first step from a baseline's rate, which is twice the limit of throughput."""

HELD_AFTER = 3
"""Later successes at lower rates after which a miss is measured again, as it may be chance."""

_ROUNDING = 1e-9


class NoRate(Exception):
    """Report that a search found no rate: all tried rates met the limits, or none did."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchPlan:
    """Hold the settings of a search: first rate, first step of log rate, relative precision.

    `bounds` are the smallest and largest number of requests in flight; None to search a rate.
    """

    start: float
    step: float = FIRST_LOG_STEP
    precision: float = 0.02
    max_runs: int = 8
    bounds: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        check(
            self,
            (0 < self.start < math.inf, "start", "finite and above 0"),
            (0 < self.step <= MAX_LOG_STEP, "step", "above 0 and at most log 2"),
            (0 < self.precision < 1, "precision", "between 0 and 1"),
            (self.max_runs >= 2, "max_runs", "at least 2, one on each side of the limit"),
        )


def first_search_step(limit: float) -> float:
    """Return a rate search's first step of log rate: about twice the tolerated throughput drop."""
    least, most = BASELINE_STEP_BOUNDS
    return math.log1p(min(max(2 * limit, least), most))


def next_rate(tries: Sequence[SearchRun], plan: SearchPlan) -> float | None:
    """Return the rate to try next, or None when the search has ended."""
    if not tries:
        return _next_load(plan.start, plan)
    if len(tries) >= plan.max_runs:
        return None
    low, high = bracket(tries)
    if high is None:
        assert low is not None
        return _next_load(low.rate * math.exp(_step(low.rate, plan)), plan, low)
    if low is None:
        return _next_load(high.rate * math.exp(-_step(high.rate, plan)), plan, None, high)
    if _is_narrow(low, high, plan):
        places = [index for index, run in enumerate(tries) if run.rate == high.rate]
        after = tries[places[0] + 1 :]
        stands_alone = len(places) == 1 and len(after) >= HELD_AFTER
        return high.rate if stands_alone and all(run.held for run in after) else None
    inside = low.rate * math.exp(_log_step(tries, low, high, math.log1p(plan.precision)))
    return _next_load(inside, plan, low, high)


def _next_load(
    rate: float, plan: SearchPlan, low: SearchRun | None = None, high: SearchRun | None = None
) -> float | None:
    """Return `rate`; for concurrency, an integer between `low` and `high`, None if none is left."""
    if plan.bounds is None:
        return rate
    least = low.rate + 1 if low else plan.bounds[0]
    most = high.rate - 1 if high else plan.bounds[1]
    return min(max(float(round(rate)), least), most) if least <= most else None


def load_text(rate: float, is_concurrency: bool, unit: str = "/s") -> str:
    """Return a rate as "69.7/s", or a concurrency as "32 requests in flight"."""
    return (
        f"{plural(round(rate), 'request')} in flight"
        if is_concurrency
        else quantity("", rate) + unit
    )


def bracket(tries: Sequence[SearchRun]) -> tuple[SearchRun | None, SearchRun | None]:
    """Return the runs at (highest rate that met the limits, lowest that missed), None if absent."""
    latest = {run.rate: run for run in tries}.values()
    missed = [run for run in latest if not run.held]
    high = min(missed, key=lambda run: run.rate, default=None)
    held = [run for run in latest if run.held and (high is None or run.rate < high.rate)]
    return max(held, key=lambda run: run.rate, default=None), high


def search_outcome(tries: Sequence[SearchRun], plan: SearchPlan, limit_text: str) -> SearchOutcome:
    """Return a rate search's outcome; raise NoRate if all tries met `limit_text`, or none did."""
    low, high = bracket(tries)
    whole = plan.bounds is not None
    noun, start = ("concurrency", "start or bounds") if whole else ("rate", "start")
    if high is None:
        assert low is not None
        raise NoRate(
            f"no {noun} found: {load_text(low.rate, whole)}, the highest of {len(tries)} tried, "
            f"still meets {limit_text} ({_measured(low)}); set {start} closer to "
            f"the expected {noun}"
        )
    if low is None:
        raise NoRate(
            f"no {noun} found: {load_text(high.rate, whole)}, the lowest of {len(tries)} tried, "
            f"does not meet {limit_text} ({_measured(high)}); set a lower {start}, "
            "or a higher limit"
        )
    return SearchOutcome(
        at=limit_text,
        rate=low.rate if whole else low.rate * math.exp(_zero_crossing(low, high)),
        low=low.rate,
        high=high.rate,
        metric=high.metric,
        precision=plan.precision,
        reached=_is_narrow(low, high, plan),
        tried=tuple(tries),
        whole=whole,
    )


def _measured(run: SearchRun) -> str:
    return f"{run.metric} {quantity(run.metric, run.value)}"


def _step(end: float, plan: SearchPlan) -> float:
    return min(abs(math.log(end / plan.start)) + plan.step, MAX_LOG_STEP)


def _width(low: SearchRun, high: SearchRun) -> float:
    return math.log(high.rate / low.rate)


def _is_narrow(low: SearchRun, high: SearchRun, plan: SearchPlan) -> bool:
    highest = high.rate - 1 if plan.bounds else high.rate
    return math.log(highest / low.rate) <= math.log1p(plan.precision) + _ROUNDING


def _zero_crossing(low: SearchRun, high: SearchRun) -> float:
    """Return ln(rate / `low`'s rate) of the rate whose interpolated latency equals its limit."""
    return _width(low, high) * -low.excess / (high.excess - low.excess)


def _log_step(tries: Sequence[SearchRun], low: SearchRun, high: SearchRun, narrow: float) -> float:
    """Return log(next rate / rate of `low`), a step between the tries that bracket the limit.

    It is the interpolated rate at the limit, shifted towards the middle by half of `narrow`, the
    required log width, so that one more try on the other side ends the search.
    """
    width, meeting = _width(low, high), _zero_crossing(low, high)
    if width <= 2 * narrow or _stalls(tries, width):
        return width / 2
    if meeting <= 0.75 * narrow:
        return narrow
    if width - meeting <= 0.75 * narrow:
        return width - narrow
    target = meeting + math.copysign(narrow / 2, width / 2 - meeting)
    return min(max(target, narrow), width - narrow)


def _stalls(tries: Sequence[SearchRun], width: float) -> bool:
    low, high = bracket(tries[:-2]) if len(tries) > 2 else (None, None)
    return low is not None and high is not None and width > _width(low, high) / 2


CONDITIONS = {
    "find": ("the search condition differs", "no search"),
    "points": ("the points of the curve differ", "none"),
}
"""Fingerprint keys that are conditions of a figure: words for a difference, and the word for
none."""


def other_condition(a: Mapping[str, str], b: Mapping[str, str]) -> str:
    """Return the first measuring condition in which two fingerprints differ, as text, or ""."""
    for key, (words, nothing) in CONDITIONS.items():
        first, other = a.get(key, nothing), b.get(key, nothing)
        if first != other:
            return f"{words}: {first} → {other}"
    return ""
