"""Estimate how much a run was slowed down by other load on the machine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_mlperf.core.metrics import METRICS, Dimension
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.numbers import Count, NotNegative, Probability, Seconds
from pytest_mlperf.core.untrusted_text import broken
from pytest_mlperf.judge.inputs import Direction

NOTED_SHARE = 0.10
"""Share of a latency from which it is reported: the default limit of a 99th percentile."""

MIN_LOST_SECONDS = 5e-3
"""Shorter delays are normal process scheduling."""


def client_note(
    metrics: Mapping[str, float], gated: Iterable[str], client: Mapping[str, float]
) -> Note | None:
    """Return a note if the client caused a large share of a gated latency, else None."""
    shares = {
        name: _late(name, client) / metrics[name]
        for name in gated
        if name.partition("_")[0] in ("ttft", "latency") and metrics.get(name, 0.0) > 0
    }
    name = max(shares, key=shares.__getitem__, default=None)
    if name is None or _late(name, client) < MIN_LOST_SECONDS or shares[name] <= NOTED_SHARE:
        return None
    parts = {f"{part}_s": _part(name, part, client) for part in ("issue", "loop")}
    return Note.of("client_share", metric=name, value=metrics[name], **parts)


def late_share(metric: str, value: float, client: Mapping[str, float]) -> float:
    """Return the share of a latency caused by load generator delays; 0 if negligible.

    `value` is the latency [s]; `client` has the load generator's delays [s] by percentile.
    """
    if metric.partition("_")[0] not in ("ttft", "latency"):
        return 0.0
    late_s = _late(metric, client)
    return (
        min(MAX_SHARE, late_s / value)
        if late_s >= max(MIN_LOST_SECONDS, NOTED_SHARE * value)
        else 0.0
    )


def _late(name: str, client: Mapping[str, float]) -> float:
    return _part(name, "issue", client) + _part(name, "loop", client)


def _part(name: str, part: str, client: Mapping[str, float]) -> float:
    key = f"{part}_{name.rpartition('_')[2]}"
    return client.get(key, client.get(key.partition("@")[0], 0.0))


PAGE_FAULT_SECONDS = 10e-3
"""Upper bound of the time to read a page from a disk."""

TOLERATED_SHARE = 0.05
"""Load that is ignored; an idle machine's own work takes 1 to 4 % of a few cores."""

OF_LIMIT = 0.5
"""Part of the smallest limit that load may take; the other half is left for the build."""

MAX_SHARE = 0.999
"""Larger shares are clipped to this one, so that every bound is finite."""

METRIC_QUANTILES = {"p90": 0.9, "p99": 0.99, "tps_per_user": 0.9}
"""Quantile of the times behind a metric, by suffix; a median moves as the mean does."""

MEMORY_SHARE = 0.4
"""Margin for shared memory bandwidth. On two cores of an AMD EPYC virtual machine a thread that
copies 64 MB lost 34 to 37 % of its speed next to one or two that copy on the other core
(`tools/busy.py`)."""

UNAFFECTED = {Dimension.MEMORY, Dimension.TOKENS_PER_SAMPLE}
"""Dimensions that load does not change."""

UNBOUNDED = {"goodput", "slowest_replica"}
"""Metrics that little load can take to 0, by delays beyond a limit or in a single replica."""

MIN_WINDOW_SECONDS = 0.5
"""The kernel counts processor time in steps of 10 ms; fifty steps resolve a share of 2 %."""

MIN_NOTED_SHARE = 0.02
MIN_TOLD_SHARE = 0.005
"""Smaller parts of the window are left out of a sentence."""


NOT_MEASURED = "not measured on this platform"


@dataclass(frozen=True, kw_only=True)
class Contention:
    """Describe the processor use in a window; fields are None if the machine lacks the counter.

    Attributes:
        window_s: Length of the window.
        cores: Number of cores that the run may use.
        own_s: Processor time of the run's processes.
        foreign_s: Processor time of all other processes on these cores.
        waited_s: Time that the run's threads were runnable but not on a core, summed over threads.
        stolen_s: Time that the hypervisor gave the run's cores to other guests (steal time).
        throttled_s: Largest time that a cgroup's CPU quota throttled the run.
        switches: Involuntary context switches of the run's threads.
        pressure_s: Time that any process waited for a core (PSI).
        memory_some_s: Time that some process waited for memory (PSI).
        memory_full_s: Time that all runnable processes waited for memory (PSI).
        faults: Major page faults of the run.
        swapped_in: Pages that the machine read from swap.
        others: Number of cores that other processes used, by name; the busiest processes only.
        serves: Whether the server's processes were found on this machine and count as the run's
            own; False if its load is unknown; None without a server.
        share: Largest share of speed that this load may have cost, see `lost_share`.
        drop_share: `share` with a margin for memory bandwidth, used for drops; None in old results.
    """

    window_s: Seconds
    cores: Count
    own_s: Seconds | None = None
    foreign_s: Seconds | None = None
    waited_s: Seconds | None = None
    stolen_s: Seconds | None = None
    throttled_s: Seconds | None = None
    switches: Count | None = None
    pressure_s: Seconds | None = None
    memory_some_s: Seconds | None = None
    memory_full_s: Seconds | None = None
    faults: Count | None = None
    swapped_in: Count | None = None
    others: Mapping[str, NotNegative] = field(default_factory=dict)
    serves: bool | None = None
    share: Probability | None = None
    drop_share: Probability | None = None

    @property
    def has_cpu_times(self) -> bool:
        """Whether the platform reports the processor times of processes."""
        return (self.own_s, self.foreign_s, self.waited_s) != (None, None, None)


