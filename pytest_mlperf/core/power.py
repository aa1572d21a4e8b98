"""What a run used: GPU board energy of all its GPUs together, or why it is not known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_mlperf.core.energy import Energy
from pytest_mlperf.core.ranges import NotNegative, Seconds

LABEL = "GPU board energy by NVML, not MLPerf Power"
"""How such figures are labelled: MLCommons' own are by a wall meter and another procedure."""


@dataclass(frozen=True, kw_only=True)
class Power:
    """Energy of a run's timed part.

    Attributes:
        joules: Of all GPUs together; None where it is not known of each.
        uncertainty_j: By which it may be off either way; None where it is not known of each.
        mean_w: Mean power of all together.
        peak_w: The highest sampled power of one GPU.
        window_s: Length of the window, seconds.
        by_gpu: Joules by UUID, None where they are not known.
        idle_w: Power of all together beside the window, with nothing to do; None where it was not
            seen of each.
        net_joules: The energy above that of idle GPUs; None likewise. Reported, never gated.
        gated: Good enough to fail a test with.
        notes: What is to be known, and why something is not.
    """

    joules: NotNegative | None
    uncertainty_j: NotNegative | None
    mean_w: NotNegative | None
    peak_w: NotNegative | None
    window_s: Seconds
    by_gpu: Mapping[str, NotNegative | None]
    gated: bool
    idle_w: NotNegative | None = None
    net_joules: NotNegative | None = None
    notes: tuple[str, ...] = ()


def together(energies: Mapping[str, Energy], *, doubts: tuple[str, ...] = ()) -> Power:
    """Return the energy of several GPUs in one window; an unknown part makes the whole unknown.

    Errors at the ends of the window have one cause, the counters' lag, so that they add up.

    Args:
        energies: By UUID; at least one, all of one window.
        doubts: Why the energy may not be judged, whatever it is.
    """
    each = list(energies.values())
    window_s = each[0].window_s
    joules = _sum([e.joules for e in each])
    said = [
        (f"{uuid}: {text}" if len(each) > 1 else text)
        for uuid, energy in energies.items()
        for text in (*energy.invalid, *energy.notes)
    ]
    return Power(
        joules=joules,
        uncertainty_j=None if joules is None else _sum([e.uncertainty_j for e in each]),
        mean_w=None if joules is None else joules / window_s,
        peak_w=max((e.peak_w for e in each if e.peak_w is not None), default=None),
        window_s=window_s,
        by_gpu={uuid: energy.joules for uuid, energy in energies.items()},
        idle_w=_sum([energy.idle_w for energy in each]),
        net_joules=_sum([energy.net_joules for energy in each]),
        gated=joules is not None and not doubts and all(energy.gated for energy in each),
        notes=tuple(dict.fromkeys((*doubts, *said))),
    )


def _sum(values: Sequence[float | None]) -> float | None:
    """Return the sum; an unknown part makes the whole unknown."""
    known = [value for value in values if value is not None]
    return math.fsum(known) if len(known) == len(values) else None
