"""Detect steps of the wall clock during a measurement, because LoadGen measures by it."""

from __future__ import annotations

import threading
import time

CLOCK_PERIOD_SECONDS = 0.1

STEADY = getattr(time, "CLOCK_MONOTONIC_RAW", time.CLOCK_MONOTONIC)
"""A clock that is never set or slewed; CLOCK_MONOTONIC is slewed with the wall clock."""

MIN_MOVE_SECONDS = 1e-3
"""Smaller moves of the wall clock are not reported."""

MAX_READING_SECONDS, TRIES = 5e-5, 10
"""Maximum time between two readings around the wall clock, unless the process was delayed."""


def ahead_s() -> float:
    """Return how far the wall clock is ahead of the monotonic clock [s]."""
    best, ahead = float("inf"), 0.0
    for _ in range(TRIES):
        start = time.clock_gettime(STEADY)
        wall = time.time()
        gap = time.clock_gettime(STEADY) - start
        if gap < best:
            best, ahead = gap, wall - start - gap / 2
        if best < MAX_READING_SECONDS:
            break
    return ahead


class ClockWatch:
    """Compare the wall clock with the monotonic clock ten times a second, in a thread."""

    def __init__(self) -> None:
        self._ahead_s: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clock", daemon=True)

    def start(self) -> None:
        """Start to compare the wall clock with the monotonic clock, in a thread."""
        self._ahead_s.append(ahead_s())
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and compare the two clocks once more."""
        self._over.set()
        self._thread.join()
        self._ahead_s.append(ahead_s())

    @property
    def moved_s(self) -> float:
        """Largest change of wall clock minus monotonic clock since the start, signed [s]."""
        initial, *later = self._ahead_s or [0.0]
        return max((one - initial for one in later), key=abs, default=0.0)

    def _run(self) -> None:
        while not self._over.wait(CLOCK_PERIOD_SECONDS):
            self._ahead_s.append(ahead_s())
