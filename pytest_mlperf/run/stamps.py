"""Times along a run, from which the throughput's own error is estimated."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from time import perf_counter

BATCHES = 20
"""Batches of the batch-means estimate; fewer stamps than this give no estimate."""

KEPT = 2048
"""Stamps kept before every second one is forgotten."""


class Stamps:
    """When how many samples were completed, in bounded memory however long the run is.

    Attributes:
        left: Samples until the next stamp; whoever completes samples counts it down. Threads may
            race on it: a stamp more or less changes nothing.
    """

    __slots__ = ("_every", "_kept", "left")

    def __init__(self) -> None:
        self.left = 1
        self._every = 1
        self._kept: list[tuple[float, int]] = []

    def add(self, completed: int) -> None:
        """Stamp the time now."""
        self._kept.append((perf_counter(), completed))
        if len(self._kept) >= KEPT:
            self._kept = self._kept[::2]
            self._every *= 2
        self.left = self._every

    @property
    def relative_error(self) -> float:
        """Relative standard error of the rate by batch means; 0 when unknown."""
        return batch_means_error(self._kept)


def batch_means_error(stamps: Sequence[tuple[float, int]]) -> float:
    """Return the relative standard error of a rate, from times and counts along a run.

    Args:
        stamps: (seconds, samples completed so far), in order.

    Returns:
        Standard error of the mean time per sample over equal batches, as a share of that mean;
        0 when there are too few stamps to tell.
    """
    if len(stamps) < BATCHES:
        return 0.0
    edges = [stamps[k * (len(stamps) - 1) // BATCHES] for k in range(BATCHES + 1)]
    costs_s = [
        (after_s - before_s) / (after - before)
        for (before_s, before), (after_s, after) in pairwise(edges)
        if after > before
    ]
    if len(costs_s) < BATCHES // 2:
        return 0.0
    return statistics.stdev(costs_s) / math.sqrt(len(costs_s)) / statistics.fmean(costs_s)
