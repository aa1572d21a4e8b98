"""Compute a GPU's energy in a window from its energy counter and power trace.

A trace of instantaneous power is wrong at any sampling rate if the load's period locks to the
sensor's. So the counter is used, interpolated between its steps (see `readings`). It is checked
against the trace if the power sensor has no gaps, else against the driver's one-second mean. A
difference beyond both uncertainties makes the energy invalid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import fsum
from statistics import fmean
from types import MappingProxyType
from typing import Literal

from pytest_mlperf.core.energy import readings
from pytest_mlperf.core.notes import Note, Words
from pytest_mlperf.core.numbers import Count, NotNegative, Seconds

PAD_S = 0.5
"""Time before and after a window whose power shows the possible error at its ends."""

MIN_GATED_SECONDS = 19.0
"""The error at the ends is below 1 % from here: a second below the advised `min_duration`."""

AGREEMENT = 0.03
"""Tolerated difference of counter and check, as a share, at any uncertainty."""

LOCKED_DOUBT_SHARE = 0.05
"""The same if the check's sensor may cover only part of the time and the power was never steady:
locking shifts it by this much, counters with a wrong gain differ by 8 % and more."""

DIFFERENCE_FACTOR = 1.1
"""Factor of the difference between counter and check: the check is uncertain too."""

COMMON_LAG_SHARE = 0.3
UNSURE = 0.10
"""Relative uncertainty above which an energy is not gated."""

STEADY = 0.2
"""Variation of an idle GPU's power, as a share of its mean; more means work."""

IDLE_W = 5.0
"""Every board draws more; a lower mean is a reading error."""

ABOVE_LIMIT = 1.2
"""Mean power relative to the enforced limit from which it is a reading error."""

AVERAGED_S = 1.0
"""Averaging time of the driver's mean power on Ampere (except GA100) and later."""

MIN_AVERAGES = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Energy:
    """Hold the energy of one GPU in a measurement window.

    Attributes:
        joules: Energy of the GPU; None, never 0, if unknown.
        uncertainty_j: Bound of the error in either direction; None if unknown.
        method: "counter", "trace" (integral of the power, without a counter), or None if unknown.
        trace_j: Integral of the sampled power; None if samples are few or have gaps.
        own_j: Part of the uncertainty that is independent between GPUs of one kind.
        idle_w: Lowest mean power in PAD_S seconds before or after the window; None if unsteady.
        invalid: Reasons why the value may be neither judged nor recorded; empty if valid.
    """

    joules: float | None
    uncertainty_j: float | None
    method: Literal["counter", "trace"] | None
    window_s: float
    peak_w: float | None
    trace_j: float | None
    idle_w: float | None
    own_j: float = 0.0
    invalid: tuple[Words, ...] = ()
    notes: tuple[Words, ...] = ()

    @property
    def mean_w(self) -> float | None:
        """Mean power [W]; None if the energy is unknown."""
        return None if self.joules is None else self.joules / self.window_s

    @property
    def net_joules(self) -> float | None:
        """Energy above idle power; None if unknown or smaller than the uncertainty."""
        if self.joules is None or self.idle_w is None:
            return None
        net_j = self.joules - self.idle_w * self.window_s
        return net_j if net_j > (self.uncertainty_j or 0.0) else None

    @property
    def gated(self) -> bool:
        """Whether the value is certain enough to be judged, so that it may fail a test."""
        if self.joules is None or self.uncertainty_j is None or self.invalid:
            return False
        return self.window_s >= MIN_GATED_SECONDS and self.uncertainty_j <= UNSURE * self.joules


