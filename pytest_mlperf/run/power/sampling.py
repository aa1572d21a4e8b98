"""Sample a run's GPUs in a child process, from before the engine loads to after the run.

    with PowerSampling(uuids, folder) as sampling:
        ...                                  # load, warm up, run
    log = sampling.log                       # a PowerLog; log.unavailable names any reason

Without NVML, performance and accuracy are still measured: this module then raises nothing, and an
unknown power is never 0.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pytest_mlperf.core.energy import PAD_S
from pytest_mlperf.core.errors import RunError, text_of
from pytest_mlperf.core.reason import gpu_sentences
from pytest_mlperf.core.untrusted_text import broken
from pytest_mlperf.hardware.machine import UsedGpu
from pytest_mlperf.hardware.rapl import CLOCK_STEP_S
from pytest_mlperf.hardware.sampler import HUNG_EXIT_CODE
from pytest_mlperf.processes import ChildProcess, last_line
from pytest_mlperf.run.child.events import (
    MAX_EVENT_BYTES,
    MAX_QUOTED_BYTES,
    NoEventError,
    read_json,
)
from pytest_mlperf.run.power._gpu import GpuLog, Span

READ_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Exceptions of reading a file that no sampler wrote."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PowerLog:
    """Hold all records of the sampler process.

    Attributes:
        unavailable: Reason why nothing was read; None if something was.
        suspect: Whether the driver's state casts doubt on performance too.
        gone: Loss of the driver or of all GPUs, as text; None without a loss.
        ended: Whether the sampler ended normally; else the readings may end before the run.
        broke: Why the sampler failed, if known.
        offsets_s: Wall clock minus monotonic clock, at the start and, if it ended, at the end.
        ticks: Number of samples taken, and number planned; None without a normal end.
        cpu_share: Share of one core that sampling used; None if it did not end normally.
    """

    unavailable: str | None = None
    suspect: bool = False
    gone: str | None = None
    gpus: tuple[GpuLog, ...] = ()
    driver: str | None = None
    ended: bool = False
    broke: str | None = None
    offsets_s: tuple[float, ...] = ()
    ticks: tuple[int, int] | None = None
    cpu_share: float | None = None

    @property
    def clock_stepped(self) -> bool:
        """Whether the wall clock was set, so that its times cannot be converted."""
        return bool(self.offsets_s) and max(self.offsets_s) - min(self.offsets_s) > CLOCK_STEP_S

    def lost(self, used: Mapping[str, UsedGpu], begin_s: float | None = None) -> tuple[str, ...]:
        """Return messages on lost GPUs; `used` names them by UUID; times count from `begin_s`."""
        alike: dict[str, list[GpuLog]] = {}
        for gpu in self.gpus:
            if gpu.lost:
                alike.setdefault(_loss(gpu), []).append(gpu)
        texts = [f"the GPU was lost: {self.gone}"] if self.gone else []
        for same in alike.values():
            if len(same) == 1:
                texts.append(self._lost(same[0], used, begin_s))
                continue
            text = self._how(min(same, key=lambda gpu: gpu.lost_s or 0.0), begin_s)
            names = (used[gpu.uuid].name if gpu.uuid in used else gpu.uuid for gpu in same)
            texts += gpu_sentences([(name, text) for name in names], len(self.gpus))
        return tuple(texts)

    def lost_gpus(self, used: Mapping[str, UsedGpu]) -> dict[str, str]:
        """Return an error text for each GPU lost in the run, by UUID; no later run can use them."""
        gone = {gpu.uuid: f"{gpu.title} was lost: {self.gone}" for gpu in used.values()}
        lost = {gpu.uuid: self._lost(gpu, used, None) for gpu in self.gpus if gpu.lost}
        return {**(gone if self.gone else {}), **lost}

    def _lost(self, gpu: GpuLog, used: Mapping[str, UsedGpu], begin_s: float | None) -> str:
        title = used[gpu.uuid].title if gpu.uuid in used else f"GPU {gpu.uuid}"
        return f"{title} was {self._how(gpu, begin_s)}"

    def _how(self, gpu: GpuLog, begin_s: float | None) -> str:
        when = ""
        if gpu.lost_s is not None and self.offsets_s:
            moment = dt.datetime.fromtimestamp(gpu.lost_s + self.offsets_s[0], dt.UTC)
            when = f" at {moment:%H:%M:%S} UTC"
        if gpu.lost_s is not None and begin_s is not None and gpu.lost_s >= begin_s:
            when += f", {gpu.lost_s - begin_s:.1f} s into the run"
        return f"lost{when}: {_loss(gpu)}"

    def peak_memory(self, end_s: float) -> float | None:
        """Return the sum of the GPUs' peak memory up to a wall-clock time [B]; None if unknown."""
        if not self.gpus or not self.offsets_s or self.unavailable:
            return None
        end_s = self.monotonic(end_s)
        if any(self.read_until_s(gpu, end_s) < end_s for gpu in self.gpus):
            return None
        seen = [[r.value for r in gpu.series("memory_used", 0.0, end_s)] for gpu in self.gpus]
        return sum(map(max, seen)) if all(seen) else None

    def read_until_s(self, gpu: GpuLog, end_s: float) -> float:
        """Return the monotonic time up to which a GPU was read, at most `end_s`."""
        read = [one.last_s for one in self.gpus if not one.lost and not one.unavailable]
        until_s = end_s if self.ended else min(read, default=0.0)
        return min(end_s, until_s, gpu.last_s if gpu.silent else end_s)

    def monotonic(self, wall_s: float) -> float:
        """Convert a wall-clock time, as in LoadGen's logs, to monotonic time."""
        if not self.offsets_s:
            raise ValueError("the sampler recorded no clocks")
        return wall_s - sum(self.offsets_s) / len(self.offsets_s)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a sampler's file, without an incomplete last line."""
        try:
            return cls._read(path)
        except READ_ERRORS as error:
            reason = f"{type(error).__name__}: {text_of(error)}"
            raise RunError("sampler", f"cannot read {path}: {reason}", str(path)) from None

    @classmethod
    def _read(cls, path: Path) -> Self:
        ready: dict[str, Any] | None = None
        end: dict[str, Any] | None = None
        gpus: dict[int, GpuLog] = {}
        for record in _records(path):
            if ready is None:
                ready = record["ready"]
                gpus = {
                    facts["index"]: GpuLog.of(facts, ready["rates"]["trace_hz"])
                    for facts in ready.get("gpus", ())
                }
            elif tick := record.get("t"):
                gpus[tick[1]].add_tick(tick)
            elif state := record.get("s"):
                gpus[state["gpu"]].add_state(state)
            elif lost := record.get("lost"):
                gpus[lost["gpu"]].lose(lost["time"], lost["why"])
            elif "rates" not in record:
                end = record["end"]
        if ready is None:
            return cls(unavailable="the sampler wrote nothing")
        if reason := ready.get("unavailable"):
            gone = reason if ready.get("lost") else None
            return cls(unavailable=reason, suspect=bool(ready.get("suspect")), gone=gone)
        for ending in end["gpus"] if end else ():
            gpu = gpus[ending["index"]]
            gpu.missing |= ending["unavailable_quantities"]
            gpu.forbidden.update(ending.get("forbidden", ()))
            gpu.last_failure = ending.get("last_failure", "")
        silent = {gpu.uuid: gpu.unavailable for gpu in gpus.values() if gpu.unavailable}
        clocks = [ready, end] if end else [ready]
        return cls(
            unavailable=_in_words(silent) if len(silent) == len(gpus) else None,
            gpus=tuple(gpus[index] for index in sorted(gpus)),
            driver=ready["driver"],
            ended=end is not None,
            offsets_s=tuple(clock["wall"] - clock["time"] for clock in clocks),
            ticks=(end["ticks"], end["planned"]) if end else None,
            cpu_share=end["cpu_s"] / end["elapsed_s"] if end and end["elapsed_s"] else None,
        )


