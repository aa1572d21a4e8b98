"""What a trace of a GPU's power says: its integral, how late it is, and how sure that can be.

A power sensor refreshes every 20 to 100 ms and shows the mean of the last of its windows, which on
GA10x reaches from one refresh to the next and on A100 and H100 covers a quarter of that. Where it
does not cover, a load whose period locks to the refresh is seen in one phase alone: no rate of
reading mends that, and nothing in the trace shows it. So a trace that may not cover has no
uncertainty: it is not known.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum
from statistics import median

LONGEST_GAP_S = 0.5
"""A trace with a longer hole says nothing about what was in it."""

FEWEST_TICKS = 0.8
"""Share of the planned samples below which a trace is no witness."""

SLOWEST_S = 0.25
"""No sensor refreshes less often: a longer time between two changes is that of the load."""

FEWEST_CHANGES = 8
"""Of fewer changes the refresh cannot be told."""

LOW = 0.1
"""Percentile of the times between changes that shows the refresh: a flat load hides most of them,
so that their median is the load's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One reading of one GPU.

    Attributes:
        time_s: Monotonic time, seconds.
        value: Joules since any moment, of a counter; watts, of a trace.
    """

    time_s: float
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Traced:
    """The energy of a window by its trace.

    Attributes:
        joules: The integral; None where the trace is too thin.
        unsure_j: What it may be off by where the sensor covers: its delay at both ends, and the
            moments of its changes, which are known no better than they were read.
        why_not: Why there is no integral.
    """

    joules: float | None = None
    unsure_j: float = 0.0
    why_not: str = ""


def at(readings: Sequence[Reading], time_s: float) -> float:
    """Return the value at a moment between two readings, on the line through both."""
    left, right = around(readings, time_s)
    share = (time_s - left.time_s) / (right.time_s - left.time_s)
    return left.value + share * (right.value - left.value)


def around(readings: Sequence[Reading], time_s: float) -> tuple[Reading, Reading]:
    """Return the two readings around a moment; beyond the ends the two that are nearest."""
    after = bisect_right(readings, time_s, key=lambda reading: reading.time_s)
    after = min(max(after, 1), len(readings) - 1)
    return readings[after - 1], readings[after]


def beat_s(readings: Sequence[Reading]) -> float:
    """Return the usual time between two of at least two readings, seconds."""
    return median(later.time_s - earlier.time_s for earlier, later in pairwise(readings))


def cumulated(trace: Sequence[Reading]) -> list[Reading]:
    """Return the joules from a trace's first reading to each."""
    total = [Reading(time_s=trace[0].time_s, value=0.0)]
    for earlier, later in pairwise(trace):
        added = (later.time_s - earlier.time_s) * (earlier.value + later.value) / 2
        if later.time_s > earlier.time_s:
            total.append(Reading(time_s=later.time_s, value=total[-1].value + added))
    return total


def refresh_s(trace: Sequence[Reading]) -> float | None:
    """Return how often the sensor behind a trace refreshes, seconds; None where it cannot be seen.

    Args:
        trace: Readings in watts.
    """
    changes = [b.time_s for a, b in pairwise(trace) if a.value != b.value]
    gaps = sorted(later - earlier for earlier, later in pairwise(changes))
    if len(gaps) < FEWEST_CHANGES:
        return None
    shortest = gaps[int(LOW * len(gaps))]
    return shortest if shortest <= SLOWEST_S else None


def delay_s(trace: Sequence[Reading], *, covers: bool) -> float:
    """Return how late a trace shows the power, as far as that is known, seconds.

    A reading is on average half a refresh old. Of a sensor that covers it is the mean of a whole
    refresh before that; how much of it another sensor sees is not known.
    """
    refresh = refresh_s(trace) or 0.0
    return refresh if covers else refresh / 2


def traced(
    trace: Sequence[Reading],
    begin_s: float,
    end_s: float,
    *,
    rate_hz: float | None = None,
    covers: bool = True,
) -> Traced:
    """Return the integral of a trace over a window, moved by what the sensor is late.

    Args:
        trace: Readings in watts, oldest first.
        begin_s: Where the window begins.
        end_s: Where it ends.
        rate_hz: Planned rate of the readings.
        covers: The sensor sees all of the time.
    """
    if len(trace) < 2:
        return Traced(why_not="no power trace")
    if trace[0].time_s > begin_s or trace[-1].time_s < end_s:
        return Traced(why_not="the power trace does not reach over the window")
    inside = [reading for reading in trace if begin_s < reading.time_s < end_s]
    gap = max(b - a for a, b in pairwise([begin_s, *(r.time_s for r in inside), end_s]))
    if gap > LONGEST_GAP_S:
        return Traced(why_not=f"the power trace has a hole of {gap:.1f} s")
    if rate_hz and len(inside) < FEWEST_TICKS * rate_hz * (end_s - begin_s):
        share = len(inside) / (rate_hz * (end_s - begin_s))
        return Traced(why_not=f"the power trace has {share:.0%} of its samples")
    total, read_s = cumulated(trace), beat_s(trace)
    late = max(0.0, min(delay_s(trace, covers=covers), trace[-1].time_s - end_s))
    first, last = (at(total, end + late) for end in (begin_s, end_s))
    rises = fsum(abs(b.value - a.value) for a, b in pairwise(inside))
    unseen_s = read_s + (refresh_s(trace) or read_s)
    return Traced(
        joules=last - first,
        unsure_j=rises * read_s / 2 + unseen_s * _swing(trace, begin_s, end_s, unseen_s),
    )


def _swing(trace: Sequence[Reading], begin_s: float, end_s: float, pad_s: float) -> float:
    near = [
        r.value for r in trace if min(abs(r.time_s - end) for end in (begin_s, end_s)) <= 2 * pad_s
    ]
    return max(near) - min(near) if near else 0.0
