"""Find replicas of one engine that lag behind the others, and the cause."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median, stdev
from typing import Any

from pytest_mlperf.core.measurement import GpuRun, ReplicaRun
from pytest_mlperf.core.notes import Note
from pytest_mlperf.judge.formulas import t_isf

MIN_LAG_SHARE = 0.05
"""Lag behind the median replica from which a proven straggler is reported."""

FALSE_ALARM = 0.01
"""Probability of a false report per case."""

MIN_RUN_PARTS = 4
HOTTER_C, SLOWER_CLOCK_SHARE, CAPPED_SHARE, LESS_POWER_SHARE = 3.0, 0.02, 0.05, 0.05
"""Reported differences between a GPU and the median of the others."""


def slowest(replicas: Sequence[ReplicaRun]) -> float | None:
    """Return the slowest replica's speed / the median speed; None if no replicas were compared."""
    return min((replica.share for replica in replicas if replica.share is not None), default=None)


def stragglers(
    runs: Sequence[tuple[Sequence[ReplicaRun], Sequence[GpuRun]]],
) -> tuple[Note, ...]:
    """Return notes on replicas that provably lag by more than `MIN_LAG_SHARE` in these runs.

    Student's t test uses all parts of all runs, with `FALSE_ALARM` divided among the replicas
    (Bonferroni). The mean lag of each run must be above the share too. A single run's lag must also
    exceed the scatter of the other replicas, so that a single event is not reported.
    """
    behind: list[tuple[dict[str, Any], Mapping[str, float]]] = []
    for key in dict.fromkeys(_key(replica) for replicas, _ in runs for replica in replicas):
        mine = [replica for replicas, _ in runs for replica in replicas if _key(replica) == key]
        values = [share for replica in mine for share in replica.shares]
        if len(values) < MIN_RUN_PARTS or len(mine) < len(runs):
            continue
        alpha = FALSE_ALARM / len(runs[0][0])
        bounds = [replica.share or 1.0 for replica in mine]
        bounds.append(_upper_bound(fmean(values), values, alpha))
        if len(runs) == 1:
            others = [replica.share or 1.0 for replica in runs[0][0] if replica is not mine[0]]
            bounds.append(_upper_bound(fmean(values), others, alpha, apart=1.0))
        if max(bounds) < 1 - MIN_LAG_SHARE:
            lag = {"lag": 1 - fmean(values), "of": len(runs[-1][0]), "name": mine[-1].name}
            behind.append((lag, _differs(mine[-1], runs[-1][1])))
    behind.sort(key=lambda pair: -pair[0]["lag"])
    return tuple(Note.of("replica_behind", **lag, **differs) for lag, differs in behind)


def _upper_bound(
    mean: float, values: Sequence[float], alpha: float, *, apart: float = 0.0
) -> float:
    """Return the upper one-sided t bound of a mean, or with `apart` 1 of one new value."""
    if len(values) < 2:
        return math.inf
    factor = math.sqrt(apart + 1 / len(values))
    return mean + t_isf(alpha, len(values) - 1) * stdev(values) * factor


def _key(replica: ReplicaRun) -> object:
    return replica.gpus or replica.name


def _differs(replica: ReplicaRun, gpus: Sequence[GpuRun]) -> Mapping[str, float]:
    here = [gpu for gpu in gpus if gpu.uuid in replica.gpus]
    rest = [gpu for gpu in gpus if gpu.uuid not in replica.gpus]
    differs = dict.fromkeys(("hotter_c", "slower_mhz", "less_w", "capped"), 0.0)
    if (both := _both(here, rest, "temperature_c")) and both[0] - both[1] >= HOTTER_C:
        differs["hotter_c"] = both[0] - both[1]
    if (both := _both(here, rest, "sm_mhz")) and both[0] < (1 - SLOWER_CLOCK_SHARE) * both[1]:
        differs["slower_mhz"] = both[1] - both[0]
    if (both := _both(here, rest, "mean_w")) and both[0] < (1 - LESS_POWER_SHARE) * both[1]:
        differs["less_w"] = both[1] - both[0]
    if (both := _both(here, rest, "power_cap_share")) and both[0] - both[1] >= CAPPED_SHARE:
        differs["capped"] = both[0]
    return differs


def _both(here: Sequence[GpuRun], rest: Sequence[GpuRun], name: str) -> tuple[float, float] | None:
    sides = (
        [gpu.mean_w if name == "mean_w" else gpu.state.get(name) for gpu in gpus]
        for gpus in (here, rest)
    )
    ours, theirs = ([value for value in side if value is not None] for side in sides)
    return (median(ours), median(theirs)) if ours and theirs else None