def measure(
    counter: Sequence[readings.Reading],
    trace: Sequence[readings.Reading],
    begin_s: float,
    end_s: float,
    *,
    limit_w: float | None = None,
    rate_hz: float | None = None,
    covers: bool = True,
    average: Sequence[readings.Reading] = (),
    most_w: float = math.inf,
    period_s: float | None = None,
) -> Energy:
    """Compute the energy in the window from begin_s to end_s.

    Args:
        counter: Readings [J], oldest first, from before the window to after it; may be empty.
        trace: Readings [W], oldest first.
        limit_w: Enforced power limit; a mean power far above it invalidates the energy.
        rate_hz: Planned sampling rate; a trace with far fewer samples is not used.
        covers: Whether the power sensor measures without gaps; A100's and H100's cover 25 % only.
        average: Readings of the driver's mean power of the last AVERAGED_S [W]; may be empty.
        most_w: The highest power that the board can draw, if known.
        period_s: Measured time between steps of the counter, if known.
    """
    window_s = end_s - begin_s
    if not window_s > 0:
        raise ValueError(f"the window ends {-window_s:g} s before it begins")
    counted = readings.counter_energy(
        counter, trace, begin_s, end_s, covers=covers, period_s=period_s
    )
    seen = readings.integrate_trace(trace, begin_s, end_s, rate_hz=rate_hz, covers=covers)
    joules = seen.joules if counted.joules is None else counted.joules
    energy = Energy(
        joules=joules,
        uncertainty_j=None,
        method=None if joules is None else "trace" if counted.joules is None else "counter",
        window_s=window_s,
        peak_w=max((r.value for r in trace if begin_s <= r.time_s <= end_s), default=None),
        trace_j=seen.joules,
        idle_w=_idle(trace, begin_s, end_s),
        invalid=counted.invalid,
        notes=tuple(why for why in (counted.why_not, seen.why_not, *counted.notes) if why),
    )
    if joules is None:
        return energy
    if energy.method == "trace":
        energy = _by_trace(energy, seen, covers=covers)
    else:
        second_j = _by_average(counter, counted, average, energy, (begin_s, end_s))
        energy = _by_counter(energy, counted, second_j, covers=covers)
    if (energy.mean_w or 0.0) > min(most_w, readings.MAX_WATTS):
        note = Note.of("counter_too_fast", metric="")
        return replace(energy, joules=None, method=None, uncertainty_j=None, invalid=(note,))
    return _plausible(energy, limit_w)


def _by_average(
    counter: Sequence[readings.Reading],
    counted: readings.CounterEnergy,
    average: Sequence[readings.Reading],
    energy: Energy,
    ends: tuple[float, float],
) -> float | None:
    steps, lag_s = readings.steps_of(counter), counted.lag_s or 0.0
    begin_s, end_s = ends
    inside = [
        r
        for r in average
        if r.value > 0  # a power of 0 is a reading error
        and begin_s + AVERAGED_S <= r.time_s <= end_s
        and steps[0].time_s <= r.time_s + lag_s - AVERAGED_S
        and r.time_s + lag_s <= steps[-1].time_s
    ]
    if len(inside) < MIN_AVERAGES or energy.joules is None:
        return None
    then = [r.time_s + lag_s for r in inside]
    counts = fsum(readings.at(steps, t) - readings.at(steps, t - AVERAGED_S) for t in then)
    return energy.joules * fsum(r.value for r in inside) * AVERAGED_S / counts if counts else None


def _by_counter(
    energy: Energy, counted: readings.CounterEnergy, second_j: float | None, *, covers: bool
) -> Energy:
    assert energy.joules is not None
    joules, ends_j = energy.joules, math.hypot(counted.lag_j, counted.steps_j)
    off_j = None if energy.trace_j is None else abs(energy.trace_j - joules)
    apart_j, share, reason = off_j, AGREEMENT, ""
    values = {"joules": joules, "other": "trace", "other_j": energy.trace_j}
    if not covers and second_j is not None:
        apart_j, reason = abs(second_j - joules), "mean_agrees"
    elif not covers and counted.gain is not None:
        still_j = abs(counted.gain - 1) * joules
        apart_j = still_j if off_j is None else min(off_j, still_j)
        reason = "constant_agrees"
    elif not covers:
        share = LOCKED_DOUBT_SHARE
    uncertainty_j, own_j = (
        ends_j + DIFFERENCE_FACTOR * (apart_j or 0.0),
        ends_j - COMMON_LAG_SHARE * counted.lag_j,
    )
    energy = replace(energy, uncertainty_j=uncertainty_j, own_j=own_j)
    if apart_j is not None and apart_j > max(share * joules, ends_j):
        if not covers and second_j is not None:
            values |= {"other": "mean_power", "other_j": second_j}
        sensor = "" if covers or second_j is not None else "partial_sensor"
        gain = counted.gain if values["other_j"] is None else None
        note = Note.of("energies_differ", **values, gain=gain, sensor=sensor)
        return replace(energy, invalid=(*energy.invalid, note))
    if reason and off_j is not None and off_j > max(AGREEMENT * joules, ends_j):
        note = Note.of("counter_used", **values, reason=reason)
        return replace(energy, notes=(*energy.notes, note))
    return energy


