"""Sample the GPUs of a run in a child process, from before the engine loads to after the run.

    with Sampling(uuids, folder) as sampling:
        ...                                  # load, warm up, run
    log = sampling.log                       # a PowerLog; log.unavailable says why there is none

Where NVML is not there performance and accuracy are measured all the same: nothing here raises for
that, and an unknown power is never a 0.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pytest_mlperf.core.energy import PAD_S
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.foreign_text import broken
from pytest_mlperf.hardware.sampler import HUNG
from pytest_mlperf.run.events import LONGEST, SHOWN, NoEventError, read_json
from pytest_mlperf.run.power_gpu import GpuLog, Process, Span
from pytest_mlperf.run.power_log import PowerLog

__all__ = ["GpuLog", "PowerLog", "Process", "Sampling", "Span"]

FILE = "power.jsonl"
"""In the run's folder."""

LOG = "sampler.log"
"""What the child writes to stderr, there too."""

NO_GPU = "no GPU is used"
"""Why nothing is sampled on a CPU, or where the user left it out."""

PATIENCE_S = 60.0
"""A driver that needs longer for its first answers is broken."""

MARGIN_S = 0.5
"""Beyond PAD_S: the energy counter comes late."""

SILENT = "it said nothing"

HANGS = "it hung, in NVML or stopped"
"""How a child broke that did not end when it was told to."""

GRACE_S = 5.0
"""Time for the child to write its last records."""


class Sampling:
    """The sampler of some GPUs, running inside the `with` block.

    Attributes:
        unavailable: Why nothing is sampled, in words; None while it is.
        ready: The child's first record, empty where there is none.
        path: The file of records.
    """

    def __init__(
        self,
        uuids: Sequence[str],
        folder: Path,
        *,
        hz: float = 50.0,
        watch_s: float = 1.5,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Keep what to sample; nothing starts yet.

        Args:
            uuids: Of GPUs or MIG instances; none is "unavailable".
            folder: The run's folder, which must exist.
            hz: Wanted rate of power and event reasons.
            watch_s: How long to look for the period of the energy counter first.
            patience_s: How long to wait for the first record.
        """
        self.path = folder / FILE
        self.unavailable: str | None = None if uuids else NO_GPU
        self.ready: dict[str, Any] = {}
        self._log_file = folder / LOG
        self._patience_s = patience_s
        self._process: subprocess.Popen[bytes] | None = None
        self._log: PowerLog | None = None
        self._broke: str | None = None
        self._command = [sys.executable, "-m", "pytest_mlperf.hardware.sampler"]
        for uuid in uuids:
            self._command += ["--gpu", uuid]
        self._command += ["--hz", str(hz), "--watch-s", str(watch_s), "--out", str(self.path)]

    def __enter__(self) -> Self:
        """Start the child, in a session of its own, and wait until it samples.

        Raises:
            RunError: The folder cannot be written.
        """
        if self.unavailable:
            return self
        try:
            with self._log_file.open("wb") as log:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            raise RunError("sampler", f"cannot start: {error.strerror}") from None
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the child."""
        self.stop()

    def linger(self) -> None:
        """Sample for a while longer: what stands beside a window tells how sure its energy is."""
        if self._process is not None:
            time.sleep(PAD_S + MARGIN_S)

    def stop(self) -> None:
        """End the child by closing its stdin; harmless when it has ended."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self._broke = HANGS
        else:
            self._broke = self._how(process.returncode)
        process.stdout.close()
        self._process = None

    @property
    def log(self) -> PowerLog:
        """What was recorded, once the child has stopped.

        Raises:
            RunError: The file is not a sampler's.
        """
        assert self._process is None, "the sampler still runs"
        if self._log is None:
            if self.unavailable and not self.ready:
                self._log = PowerLog(unavailable=self.unavailable)
            else:
                self._log = dataclasses.replace(PowerLog.read(self.path), broke=self._broke)
        return self._log

    def _wait(self) -> None:
        """Take the child's first record, or note why there is none."""
        line = self._first_line()
        if line is None:
            self.stop()
            return
        try:
            first = read_json(line)
        except NoEventError as error:
            first = str(error)
        if not isinstance(first, dict) or not isinstance(first.get("ready"), dict):
            shown = broken(repr(line[:SHOWN]))
            self.unavailable = f"the driver printed {shown} where the sampler speaks"
            self.stop()
            return
        self.ready = first["ready"]
        parts = self.ready.get("gpus", [])
        silent = [f"{p['uuid']}: {p['unavailable']}" for p in parts if "unavailable" in p]
        self.unavailable = self.ready.get("unavailable")
        if parts and len(silent) == len(parts):
            self.unavailable = "; ".join(silent)

    def _first_line(self) -> bytes | None:
        assert self._process is not None
        assert self._process.stdout is not None
        out = self._process.stdout.fileno()
        deadline, line = time.monotonic() + self._patience_s, b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([out], [], [], left)[0]:
                self.unavailable = f"NVML did not answer within {self._patience_s:g} s"
                self._process.kill()
                return None
            chunk = os.read(out, 1 << 16)
            if not chunk:
                self.unavailable = f"the sampler broke at its start: {self._last_words()}"
                return None
            line += chunk
            if len(line) > LONGEST:
                return line
        return line

    def _how(self, returncode: int) -> str | None:
        """Return how the child broke; None: it ended in order."""
        if returncode < 0:
            return f"signal {-returncode} ({signal.strsignal(-returncode)})"
        if not returncode:
            return None
        words = self._last_words()
        return HANGS if returncode == HUNG and words == SILENT else words

    def _last_words(self) -> str:
        lines = self._log_file.read_text("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), SILENT)
