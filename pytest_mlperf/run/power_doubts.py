"""Why a run on a GPU may not be judged, or its energy may not: from what the sampler recorded.

Of the clock event reasons only heat and a failing supply make a run invalid. The software power cap
is a state, where a board under full load belongs; its share is told.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pytest_mlperf.core.reason import Key, Reason
from pytest_mlperf.hardware.sampler_rest import BUSY_PERCENT
from pytest_mlperf.run.power_gpu import GpuLog, Process
from pytest_mlperf.run.power_idle import did_nothing

THROTTLED = 0.01
"""Share of a window from which a slowdown makes it invalid."""

STARVED = 0.20
"""Share of a window for which the GPU may have nothing to do, unsaid."""

MEMORY_IN_USE = 2**30
"""Bytes in use before the engine was loaded that a driver alone does not take."""

LIMIT_OFF_W = 5.0
"""A power limit that moved by no more is the same in the key."""

HOT_C, NEAR_C = 90, 3
"""Degrees that are told where a GPU does not say when it slows down; else so near to that."""

HALTED = {
    "hw_slowdown": "a hardware slowdown",
    "sw_thermal_slowdown": "heat (software slowdown)",
    "hw_thermal_slowdown": "heat (hardware slowdown)",
    "hw_power_brake_slowdown": "the power supply's brake",
}
"""Clock event reasons that make a window invalid, in words; each is a `Key` too."""

NOTED = {
    "application_clocks": "clocks are set by hand",
    "sw_power_cap": "clocks are held back to stay within the power limit",
    "sync_boost": "another GPU of the group dictates the clocks",
    "display_clocks": "a display's setting holds the clocks back",
    "board_limit": "the board's limit holds the clocks back",
    "reliability": "a reliability limit holds the clocks back",
}
"""Reasons that are told, in words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Doubts:
    """What is wrong, each in words.

    Attributes:
        invalid: Nothing that was measured in the window may be judged.
        energy: The energy may not be; the speed may.
        notes: What is to be known beside the verdict.
    """

    invalid: tuple[Reason, ...] = ()
    energy: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def doubts(
    gpu: GpuLog,
    begin_s: float,
    end_s: float,
    *,
    warm_s: float,
    allowed: Collection[int] = (),
    limit_w: float | None = None,
    busy: float = 1.0,
) -> Doubts:
    """Return what speaks against judging a window.

    Args:
        gpu: What was recorded of the GPU.
        begin_s: Where the window begins, monotonic.
        end_s: Where it ends.
        warm_s: When the engine had warmed up: a process that comes later is foreign.
        allowed: Processes that may be there, as the host numbers them.
        limit_w: Power limit of the session's identity; None: not known.
        busy: Share of the window in which the engine had work.
    """
    lost = [_lost(gpu.lost)] if gpu.lost else []
    if gpu.unavailable:
        return Doubts(invalid=tuple(lost), energy=(gpu.unavailable,))
    invalid, notes = _clocks(gpu, begin_s, end_s)
    faults, warnings = _faults(gpu, begin_s, end_s)
    others, hints = _others(gpu, warm_s, allowed)
    energy = []
    if gpu.facts.get("shared"):
        energy.append(f"{gpu.facts['instances']} MIG instances share this GPU and its energy")
    elif gpu.facts.get("shared", False) is None:
        energy.append("which MIG instances share this GPU and its energy may not be seen here")
    return Doubts(
        invalid=(
            *lost,
            *invalid,
            *faults,
            *others,
            *_limits(gpu, end_s, limit_w),
            *_idle(gpu, begin_s, end_s, busy),
        ),
        energy=tuple(energy),
        notes=(
            *notes,
            *warnings,
            *_errors(gpu, begin_s, end_s),
            *_heat(gpu, begin_s, end_s),
            *hints,
        ),
    )


def _lost(why: str) -> Reason:
    return Reason(key=Key.GPU_LOST, text=f"the GPU was lost: {why}")


def _clocks(gpu: GpuLog, begin_s: float, end_s: float) -> tuple[list[Reason], list[str]]:
    invalid: list[Reason] = []
    notes: list[str] = []
    for reason, seconds in gpu.held_back_s(begin_s, end_s).items():
        share = seconds / (end_s - begin_s)
        told = f"{seconds:.2f} s, {share:.1%} of the window"
        if reason in HALTED:
            said = f"{HALTED[reason]} halted the clocks for {told}"
            if share >= THROTTLED:
                invalid.append(Reason(key=Key(reason), text=said))
            else:
                notes.append(said)
        elif reason == "gpu_idle":
            if share > STARVED:
                notes.append(f"the GPU had nothing to do for {told}: the engine starved it")
        else:
            notes.append(f"{NOTED.get(reason, f'clock event reason {reason}')}: {told}")
    return invalid, notes


