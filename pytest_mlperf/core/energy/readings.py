"""Evaluate a GPU's power trace and energy counter over a window.

A power sensor refreshes every 20 to 100 ms and reports the mean of its last averaging window. The
window is a whole refresh on GA10x, and a quarter of it on A100 and H100. If a load's
period locks to the refresh, a sensor of the latter kind sees only one phase of the load. The trace
does not show this at any sampling rate, so its uncertainty is unknown.

NVML's counter steps about every 100 ms and lags 0.1 to 0.2 s behind the power. So its increase
over a window is wrong by this lag times the change of power at the window's ends. The counter is
therefore interpolated between its steps, and shifted by its lag. The steps have a constant period,
so that their times are known more exactly than those of the readings.
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

from pytest_mlperf.core.notes import Note, Words
from pytest_mlperf.core.plausible import BOUNDS

MAX_TRACE_GAP_SECONDS = 0.5
MIN_SAMPLES_SHARE = 0.8
MAX_REFRESH_SECONDS = 0.25
"""Longest refresh of a sensor: a longer time between two changes is due to the load."""

MIN_CHANGES = 8
REFRESH_PERCENTILE = 0.1
"""Quantile of the times between changes that is the refresh: a flat load hides changes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """Hold a reading at a monotonic time [s]: energy of a counter [J], or power [W]."""

    time_s: float
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Traced:
    """Hold energy and its uncertainty [J] by a power trace; `why_not` says why `joules` is None."""

    joules: float | None = None
    unsure_j: float = 0.0
    why_not: Words | None = None


MAX_MISREADINGS = 0.5
"""Highest ratio of misread to good readings, if there are several misread ones."""

MAX_MISREAD_SECONDS = 5.0
"""A counter that is off for longer may have been reset and grown back."""


def without_misreads(
    readings: Sequence[Reading], begin_s: float, end_s: float, max_power_w: float = math.inf
) -> tuple[Sequence[Reading], int]:
    """Remove misread values of an energy counter; return (good readings, number of removed ones).

    Good readings rise by at most `max_power_w` [W]; there are none if the counter was reset.
    """
    rises = ((b.value - a.value, b.time_s - a.time_s) for a, b in pairwise(readings))
    if all(rise >= 0 and rise / max_power_w <= took_s for rise, took_s in rises):
        return readings, 0
    # The longest chain, by patience sorting: as values fall, times fall by the least rise time.
    keys: list[float] = []
    lines: list[Any] = []  # by length, as pairs of a reading and the rest of its chain
    for reading in sorted(readings, key=lambda r: (r.value, r.time_s), reverse=True):
        key = reading.value / max_power_w - reading.time_s
        position = bisect_right(keys, key)
        keys[position : position + 1] = [key]
        lines[position : position + 1] = [(reading, lines[position - 1] if position else None)]
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
    """Return the rise per second between successive readings."""
    return [(b.value - a.value) / (b.time_s - a.time_s) for a, b in pairwise(readings)]


def at(readings: Sequence[Reading], time_s: float) -> float:
    """Return the value at a time by linear interpolation between readings."""
    left, right = around(readings, time_s)
    share = (time_s - left.time_s) / (right.time_s - left.time_s)
    return left.value + share * (right.value - left.value)


def around(readings: Sequence[Reading], time_s: float) -> tuple[Reading, Reading]:
    """Return the readings before and after a time; outside the range, the two nearest ones."""
    after = bisect_right(readings, time_s, key=lambda reading: reading.time_s)
    after = min(max(after, 1), len(readings) - 1)
    return readings[after - 1], readings[after]


def median_interval_s(readings: Sequence[Reading]) -> float:
    """Return the median time between readings [s]."""
    return median(later.time_s - earlier.time_s for earlier, later in pairwise(readings))


def cumulated(trace: Sequence[Reading]) -> list[Reading]:
    """Integrate a power trace: return the energy up to each reading [J]."""
    total = [Reading(time_s=trace[0].time_s, value=0.0)]
    for earlier, later in pairwise(trace):
        added = (later.time_s - earlier.time_s) * (earlier.value + later.value) / 2
        if later.time_s > earlier.time_s:
            total.append(Reading(time_s=later.time_s, value=total[-1].value + added))
    return total


def refresh_s(trace: Sequence[Reading]) -> float | None:
    """Estimate the refresh period of the power sensor from a trace [s]; None if unknown."""
    changes = [b.time_s for a, b in pairwise(trace) if a.value != b.value]
    gaps = sorted(later - earlier for earlier, later in pairwise(changes))
    if len(gaps) < MIN_CHANGES:
        return None
    shortest = gaps[int(REFRESH_PERCENTILE * len(gaps))]
    return shortest if shortest <= MAX_REFRESH_SECONDS else None


