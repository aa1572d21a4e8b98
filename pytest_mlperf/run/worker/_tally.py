"""What each replica did of a run: how much, how fast, and how that changed over the run."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

SLICES = 8
"""Equal parts of a run, in each of which replicas are compared: chance differs between them."""

SNAPSHOT_SECONDS = 0.02
"""Time between two snapshots of a tally, at least; doubled where there are too many."""

MAX_SNAPSHOTS = 4096


class Snapshot(NamedTuple):
    """What a replica had done until a time; `waited_s` is of all its samples together."""

    time_s: float
    done: float
    busy_s: float
    waited_s: float
    work: float


class Tally:
    """Counts of one replica; the caller holds the lock."""

    def __init__(self) -> None:
        self.open = 0
        """Samples that it was given and has not completed."""
        self.reset()

    def reset(self) -> None:
        """Forget what was; samples that are open stay."""
        self._submitted, self._done, self._work = 0, 0, 0.0
        self._busy_s = self._waited_s = self._changed_s = self._kept_s = 0.0
        self._apart_s = SNAPSHOT_SECONDS
        self._kept: list[Snapshot] = []

    def give(self, now_s: float, samples: int, work: float) -> None:
        """Count samples as given; `work` is how much they are, in whatever unit."""
        self._change(now_s)
        if not self._kept:
            self._keep(now_s)
        self.open += samples
        self._submitted += samples
        self._work += work

    def take(self, now_s: float, samples: int) -> None:
        """Count samples as completed."""
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
        # Large samples go out first: those completed were as large as those given until now.
        work = self._work * self._done / self._submitted if self._submitted else 0.0
        self._kept.append(Snapshot(now_s, self._done, self._busy_s, self._waited_s, work))
        self._kept_s = now_s

    @property
    def samples(self) -> int:
        """Samples completed."""
        return self._done

    @property
    def throughput(self) -> float:
        """Samples/s of the time in which it had any; 0: it completed none."""
        return self._done / self._busy_s if self._busy_s else 0.0

    @property
    def latency_s(self) -> float:
        """Mean time of a sample, by Little's law: the time that all waited over their number."""
        return self._waited_s / self._done if self._done else 0.0

    def parts(self, edges_s: Sequence[float]) -> list[Snapshot]:
        """Return what it did between each two times."""
        until = [self._at(time_s) for time_s in edges_s]
        return [
            Snapshot(*(b - a for a, b in zip(before, after, strict=True)))
            for before, after in pairwise(until)
        ]

    def _at(self, time_s: float) -> Snapshot:
        """Return what it had done until a time, on the straight line between two snapshots."""
        after = bisect_left(self._kept, (time_s,))
        if after == 0 or after == len(self._kept):
            return self._kept[min(after, len(self._kept) - 1)]
        low, high = self._kept[after - 1], self._kept[after]
        way = (time_s - low.time_s) / (high.time_s - low.time_s)
        return Snapshot(*(a + way * (b - a) for a, b in zip(low, high, strict=True)))

    @property
    def ends_s(self) -> tuple[float, float]:
        """When its first snapshot was made, and its last one; both 0: it was given nothing."""
        return (self._kept[0].time_s, self._kept[-1].time_s) if self._kept else (0.0, 0.0)


def shares(tallies: Sequence[Tally], *, lists: bool) -> list[list[float]]:
    """Return each replica's speed in each part of a run, as a share of the median replica's.

    With `lists` it is the work in a second of work. Else samples follow a schedule, and it is the
    inverse of their mean latency.
    """
    begin_s = max(tally.ends_s[0] for tally in tallies)
    end_s = min(tally.ends_s[1] for tally in tallies)
    compared: list[list[float]] = [[] for _ in tallies]
    if end_s <= begin_s:
        return compared
    edges_s = [begin_s + (end_s - begin_s) * n / SLICES for n in range(SLICES + 1)]
    for parts in zip(*(tally.parts(edges_s) for tally in tallies), strict=True):
        speeds = [_speed(part, lists=lists) for part in parts]
        if all(speeds):  # else too short a part to compare anything in
            for row, speed in zip(compared, speeds, strict=True):
                row.append(speed / median(speeds))
    return compared


def _speed(part: Snapshot, *, lists: bool) -> float:
    """Return a replica's speed in a part; 0: it completed less than a sample."""
    over_s = part.busy_s if lists else part.waited_s
    return (part.work if lists else part.done) / over_s if part.done >= 1 and over_s > 0 else 0.0
