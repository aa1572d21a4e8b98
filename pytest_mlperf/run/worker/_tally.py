"""Count each replica's samples and times, and compare the replicas over the run."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

SLICES = 8
"""Equal parts of a run in which replicas are compared, to tell chance from a slow replica."""

SNAPSHOT_SECONDS = 0.02
"""Minimum time between two snapshots of a tally; it doubles at `MAX_SNAPSHOTS`."""

MAX_SNAPSHOTS = 4096


class Snapshot(NamedTuple):
    """Totals of a replica at a point in time; `waited_s` is the sum over its samples."""

    time_s: float
    done: float
    busy_s: float
    waited_s: float
    work: float


class Tally:
    """Count one replica's samples and busy time; the caller holds the lock."""

    def __init__(self) -> None:
        self.open = 0
        """Samples that it was given and has not completed."""
        self.reset()

    def reset(self) -> None:
        self._submitted, self._done, self._work = 0, 0, 0.0
        self._busy_s = self._waited_s = self._changed_s = self._kept_s = 0.0
        self._apart_s = SNAPSHOT_SECONDS
        self._kept: list[Snapshot] = []

    def give(self, now_s: float, samples: int, work: float) -> None:
        """Count samples as submitted; `work` is their amount of work, in any unit."""
        self._change(now_s)
        if not self._kept:
            self._keep(now_s)
        self.open += samples
        self._submitted += samples
        self._work += work

    def take(self, now_s: float, samples: int) -> None:
        self._change(now_s)
        self.open -= samples
        self._done += samples
        if now_s - self._kept_s >= self._apart_s or not self.open:
            self._keep(now_s)

    def _change(self, now_s: float) -> None:
        if self.open:
            passed_s = now_s - self._changed_s
            self._busy_s += passed_s
            self._waited_s += self.open * passed_s
        self._changed_s = now_s

    def _keep(self, now_s: float) -> None:
        if len(self._kept) >= MAX_SNAPSHOTS:
            self._kept = self._kept[::2]
            self._apart_s *= 2
        # Large samples go first, so completed ones are as large on average as submitted ones.
        work = self._work * self._done / self._submitted if self._submitted else 0.0
        self._kept.append(Snapshot(now_s, self._done, self._busy_s, self._waited_s, work))
        self._kept_s = now_s

    @property
    def samples(self) -> int:
        return self._done

    @property
    def throughput(self) -> float:
        """Samples/s while at least one sample was open; 0 if none completed."""
        return self._done / self._busy_s if self._busy_s else 0.0

    @property
    def latency_s(self) -> float:
        """Mean latency by Little's law: total waiting time over the number of samples."""
        return self._waited_s / self._done if self._done else 0.0

    def parts(self, edges_s: Sequence[float]) -> list[Snapshot]:
        until = [self._at(time_s) for time_s in edges_s]
        return [
            Snapshot(*(b - a for a, b in zip(before, after, strict=True)))
            for before, after in pairwise(until)
        ]

    def _at(self, time_s: float) -> Snapshot:
        """Interpolate the totals at a time between two snapshots."""
        after = bisect_left(self._kept, (time_s,))
        if after == 0 or after == len(self._kept):
            return self._kept[min(after, len(self._kept) - 1)]
        low, high = self._kept[after - 1], self._kept[after]
        way = (time_s - low.time_s) / (high.time_s - low.time_s)
        return Snapshot(*(a + way * (b - a) for a, b in zip(low, high, strict=True)))

    @property
    def ends_s(self) -> tuple[float, float]:
        """Times of the first and the last snapshot; (0, 0) without snapshots."""
        return (self._kept[0].time_s, self._kept[-1].time_s) if self._kept else (0.0, 0.0)


def shares(tallies: Sequence[Tally], *, lists: bool) -> list[list[float]]:
    """Return each replica's speed relative to the median, in each part of a run.

    The speed is work per busy second if samples come in lists, else the inverse of the mean
    latency.
    """
    begin_s = max(tally.ends_s[0] for tally in tallies)
    end_s = min(tally.ends_s[1] for tally in tallies)
    compared: list[list[float]] = [[] for _ in tallies]
    if end_s <= begin_s:
        return compared
    edges_s = [begin_s + (end_s - begin_s) * n / SLICES for n in range(SLICES + 1)]
    for parts in zip(*(tally.parts(edges_s) for tally in tallies), strict=True):
        speeds = [_speed(part, lists=lists) for part in parts]
        if all(speeds):  # otherwise the part is too short to compare
            for row, speed in zip(compared, speeds, strict=True):
                row.append(speed / median(speeds))
    return compared


def _speed(part: Snapshot, *, lists: bool) -> float:
    """Return a replica's speed in a part; 0 if it completed less than one sample."""
    over_s = part.busy_s if lists else part.waited_s
    return (part.work if lists else part.done) / over_s if part.done >= 1 and over_s > 0 else 0.0
