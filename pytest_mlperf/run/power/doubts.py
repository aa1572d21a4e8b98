"""Find reasons in the sampler's records why a GPU run or its energy must not be judged.

Of NVML's clock event reasons, only slowdowns by heat or by the power supply invalidate a run. The
software power cap is normal under full load, so that its share of the time is only reported.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.reason import Key, Reason, Sign, SignKey
from pytest_mlperf.hardware.nvml_quantities import OLDER_MEMORY, RECOVERY
from pytest_mlperf.hardware.sampler_gpu import BUSY_PERCENT, MAX_MEAN_SECONDS
from pytest_mlperf.run.figures import Findings
from pytest_mlperf.run.power._gpu import RISING_COUNTS, GpuLog, Processes

REST_SECONDS = 0.5
"""Time after sampling began in which the GPU idles: no engine loads faster."""

ABOVE_IDLE, ABOVE_IDLE_W = 0.05, 5.0
"""Share, and watts, by which the power of an idle GPU may rise."""

MIN_TAKEN_BYTES = 64 * 2**20
MIN_READINGS, EVIDENCE_SECONDS = 5, 2 * MAX_MEAN_SECONDS
"""Readings, each a mean of up to a second, and their time span, that count as evidence."""

MIN_MEAN_SECONDS = 1 / 6
"""Minimum averaging time of utilisation on any board; longer gaps were not observed."""

MIN_COVERED_SHARE = 0.5
MIN_BUSY_SHARE = 0.2
MIN_LIMIT_SHARE = 0.25
"""Share of its power limit by which a working GPU exceeds its idle power; a context stays below."""


def idle_evidence(gpu: GpuLog, begin_s: float, end_s: float, *, busy: float) -> str | None:
    """Return evidence that a GPU did no work in a window; None if it worked or that is unknown.

    The window is in monotonic time; `busy` is the share of it in which the engine had work.
    """
    first_s = gpu.trace[0].time_s if gpu.trace else begin_s
    idle_w = [r.value for r in gpu.trace if r.time_s <= first_s + REST_SECONDS]
    inside = [r.value for r in gpu.trace if begin_s <= r.time_s <= end_s]
    power = (median(idle_w), fmean(inside)) if idle_w and inside else None
    signs = [f"{power[1]:.0f} W ({power[0]:.0f} W before engine load)"] if power else []
    # A reading up to a second later still averages over the window's end.
    use = gpu.series("utilization_percent", begin_s, end_s + MAX_MEAN_SECONDS)
    use = () if gpu.facts.get("instance") or gpu.facts.get("instances", 0) != 0 else use
    # Readings of the first second may still average over earlier use, and only fall.
    settled_s, rest = first_s + MAX_MEAN_SECONDS, gpu.facts.get("utilization_percent") or 0
    if any(r.value > (rest if r.time_s < settled_s else 0) for r in use):
        return None
    read = [r for r in use if r.time_s <= end_s]
    used = [r for r in read if r.time_s >= settled_s]
    span_s = used[-1].time_s - used[0].time_s if used else 0.0
    covered = len(used) * MIN_MEAN_SECONDS >= MIN_COVERED_SHARE * span_s
    if (
        len(used) >= MIN_READINGS
        and span_s >= EVIDENCE_SECONDS
        and covered
        and busy >= MIN_BUSY_SHARE
        and not _proves_work(gpu, idle_w, inside)
    ):
        readings = f"no utilisation in any of {len(used)} readings over {span_s:.1f} s"
        return ", ".join([readings, *signs])
    if power and power[1] > max(power[0] * (1 + ABOVE_IDLE), power[0] + ABOVE_IDLE_W):
        return None
    signs += ["no utilisation"] * bool(read)
    memory = [r.value for r in gpu.series("memory_used", begin_s, end_s)]
    seen, rest_bytes = gpu.processes_seen(begin_s, end_s), gpu.facts.get("memory_used") or 0
    if not signs or seen or (memory and max(memory) > rest_bytes + MIN_TAKEN_BYTES):
        return None
    signs += ["no process"] * (seen is not None) + ["no memory taken"] * bool(memory)
    return ", ".join(signs) if len(signs) > 1 else None


def _proves_work(gpu: GpuLog, idle_w: Sequence[float], window_w: Sequence[float]) -> bool:
    """Check whether the window's peak power is far above idle power, so that the GPU worked."""
    if not idle_w or not window_w:
        return False
    rest_w = median(idle_w)
    return max(window_w) > (
        2 * rest_w if gpu.limit_w is None else rest_w + MIN_LIMIT_SHARE * gpu.limit_w
    )


