"""What readings of a GPU say of a window: the trace of its power, and its energy counter.

A power sensor refreshes every 20 to 100 ms and shows the mean of the last of its windows, which on
GA10x reaches from one refresh to the next and on A100 and H100 covers a quarter of that. Where it
does not cover, a load whose period locks to the refresh is seen in one phase alone: no rate of
reading mends that, and nothing in the trace shows it. So a trace that may not cover has no
uncertainty: it is not known.

The counter of NVML steps about every 100 ms and trails the power by 0.1 to 0.2 s: its difference
over a window is off by a time constant times the step of power at the window's ends. So it is
interpolated between its steps, whose moments are known better than they were read because they come
at a steady beat, and shifted by the lag that the power trace shows, which itself is late.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum, hypot
from operator import mul
from statistics import fmean, linear_regression, median
from typing import Any

from pytest_mlperf.core.plausible import BOUNDS

MAX_TRACE_GAP_SECONDS = 0.5
MIN_SAMPLES_SHARE = 0.8
MAX_REFRESH_SECONDS = 0.25
"""No sensor refreshes less often: a longer time between two changes is that of the load."""

MIN_CHANGES = 8
REFRESH_PERCENTILE = 0.1
"""Percentile of the times between changes that shows the refresh: a flat load hides most of them,
so that their median is the load's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One reading of a GPU, monotonic seconds: joules since any moment of a counter, else watts."""

    time_s: float
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Traced:
    """The energy of a window by its trace.

    Attributes:
        joules: The integral; None where the trace is too thin.
        unsure_j: What it may be off by where the sensor covers: its delay at both ends, and the
            moments of its changes, which are known no better than they were read.
    """

    joules: float | None = None
    unsure_j: float = 0.0
    why_not: str = ""


MAX_MISREADINGS = 0.5
"""So many readings may be misread for each that is not; of more, beside one, none is believed."""

MAX_MISREAD_SECONDS = 5.0
"""A counter that is off its line for longer may have begun anew, and grown up to where it was."""


def without_misreads(
    readings: Sequence[Reading], begin_s: float, end_s: float, most_per_s: float = math.inf
) -> tuple[Sequence[Reading], int]:
    """Return the readings that one counter can have shown, and how many others lie among them.

    A counter only rises, and by `most_per_s` at most. Where it did not come back from what does
    not fit in a window, it began anew or jumped: then there are none.
    """
    rises = ((b.value - a.value, b.time_s - a.time_s) for a, b in pairwise(readings))
    if all(rise >= 0 and rise / most_per_s <= took_s for rise, took_s in rises):
        return readings, 0
    # The longest line, by patience sorting: as values fall, so do times less what the rise takes.
    keys: list[float] = []
    lines: list[Any] = []  # of each length, as pairs of a reading and what follows it
    for reading in sorted(readings, key=lambda r: (r.value, r.time_s), reverse=True):
        key = reading.value / most_per_s - reading.time_s
        place = bisect_right(keys, key)
        keys[place : place + 1] = [key]
        lines[place : place + 1] = [(reading, lines[place - 1] if place else None)]
    line, rest = [], lines[-1]
    while rest:
        reading, rest = rest
        line.append(reading)
    first_s, last_s = line[0].time_s, line[-1].time_s
    misread = sum(first_s <= reading.time_s <= last_s for reading in readings) - len(line)
    begins = first_s <= max(begin_s, readings[0].time_s)
    reaches = begins and last_s >= min(end_s, readings[-1].time_s)
    return (line if reaches and misread <= max(1, MAX_MISREADINGS * len(line)) else ()), misread


def slopes(readings: Sequence[Reading]) -> list[float]:
    """Return by how much a counter rose in a second, between each two readings."""
    return [(b.value - a.value) / (b.time_s - a.time_s) for a, b in pairwise(readings)]


def at(readings: Sequence[Reading], time_s: float) -> float:
    """Return the value at a moment, on the line through the two readings around it."""
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
    """Return how often the sensor behind a trace refreshes, seconds; None: it cannot be seen."""
    changes = [b.time_s for a, b in pairwise(trace) if a.value != b.value]
    gaps = sorted(later - earlier for earlier, later in pairwise(changes))
    if len(gaps) < MIN_CHANGES:
        return None
    shortest = gaps[int(REFRESH_PERCENTILE * len(gaps))]
    return shortest if shortest <= MAX_REFRESH_SECONDS else None