def _faults(gpu: GpuLog, begin_s: float, end_s: float) -> tuple[list[Reason], list[str]]:
    """Return errors of memory and link."""
    invalid, notes = [], []
    risen = gpu.risen(begin_s, end_s)
    if errors := risen.get("ecc_uncorrected", 0):
        text = f"{errors} uncorrected memory errors (ECC) during the run"
        invalid.append(Reason(key=Key.ECC_UNCORRECTED, text=text))
    if errors := risen.get("ecc_corrected", 0):
        notes.append(f"{errors} corrected memory errors (ECC) during the run")
    if replays := risen.get("pcie_replays", 0):
        notes.append(f"{replays} replays on the PCIe link during the run")
    identity = gpu.facts.get("identity", {})
    ecc = identity.get("ecc")
    if ecc and ecc[0] != ecc[1]:
        notes.append("a change of the ECC mode waits for a reboot")
    mig = identity.get("mig")
    if mig and mig[0] != mig[1]:
        notes.append("a change of the MIG mode waits for a reset of the GPU")
    if identity.get("remapped_rows_pending"):
        notes.append("remapped memory rows wait for a reset of the GPU")
    for name, unit in (("generation", "generation "), ("width", "x")):
        seen = [reading.value for reading in gpu.series(f"pcie_{name}", begin_s, end_s)]
        most = identity.get(f"max_pcie_{name}")
        # The link rests when nothing is to be done, so the best of the window counts.
        if seen and most and max(seen) < most:
            notes.append(f"the PCIe link ran at {unit}{max(seen):g}, not {unit}{most}")
        if name == "width" and seen and min(seen) < max(seen):
            notes.append(f"the PCIe link fell from x{max(seen):g} to x{min(seen):g} in the run")
    return invalid, notes


def _others(gpu: GpuLog, warm_s: float, allowed: Collection[int]) -> tuple[list[Reason], list[str]]:
    """Return who else used the GPU."""
    invalid, notes = [], []
    if before := gpu.before_us(allowed):
        text = f"in use before the engine was loaded: {_named(before)}"
        invalid.append(Reason(key=Key.IN_USE_BEFORE, text=text))
    if late := gpu.foreign(warm_s, allowed):
        text = f"used by others during the run: {_named(late)}"
        invalid.append(Reason(key=Key.USED_BY_OTHERS, text=text))
    busy = gpu.facts.get("utilization_percent") or 0
    if busy >= BUSY_PERCENT:
        text = f"{busy} % busy before the engine was loaded"
        invalid.append(Reason(key=Key.IN_USE_BEFORE, text=text))
    memory = gpu.facts.get("memory_used") or 0
    if memory > MEMORY_IN_USE and not before:
        notes.append(
            f"{memory / 2**30:.1f} GiB were in use before the engine was loaded, by no process "
            "that is listed"
        )
    return invalid, notes


def _idle(gpu: GpuLog, begin_s: float, end_s: float, busy: float) -> list[Reason]:
    shown = did_nothing(gpu, begin_s, end_s, busy=busy)
    text = f"the GPU did not do the work: {shown}"
    return [Reason(key=Key.GPU_UNUSED, text=text)] if shown else []


def _limits(gpu: GpuLog, end_s: float, expected_w: float | None) -> list[Reason]:
    """Return that the power limit, which is part of a baseline's key, was not one and the same."""
    read = [expected_w, gpu.limit_w, *(r.value for r in _until(gpu, "limit_w", end_s))]
    watts = [limit_w for limit_w in read if limit_w is not None]
    farthest = max(watts, key=lambda w: abs(w - watts[0]), default=0.0)
    if not watts or abs(farthest - watts[0]) <= LIMIT_OFF_W:
        return []
    text = (
        f"the power limit changed from {watts[0]:.0f} to {farthest:.0f} W since the session began: "
        "a baseline is of one limit"
    )
    return [Reason(key=Key.POWER_LIMIT_CHANGED, text=text)]


def _heat(gpu: GpuLog, begin_s: float, end_s: float) -> list[str]:
    """Return how hot the GPU was, where that is near its slowdown."""
    heat = max((r.value for r in gpu.series("temperature_c", begin_s, end_s)), default=0)
    slows = gpu.facts.get("identity", {}).get("slowdown_c")
    if heat < (slows - NEAR_C if slows else HOT_C):
        return []
    return [f"{heat:.0f} °C at most" + (f"; it slows down at {slows} °C" if slows else "")]


def _errors(gpu: GpuLog, begin_s: float, end_s: float) -> list[str]:
    """Return the critical errors that the driver reported."""
    readings = [r for r in _until(gpu, "xids", end_s) if r.time_s > begin_s]
    found = dict.fromkeys(str(xid) for reading in readings for xid in reading.value)
    if not found:
        return []
    return [f"the driver reported XID {', '.join(found)} during the run: dmesg says more"]


def _until(gpu: GpuLog, name: str, end_s: float) -> list[Any]:
    """Return the readings of a slow quantity up to the first one that knows of all the window."""
    every = gpu.series(name, 0.0, math.inf)
    return [r for i, r in enumerate(every) if i == 0 or every[i - 1].time_s < end_s]


def _named(processes: Collection[Process]) -> str:
    return ", ".join(
        f"process {p.pid}" + (f" ({p.memory / 2**30:.1f} GiB)" if p.memory is not None else "")
        for p in processes
    )
