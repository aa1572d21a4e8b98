"""Energy of a window from a GPU's counter and its power trace, with what it is uncertain by.

Method and constants: the counter of NVML steps about every 100 ms and trails the power by 0.1 to
0.2 s, so its difference over a window is off by a time constant times the step of power at the
window's ends; a trace of instantaneous power is off wherever the load's period locks to that of the
sensor, which no sampling rate mends. Hence the counter, interpolated between its steps, is the
value, and the trace the witness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import fsum
from statistics import fmean
from typing import Literal

from pytest_mlperf.core.counter import LAG_S, LONGEST_GAP_S, Reading, at, count

PAD_S = 0.5
"""Before and after a window: power there says how large an error at its ends can be, seconds."""

SHORTEST_S = 5.0
"""A shorter window is "too short": the counter's lag alone is several per cent of it."""

GATED_S = 20.0
"""From here on an error at the ends stays below 1 %, so that the value may be gated."""

FEWEST_TICKS = 0.8
"""Share of the planned samples below which a trace is no witness."""

AGREEMENT = 0.03
"""Share by which counter and trace may differ, whatever the uncertainty."""

IDLE_W = 5.0
"""No board draws less: a lower mean is a defect of the reading."""

ABOVE_LIMIT = 1.2
"""A mean power so many times the enforced limit is a defect of the reading."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Energy:
    """What a GPU used in a window.

    Attributes:
        joules: The energy; None where it is not known, never 0 for that.
        uncertainty_j: By which it may be off either way.
        method: "counter", "trace" (the trapezoid, where the counter gave nothing), or None.
        window_s: Length of the window, seconds.
        peak_w: Highest sampled power; None without a trace.
        trace_j: The trapezoid of the trace, the witness; None without a usable one.
        before_w: Mean power in the PAD_S before the window, after_w: likewise after it.
        invalid: Why the value may be neither gated nor recorded.
        notes: What is to be known about it.
    """

    joules: float | None
    uncertainty_j: float | None
    method: Literal["counter", "trace"] | None
    window_s: float
    peak_w: float | None
    trace_j: float | None
    before_w: float | None
    after_w: float | None
    invalid: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def mean_w(self) -> float | None:
        """Mean power, watts."""
        return None if self.joules is None else self.joules / self.window_s

    @property
    def gated(self) -> bool:
        """Whether the value is good enough to fail a test with."""
        known = self.joules is not None and not self.invalid
        return known and self.window_s >= GATED_S


def measure(
    counter: Sequence[Reading],
    trace: Sequence[Reading],
    begin_s: float,
    end_s: float,
    *,
    limit_w: float | None = None,
    rate_hz: float | None = None,
    covers: bool = True,
) -> Energy:
    """Return the energy of a window.

    Args:
        counter: Readings in joules, oldest first, from before the window to after it; may be empty.
        trace: Readings in watts, likewise.
        begin_s: Where the window begins, on the readings' clock.
        end_s: Where it ends.
        limit_w: The enforced power limit, if it is known.
        rate_hz: Planned rate of the trace: fewer samples than FEWEST_TICKS of it are no witness.
        covers: The sensor behind the trace sees all of the time (that of an A100 or H100 sees a
            quarter): else a disagreement is the trace's fault, and a note.

    Raises:
        ValueError: The window has no length.
    """
    window_s = end_s - begin_s
    if not window_s > 0:
        raise ValueError(f"the window ends {-window_s:g} s before it begins")
    counted = count(counter, trace, begin_s, end_s)
    witness_j, why_no_witness = _trapezoid(trace, begin_s, end_s, rate_hz)
    joules = witness_j if counted.joules is None else counted.joules
    before_w = _power_before(trace, begin_s - PAD_S, begin_s)
    after_w = _power_before(trace, end_s, end_s + PAD_S)
    found = Energy(
        joules=joules,
        uncertainty_j=None,
        method=None if joules is None else "trace" if counted.joules is None else "counter",
        window_s=window_s,
        peak_w=max((r.value for r in trace if begin_s <= r.time_s <= end_s), default=None),
        trace_j=witness_j,
        before_w=before_w,
        after_w=after_w,
        invalid=counted.invalid,
        notes=tuple(why for why in (counted.why_not, why_no_witness) if why),
    )
    if joules is None:
        return found
    slack_s = counted.step_s + LAG_S
    near = [
        reading.value
        for reading in trace
        if min(abs(reading.time_s - end) for end in (begin_s, end_s)) <= PAD_S
    ]
    # Where the power at the ends was not seen it may have been anything.
    swing = max(near) - min(near) if near else max(found.mean_w or 0.0, limit_w or 0.0)
    at_ends = max([*near, found.mean_w or 0.0])
    found = replace(found, uncertainty_j=slack_s * swing + counted.blur_s * at_ends)
    invalid, notes = _doubts(found, limit_w, covers=covers)
    return replace(found, invalid=(*found.invalid, *invalid), notes=(*found.notes, *notes))


def _trapezoid(
    trace: Sequence[Reading], begin_s: float, end_s: float, rate_hz: float | None
) -> tuple[float | None, str]:
    """Return the integral of a power trace, or None and why there is none."""
    if not trace:
        return None, "no power trace"
    if trace[0].time_s > begin_s or trace[-1].time_s < end_s or len(trace) < 2:
        return None, "the power trace does not reach over the window"
    inside = [reading for reading in trace if begin_s < reading.time_s < end_s]
    ends = [Reading(time_s=t, value=at(trace, t)) for t in (begin_s, end_s)]
    points = [ends[0], *inside, ends[1]]
    gap = max(later.time_s - earlier.time_s for earlier, later in pairwise(points))
    if gap > LONGEST_GAP_S:
        return None, f"the power trace has a hole of {gap:.1f} s"
    if rate_hz and len(inside) < FEWEST_TICKS * rate_hz * (end_s - begin_s):
        share = len(inside) / (rate_hz * (end_s - begin_s))
        return None, f"the power trace has {share:.0%} of its samples"
    joules = fsum(
        (later.time_s - earlier.time_s) * (earlier.value + later.value) / 2
        for earlier, later in pairwise(points)
    )
    return joules, ""


def _power_before(trace: Sequence[Reading], begin_s: float, end_s: float) -> float | None:
    """Return the mean of the trace's samples in a pad, watts; None where it has none."""
    powers = [reading.value for reading in trace if begin_s <= reading.time_s <= end_s]
    return fmean(powers) if powers else None


