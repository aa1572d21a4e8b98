"""Read each GPU in its own thread at a regular interval, so that no GPU delays the others."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import IO, Any, NamedTuple

from pytest_mlperf.hardware._nvml import Lost
from pytest_mlperf.hardware.nvml_quantities import SLOW_QUANTITIES, STATE
from pytest_mlperf.hardware.sampler_gpu import SampledGpu, timed_reading

CPU_SHARE = 0.02
"""Share of one core that sampling one GPU may use."""

CPU_SHARE_MORE = 0.01
"""Additional share for each further GPU: machines with many GPUs have many cores."""

PLANNED_SHARE = 0.9
"""Part of the share to plan for, because reads may cost more during the run."""

DRIVER_SHARE = 0.10
"""Share of the time per GPU that may be spent inside NVML, which holds the driver's locks."""

DRIVERS_SHARE = 0.80
"""The same for all GPUs together: the driver may process calls one at a time."""

TICK_COST_SECONDS = 150e-6
"""Measured CPU time of one GPU's tick outside NVML: wake-up, clocks and writing."""

TOPS_HZ = {"trace": 50.0, "counter": 20.0, "state": 5.0, "slow": 1.0}

FLOORS_HZ = {"trace": 5.0, "counter": 5.0, "state": 1.0, "slow": 0.2}
"""Lower rates would say nothing about a window of seconds."""

LOWER_RATE_FACTOR = 0.8


class ReadCost(NamedTuple):
    """Hold the cost of reading a group of quantities once on a GPU: CPU and wall time [s]."""

    cpu_s: float
    wall_s: float