def delay_s(trace: Sequence[Reading], *, covers: bool, usual_s: float = 0.0) -> float:
    """Return how late a trace shows the power, as far as that is known, seconds.

    A reading is on average half a refresh old. Of a sensor that covers it is the mean of a whole
    refresh before that; how much of it another sensor sees is not known. `usual_s` is the refresh
    where the trace stands so still that it shows none.
    """
    refresh = refresh_s(trace) or usual_s
    return refresh if covers else refresh / 2


def traced(
    trace: Sequence[Reading],
    begin_s: float,
    end_s: float,
    *,
    rate_hz: float | None = None,
    covers: bool = True,
) -> Traced:
    """Return the integral of a trace over a window, moved by what the sensor is late."""
    if len(trace) < 2:
        return Traced(why_not="no power trace")
    if trace[0].time_s > begin_s or trace[-1].time_s < end_s:
        return Traced(why_not="the power trace does not reach over the window")
    inside = [reading for reading in trace if begin_s < reading.time_s < end_s]
    gap = max(b - a for a, b in pairwise([begin_s, *(r.time_s for r in inside), end_s]))
    if gap > MAX_TRACE_GAP_SECONDS:
        return Traced(why_not=f"the power trace has a hole of {gap:.1f} s")
    if rate_hz and len(inside) < MIN_SAMPLES_SHARE * rate_hz * (end_s - begin_s):
        share = len(inside) / (rate_hz * (end_s - begin_s))
        return Traced(why_not=f"the power trace has {share:.0%} of its samples")
    total, read_s = cumulated(trace), beat_s(trace)
    late = max(0.0, min(delay_s(trace, covers=covers), trace[-1].time_s - end_s))
    first, last = (at(total, end + late) for end in (begin_s, end_s))
    rises = fsum(abs(b.value - a.value) for a, b in pairwise(inside))
    unseen_s = read_s + (refresh_s(trace) or read_s)
    ends = (begin_s, end_s)
    near = [r.value for r in trace if min(abs(r.time_s - end) for end in ends) <= 2 * unseen_s]
    swing_w = max(near) - min(near) if near else 0.0
    return Traced(joules=last - first, unsure_j=rises * read_s / 2 + unseen_s * swing_w)


LAG_S = 0.1
"""How far a counter may trail the power unseen, seconds."""

MAX_WATTS = BOUNDS["power_w"][1]

MAX_RISE_WATTS = 100 * MAX_WATTS
"""A step of a second may be read 10 ms after the reading before it."""

LAGS_S = (-0.1, 0.7)
"""A lag behind the trace is looked for from here to there, in steps of LAG_STEP_S: below 0, because
a trace is late too."""

LAG_STEP_S = 0.01

END_ERROR_FACTOR = 1.32
"""So many times what the ends of a window hide is stated: it covers 99 % of the windows of each
simulated board, those of seeds and shapes that it was not chosen by included."""

NEAR_SECONDS = 0.5
"""The power so long before and after a moment shows what it may have been in that moment."""

UNWATCHED_STEP_SECONDS = 0.1
"""A counter that nobody watched steps as often as this at least."""

STILL_RATIO, MIN_STILL_STEPS = 1.05, 5
"""The power stands still where its highest is at most so many times its lowest; so many steps."""

MAX_LAG_ERROR_SHARE = 0.5
"""A lag is believed where it leaves less than this share of what disagrees at the worst one."""

MAX_STEP_SECONDS = 1.0
"""A counter that steps less often says nothing about a window of seconds."""

HOLE_FACTOR = 3
"""So many times the usual time between two readings, or two steps, are a hole."""

UNEVEN = 0.05
"""Share of a counter's steps that a late reading may put elsewhere than the beat."""