THROTTLED = 0.01
"""Share of a window from which a slowdown makes it invalid."""

STARVED = 0.20
"""Share of a window for which the GPU may idle without a report."""

MEMORY_IN_USE = 2**30
"""Bytes that a driver alone does not use; half of the older call's value on an unused GPU, which
includes the driver's reserve."""

LIMIT_OFF_W = 5.0
"""Power limits that differ by less are equal in the key."""

HOT_C, NEAR_C = 90, 3
"""Temperature to report if the slowdown temperature is unknown, else the distance to it."""

THROTTLING_REASONS = frozenset(
    {"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"}
)
"""Clock event reasons that invalidate a window; each is a `Key` too."""

DOUBT_KEYS = frozenset(SignKey)


def rejection_reasons(
    gpu: GpuLog,
    begin_s: float,
    end_s: float,
    *,
    warm_s: float,
    limit_w: float | None = None,
    busy: float = 1.0,
    linked: bool = False,
    whole: bool = True,
) -> Findings:
    """Return reasons to reject a GPU's measurements in a window; a lost GPU is checked elsewhere.

    `warm_s` is the end of the warm-up; processes that start later are not the engine's.
    `limit_w` is the session's power limit, None if unknown; `busy`: share of the window with work.
    `linked` means that the GPU exchanges data with others, so that its NVLinks are checked.
    If the window is not the `whole` run, a short one does not prove that the GPU was unused.
    """
    if gpu.unavailable:
        return Findings(energy_unknown=gpu.unavailable)
    window_s = begin_s, end_s
    every = [
        *_clocks(gpu, *window_s),
        *_faults(gpu, *window_s),
        *(link_doubts(gpu, *window_s) if linked else ()),
        *_warnings(gpu, *window_s),
        *_others(gpu, warm_s),
        *_power_limit_reasons(gpu, end_s, limit_w),
    ]
    proves = whole or end_s - begin_s >= EVIDENCE_SECONDS
    if proves and (evidence := idle_evidence(gpu, *window_s, busy=busy)):
        every.append(Reason.of(Key.GPU_UNUSED, "gpu_unused", evidence=evidence))
    return Findings(
        invalid=tuple(doubt for doubt in every if isinstance(doubt, Reason)),
        energy_unknown=_shared(gpu),
        signs=tuple(doubt for doubt in every if isinstance(doubt, Sign)),
    )


def _shared(gpu: GpuLog) -> str | None:
    """Return a text if other MIG instances share, or may share, the GPU's energy; else None."""
    if gpu.facts.get("shared"):
        return f"{gpu.facts['instances']} MIG instances share this GPU and its energy"
    unseen = "this user may not see which MIG instances share this GPU and its energy"
    return unseen if gpu.facts.get("shared", False) is None else None


def _clocks(gpu: GpuLog, begin_s: float, end_s: float) -> Iterator[Reason | Sign]:
    for reason, seconds in gpu.limited_s(begin_s, end_s).items():
        share = seconds / (end_s - begin_s)
        key = SignKey(reason) if reason in DOUBT_KEYS else SignKey.UNKNOWN_CLOCK_EVENT
        sign = Sign.of(key, "clock_event", event=reason, seconds=seconds, share=min(1.0, share))
        if reason in THROTTLING_REASONS and share >= THROTTLED:
            yield Reason(key=Key(reason), text=sign.note)
        elif reason != "gpu_idle" or share > STARVED:
            yield sign