def _by_trace(energy: Energy, seen: readings.Traced, *, covers: bool) -> Energy:
    if covers:
        return replace(energy, uncertainty_j=seen.unsure_j)
    return replace(energy, notes=(*energy.notes, Note.of("trace_alone")))


def _plausible(energy: Energy, limit_w: float | None) -> Energy:
    assert energy.joules is not None
    assert energy.mean_w is not None
    invalid, notes = list(energy.invalid), list(energy.notes)
    if energy.mean_w < IDLE_W:
        invalid.append(Note.of("power_too_low", mean_w=energy.mean_w))
    if limit_w and energy.mean_w > ABOVE_LIMIT * limit_w:
        values = {"mean_w": energy.mean_w, "limit_w": limit_w, "most": ABOVE_LIMIT}
        invalid.append(Note.of("power_above_limit", **values))
    if energy.window_s < MIN_GATED_SECONDS:
        notes.append(too_short("energy", energy.window_s))
    elif not invalid and (energy.uncertainty_j or 0.0) > UNSURE * energy.joules:
        share = (energy.uncertainty_j or 0.0) / energy.joules
        notes.append(Note.of("energy_unsure", share=share, most=UNSURE))
    return replace(energy, invalid=tuple(invalid), notes=tuple(notes))


def too_short(noun: str, window_s: float) -> Note:
    """Return the note that energy is not judged in a window shorter than `MIN_GATED_SECONDS`."""
    shown_s = math.floor(10 * window_s) / 10  # so that a missed minimum does not look met
    return Note.of("energy_short", noun=noun, window_s=shown_s, needed_s=MIN_GATED_SECONDS)


def _idle(trace: Sequence[readings.Reading], begin_s: float, end_s: float) -> float | None:
    steady = []
    for first_s in (begin_s - PAD_S, end_s, end_s + PAD_S):
        powers = [r.value for r in trace if first_s <= r.time_s <= first_s + PAD_S]
        reaches = powers and trace[0].time_s <= first_s and first_s + PAD_S <= trace[-1].time_s
        if reaches and max(powers) - min(powers) <= STEADY * fmean(powers):
            steady.append(fmean(powers))
    return min(steady, default=None)


class Source(StrEnum):
    """Enumerate the sources of energy values in results files."""

    NVML = "nvml"
    METER = "meter"
    EXPORTER = "exporter"
    HOST = "host"

    @property
    def label(self) -> str:
        """Label in reports; never "MLPerf Power", which requires its own meter and procedure."""
        return _LABELS[self]

    @property
    def suffix(self) -> str:
        """Suffix of metric names for this source: "_wall", "_dcgm", or "" for other sources."""
        return {Source.METER: "_wall", Source.EXPORTER: "_dcgm"}.get(self, "")


_LABELS = {
    Source.NVML: "GPU board energy by NVML, not MLPerf Power",
    Source.METER: "wall energy by the meter of --mlperf-meter, not MLPerf Power",
    Source.EXPORTER: "GPU board energy by an exporter or probe, not MLPerf Power",
    Source.HOST: "the host's processors and memory by RAPL, beside the GPUs and in no metric",
}


def source_of(metric: str) -> Source:
    """Return the source of the energy that an efficiency metric is based on."""
    ends = (source for source in Source if source.suffix and metric.endswith(source.suffix))
    return next(ends, Source.NVML)


