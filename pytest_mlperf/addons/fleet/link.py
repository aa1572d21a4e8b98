"""Exchange messages with the process `bridge.py`, with time limits, as it may hang or die."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pytest_mlperf.extension import ChildProcess
from pytest_mlperf.processes import log_tail

CONNECT_S = 60.0
"""Maximum time to connect to a cluster."""

MAX_SILENCE_SECONDS = 20.0
MAX_REPLY_BYTES = 1 << 28

Event = dict[str, Any]


class HeadLostError(Exception):
    """Report that the connected cluster no longer responds."""


class RefusedError(Exception):
    """Report that no connection to the cluster could be made; the text is the cause."""


class ClusterLink:
    """Start the process `bridge.py`; send commands to the cluster and receive events through it."""

    def __init__(self, address: str, archive: bytes) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pytest-mlperf-fleet-")
        folder = Path(self._folder.name)
        packed, self._log = folder / "project.tar", folder / "bridge.log"
        packed.write_bytes(archive)
        command = [sys.executable, "-m", "pytest_mlperf.addons.fleet.bridge", address, str(packed)]
        with self._log.open("wb") as log:
            self._process = ChildProcess(command, stdout=-1, stderr=log)
        self._heard = time.monotonic() + CONNECT_S - MAX_SILENCE_SECONDS
        self._connected = False

    def tell(self, **command: Any) -> None:
        """Send a command, as one line of JSON, to the process that runs `bridge.py`."""
        self._process.tell(json.dumps(command).encode() + b"\n")

    def event(self, patience_s: float) -> Event | None:
        """Return the next event; None if there is none within `patience_s`.

        Raises RefusedError if the cluster cannot be reached, HeadLostError if the connection is
        lost.
        """
        deadline = min(time.monotonic() + patience_s, self._heard + MAX_SILENCE_SECONDS)
        try:
            line = self._process.line(deadline, MAX_REPLY_BYTES)
        except EOFError:
            raise self._gone("the helper process that keeps the connection has ended") from None
        if line is None:
            if time.monotonic() >= self._heard + MAX_SILENCE_SECONDS:
                raise self._gone(f"its head node sent nothing for {MAX_SILENCE_SECONDS:.0f} s")
            return None
        event: Event = json.loads(line)
        if event["event"] == "refused":
            raise RefusedError(event["cause"])
        if event["event"] == "nodes":  # a node's message does not prove that the head is alive
            self._heard, self._connected = time.monotonic(), True
        return event

    def _gone(self, cause: str) -> Exception:
        tail = log_tail(str(self._log), 1)
        words = f"{cause}: {tail[0]}" if tail else cause
        return HeadLostError(words) if self._connected else RefusedError(words)

    def close(self) -> None:
        """End the running cases and the process `bridge.py`."""
        self._process.end(alone_s=CLOSE_SECONDS, term_s=1.0, killed_s=5.0)
        self._process.close()
        self._folder.cleanup()


CLOSE_SECONDS = 8.0
"""Time for the bridge to end its cases; then Ray ends them, as their owner is gone."""
