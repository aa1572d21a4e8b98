"""Compute the energy of the host's processors and memory, which is reported but never gated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from pytest_mlperf.core.energy import EnergyReading, Source
from pytest_mlperf.core.energy.readings import Reading, at
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.plausible import plausible_reading

MAX_COUNTER_GAP_SECONDS = 30.0
"""Counters wrap at most once a minute: after a longer gap the number of wraps is unknown."""

MEMORY = "dram"
"""Suffix of the names of memory counters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """Hold the readings [J] of one host energy counter, which overflows to 0 at `range_j`."""

    range_j: float
    readings: tuple[Reading, ...]


def host_energy(
    counted: Mapping[str, Counted], begin_s: float, end_s: float, *, shared: bool = False
) -> EnergyReading:
    """Compute a host's energy by its counters from `begin_s` to `end_s` (seconds since 1970).

    The uncertainty is a strict bound: a counter never falls, so its value at an end of the window
    lies between the readings before and after. `shared`: other measurements used the host too.
    """
    # Some hosts have a memory counter that never moves.
    memory = {n: counter.readings for n, counter in counted.items() if n.endswith(MEMORY)}
    dead = [n for n, readings in memory.items() if len({r.value for r in readings}) == 1]
    energies = {
        n: _between(counter, begin_s, end_s) for n, counter in counted.items() if n not in dead
    }
    missing = [name for name, both in energies.items() if both is None]
    sums = [both for both in energies.values() if both]
    joules = None if missing or not sums else fsum(j for j, _ in sums)
    notes = [Note.of("host_unread", counter=name) for name in missing]
    notes += [Note.of("host_constant", counter=name) for name in dead]
    notes += [Note.of("host_shared")] if shared else []
    return EnergyReading(
        source=Source.HOST,
        joules=joules,
        uncertainty_j=None if joules is None else fsum(off_j for _, off_j in sums),
        window_s=end_s - begin_s,
        parts={name: both and both[0] for name, both in energies.items()},
        notes=tuple(notes),
    )


def _between(counter: Counted, begin_s: float, end_s: float) -> tuple[float, float] | None:
    readings = _unrolled(counter)
    if not readings or not readings[0].time_s <= begin_s < end_s <= readings[-1].time_s:
        return None
    joules = at(readings, end_s) - at(readings, begin_s)
    if not joules:  # a counter without a rise does not work
        return None
    off_j = 0.0
    for moment_s in (begin_s, end_s):
        value = at(readings, moment_s)
        lower = max(r.value for r in readings if r.time_s <= moment_s)
        upper = min(r.value for r in readings if r.time_s >= moment_s)
        off_j += max(value - lower, upper - value)
    return joules, off_j


def _unrolled(counter: Counted) -> Sequence[Reading]:
    """Return a counter's readings [J] with overflows undone; () if one may have been missed."""
    unrolled: list[Reading] = []
    rounds_j, last = 0.0, None
    for reading in counter.readings:
        if last is not None:
            rolled = reading.value < last.value
            rounds_j += counter.range_j if rolled else 0.0
            rise_j = reading.value - last.value + (counter.range_j if rolled else 0.0)
            took_s = reading.time_s - last.time_s
            if (
                not 0 < took_s <= MAX_COUNTER_GAP_SECONDS
                or plausible_reading("package_w", rise_j / took_s) is None
            ):
                return ()
        unrolled.append(Reading(time_s=reading.time_s, value=reading.value + rounds_j))
        last = reading
    return unrolled