@dataclass(frozen=True, kw_only=True, slots=True)
class EnergyReading:
    """Hold the energy in a measurement window according to one source.

    Attributes:
        source: NVML, a wall meter, a DCGM exporter or counters of the host.
        window_s: Length of the window [s].
        joules: Energy of all `parts` together; None if one is unknown.
        uncertainty_j: Bound of the error, without the source's own accuracy; None if unknown.
        parts: Joules by GPU UUID or by name of a host counter; None if unknown.
        gated: Whether the energy is precise enough to pass or fail a test.
        notes: Remarks, and why the energy or its uncertainty is unknown.
        peak_w: Highest sampled power of one GPU.
        idle_w: Power of all GPUs while idle outside the window; None if unknown for a GPU.
        net_joules: Energy above that of idle GPUs, reported but never gated; None if unknown.
        readings: Number of readings in the window (least of all GPUs), without a meter's bad ones.
        dropped: Number of bad readings of a meter in the window.
        method: For a DCGM exporter "counter", or "power" if it has no energy counters; else "".
        devices: GPUs of a DCGM exporter: "8 x NVIDIA H200".
        interval_s: Time between readings of a DCGM exporter [s]; None if unknown.
    """

    source: Source
    window_s: Seconds
    joules: NotNegative | None = None
    uncertainty_j: NotNegative | None = None
    parts: Mapping[str, NotNegative | None] = field(default_factory=dict)
    gated: bool = False
    notes: tuple[Words, ...] = ()
    peak_w: NotNegative | None = None
    idle_w: NotNegative | None = None
    net_joules: NotNegative | None = None
    readings: Count = 0
    dropped: Count = 0
    method: str = ""
    devices: str = ""
    interval_s: Seconds | None = None

    @property
    def mean_w(self) -> float | None:
        """Mean power [W]; None if the energy is unknown."""
        return None if self.joules is None or not self.window_s else self.joules / self.window_s


def sum_energies(
    energies: Mapping[str, Energy],
    *,
    doubts: tuple[Words, ...] = (),
    names: Mapping[str, str] = MappingProxyType({}),
) -> EnergyReading:
    """Add the energies of the GPUs in a window; joules are None if one is unknown.

    Correlated uncertainties (gain and lag of the counters) are added; independent ones (ends of the
    window) are combined as the root of the sum of squares. `names` has display names by UUID. With
    `doubts` the energy is not gated; they become its notes.

    Source: JCGM 100:2008 (GUM), 5.1.2 and 5.2.2, note 1: inputs of correlation 0 and 1.
    """
    members = list(energies.values())
    window_s = members[0].window_s
    joules = _sum([e.joules for e in members])
    notes = merge_notes(
        [(names.get(uuid, uuid), (*one.invalid, *one.notes)) for uuid, one in energies.items()]
    )
    return EnergyReading(
        source=Source.NVML,
        joules=joules,
        uncertainty_j=None if joules is None else _uncertainty(members),
        peak_w=max((e.peak_w for e in members if e.peak_w is not None), default=None),
        window_s=window_s,
        parts={uuid: energy.joules for uuid, energy in energies.items()},
        idle_w=_sum([energy.idle_w for energy in members]),
        net_joules=_sum([energy.net_joules for energy in members]),
        gated=joules is not None and not doubts and all(energy.gated for energy in members),
        notes=tuple(dict.fromkeys((*doubts, *notes))),
    )


def merge_notes(gpu_notes: Sequence[tuple[str, Sequence[Words]]]) -> tuple[Words, ...]:
    """Merge notes that share a key, and merge texts; each merged note names its GPUs."""
    alike: dict[str, list[tuple[str, Words]]] = {}
    for gpu, notes in gpu_notes:
        for note in notes:
            alike.setdefault(note.key if isinstance(note, Note) else "", []).append((gpu, note))
    if len(gpu_notes) == 1:
        return tuple(dict.fromkeys(gpu_notes[0][1]))
    merged = [tuple(zip(*pairs, strict=True)) for pairs in alike.values()]
    return tuple(Note.of("of_gpus", gpus=a, notes=b, of=len(gpu_notes)) for a, b in merged)


def _uncertainty(energies: Sequence[Energy]) -> float | None:
    whole_j, own_j = _sum([e.uncertainty_j for e in energies]), [e.own_j for e in energies]
    return None if whole_j is None else whole_j - math.fsum(own_j) + math.hypot(*own_j)


def _sum(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return math.fsum(numbers) if len(numbers) == len(values) else None
