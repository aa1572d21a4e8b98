"""Evaluate the sampler's records of one GPU; times are CLOCK_MONOTONIC [s]."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Self

from pytest_mlperf.core.energy import Energy, measure
from pytest_mlperf.core.energy.readings import Reading, at, without_misreads
from pytest_mlperf.hardware.nvml_quantities import REASONS, reading_limits

RISING_COUNTS = {
    "ecc_uncorrected": "uncorrected memory errors (ECC)",
    "ecc_corrected": "corrected memory errors (ECC)",
    "pcie_replays": "replays on the PCIe link",
}

MAX_NVLINK_BYTES_PER_SECOND = 1e13
"""Five times NVLink 5's rate in one direction."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Hold a period in which one reason limited the clocks.

    Attributes:
        reason: NVML's name of the clock event reason; "unknown 0x800" for a bit without a name.
        begin_s: Time of the first sample with the reason.
        end_s: Time of the next sample without the reason, or of the last sample.
    """

    reason: str
    begin_s: float
    end_s: float


Processes = dict[int, int | None]
"""Bytes on a GPU by process, None if unknown; pids are the host's, also in a container."""

MAX_SILENCE_SECONDS = 1.0
"""A GPU without an answer for this long at the end was not watched; no rate is so low."""

OFF_THE_BUS = 79
"""XID of a GPU that no longer answers on PCIe."""