def _faults(gpu: GpuLog, begin_s: float, end_s: float) -> Iterator[Reason | Sign]:
    for name, count in gpu.risen(begin_s, end_s).items():
        note = Note.of("gpu_errors", count=count, errors=RISING_COUNTS[name])
        if count and name == "ecc_uncorrected":
            yield Reason(key=Key.ECC_UNCORRECTED, text=note)
        elif count:
            yield Sign(key=SignKey(name), text=note)
    identity = gpu.facts.get("identity", {})
    for mode in ("ecc", "mig"):
        now_and_next = identity.get(mode)
        if now_and_next and now_and_next[0] != now_and_next[1]:
            yield Sign.of(SignKey.RESET_WAITS, "reset_waits", setting=mode)
    if identity.get("remapped_rows_pending"):
        yield Sign.of(SignKey.RESET_WAITS, "reset_waits", setting="rows")
    for name, unit in (("generation", "generation "), ("width", "x")):
        seen = [reading.value for reading in gpu.series(f"pcie_{name}", begin_s, end_s)]
        most = identity.get(f"max_pcie_{name}")
        # An idle link slows down, so the maximum of the window counts.
        if seen and most and max(seen) < most:
            key = SignKey(f"pcie_{name}")
            yield Sign.of(key, "pcie_link", seen=f"{unit}{max(seen):g}", most=f"{unit}{most}")
        if name == "width" and seen and min(seen) < max(seen):
            ends = {"most": max(seen), "least": min(seen)}
            yield Sign.of(SignKey.PCIE_WIDTH_FELL, "pcie_link_fell", **ends)


def _others(gpu: GpuLog, warm_s: float) -> Iterator[Reason | Sign]:
    if early_processes := gpu.initial_processes:
        yield Reason.of(Key.IN_USE_BEFORE, "gpu_in_use", processes=_named(early_processes))
    if late := gpu.foreign_processes(warm_s):
        yield Reason.of(Key.USED_BY_OTHERS, "gpu_used", processes=_named(late))
    busy = gpu.facts.get("utilization_percent") or 0
    if busy >= BUSY_PERCENT:
        yield Reason.of(Key.IN_USE_BEFORE, "gpu_busy", busy=busy)
    memory = gpu.facts.get("memory_used") or 0
    older = gpu.facts.get("ways", {}).get("memory_used") == OLDER_MEMORY
    if memory > MEMORY_IN_USE * (1 + older) and not early_processes:
        yield Sign.of(SignKey.MEMORY_IN_USE, "gpu_memory_in_use", gib=memory / 2**30)


def _power_limit_reasons(gpu: GpuLog, end_s: float, expected_w: float | None) -> Iterator[Reason]:
    """Yield a reason if the GPU's power limit is not `expected_w`, or changed before `end_s`."""
    read = [expected_w, gpu.limit_w, *(r.value for r in _until(gpu, "limit_w", end_s))]
    watts = [limit_w for limit_w in read if limit_w is not None]
    farthest = max(watts, key=lambda w: abs(w - watts[0]), default=0.0)
    if watts and abs(farthest - watts[0]) > LIMIT_OFF_W:
        key = Key.POWER_LIMIT_CHANGED
        yield Reason.of(key, "power_limit_changed", first=watts[0], last=farthest)


def _warnings(gpu: GpuLog, begin_s: float, end_s: float) -> Iterator[Sign]:
    readings = [r for r in _until(gpu, "xids", end_s) if r.time_s > begin_s]
    xids = dict.fromkeys(str(xid) for reading in readings for xid in reading.value)
    if xids:
        yield Sign.of(SignKey.XID, "xids", xids=", ".join(xids))
    heat = max((r.value for r in gpu.series("temperature_c", begin_s, end_s)), default=0)
    slows = gpu.facts.get("identity", {}).get("slowdown_c")
    if heat >= (slows - NEAR_C if slows else HOT_C):
        yield Sign.of(SignKey.HOT, "gpu_hot", heat=heat, slows=slows)