def _doubts(found: Energy, limit_w: float | None, *, covers: bool) -> tuple[list[str], list[str]]:
    """Return why an energy may not be judged, and what else is to be known about it."""
    assert found.joules is not None
    assert found.mean_w is not None
    assert found.uncertainty_j is not None
    invalid, notes = [], []
    if found.mean_w < IDLE_W:
        invalid.append(f"a mean power of {found.mean_w:.1f} W is less than any board draws")
    if limit_w and found.mean_w > ABOVE_LIMIT * limit_w:
        invalid.append(
            f"a mean power of {found.mean_w:.0f} W is above {ABOVE_LIMIT:g} times the enforced "
            f"limit of {limit_w:.0f} W"
        )
    if found.method == "counter" and found.trace_j is not None:
        apart = abs(found.trace_j - found.joules)
        if apart > max(AGREEMENT * found.joules, 2 * found.uncertainty_j):
            said = (
                f"counter and power trace disagree: {found.joules:,.0f} J and "
                f"{found.trace_j:,.0f} J"
            )
            if covers:
                invalid.append(said)
            else:
                notes.append(f"{said}; this sensor sees a quarter of the time, the counter counts")
    if found.window_s < SHORTEST_S:
        notes.append(f"a window of {found.window_s:.1f} s is too short for energy")
    elif found.window_s < GATED_S:
        notes.append(
            f"energy of {found.window_s:.1f} s is reported, not gated: that needs {GATED_S:g} s"
        )
    return invalid, notes