def highest_cost(costs: Iterable[tuple[float, float]]) -> ReadCost:
    """Return the highest CPU time and highest wall time [s] of the GPUs' (CPU, wall) costs."""
    return ReadCost(*map(max, zip(*costs, strict=True)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Hold the sampling rates of each GPU, and their cost.

    `cpu_share` is the used share of one core for all GPUs, `driver_share` the share of time that
    each GPU's thread spends in NVML.
    """

    trace_hz: float
    counter_hz: float
    state_hz: float
    slow_hz: float
    cpu_share: float
    driver_share: float


def choose(
    costs: Mapping[str, ReadCost], gpus: int, *, trace_hz: float = TOPS_HZ["trace"]
) -> Rates:
    """Choose the sampling rate of each group of quantities, within budgets of CPU and driver time.

    The most expensive rate is lowered first; even the lowest rates may exceed the budgets. `costs`
    are those of the most expensive GPU. Energy is read at every n-th reading of power.
    """
    free = ReadCost(cpu_s=0.0, wall_s=0.0)
    paid = {group: costs.get(group, free) for group in TOPS_HZ}
    paid["trace"] = ReadCost(
        cpu_s=paid["trace"].cpu_s + TICK_COST_SECONDS, wall_s=paid["trace"].wall_s
    )
    rates = {**TOPS_HZ, "trace": trace_hz, "counter": min(TOPS_HZ["counter"], trace_hz)}
    allowed, waiting = PLANNED_SHARE * cpu_allowed(gpus) / gpus, _waiting(paid, gpus)
    while True:
        spent = {g: (rates[g] * paid[g].cpu_s, rates[g] * paid[g].wall_s) for g in rates}
        cpu, driver = map(sum, zip(*spent.values(), strict=True))
        lower = [group for group in rates if rates[group] > FLOORS_HZ[group]]
        if (cpu <= allowed and driver <= waiting) or not lower:
            break
        worst = max(lower, key=lambda g: max(spent[g][0] / allowed, spent[g][1] / waiting))
        rates[worst] = max(FLOORS_HZ[worst], rates[worst] * LOWER_RATE_FACTOR)
    max_every = max(1, int(rates["trace"] / FLOORS_HZ["counter"]))
    every = min(ceil(rates["trace"] / rates["counter"]), max_every)
    return Rates(
        trace_hz=rates["trace"],
        counter_hz=rates["trace"] / every,
        state_hz=rates["state"],
        slow_hz=rates["slow"],
        cpu_share=gpus * cpu,
        driver_share=driver,
    )


def cpu_allowed(gpus: int) -> float:
    """Return the share of one core that sampling this many GPUs may use."""
    return CPU_SHARE + CPU_SHARE_MORE * (gpus - 1)


def _waiting(paid: Mapping[str, ReadCost], gpus: int) -> float:
    """Return the share of time each GPU thread may spend in NVML; `paid`: read costs by group.

    If a driver is slow even at the lowest rates, the share is raised, so that one slow quantity
    does not slow down the fast ones. The CPU share is never raised.
    """
    floor_share = sum(floor * paid[group].wall_s for group, floor in FLOORS_HZ.items())
    return max(min(DRIVER_SHARE, DRIVERS_SHARE / gpus), 2 * floor_share)


WRITE_PERIOD_SECONDS = 0.5
PARENT_POLL_SECONDS = 0.1
RATE_CHOICE_SECONDS = 1.0
THREAD_GRACE_SECONDS = 1.0


class Writer:
    """Write lines of several threads to a file in batches."""

    def __init__(self, file: IO[str]) -> None:
        self._file, self._next = file, 0.0
        self._lines: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, line: str) -> None:
        with self._lock:
            self._lines.append(line)
            if (time_s := time.monotonic()) >= self._next:
                self._next = time_s + WRITE_PERIOD_SECONDS
                self._write()

    def flush(self) -> None:
        """Write all pending lines."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        self._file.write("".join(f"{line}\n" for line in self._lines))
        self._file.flush()
        self._lines.clear()


@dataclass(kw_only=True, slots=True)
class SlowGroup:
    """Define a group of slowly read quantities of a GPU, with the time of the next reading."""

    names: Sequence[str]
    period_s: float
    due_s: float = 0.0


class GpuThread(threading.Thread):
    """Read one GPU in a thread until stopped, or until the GPU is lost.

    `ordered` is true after a normal end. `ticks` counts the readings made, `planned` those due,
    `slow` those made late.
    """

    def __init__(
        self,
        gpu: SampledGpu,
        rates: Rates,
        write: Callable[[str], None],
        stop: threading.Event,
        delay_s: float,
    ) -> None:
        """Schedule the first reading after a delay, so that GPUs are not all read at once."""
        super().__init__(name=gpu.device.uuid, daemon=True)
        self.gpu, self.lost, self.ordered = gpu, False, False
        self.ticks = self.planned = self.slow = 0
        self.costs: dict[str, ReadCost] = {}  # minimum by group
        self._write, self._ended, self._delay_s = write, stop, delay_s
        self._jobs = [SlowGroup(names=names, period_s=0.0) for names in (STATE, SLOW_QUANTITIES)]
        self.pace(rates)

    def pace(self, rates: Rates) -> None:
        """Change the sampling rates from the next reading on."""
        self._period_s = 1 / rates.trace_hz
        self._began_s = time.monotonic() - self.planned * self._period_s
        self._every = round(rates.trace_hz / rates.counter_hz)
        for job, hz in zip(self._jobs, (rates.state_hz, rates.slow_hz), strict=True):
            job.period_s, job.due_s = 1 / hz, min(job.due_s, time.monotonic() + 1 / hz)

    def run(self) -> None:
        """Read the GPU at a regular interval."""
        self._began_s += self._delay_s
        while not self.lost and not self._ended.is_set():
            due = self._began_s + self.planned * self._period_s
            late = time.monotonic() - due
            if late < 0:
                # `Event.wait` would cost 50 % more; stopping can wait for a tick.
                time.sleep(-late)
            self.slow += late > self._period_s / 2
            self._tick()
            # Missed ticks are not repeated: they would crowd the readings.
            made = int((time.monotonic() - self._began_s) / self._period_s)
            self.planned = max(self.planned, made) + 1
        self.ordered = True

    def finish(self) -> None:
        """Read all quantities a last time."""
        self._guarded(lambda: self._trace(count=True))
        self._guarded(lambda: self._state((*STATE, *SLOW_QUANTITIES)))

    def _tick(self) -> None:
        self.ticks += 1
        count = self.ticks % self._every == 0
        self._guarded(lambda: self._trace(count=count), "counter" if count else "trace")
        # One slow group per tick, so that no tick is long.
        job = min(self._jobs, key=lambda job: job.due_s)
        if job.due_s <= (time_s := time.monotonic()):
            job.due_s = max(job.due_s + job.period_s, time_s + job.period_s / 2)
            self._guarded(
                lambda: self._state(job.names), "slow" if job.names is SLOW_QUANTITIES else "state"
            )

    def _guarded(self, read: Callable[[], None], group: str = "") -> None:
        if self.lost:
            return
        cpu_s, wall_s = time.thread_time(), time.monotonic()
        try:
            read()
            cost = ReadCost(time.thread_time() - cpu_s, time.monotonic() - wall_s)
            minimum = self.costs.get(group, cost)
            self.costs[group] = ReadCost(*map(min, minimum, cost))
        except Lost as error:
            self.lost = True
            record = {"time": time.monotonic(), "gpu": self.gpu.index}
            self._write(json.dumps({"lost": {**record, "code": error.code, "why": str(error)}}))
            # The driver's XIDs may still be available; read them last, because the call may hang.
            with contextlib.suppress(Lost):
                self._state(("xids",))

    def _trace(self, *, count: bool) -> None:
        probes = self.gpu.probes
        at, watts = timed_reading(probes["power_w"])
        reasons = probes["reasons"].read()
        power = "null" if watts is None else f"{watts:.3f}"
        head = f'{{"t":[{at:.6f},{self.gpu.index},{power},{"null" if reasons is None else reasons}'
        if count and probes["energy_j"].failure is None:
            at, joules = timed_reading(probes["energy_j"])
            head += f",{at:.6f},{'null' if joules is None else f'{joules:.3f}'}"
        self._write(head + "]}")

    def _state(self, names: Sequence[str]) -> None:
        read: dict[str, Any] = {"time": round(time.monotonic(), 6), "gpu": self.gpu.index}
        read |= {probe.name: probe.read() for probe in self.gpu.readable_probes(names)}
        self._write(json.dumps({"s": read}, separators=(",", ":")))


class Sampler:
    """Read each GPU in its own thread; pass each record as a JSON line to `write`."""

    def __init__(
        self,
        gpus: Sequence[SampledGpu],
        rates: Rates,
        write: Callable[[str], None],
        most_hz: float = TOPS_HZ["trace"],
    ) -> None:
        self._end, self._most_hz = threading.Event(), most_hz
        self._rates, self._write = rates, write
        apart_s = 1 / rates.trace_hz / max(1, len(gpus))
        self._threads = [
            GpuThread(gpu, rates, write, self._end, number * apart_s)
            for number, gpu in enumerate(gpus)
        ]

    def run(self, stop: threading.Event, parent: int) -> bool:
        """Sample until stopped, orphaned or out of GPUs; return False if a thread is stuck."""
        for thread in self._threads:
            thread.start()
        due_s = time.monotonic() + RATE_CHOICE_SECONDS
        while any(thread.is_alive() for thread in self._threads):
            if stop.wait(PARENT_POLL_SECONDS) or os.getppid() != parent:
                break
            if time.monotonic() >= due_s:
                due_s += RATE_CHOICE_SECONDS
                self._choose_again()
        self._end.set()
        deadline = time.monotonic() + THREAD_GRACE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return all(thread.ordered for thread in self._threads)

    def _choose_again(self) -> None:
        """Raise the sampling rates if reads have become cheaper since the rates were chosen."""
        readings = [thread.costs for thread in self._threads if not thread.lost]
        # At the lowest rates each tick also reads the counter: the trace costs less than that.
        readings = [
            {"trace": costs["counter"], **costs} for costs in readings if "counter" in costs
        ]
        if not readings or any(TOPS_HZ.keys() - costs.keys() for costs in readings):
            return
        costs = {group: highest_cost(costs[group] for costs in readings) for group in TOPS_HZ}
        rates = choose(costs, len(self._threads), trace_hz=self._most_hz)
        names = ("trace_hz", "state_hz", "slow_hz")
        better = [getattr(rates, name) / getattr(self._rates, name) for name in names]
        if min(better) >= 1 < max(better):
            self._rates = rates
            for thread in self._threads:
                thread.pace(rates)
            self._write(json.dumps({"rates": {"time": time.monotonic(), **asdict(rates)}}))

    def finish(self) -> None:
        """Read all quantities of all GPUs a last time."""
        for thread in self._threads:
            thread.finish()

    def counts(self) -> dict[str, int]:
        """Return numbers of readings of all GPUs: made ("ticks"), "planned" and late ("slow")."""
        names = ("ticks", "planned", "slow")
        return {name: sum(getattr(each, name) for each in self._threads) for name in names}