def _until(gpu: GpuLog, name: str, end_s: float) -> list[Any]:
    """Return the readings of quantity `name` up to the first one after `end_s`."""
    every = gpu.series(name, 0.0, math.inf)
    return [r for i, r in enumerate(every) if i == 0 or every[i - 1].time_s < end_s]


def _named(processes: Processes) -> str:
    return ", ".join(
        f"process {pid}" + (f" ({memory / 2**30:.1f} GiB)" if memory is not None else "")
        for pid, memory in processes.items()
    )


USUAL_LINKS = {
    r"V100-SXM2": 6,
    r"A100-SXM4": 12,
    r"A800-SXM4|H800$": 8,
    r"H100 80GB HBM3$": 18,
    r"H200$": 18,
    r"B[23]00$": 18,
}
"""NVLinks of boards in a fixed system, by NVML's product name.

Those of PCIe cards depend on their bridges. Source: NVIDIA's data sheets, 25 GB/s per link and
direction from NVLink 2 to 4 (300, 600, 900 GB/s), 50 GB/s for NVLink 5 (1.8 TB/s).
"""

ERRORS = {
    "replay": "replays",
    "crc": "checksum errors",
    "packet": "malformed packets",
    "overrun": "buffer overruns",
    "receive": "receive errors",
    "integrity": "integrity errors",
}
"""Kinds of errors that the link corrects, in words."""


def link_doubts(gpu: GpuLog, begin_s: float, end_s: float) -> Iterator[Reason | Sign]:
    """Yield NVLink and NVSwitch problems: reasons that invalidate a window, and notes."""
    links_before, links_after = gpu.links(begin_s, end_s)
    fell = [link for link, up in links_before.items() if up and not links_after.get(link, True)]
    errors = gpu.link_errors(begin_s, end_s)
    if fell:
        yield Reason.of(Key.NVLINK_DOWN, "nvlink_fell", links=", ".join(map(str, fell)))
    if trained := errors.pop(RECOVERY, {}):
        yield Reason.of(Key.NVLINK_RECOVERY, "nvlink_retrained", times=_times(trained))
    masks = gpu.at_ends("fabric_health", begin_s, end_s) or (0, 0)
    ill, later = (
        [word for at, word in HEALTH_PROBLEMS.items() if mask >> at & 3 == 1] for mask in masks
    )
    if turned := [word for word in later if word not in ill]:
        yield Reason.of(Key.NVSWITCH, "nvswitch_failed", problems=", ".join(turned))
    if ill:
        yield Sign.of(SignKey.NVSWITCH, "nvswitch_unhealthy", problems=", ".join(ill))
    if lacking := _links_down(links_before, str(gpu.facts.get("identity", {}).get("name"))):
        yield Sign(key=SignKey.NVLINK_DOWN, text=lacking)
    if errors:
        mended = "; ".join(f"{ERRORS.get(kind, kind)} {_times(n)}" for kind, n in errors.items())
        yield Sign.of(SignKey.NVLINK_ERRORS, "nvlink_errors", errors=mended)


HEALTH_PROBLEMS = {
    0: "its bandwidth is degraded",
    2: "a route is being recovered",
    4: "a route is unhealthy",
    6: "an access timed out and is being recovered",
}
"""Two bits of a fabric's health mask per problem: 1 is yes, 2 no, 0 unknown."""


def _links_down(links: Mapping[int, bool], product: str) -> Note | None:
    """Return a note if fewer NVLinks are up than this product usually has; None if not."""
    up = sum(links.values())
    usual = next((count for kind, count in USUAL_LINKS.items() if re.search(kind, product)), 0)
    most = max(usual, len(links) if up else 0)
    if not links or up >= most:
        return None
    down = [str(link) for link, is_up in links.items() if not is_up] if up else []
    return Note.of("nvlinks_down", up=up, most=most, down=", ".join(down))


def _times(counts: Mapping[int, int]) -> str:
    return ", ".join(f"{count} on link {link}" for link, count in counts.items())
