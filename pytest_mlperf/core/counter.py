"""What a GPU's energy counter says about a window, read between its steps.

The counter of NVML steps about every 100 ms and trails the power by 0.1 to 0.2 s: its difference
over a window is off by a time constant times the step of power at the window's ends. So it is
interpolated between its steps, whose moments are known better than they were read because they come
at a steady beat, and shifted by the lag that the power trace shows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum
from operator import mul
from statistics import linear_regression, median

LAG_S = 0.1
"""How far a counter may trail the power unseen, seconds."""

LONGEST_LAG_S = 0.3
"""A lag is looked for up to here, in steps of LAG_STEP_S."""

LAG_STEP_S = 0.01

SEEN = 0.5
"""A lag is believed where it leaves less than this share of what disagrees without it."""

LONGEST_GAP_S = 0.5
"""A trace with a longer hole says nothing about what was in it."""


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
class Counted:
    """What a counter says, or why it says nothing.

    Attributes:
        joules: Its difference over the window.
        step_s: How often it steps.
        blur_s: By how much the moments of the steps at both ends are uncertain, together.
        why_not: Why it gives no difference.
        invalid: Why nothing that it says may be judged.
    """

    joules: float | None = None
    step_s: float = LAG_S
    blur_s: float = 0.0
    why_not: str = ""
    invalid: tuple[str, ...] = ()


def count(
    counter: Sequence[Reading], trace: Sequence[Reading], begin_s: float, end_s: float
) -> Counted:
    """Interpolate between the moments at which the counter stepped."""
    if not counter:
        return Counted(why_not="no energy counter")
    for earlier, later in pairwise(counter):
        if later.value < earlier.value:
            reset = (
                f"the energy counter went back from {earlier.value:,.0f} J to "
                f"{later.value:,.0f} J: the driver was loaded anew (no persistence mode?)"
            )
            return Counted(why_not="the energy counter was reset", invalid=(reset,))
    steps = [
        Reading(time_s=(earlier.time_s + later.time_s) / 2, value=later.value)
        for earlier, later in pairwise(counter)
        if later.value > earlier.value
    ]
    if len(steps) < 3:
        return Counted(why_not="the energy counter does not move")
    read_s = median(later.time_s - earlier.time_s for earlier, later in pairwise(counter))
    steps = evenly(steps, read_s)
    if steps[0].time_s > begin_s or steps[-1].time_s < end_s:
        return Counted(why_not="the energy counter was not read before and after the window")
    gap = _gap_at(steps, begin_s), _gap_at(steps, end_s)
    if max(gap) > LONGEST_GAP_S:
        return Counted(why_not=f"the energy counter was not read for {max(gap):.1f} s at an end")
    step_s = median(later.time_s - earlier.time_s for earlier, later in pairwise(steps))
    lag_s = lag_of(steps, trace)
    if steps[-1].time_s - lag_s < end_s:
        lag_s = 0.0
    return Counted(
        joules=at(steps, end_s + lag_s) - at(steps, begin_s + lag_s),
        step_s=step_s,
        blur_s=read_s,
    )


def evenly(steps: Sequence[Reading], read_s: float) -> list[Reading]:
    """Return the steps of a counter at even moments, where only the reading made them uneven.

    A step is only known to lie between two readings. That they come at a steady beat tells where.

    Args:
        steps: The moments at which the counter was seen to have stepped.
        read_s: Time between two readings, seconds.
    """
    moments = [reading.time_s - steps[0].time_s for reading in steps]
    beat_s = moments[-1] / (len(steps) - 1)
    numbers = [round(moment / beat_s) for moment in moments]
    fitted = linear_regression(numbers, moments)
    even = [steps[0].time_s + fitted.intercept + fitted.slope * number for number in numbers]
    off = max(abs(t - reading.time_s) for t, reading in zip(even, steps, strict=True))
    if off > read_s:
        return list(steps)
    return [Reading(time_s=t, value=r.value) for t, r in zip(even, steps, strict=True)]


def lag_of(steps: Sequence[Reading], trace: Sequence[Reading]) -> float:
    """Return by how much a counter's steps trail a power trace, seconds; 0 where none is seen.

    The lag at which the increments of the counter are most nearly proportional to the power that
    the trace saw so much earlier. A load that hardly changes shows no lag, and needs none.

    Args:
        steps: The moments at which the counter stepped.
        trace: Readings in watts.
    """
    inside = [r for r in steps if trace and trace[0].time_s + LONGEST_LAG_S < r.time_s]
    inside = [r for r in inside if r.time_s <= trace[-1].time_s]
    if len(inside) < 10:
        return 0.0
    total = [Reading(time_s=trace[0].time_s, value=0.0)]
    for earlier, later in pairwise(trace):
        added = (later.time_s - earlier.time_s) * (earlier.value + later.value) / 2
        if later.time_s > earlier.time_s:
            total.append(Reading(time_s=later.time_s, value=total[-1].value + added))
    increments = [later.value - earlier.value for earlier, later in pairwise(inside)]
    misfits = []
    for candidate in range(round(LONGEST_LAG_S / LAG_STEP_S) + 1):
        then = [at(total, r.time_s - candidate * LAG_STEP_S) for r in inside]
        seen = [later - earlier for earlier, later in pairwise(then)]
        scale = fsum(map(mul, seen, increments)) / max(fsum(map(mul, seen, seen)), 1e-9)
        misfits.append(fsum((y - scale * x) ** 2 for x, y in zip(seen, increments, strict=True)))
    best = min(range(len(misfits)), key=misfits.__getitem__)
    return best * LAG_STEP_S if misfits[best] < SEEN * misfits[0] else 0.0


def _gap_at(readings: Sequence[Reading], time_s: float) -> float:
    """Return the time between the two readings around a moment, seconds."""
    after = bisect_right(readings, time_s, key=lambda reading: reading.time_s)
    after = min(max(after, 1), len(readings) - 1)
    return readings[after].time_s - readings[after - 1].time_s


def at(readings: Sequence[Reading], time_s: float) -> float:
    """Return the value at a moment between two readings, on the line through both."""
    after = bisect_right(readings, time_s, key=lambda reading: reading.time_s)
    after = min(max(after, 1), len(readings) - 1)
    left, right = readings[after - 1], readings[after]
    share = (time_s - left.time_s) / (right.time_s - left.time_s)
    return left.value + share * (right.value - left.value)
