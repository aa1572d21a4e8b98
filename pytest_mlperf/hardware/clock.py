"""Whether the wall clock was set while something was measured: LoadGen measures by it."""

from __future__ import annotations

import threading
import time

CLOCK_PERIOD_SECONDS = 0.1

STEADY = getattr(time, "CLOCK_MONOTONIC_RAW", time.CLOCK_MONOTONIC)
"""A clock that nobody sets and nobody slews; the other monotonic one is slewed as the wall clock
is."""

MIN_MOVE_SECONDS = 1e-3
"""A smaller move of the wall clock is never told: it is told beside the length of a window."""

MAX_READING_SECONDS, TRIES = 5e-5, 10
"""Two readings with the wall clock between them are so close, unless the process was held up."""


def ahead_s() -> float:
    """Return how far the wall clock is ahead of the steady one, seconds."""
    best, ahead = float("inf"), 0.0
    for _ in range(TRIES):
        before = time.clock_gettime(STEADY)
        wall = time.time()
        gap = time.clock_gettime(STEADY) - before
        if gap < best:
            best, ahead = gap, wall - before - gap / 2
        if best < MAX_READING_SECONDS:
            break
    return ahead


class ClockWatch:
    """Reads the wall clock beside the steady one, ten times a second from `start` to `stop`."""

    def __init__(self) -> None:
        self._ahead_s: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clock", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._ahead_s.append(ahead_s())
        self._thread.start()

    def stop(self) -> None:
        """Read for the last time."""
        self._over.set()
        self._thread.join()
        self._ahead_s.append(ahead_s())

    @property
    def moved_s(self) -> float:
        """How far the wall clock went from where it was at the start, at most; signed, seconds."""
        first, *later = self._ahead_s or [0.0]
        return max((one - first for one in later), key=abs, default=0.0)

    def _run(self) -> None:
        while not self._over.wait(CLOCK_PERIOD_SECONDS):
            self._ahead_s.append(ahead_s())
