"""What a timeline shows, and how little of it is enough for a picture."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Literal

from pytest_mlperf.core.trace import Reading

Span = tuple[float, float]

SILENT = 5.0
"""A line is broken where readings are missing for so many of their usual intervals."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuLines:
    """The lines of one GPU; times are seconds after the window began.

    Attributes:
        name: For the legend, if there are several.
        power: Watts.
        clock: Of the streaming multiprocessors, MHz.
        temperature: Degrees Celsius.
        limit_w: The enforced power limit, if it is known.
    """

    name: str
    power: Sequence[Reading]
    clock: Sequence[Reading]
    temperature: Sequence[Reading]
    limit_w: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """When clocks were held back for one reason.

    Attributes:
        label: The reason in a few words.
        kind: What it is.
        spans: From when to when, seconds after the window began.
    """

    label: str
    kind: Literal["fault", "cap", "plain"]
    spans: Sequence[Span]


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """All that is drawn.

    Attributes:
        title: The first line.
        subtitle: The second.
        footer: The last.
        shown: From when to when, seconds after the window began.
        window_s: Length of LoadGen's window.
        gpus: At least one.
        lanes: From top to bottom.
    """

    title: str
    subtitle: str
    footer: str
    shown: Span
    window_s: float
    gpus: Sequence[GpuLines]
    lanes: Sequence[Lane] = ()


def decimate(readings: Sequence[Reading], columns: int) -> list[Reading]:
    """Return the lowest and the highest reading of each of so many equal parts of the time.

    Args:
        readings: Oldest first.
        columns: At most twice as many readings are returned, in their order.
    """
    if len(readings) <= 2 * columns:
        return list(readings)
    first_s = readings[0].time_s
    width_s = (readings[-1].time_s - first_s) / columns or 1.0
    parts: dict[int, tuple[Reading, Reading]] = {}
    for reading in readings:
        place = min(int((reading.time_s - first_s) / width_s), columns - 1)
        low, high = parts.get(place, (reading, reading))
        parts[place] = (
            reading if reading.value < low.value else low,
            reading if reading.value > high.value else high,
        )
    ordered = (sorted(ends, key=lambda reading: reading.time_s) for ends in parts.values())
    return [r for low, high in ordered for r in ((low,) if low is high else (low, high))]


def merged(spans: Sequence[Span], apart_s: float) -> list[Span]:
    """Return spans in order, those less than `apart_s` from each other as one."""
    found: list[Span] = []
    for begin_s, end_s in sorted(spans):
        if found and begin_s - found[-1][1] < apart_s:
            found[-1] = (found[-1][0], max(found[-1][1], end_s))
        else:
            found.append((begin_s, end_s))
    return found


def broken(kept: Sequence[Reading], readings: Sequence[Reading]) -> tuple[list[float], list[float]]:
    """Return times and values with a break wherever readings are missing."""
    intervals = [later.time_s - earlier.time_s for earlier, later in pairwise(readings)]
    most_s = SILENT * median(intervals) if intervals else 0.0
    ends = [
        later.time_s
        for (_, later), s in zip(pairwise(readings), intervals, strict=True)
        if s > most_s
    ]
    times, values = [], []
    for earlier, later in pairwise([*kept[:1], *kept]):
        gap = bisect_left(ends, earlier.time_s + 1e-9)
        if gap < len(ends) and ends[gap] <= later.time_s:
            times.append(earlier.time_s)
            values.append(float("nan"))
        times.append(later.time_s)
        values.append(later.value)
    return times, values
