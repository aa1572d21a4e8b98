"""How late an event loop is: so much of every latency is the client's, and not the server's."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Mapping, Sequence
from math import ceil

EVERY_S = 25e-3
"""Time between two looks at the loop, while something is under way: 0.4 % of a core."""

RESOLUTION_S = 1e-3
"""A selector waits for whole milliseconds, so that no timer is late that is late by less."""

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class Lateness:
    """Holds the moments at which things happen against those at which they were due.

    "issue" is the time from a sample's hand-over to the start of its request. "loop" is how long
    what comes in at any moment waits until the loop looks: a timer's lateness. A loop that was held
    up for long missed many looks, and what came meanwhile waited for what was left of it: each
    missed look counts with its rest, or a rare long block would vanish among short ones.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, under_way: Callable[[], bool]) -> None:
        """Watch nothing yet.

        Args:
            loop: What is watched, and whose clock counts.
            under_way: Whether anybody waits for something; else nobody looks.
        """
        self._loop = loop
        self._under_way = under_way
        self._issue = array("d")
        self._lag = array("d")
        self._due_s: float | None = None

    def now(self) -> float:
        """Return the loop's time, from any thread."""
        return self._loop.time()

    def begun(self, issued_s: float) -> None:
        """Note that the request of a sample that was handed over then starts now."""
        self._issue.append(self._loop.time() - issued_s)
        if self._due_s is None:
            self._look_again()

    def take(self) -> Mapping[str, float]:
        """Return percentiles of both, seconds, and start anew; {} where nothing was issued."""
        issue, self._issue = self._issue, array("d")
        lag, self._lag = self._lag, array("d")
        found = {"issue": issue, "loop": lag} if issue and lag else {}
        return {
            f"{name}_{label}": _percentile(sorted(values), share)
            for name, values in found.items()
            for label, share in SHARES.items()
        }

    def _look_again(self) -> None:
        self._due_s = self._loop.time() + EVERY_S
        self._loop.call_at(self._due_s, self._look)

    def _look(self) -> None:
        assert self._due_s is not None
        late_s = max(0.0, self._loop.time() - self._due_s - RESOLUTION_S)
        missed = int(late_s / EVERY_S)
        self._lag.extend(late_s - number * EVERY_S for number in range(missed + 1))
        self._due_s = None
        if self._under_way():
            self._look_again()


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[ceil(share * len(ordered)) - 1]
