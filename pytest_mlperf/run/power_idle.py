"""Whether a GPU of a case did its work, or idled while something else did it, such as the CPU.

Its utilisation tells, read all through the window: 0 in every reading convicts, whatever was loaded
onto the GPU, for a context alone takes memory and lifts the power. That needs `READINGS` readings
over `EVIDENCE_S` that saw `COVERED` of it, and an engine that had work for `BUSY` of the window: of
a kernel now and then a whole per cent may never be seen. It is not asked under MIG, where a GPU
tells nothing of an instance, nor believed where the power says that the GPU works hard all the
same, if only now and then.

Where that is not enough to tell, one sign of work is enough to acquit: power above that before the
engine was loaded, utilisation, a new process, or memory that was taken. Two of these must be known,
one of them power or utilisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from pytest_mlperf.hardware.sampler_rest import LONGEST_MEAN_S
from pytest_mlperf.run.power_gpu import GpuLog

BEFORE_S = 0.5
"""The GPU is at rest for so long after sampling began: no engine is loaded faster."""

ABOVE_IDLE, ABOVE_IDLE_W = 0.05, 5.0
"""Share, and watts, by which the power of a GPU at rest may rise by itself."""

TAKEN = 64 * 2**20
"""Bytes of memory that whoever computes takes at least."""

READINGS, EVIDENCE_S = 5, 2 * LONGEST_MEAN_S
"""So many readings over so long, each a mean of up to a second, are evidence."""

SHORTEST_MEAN_S = 1 / 6
"""No board averages its utilisation over less; what lies between two means nobody saw."""

COVERED = 0.5
"""Share of its time that readings must have seen: a load that comes and goes hides from fewer."""

BUSY = 0.2
"""Share of the window in which the engine must have had work."""

HARD = 0.25
"""Share of its power limit by which a GPU at work is above its rest; a context alone is less."""


def did_nothing(gpu: GpuLog, begin_s: float, end_s: float, *, busy: float) -> str | None:
    """Return what shows that a GPU did not work in a window; None: it did, or nothing tells.

    Args:
        gpu: What was recorded of it.
        begin_s: Where the window begins, monotonic.
        end_s: Where it ends.
        busy: Share of the window in which the engine had work.
    """
    first_s = gpu.trace[0].time_s if gpu.trace else begin_s
    before = [r.value for r in gpu.trace if r.time_s <= first_s + BEFORE_S]
    inside = [r.value for r in gpu.trace if begin_s <= r.time_s <= end_s]
    power = (median(before), fmean(inside)) if before and inside else None
    told = [f"{power[1]:.0f} W, {power[0]:.0f} W before the engine was loaded"] if power else []
    # What is read up to a second later is a mean of the window's end too.
    late = () if _sliced(gpu) else gpu.series("utilization_percent", end_s, end_s + LONGEST_MEAN_S)
    read = () if _sliced(gpu) else gpu.series("utilization_percent", begin_s, end_s)
    # The first second may still hold a mean of what was before, which only ever falls.
    settled_s, rest = first_s + LONGEST_MEAN_S, gpu.facts.get("utilization_percent") or 0
    if any(r.value > (rest if r.time_s < settled_s else 0) for r in (*read, *late)):
        return None
    used = [r for r in read if r.time_s >= settled_s]
    span_s = used[-1].time_s - used[0].time_s if used else 0.0
    covered = len(used) * SHORTEST_MEAN_S >= COVERED * span_s
    if (
        len(used) >= READINGS
        and span_s >= EVIDENCE_S
        and covered
        and busy >= BUSY
        and not _hard(gpu, before, inside)
    ):
        readings = f"no utilisation in any of {len(used)} readings over {span_s:.1f} s"
        return ", ".join([readings, *told])
    if power and power[1] > max(power[0] * (1 + ABOVE_IDLE), power[0] + ABOVE_IDLE_W):
        return None
    told += ["no utilisation"] * bool(read)
    memory = [r.value for r in gpu.series("memory_used", begin_s, end_s)]
    seen, rest_bytes = gpu.processes_seen(begin_s, end_s), gpu.facts.get("memory_used") or 0
    if not told or seen or (memory and max(memory) > rest_bytes + TAKEN):
        return None
    told += ["no process"] * (seen is not None) + ["no memory taken"] * bool(memory)
    return ", ".join(told) if len(told) > 1 else None


def _sliced(gpu: GpuLog) -> bool:
    """Whether the GPU is divided by MIG, or may be."""
    return bool(gpu.facts.get("instance")) or gpu.facts.get("instances", 0) != 0


def _hard(gpu: GpuLog, before: Sequence[float], inside: Sequence[float]) -> bool:
    """Whether the power alone proves work, now and then, so that a utilisation of 0 is no reading.

    Args:
        gpu: What was recorded of it.
        before: Its power before the engine was loaded, watts.
        inside: That in the window.
    """
    if not before or not inside:
        return False
    rest_w = median(before)
    return max(inside) > (2 * rest_w if gpu.limit_w is None else rest_w + HARD * gpu.limit_w)
