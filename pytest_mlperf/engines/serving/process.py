"""A server as a child process: started, asked after, and ended with all that it started."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.engines.serving.launch import KILL_S

LAUNCHER = Path(__file__).with_name("launch.py")

GRACE_S = 5.0
"""Time between SIGTERM and SIGKILL."""

MARGIN_S = 5.0
"""Time for the launcher itself to come up or to end on a busy machine."""

GONE = "gone"
"""How a server ended whose launcher was killed: nobody knows."""


class Process:
    """One start of a server."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start it.

        Args:
            command: Program, by its path, and arguments.
            environment: All its variables.
            log: File to which its output is appended.

        Raises:
            RunError: It cannot be started.
        """
        self._lock = threading.Lock()
        self._buffer = b""
        self._pid: int | None = None
        self._end: int | str | None = None
        with log.open("ab") as output:
            self._launcher = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", str(LAUNCHER), str(GRACE_S), str(os.getpid())),
                    *command,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
                env=dict(environment),
            )
        first = self._event(time.monotonic() + MARGIN_S + GRACE_S) or {}
        if "pid" in first:
            self._pid = int(first["pid"])
            return
        self.stop()
        why = first.get("failed", "the process that starts it gave no answer")
        raise RunError("engine", f"serve: {command[0]} cannot be started: {why}")

    def ended(self, within_s: float = 0.0) -> int | str | None:
        """Return how it ended: its exit code, minus a signal, or GONE; None while it runs.

        Args:
            within_s: How long to wait for that; safe from several threads.
        """
        with self._lock:
            deadline = time.monotonic() + within_s
            if self._end is None and (event := self._event(deadline)):
                self._end = event.get("ended", GONE)
            return self._end

    def stop(self) -> None:
        """End it with all that it started; returns when nothing is left of it."""
        assert self._launcher.stdin is not None
        assert self._launcher.stdout is not None
        with contextlib.suppress(OSError):
            self._launcher.stdin.close()
        try:
            self._launcher.wait(GRACE_S + KILL_S + MARGIN_S)
        except subprocess.TimeoutExpired:
            self._launcher.kill()
            self._launcher.wait()
        if self._launcher.returncode and self._pid is not None:
            with contextlib.suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)
        with self._lock:
            self._launcher.stdout.close()
            self._end = GONE if self._end is None else self._end

    def _event(self, deadline: float) -> Mapping[str, Any] | None:
        """Return the launcher's next event, {"ended": GONE} after the last; None on time-out."""
        assert self._launcher.stdout is not None
        poll = select.poll()
        poll.register(self._launcher.stdout, select.POLLIN)
        while b"\n" not in self._buffer:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return None
            chunk = os.read(self._launcher.stdout.fileno(), 4096)
            if not chunk:
                return {"ended": GONE}
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        event: Mapping[str, Any] = json.loads(line)
        return event