def delay_s(trace: Sequence[Reading], *, covers: bool, usual_s: float = 0.0) -> float:
    """Return the delay of a power trace behind the actual power [s].

    On average a reading is half a refresh old; if the sensor measures all the time (`covers`), it
    is also the mean of a whole refresh. `usual_s`: refresh for a trace too steady to show it.
    """
    refresh = refresh_s(trace) or usual_s
    return refresh if covers else refresh / 2


def integrate_trace(
    trace: Sequence[Reading],
    begin_s: float,
    end_s: float,
    *,
    rate_hz: float | None = None,
    covers: bool = True,
) -> Traced:
    """Integrate a power trace over a window, shifted by the sensor's delay.

    `rate_hz` is the planned sampling rate; `covers`: the sensor measures without gaps.
    """
    if len(trace) < 2:
        return Traced(why_not=Note.of("no_trace"))
    if trace[0].time_s > begin_s or trace[-1].time_s < end_s:
        return Traced(why_not=Note.of("trace_in_part"))
    inside = [reading for reading in trace if begin_s < reading.time_s < end_s]
    gap = max(b - a for a, b in pairwise([begin_s, *(r.time_s for r in inside), end_s]))
    if gap > MAX_TRACE_GAP_SECONDS:
        return Traced(why_not=Note.of("trace_gap", gap_s=gap, most_s=MAX_TRACE_GAP_SECONDS))
    if rate_hz and len(inside) < MIN_SAMPLES_SHARE * rate_hz * (end_s - begin_s):
        share = len(inside) / (rate_hz * (end_s - begin_s))
        return Traced(why_not=Note.of("trace_thin", share=share))
    total, read_s = cumulated(trace), median_interval_s(trace)
    late = max(0.0, min(delay_s(trace, covers=covers), trace[-1].time_s - end_s))
    first, last = (at(total, end + late) for end in (begin_s, end_s))
    rises = fsum(abs(b.value - a.value) for a, b in pairwise(inside))
    unseen_s = read_s + (refresh_s(trace) or read_s)
    ends = (begin_s, end_s)
    near = [r.value for r in trace if min(abs(r.time_s - end) for end in ends) <= 2 * unseen_s]
    swing_w = max(near) - min(near) if near else 0.0
    return Traced(joules=last - first, unsure_j=rises * read_s / 2 + unseen_s * swing_w)


LAG_S = 0.1
"""Lag of a counter behind the power that may stay undetected [s]."""

MAX_WATTS = BOUNDS["power_w"][1]

MAX_RISE_WATTS = 100 * MAX_WATTS
"""A step of a second may be read 10 ms after the reading before it."""

LAGS_S = (-0.1, 0.7)
"""Range of the lag, in steps of LAG_STEP_S; negative because a trace is late too."""

LAG_STEP_S = 0.01

END_ERROR_FACTOR = 1.32
"""It covers 99 % of the windows of each simulated board, also with other seeds and shapes."""

NEAR_SECONDS = 0.5
"""The powers within this time of a moment are taken as bounds of its power."""

UNWATCHED_STEP_SECONDS = 0.1
"""Longest step period of a counter whose period was not measured."""

STILL_RATIO, MIN_STILL_STEPS = 1.05, 5
"""Steady power: highest over lowest at most this ratio, over this number of steps."""

MAX_LAG_ERROR_SHARE = 0.5
"""A lag is accepted if its misfit is less than this share of the worst lag's."""

MAX_STEP_SECONDS = 1.0
"""A counter with longer steps is useless for a window of seconds."""

HOLE_FACTOR = 3
"""Multiple of the usual time between readings, or steps, from which it is a gap."""

UNEVEN = 0.05
"""Share of a counter's steps that late readings may put off the beat."""

