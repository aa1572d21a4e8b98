"""A server's log: where it is kept, and what of it belongs into an error message."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from pytest_mlperf.core.foreign_text import broken

LINES = 6
"""Last lines that a message shows."""

WIDTH = 200
"""Characters of a line that a message shows."""

SEARCHED = 1 << 18
"""Bytes at the end of a log that are searched for a cause."""

ENGINE_LOG = "engine.log"
"""What a worker prints goes to a file of this name in the folder of its run."""

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
"""Colours, cursor movements and titles of terminals (ECMA-48: CSI and OSC)."""

_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|bad_alloc|Cannot allocate memory|\bMemoryError\b"
    r"|No available memory for the cache blocks|insufficient GPU memory",
    re.IGNORECASE,
)

_PORT = re.compile(
    r"address already in use|EADDRINUSE|port \S+ is (?:already )?in use|port is already allocated",
    re.IGNORECASE,
)


def new_log() -> Path:
    """Return a new, empty file: server.log in the folder of the worker's run, else a temporary one.

    The worker's stderr is a file in the folder of its run, and nothing else tells an engine which
    folder that is.
    """
    try:
        stderr = Path("/proc/self/fd/2").readlink()
        if stderr.name == ENGINE_LOG and stderr.is_file():
            log = stderr.with_name("server.log")
            log.write_bytes(b"")
            return log
    except OSError:
        pass  # another system, or a folder that is gone
    descriptor, name = tempfile.mkstemp(prefix="server-", suffix=".log")
    os.close(descriptor)
    return Path(name)


def is_temporary(log: Path) -> bool:
    """Whether a log lies in no run's folder, so that nobody will look for it there."""
    return log.name != "server.log"


def last_lines(log: Path) -> list[str]:
    """Return the last lines of a log as a terminal would show them, control characters escaped."""
    return _lines(log)[-LINES:]


def about_memory(log: Path) -> str | None:
    """Return the last line about a lack of memory; a server may have said much after it."""
    return next((line for line in reversed(_lines(log)) if _MEMORY.search(line)), None)


def port_was_taken(log: Path) -> bool:
    """Whether the server could not listen where it was told to."""
    return any(_PORT.search(line) for line in _lines(log))


def _lines(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - SEARCHED))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    # A progress bar writes its line again and again: the last state is what is seen.
    raw = (line.rstrip().rpartition("\r")[2] for line in text.split("\n"))
    shown = (broken(_ESCAPES.sub("", line)).strip() for line in raw)
    return [line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…" for line in shown if line]
