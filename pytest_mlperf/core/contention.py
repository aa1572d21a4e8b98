"""How much of a run's time a busy machine may have taken: what was seen in its window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_mlperf.core.foreign_text import broken
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.numbers import Count, NotNegative, Probability, Seconds, percent, quantity
from pytest_mlperf.core.reason import Key, Reason

INVALID_SHARE = 0.25
"""Above this share of a gated latency nobody can say what the server did: twice the largest change
of a latency that any default limit lets through, and some."""

NOTED_SHARE = 0.10
"""Above this it is told: it is the default limit of a 99th percentile."""

LEAST_S = 5e-3
"""Less is how an operating system schedules processes, and means nothing."""


def client_share(
    metrics: Mapping[str, float], gated: Iterable[str], client: Mapping[str, float]
) -> tuple[Reason | None, str | None]:
    """Return why a run of this client may not be judged, or else what is to be told of it.

    How late the client was is as of `Engine.client_lateness`; {}: unknown.
    """
    shares = {
        name: _late(name, client) / metrics[name]
        for name in gated
        if name.partition("_")[0] in ("ttft", "latency") and metrics.get(name, 0.0) > 0
    }
    name = max(shares, key=shares.__getitem__, default=None)
    if name is None or _late(name, client) < LEAST_S or shares[name] <= NOTED_SHARE:
        return None, None
    which = name.rpartition("_")[2]
    issue, loop = (_time(client[f"{part}_{which}"]) for part in ("issue", "loop"))
    parts = (
        f"{METRICS[name].title} is {quantity(name, metrics[name])}, of which this process took up "
        f"to {_time(_late(name, client))}: its requests began {issue} late and its event loop was "
        f"{loop} late ({which})"
    )
    advice = "give it processor cores that nobody else uses, or measure from another machine"
    if shares[name] <= INVALID_SHARE:
        return None, f"{parts}; {advice}"
    text = f"the client, not the server, was measured: {parts}; {advice}"
    return Reason(key=Key.CLIENT_LATE, text=text), None


def _late(name: str, client: Mapping[str, float]) -> float:
    """Return how late it was at both ends of a latency, each at the same percentile."""
    which = name.rpartition("_")[2]
    return client.get(f"issue_{which}", 0.0) + client.get(f"loop_{which}", 0.0)


def _time(seconds: float) -> str:
    return quantity("latency_p99", seconds)


FAULT_S = 10e-3
"""A page comes from a disk within so long; from most in much less."""

TOLERATED = 0.05
"""A smaller share makes no run INVALID by itself: daemons, the session's own process and a kernel's
housekeeping take 1 to 4 % of a small machine all the time."""

OF_LIMIT = 0.5
"""Nor does one below this part of the smallest limit: the other half is left for the build."""

LEAST_WINDOW_S = 0.5
"""The kernel counts processor time in steps of 10 ms: fifty of them tell a share of 2 %, fewer do
not."""

NOTED = 0.02
"""A larger share is told beside the verdict."""

TELLING = 0.005
"""What is a smaller part of the window is left out of a sentence."""


@dataclass(frozen=True, kw_only=True)
class Contention:
    """Who used the processor in a window; None: the machine does not tell.

    Attributes:
        window_s: Length of the window.
        cores: Cores that the run might use.
        own_s: Processor time of the run's processes.
        foreign_s: Processor time of all others on these cores.
        waited_s: How long threads of the run were ready and got no core, all of them together.
        stolen_s: How long the hypervisor kept the run's cores for other machines.
        throttled_s: How long a control group's processor quota held the run back, at most.
        switches: How often a thread of the run lost its core while it had work to do.
        pressure_s: How long anything at all waited for a core (PSI).
        memory_some_s: How long something waited for memory (PSI).
        memory_full_s: How long all that had work to do waited for memory (PSI).
        faults: Page faults of the run that needed the disk.
        swapped_in: Pages that the machine read from swap.
        others: Cores that other processes used, by the names of those that used the most.
        share: The largest share of the run's speed that all this explains, see `lost_share`.
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
    share: Probability | None = None