def lost_share(seen: Contention, *, on_cpu: bool, memory: float = 0.0) -> float | None:
    """Return the largest share of a run's speed that other load may have cost.

    A thread's waiting time counts only while other processes used the cores, because with more
    threads than cores the run's own threads wait for each other. Steal time, throttling by a CPU
    quota and major page faults are added. A CPU run also shares caches, memory, clocks and
    hyperthreads, so the other processes' share of all cores counts too. This is an upper bound:
    not every waiting thread delays the run.

    Args:
        memory: Lower bound of the result for a CPU run if others use more than the tolerated share
            of the cores, because a few cores can saturate the memory bandwidth.

    Returns:
        From 0 to 1; None if the window is too short or the machine reports nothing.
    """
    if seen.window_s < MIN_WINDOW_SECONDS or (seen.waited_s is None and seen.foreign_s is None):
        return None
    waited_s = seen.pressure_s if seen.waited_s is None else seen.waited_s
    if seen.foreign_s is not None:
        others_s = seen.foreign_s
    else:  # other processes may have used any core that the run did not use
        others_s = max(0.0, seen.cores * seen.window_s - (seen.own_s or 0.0))
    memory_s = min(seen.memory_some_s or 0.0, (seen.faults or 0) * PAGE_FAULT_SECONDS)
    parts = (min(waited_s or 0.0, others_s), seen.stolen_s, seen.throttled_s, memory_s)
    waited = min(1.0, sum(part for part in parts if part) / seen.window_s)
    shared = 0.0
    if on_cpu and seen.foreign_s is not None and seen.cores:
        at_work = min(1.0, (seen.own_s or 0.0) / seen.window_s)
        used = min(1.0, seen.foreign_s / (seen.cores * seen.window_s))
        shared = max(used, memory if used > TOLERATED_SHARE else 0.0) * at_work
    return 1 - (1 - waited) * (1 - shared)


def tolerated_load_share(limits: Mapping[str, float]) -> float:
    """Return the share of speed that other load may cost; it grows with the smallest limit."""
    return max(TOLERATED_SHARE, OF_LIMIT * min(limits.values(), default=0.0))


def lost_change(metric: str, share: float, *, points: int = 0) -> float:
    """Return the largest log change for the worse that a lost share of speed can cause.

    A run that lost the share s took up to 1 / (1 - s) times as long. The q quantile of its latency
    may have grown by 1 / (1 - q) times as much, if all lost time fell on the slowest 1 - q of the
    queries. All lost time may also fall on one of the `points` of a curve (0 without a curve).
    """
    whole = METRICS[metric]
    if whole.dimension in UNAFFECTED:
        return 0.0
    base = metric.partition("@")[0]
    share = MAX_SHARE if base in UNBOUNDED and share else min(MAX_SHARE, share * max(1, points))
    longer, quantile = share / (1 - share), 0.0
    if whole.direction is Direction.LOWER or base in METRIC_QUANTILES:
        quantile = METRIC_QUANTILES.get(base, METRIC_QUANTILES.get(base.rpartition("_")[2], 0.0))
    return math.log1p(longer / (1 - quantile))


def busiest(seen: Sequence[Contention | None]) -> Note | None:
    """Return a note on the run with the most load by other processes; None if it was small."""
    shares = [(each.share, each) for each in seen if each and each.share is not None]
    most, which = max(shares, key=lambda pair: pair[0], default=(0.0, None))
    if which is None or most <= MIN_NOTED_SHARE:
        return None
    return Note.of("not_idle", share=most, of=len(seen), load=load_seen(which))


def core_users(seen: Contention | None, client: float) -> Note:
    """Return a note on the mean cores used by the run, by its client (`client`), and by others."""
    if seen is None or seen.own_s is None or not seen.window_s:
        return Note.of("cores_unknown")
    used = {
        "own": max(0.0, seen.own_s / seen.window_s - client),
        "client": client,
        "others": (seen.foreign_s or 0.0) / seen.window_s,
    }
    full = 0.9  # share of all cores, or of the one core that a client can use
    idle = client < full and sum(used.values()) < full * seen.cores
    names, serves = busy_names(seen), seen.serves
    return Note.of("core_users", **used, cores=seen.cores, names=names, serves=serves, idle=idle)


def busy_names(seen: Contention) -> str:
    """Return names of other processes and the cores that they used: "pip 0.59, pytest 0.31"."""
    names = sorted(seen.others.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{broken(name)} {cores:.2g}" for name, cores in names)


def load_seen(seen: Contention) -> Note:
    """Return a note on other processes' load; a delay [s] becomes None if unknown or negligible."""
    rare = ("stolen_s", "throttled_s", "memory_some_s")
    rare_s = {name: getattr(seen, name) or 0.0 for name in rare}
    rare_s = {name: s if s > MIN_TOLD_SHARE * seen.window_s else None for name, s in rare_s.items()}
    return Note.of(
        "load_seen",
        # Rounded, because a difference of counters can be 2.8e-14.
        used=None if seen.foreign_s is None else round(seen.foreign_s / seen.window_s, 3),
        cores=seen.cores,
        names=busy_names(seen),
        waited_s=seen.waited_s,
        window_s=seen.window_s,
        faults=seen.faults if rare_s["memory_some_s"] else None,
        **rare_s,
    )