OFFBEAT_SHARE = 0.1
"""Share of a step's deviation from the beat by which later steps are shifted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CounterEnergy:
    """Hold the energy of an energy counter in a window.

    Attributes:
        joules: Energy in the window [J]; None if unknown, for the reason `why_not`.
        lag_j, steps_j: Uncertainties due to the lag, and due to the steps at the window's ends [J].
        lag_s: Lag of the counter behind the power [s]; None if unknown.
        gain: Joules by the counter per joule by the power trace at steady power; None without it.
    """

    joules: float | None = None
    lag_j: float = 0.0
    steps_j: float = 0.0
    lag_s: float | None = None
    gain: float | None = None
    why_not: Words | None = None
    invalid: tuple[Words, ...] = ()
    notes: tuple[Words, ...] = ()


def counter_energy(
    counter: Sequence[Reading],
    trace: Sequence[Reading],
    begin_s: float,
    end_s: float,
    *,
    covers: bool = True,
    period_s: float | None = None,
) -> CounterEnergy:
    """Return the energy that a counter [J] shows from `begin_s` to `end_s`.

    `trace` is the GPU's power [W], from which the counter's lag is estimated. `covers`: whether the
    sensor measures without gaps. `period_s`: time between the counter's steps; None: their median.
    """
    if not counter:
        return CounterEnergy(why_not=Note.of("no_counter", reader="gpu", metric=""))
    ends = (begin_s, end_s)
    read, (counter, misread) = counter, without_misreads(counter, begin_s, end_s, MAX_RISE_WATTS)
    if _breaks(counter, ends, misread):
        return _broken(read)
    steps = steps_of(counter)
    if len(steps) < 3:
        return CounterEnergy(why_not=Note.of("counter_constant"))
    if reason := _why_not(counter, steps, ends):
        return CounterEnergy(why_not=reason)
    behind_s = lag_of(steps, trace)
    # As far as is known, a board refreshes its power and its counter together.
    delay = delay_s(
        trace,
        covers=covers,
        usual_s=min(period_s or median_interval_s(steps), UNWATCHED_STEP_SECONDS),
    )
    unsure_s = LAG_STEP_S + delay / (4 if covers else 1)
    unsure_s += median_interval_s(trace) / 2 if len(trace) > 1 else 0.0
    unsure_s += max(_gap_at(counter, end) for end in ends) - median_interval_s(counter)
    lag_s = None if behind_s is None else behind_s + delay
    shift_s = lag_s or 0.0
    # A counter with a larger lag than others may count a mean.
    unsure_s += max(0.0, shift_s - 2 * LAG_S)
    # A counter that was not read for long enough after the window cannot be shifted.
    unread = not steps[0].time_s - begin_s <= shift_s <= steps[-1].time_s - end_s
    unsure_s += max(LAG_S, shift_s) if lag_s is None or unread else 0.0
    shift_s = 0.0 if unread else shift_s
    shape = cumulated(trace) if behind_s is not None else []

    def shown_j(time_s: float) -> float:
        return _interpolate_energy(steps, shape, time_s + shift_s, behind_s or 0.0)

    def used_j(off_s: float = 0.0) -> float:
        return shown_j(end_s + off_s) - shown_j(begin_s + off_s)

    period_s = period_s or min(refresh_s(trace) or UNWATCHED_STEP_SECONDS, UNWATCHED_STEP_SECONDS)
    blur_s = min(median_interval_s(counter), UNWATCHED_STEP_SECONDS) / 3
    if median_interval_s(steps) < 1.5 * median_interval_s(
        counter
    ):  # it may step more often than it is read
        blur_s = max(blur_s, min(median_interval_s(counter), period_s) / 2)
    then = [Reading(time_s=end + shift_s, value=shown_j(end)) for end in ends]
    hidden = [_step_error_j(steps, trace, each, behind_s or 0.0, blur_s) for each in then]
    late_j = max(abs(used_j(unsure_s * part / 4) - used_j()) for part in range(-4, 5))
    if lag_s is None:  # the counter does not follow the trace
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


def misreads(count: int) -> tuple[Note, ...]:
    """Return a note on the number of misread counter values; () if there are none."""
    return (Note.of("counter_misread", count=count),) if count else ()


def _breaks(line: Sequence[Reading], ends: tuple[float, float], misread: int) -> bool:
    return not line or any(
        b.value - a.value > MAX_WATTS * (b.time_s - a.time_s + MAX_STEP_SECONDS)
        or (misread and b.time_s - a.time_s > MAX_MISREAD_SECONDS)
        for a, b in pairwise(line)
        if a.time_s <= ends[1] and b.time_s >= ends[0]
    )


def _broken(counter: Sequence[Reading]) -> CounterEnergy:
    fell = next(((a.value, b.value) for a, b in pairwise(counter) if b.value < a.value), None)
    note = Note.of("counter_jumped")
    if fell is not None:
        note = Note.of("counter_reset", before_j=fell[0], after_j=fell[1])
    return CounterEnergy(why_not=note, invalid=(note,))


def _step_error_j(
    steps: Sequence[Reading],
    trace: Sequence[Reading],
    reading: Reading,
    behind_s: float,
    blur_s: float,
) -> float:
    """Return the uncertainty [J] of an energy counter's value between two of its steps.

    `reading` is that value; the counter is `behind_s` late, and steps are known to ± `blur_s`.
    """
    earlier, later = around(steps, reading.time_s)
    near_s = max(
        NEAR_SECONDS,
        *(5 * median_interval_s(readings) for readings in (trace, steps) if readings[1:]),
    )
    watts = slopes([r for r in steps if abs(r.time_s - reading.time_s) <= near_s])
    seen = [r.value for r in trace if abs(r.time_s - reading.time_s + behind_s) <= near_s]
    watts += seen or [0.0, 2 * max(watts)]
    low_w, high_w, rise_j = min(watts), max(watts), later.value - earlier.value
    step_s = later.time_s - earlier.time_s
    first_s = min(max(reading.time_s - earlier.time_s, 0.0), step_s)
    most_j = min(first_s * high_w, rise_j - (step_s - first_s) * low_w)
    least_j = max(first_s * low_w, rise_j - (step_s - first_s) * high_w)
    shown_j = reading.value - earlier.value
    return hypot(max(most_j - shown_j, shown_j - least_j), blur_s * rise_j / step_s)


def _gain(steps: Sequence[Reading], trace: Sequence[Reading], lag_s: float) -> float | None:
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
    """Return one reading for each rise of the counter, at the estimated time of the rise."""
    steps = [
        Reading(time_s=(earlier.time_s + later.time_s) / 2, value=later.value)
        for earlier, later in pairwise(counter)
        if later.value > earlier.value
    ]
    return regular_steps(steps, median_interval_s(counter)) if len(steps) > 2 else steps


def regular_steps(steps: Sequence[Reading], read_s: float) -> list[Reading]:
    """Fit evenly spaced times to counter steps; undo this if > 5 % would move by > `read_s` [s]."""
    moments = [reading.time_s - steps[0].time_s for reading in steps]
    numbers = _period_indices(moments)
    fitted = linear_regression(numbers, moments)
    even = [steps[0].time_s + fitted.intercept + fitted.slope * number for number in numbers]
    off = [abs(t - reading.time_s) > read_s for t, reading in zip(even, steps, strict=True)]
    if sum(off) > UNEVEN * len(off):
        return list(steps)
    return [Reading(time_s=t, value=r.value) for t, r in zip(even, steps, strict=True)]


def _period_indices(moments: Sequence[float]) -> list[int]:
    """Return the index of the counter's refresh period in which each update (time [s]) lies."""
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    hole_s = HOLE_FACTOR * median(gaps)
    beat = fmean(gap for gap in gaps if gap <= hole_s)
    numbers, shift_s = [0], 0.0
    for moment in moments[1:]:
        number = round((moment - shift_s) / beat)
        if number <= numbers[-1]:
            # The previous step was read late, if there is a free beat before it.
            numbers[-1] -= numbers[-1] - 1 not in numbers[-2:]
            number = numbers[-1] + 1
        # The beat is only estimated, so that a long series drifts: follow it.
        shift_s += OFFBEAT_SHARE * (moment - number * beat - shift_s)
        numbers.append(number)
    return numbers


