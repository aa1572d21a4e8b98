"""How often to read what, so that sampling costs little: pure arithmetic on measured costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

CPU_SHARE = 0.02
"""Sampling one GPU may take this share of one core."""

CPU_SHARE_MORE = 0.01
"""Each GPU more may take this: a machine with many GPUs has many cores."""

AIM = 0.9
"""Part of that share to plan for: what a read costs in the run is not what it cost at the start."""

DRIVER_SHARE = 0.10
"""Share of the time, for each GPU, that may be spent inside NVML: it holds the driver's locks."""

DRIVERS_SHARE = 0.80
"""The same of all GPUs together: calls into a driver that answers one at a time must have room."""

TICK_S = 150e-6
"""What a tick of one GPU costs beside NVML: waking up, reading clocks, writing; seconds of CPU,
measured."""

TOPS_HZ = {"trace": 50.0, "counter": 20.0, "state": 5.0, "slow": 1.0}
"""Wanted rate of each group of quantities."""

FLOORS_HZ = {"trace": 5.0, "counter": 5.0, "state": 1.0, "slow": 0.2}
"""Below these a reading says nothing about a window of seconds."""

LOWER = 0.8
"""One step down."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What one read of a group costs, of one GPU.

    Attributes:
        cpu_s: Seconds of this process's CPU.
        wall_s: Seconds until the answer.
    """

    cpu_s: float
    wall_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Chosen rates of each GPU, Hz, and what they are to cost.

    Attributes:
        cpu_share: Share of one core, all GPUs together.
        driver_share: Share of the time inside NVML, of each GPU.
    """

    trace_hz: float
    counter_hz: float
    state_hz: float
    slow_hz: float
    cpu_share: float
    driver_share: float


def choose(costs: Mapping[str, Cost], gpus: int, *, trace_hz: float = TOPS_HZ["trace"]) -> Rates:
    """Lower the rate of whatever costs most until all of it costs little enough.

    Args:
        costs: By group: "trace", "counter", "state", "slow"; one that is not read is not there. Of
            the GPU that costs most.
        gpus: Number of GPUs.
        trace_hz: Wanted rate of the trace.

    Returns:
        Rates at their floors may still cost more than they should: the shares say so. The counter
        is read at every n-th tick of the trace, at an even beat.
    """
    free = Cost(cpu_s=0.0, wall_s=0.0)
    paid = {group: costs.get(group, free) for group in TOPS_HZ}
    paid["trace"] = Cost(cpu_s=paid["trace"].cpu_s + TICK_S, wall_s=paid["trace"].wall_s)
    rates = {**TOPS_HZ, "trace": trace_hz, "counter": min(TOPS_HZ["counter"], trace_hz)}
    allowed, waiting = AIM * cpu_allowed(gpus) / gpus, _waiting(paid, gpus)

    def shares() -> dict[str, tuple[float, float]]:
        return {g: (rates[g] * paid[g].cpu_s, rates[g] * paid[g].wall_s) for g in rates}

    while True:
        now = shares()
        cpu = sum(share for share, _ in now.values())
        driver = sum(share for _, share in now.values())
        lower = [group for group in rates if rates[group] > FLOORS_HZ[group]]
        if (cpu <= allowed and driver <= waiting) or not lower:
            break
        worst = max(lower, key=lambda g: max(now[g][0] / allowed, now[g][1] / waiting))
        rates[worst] = max(FLOORS_HZ[worst], rates[worst] * LOWER)
    most = max(1, int(rates["trace"] / FLOORS_HZ["counter"]))
    every = min(ceil(rates["trace"] / rates["counter"]), most)
    return Rates(
        trace_hz=rates["trace"],
        counter_hz=rates["trace"] / every,
        state_hz=rates["state"],
        slow_hz=rates["slow"],
        cpu_share=gpus * cpu,
        driver_share=driver,
    )


def cpu_allowed(gpus: int) -> float:
    """Return the share of one core that sampling so many GPUs may take."""
    return CPU_SHARE + CPU_SHARE_MORE * (gpus - 1)


def _waiting(paid: Mapping[str, Cost], gpus: int) -> float:
    """Return the share of the time that each GPU may wait for NVML.

    It gives way, as the share of CPU does not, where a driver is so slow that even the floors are
    dear: the quick quantities need not suffer for the slow one.
    """
    least = sum(floor * paid[group].wall_s for group, floor in FLOORS_HZ.items())
    return max(min(DRIVER_SHARE, DRIVERS_SHARE / gpus), 2 * least)