def lost_share(seen: Contention, *, on_cpu: bool) -> float | None:
    """Return the largest share of a run's speed that the machine's load explains.

    Threads of a run that wait for each other are no defect: where it has more of them than cores,
    they always do. What they waited counts up to the time that others used these cores, since
    nobody else kept them from running. Added are the hypervisor, a processor quota, and memory, as
    far as the run itself had to read pages again.

    A run on the processor shares more with its neighbours than time: caches, memory, clocks, and a
    core's own units where it has two threads. There, others explain their part of all cores too,
    for as long as the run was at work.

    It is an upper bound: threads that wait at different moments hold up a whole run only where the
    others wait for them.

    Returns:
        From 0 to 1; None where the window is too short to say, and where the machine tells neither
        what was waited nor what others used.
    """
    if seen.window_s < LEAST_WINDOW_S or (seen.waited_s is None and seen.foreign_s is None):
        return None
    waited_s = seen.pressure_s if seen.waited_s is None else seen.waited_s
    if seen.foreign_s is not None:
        others_s = seen.foreign_s
    else:  # a core that the run itself did not use may have been somebody else's
        others_s = max(0.0, seen.cores * seen.window_s - (seen.own_s or 0.0))
    memory_s = min(seen.memory_some_s or 0.0, (seen.faults or 0) * FAULT_S)
    parts = (min(waited_s or 0.0, others_s), seen.stolen_s, seen.throttled_s, memory_s)
    waited = min(1.0, sum(part for part in parts if part) / seen.window_s)
    beside = 0.0
    if on_cpu and seen.foreign_s is not None and seen.cores:
        at_work = min(1.0, (seen.own_s or 0.0) / seen.window_s)
        beside = min(1.0, seen.foreign_s / (seen.cores * seen.window_s)) * at_work
    return 1 - (1 - waited) * (1 - beside)


def tolerated(limits: Mapping[str, float]) -> float:
    """Return the share from which on a run of these limits is INVALID."""
    return max(TOLERATED, OF_LIMIT * min(limits.values(), default=0.0))


def too_busy(seen: Contention, limits: Mapping[str, float], usual: float) -> Reason | None:
    """Return why a run may not be judged whose machine was busy beyond what was usual before."""
    most = tolerated(limits)
    if seen.share is None or seen.share - usual <= most:
        return None
    beyond = f" beyond the baseline's {percent(usual)}" if usual > NOTED else ""
    text = (
        f"the machine was busy, which explains up to {percent(seen.share)} of the run's speed, and "
        f"{percent(most)}{beyond} is tolerated: {in_words(seen)}; free the machine, or measure "
        "where nobody else works"
    )
    return Reason(key=Key.MACHINE_BUSY, text=text)


def busiest(seen: Sequence[Contention | None]) -> str | None:
    """Return what the machine did in the busiest of several runs, where that is worth telling."""
    shares = [(each.share, each) for each in seen if each and each.share is not None]
    most, which = max(shares, key=lambda pair: pair[0], default=(0.0, None))
    if which is None or most <= NOTED:
        return None
    runs = "1 run" if len(seen) == 1 else f"one of {len(seen)} runs"
    return (
        f"the machine was not quiet, which explains up to {percent(most)} of the speed of {runs}: "
        f"{in_words(which)}"
    )


def in_words(seen: Contention) -> str:
    """Return what was seen, the figures alone."""
    figures = []
    if seen.foreign_s is not None:
        names = sorted(seen.others.items(), key=lambda pair: (-pair[1], pair[0]))
        who = ", ".join(f"{broken(name)} {cores:.2g}" for name, cores in names)
        used = f"{seen.foreign_s / seen.window_s:.2g} of {seen.cores} cores"
        figures.append(f"others used {used}" + (f": {who}" if who else ""))
    if seen.waited_s is not None:
        figures.append(
            f"its threads waited {seen.waited_s:.2g} s of {seen.window_s:.3g} s for a core"
        )
    if seen.stolen_s and seen.stolen_s > TELLING * seen.window_s:
        figures.append(f"the hypervisor took {seen.stolen_s:.2g} s")
    if seen.throttled_s and seen.throttled_s > TELLING * seen.window_s:
        figures.append(f"a processor quota held it back for {seen.throttled_s:.2g} s")
    if seen.memory_some_s and seen.memory_some_s > TELLING * seen.window_s:
        faults = "" if seen.faults is None else f", {seen.faults:,} of its pages came from disk"
        figures.append(f"memory was short for {seen.memory_some_s:.2g} s{faults}")
    return "; ".join(figures) or "it tells no more"