def lag_of(steps: Sequence[Reading], trace: Sequence[Reading]) -> float | None:
    """Estimate the lag of an energy counter behind a power trace [s]; None if unknown.

    At this lag the least squares fit of counter increments to trace energy is best.
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


def _interpolate_energy(
    steps: Sequence[Reading], cumulated_energy: Sequence[Reading], time_s: float, lag_s: float
) -> float:
    """Interpolate a counter [J] with the shape of sampled energy (`lag_s` earlier) or linearly."""
    earlier, later = around(steps, time_s)
    if not cumulated_energy or earlier.time_s - lag_s < cumulated_energy[0].time_s:
        return at(steps, time_s)
    first, middle, last = (
        at(cumulated_energy, t - lag_s) for t in (earlier.time_s, time_s, later.time_s)
    )
    if last <= first or later.time_s - lag_s > cumulated_energy[-1].time_s:
        return at(steps, time_s)
    return earlier.value + (later.value - earlier.value) * (middle - first) / (last - first)


def _why_not(
    counter: Sequence[Reading], steps: Sequence[Reading], ends: tuple[float, float]
) -> Note | None:
    begin_s, end_s = ends
    if counter[0].time_s > begin_s or counter[-1].time_s < end_s:
        return Note.of("counter_in_part")
    unread_s = max(_gap_at(counter, end) for end in ends)
    if unread_s > MAX_TRACE_GAP_SECONDS:
        return Note.of("counter_unread", seconds=unread_s, end="one end")
    if steps[0].time_s > begin_s or steps[-1].time_s < end_s:
        return Note.of("counter_no_update")
    still_s = max(_gap_at(steps, end) for end in ends)
    if still_s > MAX_STEP_SECONDS:
        return Note.of("counter_still", seconds=still_s)
    return None


def _holes(counter: Sequence[Reading], ends: tuple[float, float]) -> tuple[Note, ...]:
    usual_s = median_interval_s(counter)
    gaps = zip(("the begin", "the end"), (_gap_at(counter, end) for end in ends), strict=True)
    return tuple(
        Note.of("counter_unread", seconds=gap_s, end=end)
        for end, gap_s in gaps
        if gap_s > HOLE_FACTOR * usual_s
    )


def _gap_at(readings: Sequence[Reading], time_s: float) -> float:
    earlier, later = around(readings, time_s)
    return later.time_s - earlier.time_s
