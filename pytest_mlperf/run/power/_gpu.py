"""What the sampler recorded of one GPU, as values: energy, events, states, processes.

Times are CLOCK_MONOTONIC, seconds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from pytest_mlperf.core.energy import Energy, measure
from pytest_mlperf.core.energy.readings import Reading, at, without_misreads
from pytest_mlperf.hardware.nvml_quantities import REASONS, highest

RISING_COUNTS = {
    "ecc_uncorrected": "uncorrected memory errors (ECC)",
    "ecc_corrected": "corrected memory errors (ECC)",
    "pcie_replays": "replays on the PCIe link",
}

MAX_NVLINK_BYTES_PER_SECOND = 1e13
"""Five times what NVLink 5 carries in one direction."""


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
class GpuProcess:
    """A process on a GPU.

    Attributes:
        pid: As the host knows it; in a container no process there has it.
        memory: Bytes on the GPU, None where they are not told.
    """

    pid: int
    memory: int | None
    seen_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuLog:
    """One GPU.

    Attributes:
        unavailable: Why nothing was read of it, None where something was.
        lost: Why it answers no more, None where it still did at the end.
        lost_s: When that was seen; None: before sampling began.
        last_s: Monotonic time of its last answer; 0: it gave none.
        silent: NVML gave errors alone from then on.
        last_failure: What NVML said then.
        facts: Its part of the sampler's first record: identity, ways, costs, scope, MIG.
        counter: Energy counter, joules.
        trace: Power, watts.
        reasons: (time, bit mask) of samples; of a row of equal ones only the first and the last.
        states: Slower quantities, each with "time", oldest first.
        forbidden: Quantities that may not be read here: without its counter a GPU has no energy.
    """

    uuid: str
    unavailable: str | None = None
    lost: str | None = None
    lost_s: float | None = None
    last_s: float = 0.0
    silent: bool = False
    last_failure: str = ""
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

    def energy(self, begin_s: float, end_s: float) -> Energy:
        """Return the energy of a window; why there is none is among its notes."""
        energy = measure(
            self.counter,
            self.trace,
            begin_s,
            end_s,
            limit_w=self.limit_w,
            rate_hz=self.rate_hz,
            covers=bool(self.facts.get("covers")),
            average=self.series("average_w", begin_s, end_s) if self.facts.get("averages") else (),
            most_w=dict(highest(self.facts.get("identity", {}))).get("power_w", math.inf),
            period_s=self.facts.get("counter_period_s"),
        )
        if "energy_j" in self.forbidden:
            energy = replace(energy, joules=None, uncertainty_j=None, method=None)
        reason = self.unavailable or self.missing.get("energy_j")
        notes = (reason,) if reason else ()
        lost = (f"the GPU was lost: {self.lost}",) if self.lost else ()
        return replace(energy, invalid=(*energy.invalid, *lost), notes=(*energy.notes, *notes))

    def spans(self) -> tuple[Span, ...]:
        """Return when the clocks were held back, and why, in order of time."""
        spans: list[Span] = []
        since: dict[int, float] = {}
        before = 0
        for time_s, mask in self.reasons:
            for bit in _bits(mask & ~before):
                since[bit] = time_s
            for bit in _bits(before & ~mask):
                spans.append(Span(reason=_name(bit), begin_s=since.pop(bit), end_s=time_s))
            before = mask
        if self.reasons:
            end_s = self.reasons[-1][0]
            spans += [Span(reason=_name(b), begin_s=t, end_s=end_s) for b, t in since.items()]
        return tuple(sorted(spans, key=lambda span: (span.begin_s, span.reason)))

    def held_back_s(self, begin_s: float, end_s: float) -> dict[str, float]:
        """Return for how long of a window each reason held the clocks back, seconds.

        The larger of what the GPU counted and what the samples show: samples miss short events, and
        a driver may count nothing, or something else, in a field it does not know.
        """
        held_s: dict[str, float] = {}
        for span in self.spans():
            inside = min(span.end_s, end_s) - max(span.begin_s, begin_s)
            if inside > 0:
                held_s[span.reason] = held_s.get(span.reason, 0.0) + inside
        counted = self._counted_s(begin_s, end_s)
        thermal = counted.get("thermal", 0.0)
        if not counted.keys() & {"sw_thermal_slowdown", "hw_thermal_slowdown"}:
            # An older driver counts both together; the samples may show which it was.
            hardware = "hw_thermal_slowdown" in held_s
            counted["hw_thermal_slowdown" if hardware else "sw_thermal_slowdown"] = thermal
        for reason in REASONS.values():
            seconds = max(held_s.get(reason, 0.0), counted.get(reason, 0.0))
            if seconds > 0:
                held_s[reason] = min(seconds, end_s - begin_s)
        return held_s

    def _counted_s(self, begin_s: float, end_s: float) -> dict[str, float]:
        """Return the growth of the GPU's own counts of ns over a window, seconds."""
        series: dict[str, list[Reading]] = {}
        for state in self.states:
            for name, ns in (state.get("throttle_ns") or {}).items():
                series.setdefault(name, []).append(Reading(time_s=state["time"], value=ns / 1e9))
        lines = {n: without_misreads(read, begin_s, end_s)[0] for n, read in series.items()}
        return {
            name: at(line, end_s) - at(line, begin_s)
            for name, line in lines.items()
            if line and line[0].time_s <= begin_s and end_s <= line[-1].time_s
        }

    def risen(self, begin_s: float, end_s: float) -> dict[str, int]:
        """Return by how much each error count rose, from before a window to after it."""
        ends = {name: self._at_ends(name, begin_s, end_s) for name in RISING_COUNTS}
        return {n: both[1] - both[0] for n, both in ends.items() if both and both[1] >= both[0]}

    def link_errors(self, begin_s: float, end_s: float) -> dict[str, dict[int, int]]:
        """Return by how much the errors of each NVLink rose, by their kind, likewise."""
        before, after = self._at_ends("nvlink_errors", begin_s, end_s) or ({}, {})
        risen: dict[str, dict[int, int]] = {}
        for kind, counts in after.items():
            for link, count in counts.items():
                if (more := count - before.get(kind, {}).get(link, 0)) > 0:
                    risen.setdefault(kind, {})[int(link)] = more
        return risen

    def links(self, begin_s: float, end_s: float) -> tuple[dict[int, bool], dict[int, bool]] | None:
        """Return which NVLinks were up before a window and after it; None: it has none."""
        both = self._at_ends("nvlinks", begin_s, end_s)
        if both is None:
            return None
        before, after = ({int(link): bool(up) for link, up in each.items()} for each in both)
        return before, after

    def fabric_health(self, begin_s: float, end_s: float) -> tuple[int, int] | None:
        """Return the health mask of its NVSwitches before a window and after it; None: no mask."""
        return self._at_ends("fabric_health", begin_s, end_s)

    def link_rates(self, begin_s: float, end_s: float) -> dict[str, float]:
        """Return what it sent and received over NVLink in a window, B/s; empty: not known."""
        read = [s for s in self.states if s.get("nvlink_bytes") is not None]
        if not read or not read[0]["time"] <= begin_s < end_s <= read[-1]["time"]:
            return {}
        rates = {}
        for place, name in enumerate(("nvlink_sent", "nvlink_received")):
            counted = [Reading(time_s=s["time"], value=s["nvlink_bytes"][place]) for s in read]
            if not (
                line := without_misreads(counted, begin_s, end_s, MAX_NVLINK_BYTES_PER_SECOND)[0]
            ):
                return {}  # a driver that was loaded anew counts anew
            rates[name] = (at(line, end_s) - at(line, begin_s)) / (end_s - begin_s)
        return rates

    def _at_ends(self, name: str, begin_s: float, end_s: float) -> tuple[Any, Any] | None:
        """Return the last reading before a window and the first after it, or those nearest."""
        read = [(s["time"], s[name]) for s in self.states if s.get(name) is not None]
        if not read:
            return None
        before = next((value for time_s, value in reversed(read) if time_s <= begin_s), read[0][1])
        return before, next((value for time_s, value in read if time_s >= end_s), read[-1][1])

    def series(self, name: str, begin_s: float, end_s: float) -> tuple[Reading, ...]:
        """Return a slower quantity through a window, e.g. "sm_mhz", "temperature_c"."""
        return tuple(
            Reading(time_s=state["time"], value=state[name])
            for state in self.states
            if state.get(name) is not None and begin_s <= state["time"] <= end_s
        )

    def state(self, begin_s: float, end_s: float) -> dict[str, float]:
        """Return what `core.control.State` says of a window, as far as it was read."""
        state = {}
        for name in ("sm_mhz", "memory_mhz"):
            if values := [reading.value for reading in self.series(name, begin_s, end_s)]:
                state[name] = median(values)
        if heat := [r.value for r in self.series("temperature_c", begin_s, end_s)]:
            state["temperature_c"] = max(heat)
        if self.reasons:
            capped_s = self.held_back_s(begin_s, end_s).get("sw_power_cap", 0.0)
            state["power_cap_share"] = capped_s / (end_s - begin_s)
        return state

    def before_us(self, allowed: Collection[int] = ()) -> tuple[GpuProcess, ...]:
        """Return what was on the GPU when the sampler started, but for what may be there."""
        listed = self.facts.get("processes") or []
        start_s = self.trace[0].time_s if self.trace else 0.0
        return tuple(
            GpuProcess(pid=pid, memory=memory, seen_s=start_s)
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

    def foreign(self, warm_s: float, allowed: Collection[int] = ()) -> tuple[GpuProcess, ...]:
        """Return the processes that came after ours were all there.

        Processes cannot be told by their ids, which are the host's: what is on the GPU once the
        engine has warmed up is ours, and what comes later is not.
        """
        listed = [
            (s["time"], s["processes"]) for s in self.states if s.get("processes") is not None
        ]
        expected = {process.pid for process in self.before_us()} | set(allowed)
        late = [time_s for time_s, _ in listed if time_s >= warm_s]
        settled_s = late[0] if late else warm_s
        foreign: dict[int, GpuProcess] = {}
        for time_s, processes in listed:
            for pid, memory in processes:
                if time_s <= settled_s:
                    expected.add(pid)
                elif pid not in expected and pid not in foreign:
                    foreign[pid] = GpuProcess(pid=pid, memory=memory, seen_s=time_s)
        return tuple(foreign.values())


def _bits(mask: int) -> Iterator[int]:
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit


def _name(bit: int) -> str:
    return REASONS.get(bit, f"unknown {bit:#x}")
