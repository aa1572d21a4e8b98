"""One thread for each GPU, which reads it at an even beat.

A call into NVML lets go of Python's lock, so that an energy counter that takes milliseconds to
answer makes no other GPU wait.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any

from pytest_mlperf.hardware.nvml import Lost
from pytest_mlperf.hardware.nvml_quantities import SLOW, STATE
from pytest_mlperf.hardware.sampler_gpu import Gpu, timed
from pytest_mlperf.hardware.sampler_rates import Rates

BUNCH_S = 0.5
"""Records are written at least so often."""

LOOK_S = 0.1
"""Time between two looks for the parent."""

GRACE_S = 1.0
"""A thread whose call into NVML hangs is not waited for longer than this at the end."""


class Writer:
    """Writes lines of several threads in bunches."""

    def __init__(self, file: IO[str]) -> None:
        """Keep the file."""
        self._file, self._next = file, 0.0
        self._lines: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, line: str) -> None:
        """Take a line, and write when it is time to."""
        with self._lock:
            self._lines.append(line)
            if (now := time.monotonic()) >= self._next:
                self._next = now + BUNCH_S
                self._write()

    def flush(self) -> None:
        """Write what there is."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        self._file.write("".join(f"{line}\n" for line in self._lines))
        self._file.flush()
        self._lines.clear()


@dataclass(kw_only=True, slots=True)
class Job:
    """A slower group of one GPU, and when it is next to be read."""

    names: Sequence[str]
    period_s: float
    due_s: float = 0.0


class GpuThread(threading.Thread):
    """Reads one GPU until it is told to end, or the GPU is gone.

    Attributes:
        gpu: What it reads.
        ticks, planned, slow: Made, due, and begun late by more than half a period.
        lost: The GPU is gone.
        ordered: It ended as it should, not by an error.
    """

    def __init__(
        self,
        gpu: Gpu,
        rates: Rates,
        write: Callable[[str], None],
        stop: threading.Event,
        delay_s: float,
    ) -> None:
        """Plan; nothing is read yet.

        Args:
            gpu: What to read.
            rates: How often.
            write: Takes each record.
            stop: Set when it is to end.
            delay_s: When to begin, so that GPUs are not all read at the same moment.
        """
        super().__init__(name=gpu.device.uuid, daemon=True)
        self.gpu, self.lost, self.ordered = gpu, False, False
        self.ticks = self.planned = self.slow = 0
        self._write, self._ended, self._delay_s = write, stop, delay_s
        self._period_s = 1 / rates.trace_hz
        self._every = round(rates.trace_hz / rates.counter_hz)
        self._jobs = [
            Job(names=names, period_s=1 / hz)
            for hz, names in ((rates.state_hz, STATE), (rates.slow_hz, SLOW))
        ]

    def run(self) -> None:
        """Read at an even beat."""
        began = time.monotonic() + self._delay_s
        while not self.lost and not self._ended.is_set():
            due = began + self.planned * self._period_s
            late = time.monotonic() - due
            if late < 0:
                # Not the event's wait, which costs half as much again: the end can wait for a tick.
                time.sleep(-late)
            self.slow += late > self._period_s / 2
            self._tick()
            # What was missed is not made up for: it would only crowd the readings.
            made = int((time.monotonic() - began) / self._period_s)
            self.planned = max(self.planned, made) + 1
        self.ordered = True

    def finish(self) -> None:
        """Read everything once more."""
        self._guarded(lambda: self._trace(count=True))
        self._guarded(lambda: self._state((*STATE, *SLOW)))

    def _tick(self) -> None:
        self.ticks += 1
        self._guarded(lambda: self._trace(count=self.ticks % self._every == 0))
        # One job a tick, so that no tick is long.
        job = min(self._jobs, key=lambda job: job.due_s)
        if job.due_s <= (now := time.monotonic()):
            job.due_s = max(job.due_s + job.period_s, now + job.period_s / 2)
            self._guarded(lambda: self._state(job.names))

    def _guarded(self, read: Callable[[], None]) -> None:
        """Read, and let go of a GPU that is gone."""
        if self.lost:
            return
        try:
            read()
        except Lost as error:
            self.lost = True
            record = {"time": time.monotonic(), "gpu": self.gpu.index}
            self._write(json.dumps({"lost": {**record, "code": error.code, "why": str(error)}}))

    def _trace(self, *, count: bool) -> None:
        probes = self.gpu.probes
        at, watts = timed(probes["power_w"])
        reasons = probes["reasons"].read()
        power = "null" if watts is None else f"{watts:.3f}"
        head = f'{{"t":[{at:.6f},{self.gpu.index},{power},{"null" if reasons is None else reasons}'
        if count and probes["energy_j"].why is None:
            at, joules = timed(probes["energy_j"])
            head += f",{at:.6f},{'null' if joules is None else f'{joules:.3f}'}"
        self._write(head + "]}")

    def _state(self, names: Sequence[str]) -> None:
        """Read and write a group of slower quantities."""
        read: dict[str, Any] = {"time": round(time.monotonic(), 6), "gpu": self.gpu.index}
        read |= {probe.name: probe.read() for probe in self.gpu.group(names)}
        self._write(json.dumps({"s": read}, separators=(",", ":")))


class Sampler:
    """Reads GPUs, each in its thread, and writes records."""

    def __init__(self, gpus: Sequence[Gpu], rates: Rates, write: Callable[[str], None]) -> None:
        """Plan; nothing is read yet."""
        self._end = threading.Event()
        apart_s = 1 / rates.trace_hz / max(1, len(gpus))
        self._threads = [
            GpuThread(gpu, rates, write, self._end, number * apart_s)
            for number, gpu in enumerate(gpus)
        ]

    def run(self, stop: threading.Event, parent: int) -> bool:
        """Sample until told to stop, the parent is gone, or no GPU is left.

        Returns:
            Whether every thread ended as it should; False where a call into NVML hangs.
        """
        for thread in self._threads:
            thread.start()
        while any(thread.is_alive() for thread in self._threads):
            if stop.wait(LOOK_S) or os.getppid() != parent:
                break
        self._end.set()
        deadline = time.monotonic() + GRACE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return all(thread.ordered for thread in self._threads)

    def finish(self) -> None:
        """Read everything once more."""
        for thread in self._threads:
            thread.finish()

    def counts(self) -> dict[str, int]:
        """Return the ticks of all GPUs together."""
        names = ("ticks", "planned", "slow")
        return {name: sum(getattr(each, name) for each in self._threads) for name in names}
