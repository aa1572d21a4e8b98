"""Open a GPU for sampling: find its identity, its readable quantities and the cost of a reading."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from pytest_mlperf.hardware import _nvml
from pytest_mlperf.hardware.nvml_quantities import identity, probes

DISAPPEARED = frozenset(
    {_nvml.GPU_IS_LOST, _nvml.RESET_REQUIRED, _nvml.DRIVER_NOT_LOADED, _nvml.NOT_FOUND}
)
"""Error codes that mean that a GPU seen earlier is gone."""

TIMINGS = 20
"""Reads of each quantity at the start, which also select the method that answers."""

MAX_PROBE_SECONDS = 0.05
"""These reads stop after this time, once a method has answered."""

COUNTER_POLL_SECONDS = 0.004


class SampledGpu:
    """Hold a GPU's identity, a reader for each quantity, and the measured cost of each reading."""

    def __init__(self, index: int, device: _nvml.NvmlDevice, driver: str) -> None:
        self.index, self.device = index, device
        self.identity = identity(device)
        self.probes = probes(device, self.identity, driver)
        self.cost_us: dict[str, tuple[float, float, float]] = {}
        self.first: dict[str, Any] = {}
        self.period_s: float | None = None
        self.lost: _nvml.Lost | None = None
        for name, probe in self.probes.items():
            self._time(name, probe)

    def _time(self, name: str, probe: _nvml.Probe) -> None:
        walls = []
        if (first := probe.read()) is not None:  # untimed: it also finds the function
            self.first[name] = first
        reads, cpu, end = 0, time.thread_time(), time.monotonic() + MAX_PROBE_SECONDS
        while reads < TIMINGS:
            reads += 1
            begin = time.perf_counter()
            value = probe.read()
            if value is not None:
                walls.append(time.perf_counter() - begin)
                self.first.setdefault(name, value)
            if (probe.way or probe.failure) and time.monotonic() >= end:
                break
        cpu = time.thread_time() - cpu
        probe.set_failure()
        if walls:
            figures = median(walls), max(walls), cpu / reads
            self.cost_us[name] = tuple(round(s * 1e6, 2) for s in figures)  # type: ignore[assignment]

    def readable_probes(self, names: Sequence[str]) -> list[_nvml.Probe]:
        """Return the readers of the named quantities, without those that cannot be read."""
        return [self.probes[name] for name in names if self.probes[name].failure is None]

    def cost(self, names: Sequence[str]) -> tuple[float, float]:
        """Return the CPU time and the wall time of reading the named quantities once [s]."""
        costs = [
            self.cost_us[probe.name]
            for probe in self.readable_probes(names)
            if probe.name in self.cost_us
        ]
        return sum(c[2] for c in costs) / 1e6, sum(c[0] for c in costs) / 1e6

    def ready(self) -> dict[str, Any]:
        """Return identity, read methods and reading costs, for the sampler's "ready" record."""
        return {
            "index": self.index,
            "uuid": self.device.uuid,
            "identity": self.identity,
            "instance": self.device.instance,
            "instances": self.device.instances,
            "shared": self.device.shared,
            "scope": _nvml.power_scope(self.identity, self.probes["power_w"]),
            "covers": _nvml.measures_without_gaps(self.identity),
            "averages": _nvml.reports_mean_power(self.identity),
            "ways": {name: p.way for name, p in self.probes.items() if p.way},
            "unavailable_quantities": self.unavailable(),
            "forbidden": self.forbidden(),
            "cost_us": self.cost_us,
            "counter_period_s": self.period_s,
            "utilization_percent": self.first.get("utilization_percent"),
            "processes": self.first.get("processes"),
            "memory_used": self.first.get("memory_used"),
        }

    def unavailable(self) -> dict[str, str]:
        """Return why quantities cannot be read: {quantity: reason}; {} if all can be."""
        return {name: probe.failure for name, probe in self.probes.items() if probe.failure}

    def forbidden(self) -> list[str]:
        """Return the quantities that this user may not read."""
        return [name for name, probe in self.probes.items() if probe.forbidden]


