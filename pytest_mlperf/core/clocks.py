"""Clocks, heat and the power cap of a case's GPUs beside those of its baseline.

Clocks that are free move with heat and power: that they did is evidence, told beside the verdict.
Clocks that are locked and moved all the same are another machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from pytest_mlperf.core.numbers import MINUS, change, percent
from pytest_mlperf.core.ranges import Number

State = Mapping[str, Number]
"""What a run's GPUs were like in its window, of several GPUs the one that was held back most.

sm_mhz, memory_mhz: median clocks, MHz. temperature_c: the highest, degrees C. power_cap_share: part
of the window in which the power limit held the clocks back.
"""

CLOCK, CAP, HEAT = "sm_mhz", "power_cap_share", "temperature_c"

CLOCK_OFF = 0.015
"""Relative change of the SM clock that is worth telling, and that locked clocks may not have."""

CAP_OFF = 0.10
"""Change of the power cap's share of the window that is worth telling."""


def clocks_moved(now: Sequence[State], baseline: Sequence[State]) -> str | None:
    """Return how clocks and power cap differ from the baseline's, with the numbers; else None."""
    told = []
    clock = _both(CLOCK, now, baseline)
    if clock and abs(clock[0] / clock[1] - 1) > CLOCK_OFF:
        told.append(f"SM clock {change(clock[0] / clock[1] - 1)}")
    cap = _both(CAP, now, baseline)
    if cap and (told or abs(cap[0] - cap[1]) > CAP_OFF):
        told.append(f"power cap share {percent(cap[1])} → {percent(cap[0])}")
    heat = _both(HEAT, now, baseline)
    if told and heat:
        rise = heat[0] - heat[1]
        told.append(f"{'+' if rise >= 0 else MINUS}{abs(rise):.0f} °C")
    return ", ".join(told) or None


def locked_clock_moved(
    now: Sequence[State], baseline: Sequence[State], clocks: object
) -> str | None:
    """Return how the SM clock left where it is locked, else None.

    Args:
        now: Of this session's runs.
        baseline: Of the baseline's.
        clocks: The identity's word: "free", or the MHz that they are set to.
    """
    both = _both(CLOCK, now, baseline)
    if clocks in (None, "free") or both is None or abs(both[0] / both[1] - 1) <= CLOCK_OFF:
        return None
    return (
        f"the SM clock is locked and moved all the same: {both[0]:.0f} MHz now, {both[1]:.0f} MHz "
        f"when the baseline was recorded ({change(both[0] / both[1] - 1)})"
    )


def _both(name: str, now: Sequence[State], baseline: Sequence[State]) -> tuple[float, float] | None:
    mine = [state[name] for state in now if name in state]
    theirs = [state[name] for state in baseline if name in state]
    if not mine or not theirs or (name == CLOCK and not median(theirs) > 0):
        return None
    return median(mine), median(theirs)