OFFBEAT_SHARE = 0.1
"""Share of what a step is off its beat by which the next ones are expected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CounterEnergy:
    """What a counter says, or why it says nothing.

    Attributes:
        lag_j: What it may be off by as its lag is not known better.
        steps_j: What it may be off by as nobody sees when in a step at an end the power changed.
        lag_s: By how much it trails the power; None where that was not seen.
        gain: What it counts of a joule where the power stood still; None where it did not.
        why_not: Why it gives no difference.
        invalid: Why nothing that it says may be judged.
    """

    joules: float | None = None
    lag_j: float = 0.0
    steps_j: float = 0.0
    lag_s: float | None = None
    gain: float | None = None
    why_not: str = ""
    invalid: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def count(
    counter: Sequence[Reading],
    trace: Sequence[Reading],
    begin_s: float,
    end_s: float,
    *,
    covers: bool = True,
    period_s: float | None = None,
) -> CounterEnergy:
    """Interpolate between the steps of the counter, which are `period_s` apart if that is known."""
    if not counter:
        return CounterEnergy(why_not="no energy counter")
    ends = (begin_s, end_s)
    read, (counter, misread) = counter, without_misreads(counter, begin_s, end_s, MAX_RISE_WATTS)
    if _breaks(counter, ends, misread):
        return _broken(read)
    steps = steps_of(counter)
    if len(steps) < 3:
        return CounterEnergy(why_not="the energy counter does not move")
    if reason := _why_not(counter, steps, ends):
        return CounterEnergy(why_not=reason)
    behind_s = lag_of(steps, trace)
    # A board renews its power and its counter together, as far as is known.
    delay = delay_s(
        trace, covers=covers, usual_s=min(period_s or beat_s(steps), UNWATCHED_STEP_SECONDS)
    )
    unsure_s = LAG_STEP_S + delay / (4 if covers else 1)
    unsure_s += beat_s(trace) / 2 if len(trace) > 1 else 0.0
    unsure_s += max(_gap_at(counter, end) for end in ends) - beat_s(counter)
    lag_s = None if behind_s is None else behind_s + delay
    shift_s = lag_s or 0.0
    # One that trails by more than others may count a mean.
    unsure_s += max(0.0, shift_s - 2 * LAG_S)
    # A counter that was not read for long enough after the window is read where it was.
    unread = not steps[0].time_s - begin_s <= shift_s <= steps[-1].time_s - end_s
    unsure_s += max(LAG_S, shift_s) if lag_s is None or unread else 0.0
    shift_s = 0.0 if unread else shift_s
    shape = cumulated(trace) if behind_s is not None else []

    def shown_j(time_s: float) -> float:
        return _along(steps, shape, time_s + shift_s, behind_s or 0.0)

    def used_j(off_s: float = 0.0) -> float:
        return shown_j(end_s + off_s) - shown_j(begin_s + off_s)

    period_s = period_s or min(refresh_s(trace) or UNWATCHED_STEP_SECONDS, UNWATCHED_STEP_SECONDS)
    blur_s = min(beat_s(counter), UNWATCHED_STEP_SECONDS) / 3
    if beat_s(steps) < 1.5 * beat_s(counter):  # it may step more often than it is read
        blur_s = max(blur_s, min(beat_s(counter), period_s) / 2)
    then = [Reading(time_s=end + shift_s, value=shown_j(end)) for end in ends]
    hidden = [_hidden_j(steps, trace, each, behind_s or 0.0, blur_s) for each in then]
    late_j = max(abs(used_j(unsure_s * part / 4) - used_j()) for part in range(-4, 5))
    if lag_s is None:  # the counter does not follow the power that is seen
        near = [r.value for r in trace if min(abs(r.time_s - end) for end in ends) <= NEAR_SECONDS]
        late_j = max(late_j, LAG_S * (max(near) - min(near)) if near else 0.0)
    return CounterEnergy(
        joules=used_j(),
        lag_j=END_ERROR_FACTOR * late_j,
        steps_j=END_ERROR_FACTOR * hypot(*hidden),
        lag_s=lag_s,
        gain=_gain(steps, trace, lag_s or 0.0),
        notes=(*misreads(misread), *_holes(counter, ends)),
    )


def misreads(count: int) -> tuple[str, ...]:
    """Return how often a counter was misread, in words; nothing where it was not."""
    often = "once" if count == 1 else f"{count} times"
    return (f"the energy counter was misread {often}, and came back to its line",) if count else ()


def _breaks(line: Sequence[Reading], ends: tuple[float, float], misread: int) -> bool:
    return not line or any(
        b.value - a.value > MAX_WATTS * (b.time_s - a.time_s + MAX_STEP_SECONDS)
        or (misread and b.time_s - a.time_s > MAX_MISREAD_SECONDS)
        for a, b in pairwise(line)
        if a.time_s <= ends[1] and b.time_s >= ends[0]
    )


def _broken(counter: Sequence[Reading]) -> CounterEnergy:
    fell = next(((a.value, b.value) for a, b in pairwise(counter) if b.value < a.value), None)
    if fell is None:
        jumped = "the energy counter jumped by more than any board draws"
        return CounterEnergy(why_not=jumped, invalid=(jumped,))
    reset = (
        f"the energy counter went back from {fell[0]:,.0f} J to {fell[1]:,.0f} J: the driver was "
        "loaded anew (no persistence mode?)"
    )
    return CounterEnergy(why_not="the energy counter was reset", invalid=(reset,))


def _hidden_j(
    steps: Sequence[Reading],
    trace: Sequence[Reading],
    then: Reading,
    behind_s: float,
    blur_s: float,
) -> float:
    """Return what a counter may be off by between two steps, whose moments are known to `blur_s`.

    Within a step the power was something between the least and the most that was seen nearby.
    """
    earlier, later = around(steps, then.time_s)
    near_s = max(
        NEAR_SECONDS, *(5 * beat_s(readings) for readings in (trace, steps) if readings[1:])
    )
    watts = slopes([r for r in steps if abs(r.time_s - then.time_s) <= near_s])
    seen = [r.value for r in trace if abs(r.time_s - then.time_s + behind_s) <= near_s]
    watts += seen or [0.0, 2 * max(watts)]
    low_w, high_w, rise_j = min(watts), max(watts), later.value - earlier.value
    step_s = later.time_s - earlier.time_s
    first_s = min(max(then.time_s - earlier.time_s, 0.0), step_s)
    most_j = min(first_s * high_w, rise_j - (step_s - first_s) * low_w)
    least_j = max(first_s * low_w, rise_j - (step_s - first_s) * high_w)
    shown_j = then.value - earlier.value
    return hypot(max(most_j - shown_j, shown_j - least_j), blur_s * rise_j / step_s)


def _gain(steps: Sequence[Reading], trace: Sequence[Reading], lag_s: float) -> float | None:
    """Return what a counter counts of a joule where the power stood still and was lowest.

    There a sensor that sees a part of the time sees all. A load that locks to the sensor looks as
    still, but not so low to the counter.
    """
    still, near_s = [], NEAR_SECONDS / 2
    for (earlier, later), counted_w in zip(pairwise(steps), slopes(steps), strict=True):
        ends = earlier.time_s - lag_s - near_s, later.time_s - lag_s + near_s
        first, last = (bisect_right(trace, end, key=lambda r: r.time_s) for end in ends)
        watts = [reading.value for reading in trace[first:last]]
        if first and last < len(trace) and 0 < max(watts, default=0) <= STILL_RATIO * min(watts):
            still.append((counted_w, fmean(watts)))
    rows = [still[i : i + MIN_STILL_STEPS] for i in range(len(still) - MIN_STILL_STEPS + 1)]
    if not rows:
        return None
    low_w = max(watts for _, watts in min(rows, key=lambda row: fsum(w for w, _ in row)))
    return median(
        w / watts for w, watts in still if low_w / STILL_RATIO <= watts <= low_w * STILL_RATIO
    )


def steps_of(counter: Sequence[Reading]) -> list[Reading]:
    """Return the moments at which a counter stepped, and what it showed from then on."""
    steps = [
        Reading(time_s=(earlier.time_s + later.time_s) / 2, value=later.value)
        for earlier, later in pairwise(counter)
        if later.value > earlier.value
    ]
    return evenly(steps, beat_s(counter)) if len(steps) > 2 else steps


def evenly(steps: Sequence[Reading], read_s: float) -> list[Reading]:
    """Return the steps of a counter at even moments, where only the reading made them uneven.

    A step is only known to lie between two readings. That they come at a steady beat tells where.
    """
    moments = [reading.time_s - steps[0].time_s for reading in steps]
    numbers = _numbers(moments)
    fitted = linear_regression(numbers, moments)
    even = [steps[0].time_s + fitted.intercept + fitted.slope * number for number in numbers]
    off = [abs(t - reading.time_s) > read_s for t, reading in zip(even, steps, strict=True)]
    if sum(off) > UNEVEN * len(off):
        return list(steps)
    return [Reading(time_s=t, value=r.value) for t, r in zip(even, steps, strict=True)]


def _numbers(moments: Sequence[float]) -> list[int]:
    """Return which beat each moment is that of; beats in a hole were not seen."""
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    hole_s = HOLE_FACTOR * median(gaps)
    beat = fmean(gap for gap in gaps if gap <= hole_s)
    numbers, shift_s = [0], 0.0
    for moment in moments[1:]:
        number = round((moment - shift_s) / beat)
        if number <= numbers[-1]:
            # The one before was seen late, if there is a beat left for it.
            numbers[-1] -= numbers[-1] - 1 not in numbers[-2:]
            number = numbers[-1] + 1
        # The beat is known from this alone, so that a long row of steps drifts: it is followed.
        shift_s += OFFBEAT_SHARE * (moment - number * beat - shift_s)
        numbers.append(number)
    return numbers


def lag_of(steps: Sequence[Reading], trace: Sequence[Reading]) -> float | None:
    """Return by how much a counter's steps trail a power trace, seconds; None where it is not seen.

    The lag at which the increments of the counter are most nearly proportional to the power that
    the trace saw so much earlier. It is below 0 where the trace is the later. A load that hardly
    changes shows no lag, and needs none.
    """
    least_s, most_s = LAGS_S
    inside = [
        r
        for r in steps
        if trace and trace[0].time_s + most_s < r.time_s <= trace[-1].time_s + least_s
    ]
    if len(inside) < 10:
        return None
    total = cumulated(trace)
    increments = [later.value - earlier.value for earlier, later in pairwise(inside)]

    def misfit(lag: int) -> float:
        then = [at(total, r.time_s - lag * LAG_STEP_S) for r in inside]
        seen = [later - earlier for earlier, later in pairwise(then)]
        scale = fsum(map(mul, seen, increments)) / max(fsum(map(mul, seen, seen)), 1e-9)
        return fsum((y - scale * x) ** 2 for x, y in zip(seen, increments, strict=True))

    misfits = {
        lag: misfit(lag)
        for lag in range(round(least_s / LAG_STEP_S), round(most_s / LAG_STEP_S), 2)
    }
    near = min(misfits, key=misfits.__getitem__)
    misfits |= {lag: misfit(lag) for lag in (near - 1, near + 1)}
    best = min(misfits, key=misfits.__getitem__)
    return (
        best * LAG_STEP_S if misfits[best] < MAX_LAG_ERROR_SHARE * max(misfits.values()) else None
    )


def _along(
    steps: Sequence[Reading], total: Sequence[Reading], time_s: float, behind_s: float
) -> float:
    """Return what a counter would show at a moment of its time if it did not step.

    What it rose by in the step is spread as the trace saw the power meanwhile, for a job begins and
    ends in the middle of a step. Without a trace (`total` is empty) evenly.
    """
    earlier, later = around(steps, time_s)
    if not total or earlier.time_s - behind_s < total[0].time_s:
        return at(steps, time_s)
    first, now, last = (at(total, t - behind_s) for t in (earlier.time_s, time_s, later.time_s))
    if last <= first or later.time_s - behind_s > total[-1].time_s:
        return at(steps, time_s)
    return earlier.value + (later.value - earlier.value) * (now - first) / (last - first)


def _why_not(
    counter: Sequence[Reading], steps: Sequence[Reading], ends: tuple[float, float]
) -> str:
    begin_s, end_s = ends
    if counter[0].time_s > begin_s or counter[-1].time_s < end_s:
        return "the energy counter was not read before and after the window"
    unread_s = max(_gap_at(counter, end) for end in ends)
    if unread_s > MAX_TRACE_GAP_SECONDS:
        return f"the energy counter was not read for {unread_s:.1f} s at an end"
    if steps[0].time_s > begin_s or steps[-1].time_s < end_s:
        return "the energy counter did not step before and after the window"
    still_s = max(_gap_at(steps, end) for end in ends)
    if still_s > MAX_STEP_SECONDS:
        return f"the energy counter stood still for {still_s:.1f} s at an end"
    return ""


def _holes(counter: Sequence[Reading], ends: tuple[float, float]) -> tuple[str, ...]:
    usual_s = beat_s(counter)
    gaps = zip(("begin", "end"), (_gap_at(counter, end) for end in ends), strict=True)
    return tuple(
        f"nothing was read for {gap_s:.2f} s at the window's {end}"
        for end, gap_s in gaps
        if gap_s > HOLE_FACTOR * usual_s
    )


def _gap_at(readings: Sequence[Reading], time_s: float) -> float:
    """Return the time between the two readings around a moment, seconds."""
    earlier, later = around(readings, time_s)
    return later.time_s - earlier.time_s
