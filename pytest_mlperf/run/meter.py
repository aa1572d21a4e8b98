"""Read the file of a wall meter, which its logger may still be writing."""

from __future__ import annotations

import stat
import time
from pathlib import Path

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.core.meter import MeterReading, parse_meter

POLL_S = 0.1
"""How often to look whether the file has grown."""


def read_meter(
    path: Path, *, until_s: float, patience_s: float = 5.0, local_offset_s: float = 0.0
) -> tuple[MeterReading, ...]:
    """Return the readings of a file; a last line without its end is left out.

    Whether they reach far enough is for `wall_energy` to say: a logger that writes in bunches may
    be late by more than anybody waits.

    Args:
        path: As `parse_meter` describes it.
        until_s: Wait for a reading later than this, wall clock, seconds since the epoch.
        patience_s: How long to wait for it.
        local_offset_s: How far the meter's clock is ahead of UTC where it writes no zone, seconds.

    Raises:
        SuiteError: It cannot be read, or is not a meter's file.
    """
    deadline = time.monotonic() + patience_s
    seen: tuple[int, int] | None = None
    readings: tuple[MeterReading, ...] = ()
    while True:
        if (now := _state(path)) != seen:
            seen = now
            text = _whole_lines(path)
            readings = parse_meter(text, name=str(path), local_offset_s=local_offset_s)
        if any(reading.time_s > until_s for reading in reversed(readings)):
            return readings
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return readings
        time.sleep(min(POLL_S, left_s))


def _state(path: Path) -> tuple[int, int]:
    """Return what changes when a file is written."""
    try:
        found = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from None
    if not stat.S_ISREG(found.st_mode):
        raise SuiteError(f"the wall meter's file {path} is no file; name the one it logs to")
    return found.st_size, found.st_mtime_ns


def _whole_lines(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None
    try:
        return content[: content.rfind(b"\n") + 1].decode("utf-8")
    except UnicodeDecodeError as error:
        raise SuiteError(
            f"the wall meter's file {path} is not UTF-8 text: {error.reason} at byte "
            f"{error.start}; let its logger write plain text"
        ) from None


def _unreadable(path: Path, error: OSError) -> SuiteError:
    why = error.strerror or str(error)
    return SuiteError(
        f"the wall meter's file {path} cannot be read: {why}; start the meter's logger first, or "
        "correct the path"
    )
