"""Readings of a wall meter, and the energy they give for a window.

The energy is MLPerf Power's own arithmetic (power in its submission checker): the mean of the
readings strictly inside LoadGen's power_begin to power_end, of which those of 0 W or less are left
out because an analyzer writes them for a reading that failed, times the window's length. It is that
of a whole machine and is never compared with what GPUs count.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum
from statistics import median

from pytest_mlperf.core import energy
from pytest_mlperf.core.meter_file import MeterReading, parse_meter
from pytest_mlperf.core.ranges import Count, NotNegative, Seconds

__all__ = ["LABEL", "MeterReading", "WallEnergy", "parse_meter", "wall_energy"]

LABEL = "wall energy by the given meter, not MLPerf Power"
"""How such figures are labelled: a meter alone does not make MLPerf's procedure."""

LONGEST_GAP_S = 5.0
"""A meter that is silent for longer has not seen the window."""

FEWEST = 10
"""Readings inside a window below which their mean says nothing."""

CLOCKS_S = 0.8
"""By how much the clocks of meter and machine may differ; MLPerf Power allows as much."""

UNSURE = 0.05
"""Share of the energy from which its uncertainty is said to be large."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WallEnergy:
    """What a machine drew from the wall in a window.

    Attributes:
        joules: The energy; None where it is not known, and then the last note says why.
        mean_w: Mean power, watts; None likewise.
        readings: How many good readings lie inside the window.
        dropped: How many bad ones do.
        uncertainty_j: By which it may be off either way, the meter's own accuracy apart.
        window_s: Length of the window, seconds.
        notes: What is to be known about it.
        gated: Good enough to fail a test with.
    """

    joules: NotNegative | None
    mean_w: NotNegative | None
    readings: Count
    dropped: Count
    uncertainty_j: NotNegative | None
    window_s: Seconds
    notes: tuple[str, ...] = ()
    gated: bool = False


def wall_energy(readings: Sequence[MeterReading], begin_s: float, end_s: float) -> WallEnergy:
    """Return the energy of a window.

    The uncertainty is an estimate of ours: both ends of the window may lie one period of the meter
    and CLOCKS_S beside where the readings have them, and the power steps there by as much as the
    readings near them differ.

    Args:
        readings: As the meter wrote them; they reach over the window if it can be known.
        begin_s: Where the window begins, wall clock, seconds since the epoch.
        end_s: Where it ends.

    Raises:
        ValueError: The window has no length.
    """
    window_s = end_s - begin_s
    if not window_s > 0:
        raise ValueError(f"the window ends {-window_s:g} s before it begins")
    good = [reading for reading in readings if reading.good]
    inside = [reading for reading in good if begin_s < reading.time_s < end_s]
    dropped = sum(not r.good for r in readings if begin_s < r.time_s < end_s)
    bad = f"{dropped} of {dropped + len(inside)} readings of the meter failed and are left out"
    notes = [bad] if dropped else []
    if why := _why_unknown(readings, good, begin_s, end_s):
        return WallEnergy(
            joules=None,
            mean_w=None,
            readings=len(inside),
            dropped=dropped,
            uncertainty_j=None,
            window_s=window_s,
            notes=(*notes, why),
        )
    mean_w = fsum(reading.watts for reading in inside) / len(inside)
    period_s = median(later.time_s - earlier.time_s for earlier, later in pairwise(inside))
    steps_w = sum(_step(good, end, 2 * (period_s + CLOCKS_S)) for end in (begin_s, end_s))
    uncertainty_j = (period_s + CLOCKS_S) * steps_w
    if uncertainty_j > UNSURE * mean_w * window_s:
        notes.append(
            f"the wall energy is uncertain by {uncertainty_j / (mean_w * window_s):.0%}: the meter "
            f"reads every {period_s:.2g} s; let the run last longer"
        )
    if window_s < energy.GATED_S:
        notes.append(
            f"wall energy of {energy.floored(window_s)} s is reported, not gated: that needs "
            f"{energy.GATED_S:g} s"
        )
    return WallEnergy(
        joules=mean_w * window_s,
        mean_w=mean_w,
        readings=len(inside),
        dropped=dropped,
        uncertainty_j=uncertainty_j,
        window_s=window_s,
        notes=tuple(notes),
        gated=window_s >= energy.GATED_S,
    )


def _why_unknown(
    readings: Sequence[MeterReading],
    good: Sequence[MeterReading],
    begin_s: float,
    end_s: float,
) -> str | None:
    """Return why the readings give no energy of a window, None where they do."""
    if not good:
        return "the meter's file holds no reading" + (" above 0 W" if readings else "")
    for earlier, later in pairwise(readings):
        back_s = earlier.time_s - later.time_s
        if back_s > 0 and later.time_s < end_s and earlier.time_s > begin_s:
            return f"the meter's clock went back by {back_s:.1f} s at {_clock(earlier.time_s)} UTC"
    return _why_not_covered(good, begin_s, end_s) or _why_sparse(good, begin_s, end_s)


def _why_not_covered(good: Sequence[MeterReading], begin_s: float, end_s: float) -> str | None:
    first_s = min(reading.time_s for reading in good)
    last_s = max(reading.time_s for reading in good)
    if last_s <= begin_s or first_s >= end_s:
        return (
            f"the meter read from {_clock(first_s)} to {_clock(last_s)} UTC, the window is from "
            f"{_clock(begin_s)} to {_clock(end_s)} UTC: let it log during the run, and state the "
            "offset of its clock where that is not UTC"
        )
    if first_s > begin_s:
        return f"the meter began {first_s - begin_s:.1f} s after the window did: start it earlier"
    if last_s < end_s:
        return (
            f"the meter's last reading is {end_s - last_s:.1f} s before the window's end: let it "
            "log on, and write each reading at once"
        )
    return None


def _why_sparse(good: Sequence[MeterReading], begin_s: float, end_s: float) -> str | None:
    gap_s = max(
        later.time_s - earlier.time_s
        for earlier, later in pairwise(good)
        if later.time_s > begin_s and earlier.time_s < end_s
    )
    if gap_s > LONGEST_GAP_S:
        return f"the meter was silent for {gap_s:.1f} s; {LONGEST_GAP_S:g} s are allowed"
    count = sum(begin_s < reading.time_s < end_s for reading in good)
    if count < FEWEST:
        return (
            f"{count} readings of the meter lie in the window, and {FEWEST} are needed: let the "
            "run last longer"
        )
    return None


def _step(good: Sequence[MeterReading], moment_s: float, within_s: float) -> float:
    """Return by how much the power around a moment differs, watts."""
    near = [r.watts for r in good if abs(r.time_s - moment_s) <= within_s]
    return max(near) - min(near) if near else 0.0


def _clock(time_s: float) -> str:
    moment = dt.datetime.fromtimestamp(time_s, dt.UTC)
    return moment.isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")