@dataclass(kw_only=True, slots=True)
class GpuLog:
    """Hold the samples of one GPU.

    Attributes:
        unavailable: Why nothing was read; None if something was.
        lost: Why the GPU no longer answers; None if it answered to the end.
        lost_s: Time when the loss was detected; None if before sampling.
        asked_s, last_s: Times of NVML's last call and of its last answer; 0 without one.
        last_failure: NVML's last error.
        facts: The GPU's entry in the sampler's first record, see `hardware.sampler`.
        counter: Energy counter [J].
        trace: Power [W].
        reasons: (time, bit mask) of samples; only the first and last of equal consecutive masks.
        states: Slower quantities, each with "time", oldest first.
        forbidden: Quantities that this user may not read; without its counter a GPU has no energy.
    """

    uuid: str
    unavailable: str | None = None
    lost: str | None = None
    lost_s: float | None = None
    asked_s: float = 0.0
    last_s: float = 0.0
    last_failure: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    counter: list[Reading] = field(default_factory=list)
    trace: list[Reading] = field(default_factory=list)
    reasons: list[tuple[float, int]] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    forbidden: set[str] = field(default_factory=set)
    rate_hz: float | None = None

    @classmethod
    def of(cls, facts: Mapping[str, Any], rate_hz: float) -> Self:
        """Return the log of a GPU without samples, from its entry in the sampler's first record."""
        reason = facts.get("unavailable")
        return cls(
            uuid=facts["uuid"],
            unavailable=reason,
            lost=reason if facts.get("lost") else None,
            facts=facts,
            missing=dict(facts.get("unavailable_quantities", {})),
            forbidden=set(facts.get("forbidden", ())),
            rate_hz=rate_hz,
        )

    def add_tick(self, tick: Sequence[Any]) -> None:
        """Add a record [time, gpu, watts, reasons], optionally with counter time and joules."""
        time_s, _, watts, mask = tick[:4]
        self._ask(time_s, (watts, mask, *tick[5:]))
        if watts is not None:
            self.trace.append(Reading(time_s=time_s, value=watts))
        if len(tick) > 4 and tick[5] is not None:
            self.counter.append(Reading(time_s=tick[4], value=tick[5]))
        if mask is not None:
            # Only the first and last of equal samples are kept.
            if len(self.reasons) > 1 and self.reasons[-1][1] == self.reasons[-2][1] == mask:
                self.reasons.pop()
            self.reasons.append((time_s, mask))

    def add_state(self, state: dict[str, Any]) -> None:
        """Add readings of clocks, temperatures and errors; XID 79 marks the GPU as lost."""
        self.states.append(state)
        self._ask(state["time"], [state[name] for name in state if name not in ("time", "gpu")])
        if OFF_THE_BUS in (state.get("xids") or ()):
            self.lose(state["time"], "it has fallen off the bus")

    def _ask(self, time_s: float, readings: Collection[Any]) -> None:
        self.asked_s = time_s
        if any(reading is not None for reading in readings):
            self.last_s = time_s

    def lose(self, time_s: float, reason: str) -> None:
        if self.lost is None:
            self.lost, self.lost_s = reason, time_s

    @property
    def silent(self) -> bool:
        """Whether NVML gave no value in the last `MAX_SILENCE_SECONDS` of calls."""
        return self.lost is None and 0 < self.last_s < self.asked_s - MAX_SILENCE_SECONDS

    @property
    def limit_w(self) -> float | None:
        limit = self.facts.get("identity", {}).get("limit_w")
        return None if limit is None else float(limit)

    def energy(self, begin_s: float, end_s: float) -> Energy:
        """Return the energy of a window; its notes give the reason if the energy is unknown."""
        energy = measure(
            self.counter,
            self.trace,
            begin_s,
            end_s,
            limit_w=self.limit_w,
            rate_hz=self.rate_hz,
            covers=bool(self.facts.get("covers")),
            average=self.series("average_w", begin_s, end_s) if self.facts.get("averages") else (),
            most_w=dict(reading_limits(self.facts.get("identity", {}))).get("power_w", math.inf),
            period_s=self.facts.get("counter_period_s"),
        )
        if "energy_j" in self.forbidden:
            energy = replace(energy, joules=None, uncertainty_j=None, method=None)
        reason = self.unavailable or self.missing.get("energy_j")
        notes = (reason,) if reason else ()
        lost = (f"the GPU was lost: {self.lost}",) if self.lost else ()
        return replace(energy, invalid=(*energy.invalid, *lost), notes=(*energy.notes, *notes))

    def clock_limits(self) -> tuple[Span, ...]:
        """Return when and why the GPU's clocks were limited, in order of time."""
        spans: list[Span] = []
        since: dict[int, float] = {}
        previous_mask = 0
        for time_s, mask in self.reasons:
            for bit in _bits(mask & ~previous_mask):
                since[bit] = time_s
            for bit in _bits(previous_mask & ~mask):
                spans.append(Span(reason=_name(bit), begin_s=since.pop(bit), end_s=time_s))
            previous_mask = mask
        if self.reasons:
            end_s = self.reasons[-1][0]
            spans += [Span(reason=_name(b), begin_s=t, end_s=end_s) for b, t in since.items()]
        return tuple(sorted(spans, key=lambda span: (span.begin_s, span.reason)))

    def limited_s(self, begin_s: float, end_s: float) -> dict[str, float]:
        """Return for each reason how long it limited the GPU's clocks in a window [s].

        This is the maximum of the GPU's own counter and the sampled time: samples miss short
        events, and a driver may not support the counter.
        """
        held_s: dict[str, float] = {}
        for span in self.clock_limits():
            inside = min(span.end_s, end_s) - max(span.begin_s, begin_s)
            if inside > 0:
                held_s[span.reason] = held_s.get(span.reason, 0.0) + inside
        counted = self._counted_s(begin_s, end_s)
        thermal = counted.get("thermal", 0.0)
        if not counted.keys() & {"sw_thermal_slowdown", "hw_thermal_slowdown"}:
            # Older drivers count both together; the samples may show which one it was.
            hardware = "hw_thermal_slowdown" in held_s
            counted["hw_thermal_slowdown" if hardware else "sw_thermal_slowdown"] = thermal
        for reason in REASONS.values():
            seconds = max(held_s.get(reason, 0.0), counted.get(reason, 0.0))
            if seconds > 0:
                held_s[reason] = min(seconds, end_s - begin_s)
        return held_s

    def _counted_s(self, begin_s: float, end_s: float) -> dict[str, float]:
        """Return the time for each clock event reason in a window by the GPU's own counters [s]."""
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
        """Return by how much each count of memory and PCIe errors rose during a window, by name."""
        ends = {name: self.at_ends(name, begin_s, end_s) for name in RISING_COUNTS}
        return {n: both[1] - both[0] for n, both in ends.items() if both and both[1] >= both[0]}

    def link_errors(self, begin_s: float, end_s: float) -> dict[str, dict[int, int]]:
        old_errors, new_errors = self.at_ends("nvlink_errors", begin_s, end_s) or ({}, {})
        risen: dict[str, dict[int, int]] = {}
        for kind, counts in new_errors.items():
            for link, count in counts.items():
                if (more := count - old_errors.get(kind, {}).get(link, 0)) > 0:
                    risen.setdefault(kind, {})[int(link)] = more
        return risen

    def links(self, begin_s: float, end_s: float) -> tuple[dict[int, bool], dict[int, bool]]:
        """Return (before, after) a window whether each NVLink was up, by number; {} if not read."""
        links_before, links_after = (
            {int(link): bool(up) for link, up in states.items()}
            for states in self.at_ends("nvlinks", begin_s, end_s) or ({}, {})
        )
        return links_before, links_after

    def link_rates(self, begin_s: float, end_s: float) -> dict[str, float]:
        """Return the NVLink rates, sent and received, in a window [B/s]; {} if unknown."""
        read = [s for s in self.states if s.get("nvlink_bytes") is not None]
        if not read or not read[0]["time"] <= begin_s < end_s <= read[-1]["time"]:
            return {}
        rates = {}
        for position, name in enumerate(("nvlink_sent", "nvlink_received")):
            counted = [Reading(time_s=s["time"], value=s["nvlink_bytes"][position]) for s in read]
            if not (
                line := without_misreads(counted, begin_s, end_s, MAX_NVLINK_BYTES_PER_SECOND)[0]
            ):
                return {}  # a reloaded driver restarts its counters
            rates[name] = (at(line, end_s) - at(line, begin_s)) / (end_s - begin_s)
        return rates

    def at_ends(self, name: str, begin_s: float, end_s: float) -> tuple[Any, Any] | None:
        """Return the readings of `name` before and after a window, else nearest; None if none."""
        read = [(s["time"], s[name]) for s in self.states if s.get(name) is not None]
        if not read:
            return None
        last_before = next(
            (value for time_s, value in reversed(read) if time_s <= begin_s), read[0][1]
        )
        return last_before, next((value for time_s, value in read if time_s >= end_s), read[-1][1])

    def series(self, name: str, begin_s: float, end_s: float) -> tuple[Reading, ...]:
        """Return the readings of a slowly sampled quantity in a window, e.g. "temperature_c"."""
        return tuple(
            Reading(time_s=state["time"], value=state[name])
            for state in self.states
            if state.get(name) is not None and begin_s <= state["time"] <= end_s
        )

    def state(self, begin_s: float, end_s: float) -> dict[str, float]:
        """Return a window's state as fields of `core.control.State`; omit quantities not read."""
        state = {}
        for name in ("sm_mhz", "memory_mhz"):
            if values := [reading.value for reading in self.series(name, begin_s, end_s)]:
                state[name] = median(values)
        if heat := [r.value for r in self.series("temperature_c", begin_s, end_s)]:
            state["temperature_c"] = max(heat)
        if self.reasons:
            capped_s = self.limited_s(begin_s, end_s).get("sw_power_cap", 0.0)
            state["power_cap_share"] = capped_s / (end_s - begin_s)
        return state

    @property
    def initial_processes(self) -> Processes:
        """Processes on the GPU at the sampler's start: bytes by pid, None if unknown."""
        return dict(self.facts.get("processes") or ())

    def processes_seen(self, begin_s: float, end_s: float) -> set[int] | None:
        """Return pids on the GPU in a window, except those at the start; None if unknown."""
        listed = [
            state["processes"]
            for state in self.states
            if state.get("processes") is not None and begin_s <= state["time"] <= end_s
        ]
        pids = {pid for processes in listed for pid, _ in processes}
        return pids - self.initial_processes.keys() if listed else None

    def foreign_processes(self, warmup_end_s: float) -> Processes:
        """Return the memory [bytes, or None] by pid of processes that began after the warm-up."""
        listed = [
            (s["time"], s["processes"]) for s in self.states if s.get("processes") is not None
        ]
        expected = set(self.initial_processes)
        late = [time_s for time_s, _ in listed if time_s >= warmup_end_s]
        settled_s = late[0] if late else warmup_end_s
        foreign: Processes = {}
        for time_s, processes in listed:
            for pid, memory in processes:
                if time_s <= settled_s:
                    expected.add(pid)
                elif pid not in expected:
                    foreign.setdefault(pid, memory)
        return foreign


def _bits(mask: int) -> list[int]:
    return [1 << place for place in range(mask.bit_length()) if mask >> place & 1]


def _name(bit: int) -> str:
    return REASONS.get(bit, f"unknown {bit:#x}")
