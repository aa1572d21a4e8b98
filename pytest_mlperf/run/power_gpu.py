"""What the sampler recorded of one GPU, as values: energy, events, states, processes.

Times are CLOCK_MONOTONIC, seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from pytest_mlperf.core.energy import Energy, measure
from pytest_mlperf.core.trace import Reading, at
from pytest_mlperf.hardware.nvml_quantities import REASONS

COUNTED = ("ecc_uncorrected", "ecc_corrected", "pcie_replays")
"""Quantities that only ever rise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A time through which the clocks were held back for one reason, as far as samples show.

    Attributes:
        reason: Its name; "unknown 0x800" for one that is newer than this table.
        begin_s: The first sample that showed it.
        end_s: The first sample that did not, or the last of all.
    """

    reason: str
    begin_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        """How long it was, seconds."""
        return self.end_s - self.begin_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """A process on a GPU.

    Attributes:
        pid: As the host knows it; in a container no process there has it.
        memory: Bytes on the GPU, None where they are not told.
        seen_s: When it was first seen.
    """

    pid: int
    memory: int | None
    seen_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuLog:
    """One GPU.

    Attributes:
        uuid: As it was asked for.
        unavailable: Why nothing was read of it, None where something was.
        lost: Why it answers no more, None where it still did at the end.
        facts: Its part of the sampler's first record: identity, ways, costs, scope, MIG.
        counter: Energy counter, joules.
        trace: Power, watts.
        reasons: (time, bit mask) of samples; of a row of equal ones only the first and the last.
        states: Slower quantities, each with "time", oldest first.
        missing: Why a quantity was not read, by quantity.
        forbidden: Quantities that may not be read here: without its counter a GPU has no energy.
        rate_hz: Planned rate of the trace.
    """

    uuid: str
    unavailable: str | None = None
    lost: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    counter: tuple[Reading, ...] = ()
    trace: tuple[Reading, ...] = ()
    reasons: tuple[tuple[float, int], ...] = ()
    states: tuple[Mapping[str, Any], ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    forbidden: frozenset[str] = frozenset()
    rate_hz: float | None = None

    @property
    def limit_w(self) -> float | None:
        """The enforced power limit, watts."""
        limit = self.facts.get("identity", {}).get("limit_w")
        return None if limit is None else float(limit)

    @property
    def last_s(self) -> float:
        """Monotonic time of the last reading of any kind; 0: nothing was read."""
        ends = [self.trace[-1].time_s if self.trace else 0.0]
        ends += [self.reasons[-1][0] if self.reasons else 0.0]
        return max(*ends, self.states[-1]["time"] if self.states else 0.0)

    def energy(self, begin_s: float, end_s: float) -> Energy:
        """Return the energy of a window; why there is none is among its notes.

        Raises:
            ValueError: The window has no length.
        """
        found = measure(
            self.counter,
            self.trace,
            begin_s,
            end_s,
            limit_w=self.limit_w,
            rate_hz=self.rate_hz,
            covers=bool(self.facts.get("covers")),
            average=self.series("average_w", begin_s, end_s) if self.facts.get("averages") else (),
        )
        if "energy_j" in self.forbidden:
            found = replace(found, joules=None, uncertainty_j=None, method=None)
        why = self.unavailable or self.missing.get("energy_j")
        notes = (why,) if why else ()
        lost = (f"the GPU was lost: {self.lost}",) if self.lost else ()
        return replace(found, invalid=(*found.invalid, *lost), notes=(*found.notes, *notes))

    def spans(self) -> tuple[Span, ...]:
        """Return when the clocks were held back, and why, in order of time."""
        found: list[Span] = []
        since: dict[int, float] = {}
        before = 0
        for time_s, mask in self.reasons:
            for bit in _bits(mask & ~before):
                since[bit] = time_s
            for bit in _bits(before & ~mask):
                found.append(Span(reason=_name(bit), begin_s=since.pop(bit), end_s=time_s))
            before = mask
        if self.reasons:
            end_s = self.reasons[-1][0]
            found += [Span(reason=_name(b), begin_s=t, end_s=end_s) for b, t in since.items()]
        return tuple(sorted(found, key=lambda span: (span.begin_s, span.reason)))

    def held_back_s(self, begin_s: float, end_s: float) -> dict[str, float]:
        """Return for how long of a window each reason held the clocks back, seconds.

        The larger of what the GPU counted and what the samples show: samples miss short events, and
        a driver may count nothing, or something else, in a field it does not know.
        """
        found: dict[str, float] = {}
        for span in self.spans():
            inside = min(span.end_s, end_s) - max(span.begin_s, begin_s)
            if inside > 0:
                found[span.reason] = found.get(span.reason, 0.0) + inside
        counted = self._counted_s(begin_s, end_s)
        thermal = counted.get("thermal", 0.0)
        if not counted.keys() & {"sw_thermal_slowdown", "hw_thermal_slowdown"}:
            # An older driver counts both together; the samples may show which it was.
            hardware = "hw_thermal_slowdown" in found
            counted["hw_thermal_slowdown" if hardware else "sw_thermal_slowdown"] = thermal
        for reason in REASONS.values():
            seconds = max(found.get(reason, 0.0), counted.get(reason, 0.0))
            if seconds > 0:
                found[reason] = min(seconds, end_s - begin_s)
        return found

    def _counted_s(self, begin_s: float, end_s: float) -> dict[str, float]:
        """Return the growth of the GPU's own counts of ns over a window, seconds."""
        series: dict[str, list[Reading]] = {}
        for state in self.states:
            for name, ns in (state.get("throttle_ns") or {}).items():
                series.setdefault(name, []).append(Reading(time_s=state["time"], value=ns / 1e9))
        return {
            name: at(readings, end_s) - at(readings, begin_s)
            for name, readings in series.items()
            if readings[0].time_s <= begin_s and end_s <= readings[-1].time_s
        }

    def risen(self, begin_s: float, end_s: float) -> dict[str, int]:
        """Return by how much each error count rose, from before a window to after it."""
        found = {}
        for name in COUNTED:
            known = [(s["time"], s[name]) for s in self.states if s.get(name) is not None]
            if known:
                before = next((n for t, n in reversed(known) if t <= begin_s), known[0][1])
                after = next((n for t, n in known if t >= end_s), known[-1][1])
                found[name] = after - before
        return found

    def series(self, name: str, begin_s: float, end_s: float) -> tuple[Reading, ...]:
        """Return a slower quantity through a window, e.g. "sm_mhz", "temperature_c"."""
        return tuple(
            Reading(time_s=state["time"], value=state[name])
            for state in self.states
            if state.get(name) is not None and begin_s <= state["time"] <= end_s
        )

    def state(self, begin_s: float, end_s: float) -> dict[str, float]:
        """Return what `core.clocks.State` says of a window, as far as it was read."""
        found = {}
        for name in ("sm_mhz", "memory_mhz"):
            if values := [reading.value for reading in self.series(name, begin_s, end_s)]:
                found[name] = median(values)
        if heat := [r.value for r in self.series("temperature_c", begin_s, end_s)]:
            found["temperature_c"] = max(heat)
        if self.reasons:
            capped_s = self.held_back_s(begin_s, end_s).get("sw_power_cap", 0.0)
            found["power_cap_share"] = capped_s / (end_s - begin_s)
        return found

    def before_us(self, allowed: Collection[int] = ()) -> tuple[Process, ...]:
        """Return what was on the GPU when the sampler started, but for what may be there."""
        listed = self.facts.get("processes") or []
        start_s = self.trace[0].time_s if self.trace else 0.0
        return tuple(
            Process(pid=pid, memory=memory, seen_s=start_s)
            for pid, memory in listed
            if pid not in allowed
        )

    def processes_seen(self, begin_s: float, end_s: float) -> set[int] | None:
        """Return which processes were listed in a window and not before; None: nothing was."""
        before = {pid for pid, _ in self.facts.get("processes") or ()}
        listed = [
            state["processes"]
            for state in self.states
            if state.get("processes") is not None and begin_s <= state["time"] <= end_s
        ]
        return {pid for each in listed for pid, _ in each} - before if listed else None

    def foreign(self, warm_s: float, allowed: Collection[int] = ()) -> tuple[Process, ...]:
        """Return the processes that came after ours were all there.

        Processes cannot be told by their ids, which are the host's: what is on the GPU once the
        engine has warmed up is ours, and what comes later is not.

        Args:
            warm_s: When the engine had warmed up.
            allowed: Ids of those that may come, such as a monitoring service's.
        """
        listed = [
            (s["time"], s["processes"]) for s in self.states if s.get("processes") is not None
        ]
        known = {process.pid for process in self.before_us()} | set(allowed)
        late = [time_s for time_s, _ in listed if time_s >= warm_s]
        settled_s = late[0] if late else warm_s
        found: dict[int, Process] = {}
        for time_s, processes in listed:
            for pid, memory in processes:
                if time_s <= settled_s:
                    known.add(pid)
                elif pid not in known and pid not in found:
                    found[pid] = Process(pid=pid, memory=memory, seen_s=time_s)
        return tuple(found.values())


def _bits(mask: int) -> Iterator[int]:
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit


def _name(bit: int) -> str:
    return REASONS.get(bit, f"unknown {bit:#x}")
