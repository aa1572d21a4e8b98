"""Why a run on a GPU may not be judged, or its energy may not: from what the sampler recorded.

Of the clock event reasons only heat and a failing supply make a run invalid. The software power cap
is a state, where a board under full load belongs; its share is told.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from statistics import fmean, median

from pytest_mlperf.core.reason import Key, Reason
from pytest_mlperf.run.power_gpu import GpuLog, Process

THROTTLED = 0.01
"""Share of a window from which a slowdown makes it invalid."""

STARVED = 0.20
"""Share of a window for which the GPU may have nothing to do, unsaid."""

BUSY_PERCENT = 10
"""Utilisation before the engine was loaded that someone else's work must be behind."""

MEMORY_IN_USE = 2**30
"""Bytes in use before the engine was loaded that a driver alone does not take."""

BEFORE_S = 0.5
"""The GPU is at rest for so long after sampling began: no engine is loaded faster."""

ABOVE_IDLE, ABOVE_IDLE_W = 0.05, 5.0
"""Share, and watts, by which the power of a GPU at rest may rise by itself."""

TAKEN = 64 * 2**20
"""Bytes of memory that whoever computes takes at least."""

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
    gpu: GpuLog, begin_s: float, end_s: float, *, warm_s: float, allowed: Collection[int] = ()
) -> Doubts:
    """Return what speaks against judging a window.

    Args:
        gpu: What was recorded of the GPU.
        begin_s: Where the window begins, monotonic.
        end_s: Where it ends.
        warm_s: When the engine had warmed up: a process that comes later is foreign.
        allowed: Processes that may be there, as the host numbers them.
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
        invalid=(*lost, *invalid, *faults, *others, *_idle(gpu, begin_s, end_s)),
        energy=tuple(energy),
        notes=(*notes, *warnings, *hints),
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
    busy = gpu.facts.get("identity", {}).get("utilization_percent") or 0
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


def _idle(gpu: GpuLog, begin_s: float, end_s: float) -> list[Reason]:
    """Return that the GPU did nothing, where all that is known says so.

    One sign of work is enough: power above that before the engine was loaded, utilisation, a new
    process, or memory that was taken. Two of these must be known, one of them power or
    utilisation.
    """
    first_s = gpu.trace[0].time_s if gpu.trace else begin_s
    before = [r.value for r in gpu.trace if r.time_s <= first_s + BEFORE_S]
    inside = [r.value for r in gpu.trace if begin_s <= r.time_s <= end_s]
    used = [r.value for r in gpu.series("utilization_percent", begin_s, end_s)]
    memory = [r.value for r in gpu.series("memory_used", begin_s, end_s)]
    seen, rest_bytes = gpu.processes_seen(begin_s, end_s), gpu.facts.get("memory_used") or 0
    told = []
    if before and inside:
        rest_w, mean_w = median(before), fmean(inside)
        if mean_w > max(rest_w * (1 + ABOVE_IDLE), rest_w + ABOVE_IDLE_W):
            return []
        told.append(f"{mean_w:.0f} W, {rest_w:.0f} W before the engine was loaded")
    if used:
        if max(used) > 0:
            return []
        told.append("no utilisation")
    if not told or seen or (memory and max(memory) > rest_bytes + TAKEN):
        return []
    told += ["no process"] * (seen is not None) + ["no memory taken"] * bool(memory)
    text = f"the GPU did not do the work: {', '.join(told)}"
    return [Reason(key=Key.GPU_UNUSED, text=text)] if len(told) > 1 else []


def _named(processes: Collection[Process]) -> str:
    return ", ".join(
        f"process {p.pid}" + (f" ({p.memory / 2**30:.1f} GiB)" if p.memory is not None else "")
        for p in processes
    )