def measure_periods(gpus: Sequence[SampledGpu], seconds: float, stop: threading.Event) -> None:
    """Measure the update period of each GPU's energy counter for `seconds`; record lost GPUs."""
    live = [gpu for gpu in gpus if gpu.probes["energy_j"].failure is None]
    pause = max(COUNTER_POLL_SECONDS, 4 * sum(gpu.cost(["energy_j"])[1] for gpu in live))
    changes: dict[int, list[tuple[float, float]]] = {gpu.index: [] for gpu in live}
    end = time.monotonic() + seconds
    while live and time.monotonic() < end and not stop.wait(pause):
        for gpu in list(live):
            try:
                at, joules = timed_reading(gpu.probes["energy_j"])
            except _nvml.Lost as error:
                gpu.lost = error
                live.remove(gpu)
                continue
            readings = changes[gpu.index]
            if joules is not None and (not readings or readings[-1][1] != joules):
                readings.append((at, joules))
    for gpu in live:
        # The first entry is the start, not a change.
        gaps = [later[0] - earlier[0] for earlier, later in pairwise(changes[gpu.index][1:])]
        gpu.period_s = round(median(gaps), 4) if gaps else None


def silent_part(index: int, uuid: str, error: _nvml.UnavailableNvml | _nvml.Lost) -> dict[str, Any]:
    """Return the entry in the sampler's "ready" record for a GPU that cannot be sampled."""
    record = {"index": index, "uuid": uuid, "unavailable": str(error)}
    gone = isinstance(error, _nvml.Lost) or error.code in DISAPPEARED
    return {**record, "lost": True} if gone else record


def timed_reading(probe: _nvml.Probe) -> tuple[float, Any]:
    """Read a quantity; return the monotonic time at the middle of the call [s], and the value."""
    begin = time.monotonic()
    value = probe.read()
    return (begin + time.monotonic()) / 2, value


def open_gpus(
    library: _nvml.NvmlLibrary, uuids: Sequence[str], driver: str
) -> tuple[list[SampledGpu], list[dict[str, Any]]]:
    """Return (GPUs that can be sampled, dicts with index, UUID and reason for the others)."""
    gpus: list[SampledGpu] = []
    silent: list[dict[str, Any]] = []
    for index, uuid in enumerate(uuids):
        try:
            gpu = SampledGpu(index, _nvml.find(library, uuid), driver)
        except (_nvml.UnavailableNvml, _nvml.Lost) as error:
            silent.append(silent_part(index, uuid, error))
            continue
        gpu_uuid = gpu.identity["uuid"]
        twins = [
            g.device.uuid for g in gpus if gpu_uuid is not None and g.identity["uuid"] == gpu_uuid
        ]
        if twins:
            reason = f"is on the same GPU as {twins[0]}, whose energy would be counted twice"
            silent.append({"index": index, "uuid": uuid, "unavailable": reason})
        else:
            gpus.append(gpu)
    return gpus, silent


BUSY_PERCENT = 10
"""Higher utilisation means that someone else uses the GPU."""

MAX_MEAN_SECONDS = 1.0
"""Longest time over which a board is known to average its utilisation."""

FADE_SECONDS = 2.25 * MAX_MEAN_SECONDS
"""Time after which high utilisation is current: means may be shown until the next one."""

REST_POLL_SECONDS = 0.05

AT_REST = ("utilization_percent", "processes", "memory_used")


def read_at_rest(gpus: Sequence[SampledGpu], stop: threading.Event) -> None:
    """Store each GPU's state before an engine loads; mark GPUs that stop answering as lost.

    The state shows whether other processes use the GPU. NVML's utilisation is a mean of up to a
    second, and still includes the micro-benchmark that has just ended. Busy GPUs are therefore read
    again, for up to `FADE_SECONDS`.
    """
    end = time.monotonic() + FADE_SECONDS
    busy = [gpu for gpu in gpus if not gpu.lost]
    while busy:
        for gpu in list(busy):
            try:
                gpu.first |= {
                    probe.name: value
                    for probe in gpu.readable_probes(AT_REST)
                    if (value := probe.read()) is not None
                }
            except _nvml.Lost as error:
                gpu.lost = error
                busy.remove(gpu)
        busy = [gpu for gpu in busy if gpu.first.get("utilization_percent", 0) >= BUSY_PERCENT]
        if time.monotonic() >= end or stop.wait(REST_POLL_SECONDS):
            break
