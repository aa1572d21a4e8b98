"""Pure arithmetic on readings and rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, stdev

from pytest_mlperf.core.energy import readings as counters
from pytest_mlperf.core.energy.readings import Reading, median_interval_s

WITHIN = 0.05
"""Power is idle again within this share of the level that it settles at."""

HOLD_S = 0.5
"""It must stay there for so long."""

LEVEL_S = 2.0
"""The last seconds of a trace say what it settled at."""

CHI_SQUARE_95 = {
    1: (0.000982, 5.0239),
    2: (0.050636, 7.3778),
    3: (0.215795, 9.3484),
    4: (0.484419, 11.1433),
    5: (0.831212, 12.8325),
    6: (1.237344, 14.4494),
    7: (1.689869, 16.0128),
    8: (2.179731, 17.5345),
    9: (2.700389, 19.0228),
    10: (3.246973, 20.4832),
}
"""2.5 % and 97.5 % points of the chi-square distribution by degrees of freedom."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """How a counter moves.

    Attributes:
        period_s: Median time between its steps.
        lag_s: By how much it trails the power trace; None where that is not seen.
        steps: How many were seen.
    """

    period_s: float
    lag_s: float | None
    steps: int


def steps_of(counter: Sequence[Reading], trace: Sequence[Reading]) -> Steps | None:
    """Return how a counter moves, by the estimators that energies are made with.

    None: fewer than three steps were seen.
    """
    steps = counters.steps_of(counter)
    if len(steps) < 3:
        return None
    lag_s = counters.lag_of(steps, trace)
    return Steps(period_s=median_interval_s(steps), lag_s=lag_s, steps=len(steps))


@dataclass(frozen=True, kw_only=True, slots=True)
class Tail:
    """How power falls after a load.

    Attributes:
        settled_w: The level it settles at: the median of the last LEVEL_S.
        seconds: From the end of the load until it stays within WITHIN of that; None: not seen.
        excess_j: Energy above that level from the end of the load on.
    """

    settled_w: float
    seconds: float | None
    excess_j: float


def tail_of(trace: Sequence[Reading], end_s: float) -> Tail | None:
    """Return how power falls after `end_s`; None where the trace is too short to say.

    Args:
        trace: Watts, oldest first, until well after the load.
        end_s: When the load ended, on the trace's clock.
    """
    after = [reading for reading in trace if reading.time_s >= end_s]
    if len(after) < 3 or after[-1].time_s - end_s < LEVEL_S + HOLD_S:
        return None
    last_s = after[-1].time_s
    settled_w = median(r.value for r in after if r.time_s >= last_s - LEVEL_S)
    outside = [r.time_s for r in after if abs(r.value - settled_w) > WITHIN * settled_w]
    back_s = outside[-1] if outside else end_s
    seconds = back_s - end_s if last_s - back_s >= HOLD_S else None
    excess_j = math.fsum(
        (later.time_s - earlier.time_s) * ((earlier.value + later.value) / 2 - settled_w)
        for earlier, later in pairwise(after)
    )
    return Tail(settled_w=settled_w, seconds=seconds, excess_j=excess_j)


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """By how much repeats differ, relative to their mean.

    Attributes:
        runs: How many there were.
        mean: Of the values.
        sd: Their relative standard deviation.
        low, high: The 95 % interval of that, if the values are normal: few runs say little.
    """

    runs: int
    mean: float
    sd: float
    low: float
    high: float


def sd_interval(sd: float, freedom: int) -> tuple[float, float]:
    """Return the 95 % interval of a standard deviation of normal values, s * sqrt(df / chi2).

    Beyond ten degrees of freedom the points are E. B. Wilson and M. M. Hilferty's, 1931: within
    0.4 % there.
    """
    if freedom in CHI_SQUARE_95:
        low, high = CHI_SQUARE_95[freedom]
    else:
        part = 2 / (9 * freedom)
        low, high = (freedom * (1 - part + z * math.sqrt(part)) ** 3 for z in (-1.96, 1.96))
    return sd * math.sqrt(freedom / high), sd * math.sqrt(freedom / low)


def spread_of(values: Sequence[float]) -> Spread | None:
    """Return by how much at least two values differ; None for fewer, or a mean of 0."""
    if len(values) < 2 or not (mean := fmean(values)):
        return None
    sd = stdev(values) / abs(mean)
    low, high = sd_interval(sd, len(values) - 1)
    return Spread(runs=len(values), mean=mean, sd=sd, low=low, high=high)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """One rate over another.

    Attributes:
        ratio: Geometric mean over blocks of on / off.
        low, high: The smallest and the largest block.
        blocks: How many there were.
    """

    ratio: float
    low: float
    high: float
    blocks: int


def abba(off: Sequence[float], on: Sequence[float]) -> Ratio:
    """Return on / off of rates taken off, on, on, off, ...: in a block of four drift cancels.

    Args:
        off: Two for each block, in order of time.
        on: Likewise.

    Raises:
        ValueError: They are not whole blocks.
    """
    if not off or len(off) != len(on) or len(off) % 2:
        raise ValueError(f"{len(off)} rates without and {len(on)} with: not blocks of two each")
    logs = [math.log(on[i] * on[i + 1] / (off[i] * off[i + 1])) / 2 for i in range(0, len(off), 2)]
    each = [math.exp(log) for log in logs]
    return Ratio(ratio=math.exp(fmean(logs)), low=min(each), high=max(each), blocks=len(each))


def apart(rates: Sequence[float]) -> float:
    """Return by how much two rates that stand together, in pairs, differ at most, as a share."""
    pairs = zip(rates[::2], rates[1::2], strict=True)
    return max(max(pair) / min(pair) - 1 for pair in pairs)