def _in_words(silent: Mapping[str, str]) -> str:
    return "; ".join(why if uuid in why else f"{uuid}: {why}" for uuid, why in silent.items())


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file):
            if not line.endswith(b"\n"):
                return
            record = json.loads(line)
            if number == 0 and "ready" not in record:
                raise ValueError("its first line is not from the sampler")
            yield record


__all__ = ["GpuLog", "PowerLog", "PowerSampling", "Span"]

POWER_FILE = "power.jsonl"
LOG = "sampler.log"

WANTED_HZ = 50.0
"""Sampling rate of power."""

START_TIMEOUT_SECONDS = 60.0
COUNTER_MARGIN_SECONDS = 0.5
"""Time beyond PAD_S, because the energy counter is late."""

SILENT = "it printed no error"

HANG_NOTE = "it hung in NVML, or was stopped"

FLUSH_GRACE_SECONDS = 5.0


def _loss(gpu: GpuLog) -> str:
    xids = dict.fromkeys(str(xid) for s in gpu.states for xid in s.get("xids") or ())
    return f"{gpu.lost}; the driver reported XID {', '.join(xids)}" if xids else f"{gpu.lost}"


class PowerSampling:
    """Sample some GPUs inside the `with` block.

    Attributes:
        unavailable: Reason why nothing is sampled; None while GPUs are sampled.
        ready: The sampler process's "ready" message: the GPUs' sensors; {} before it arrives.
    """

    def __init__(
        self,
        uuids: Sequence[str],
        folder: Path,
        *,
        hz: float = WANTED_HZ,
        watch_s: float = 1.5,
        patience_s: float = START_TIMEOUT_SECONDS,
    ) -> None:
        """Prepare a child that samples at `hz` after `watch_s` to find the counter's period."""
        self.path = folder / POWER_FILE
        self.unavailable: str | None = None
        self.ready: dict[str, Any] = {}
        self._log_file = folder / LOG
        self._patience_s = patience_s
        self._process: ChildProcess | None = None
        self._log: PowerLog | None = None
        self._broke: str | None = None
        self._command = [sys.executable, "-m", "pytest_mlperf.hardware.sampler"]
        for uuid in uuids:
            self._command += ["--gpu", uuid]
        self._command += ["--hz", str(hz), "--watch-s", str(watch_s), "--out", str(self.path)]

    def __enter__(self) -> Self:
        try:
            with self._log_file.open("wb") as log:
                self._process = ChildProcess(self._command, stdout=subprocess.PIPE, stderr=log)
        except OSError as error:
            raise RunError("sampler", f"cannot start: {error.strerror}") from None
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def linger(self) -> None:
        """Sample for a moment after the window, to bound the uncertainty of its energy."""
        if self._process is not None:
            time.sleep(PAD_S + COUNTER_MARGIN_SECONDS)

    def stop(self) -> None:
        """Stop the child by closing its stdin, if it runs."""
        process = self._process
        if process is None:
            return
        ended = process.end(alone_s=FLUSH_GRACE_SECONDS)
        self._broke = self._how(process.returncode) if ended else HANG_NOTE
        process.close()
        self._process = None

    @property
    def log(self) -> PowerLog:
        """Records that the sampler process wrote; it must have stopped."""
        assert self._process is None, "the sampler still runs"
        if self._log is None:
            if self.unavailable and not self.ready:
                self._log = PowerLog(unavailable=self.unavailable)
            else:
                self._log = dataclasses.replace(PowerLog.read(self.path), broke=self._broke)
        return self._log

    def _wait(self) -> None:
        assert self._process is not None
        try:
            line = self._process.line(time.monotonic() + self._patience_s, MAX_EVENT_BYTES)
        except EOFError:
            line, self.unavailable = (
                None,
                f"the sampler of the GPUs did not start: {self._last_words()}",
            )
        else:
            if line is None:
                self.unavailable = f"NVML did not answer within {self._patience_s:g} s"
                self._process.kill()
        if line is None:
            self.stop()
            return
        try:
            first = read_json(line)
        except NoEventError as error:
            first = str(error)
        if not isinstance(first, dict) or not isinstance(first.get("ready"), dict):
            quoted_line = broken(repr(line[:MAX_QUOTED_BYTES]))
            self.unavailable = f"the driver printed {quoted_line} into the sampler's output"
            self.stop()
            return
        self.ready = first["ready"]
        parts = self.ready.get("gpus", [])
        silent = {p["uuid"]: p["unavailable"] for p in parts if "unavailable" in p}
        every = _in_words(silent) if parts and len(silent) == len(parts) else None
        self.unavailable = every or self.ready.get("unavailable")

    def _how(self, returncode: int) -> str | None:
        """Return why the child failed, as text; None if it ended normally."""
        if returncode < 0:
            return f"signal {-returncode} ({signal.strsignal(-returncode)})"
        if not returncode:
            return None
        words = self._last_words()
        return HANG_NOTE if returncode == HUNG_EXIT_CODE and words == SILENT else words

    def _last_words(self) -> str:
        return last_line(self._log_file.read_bytes()) or SILENT
