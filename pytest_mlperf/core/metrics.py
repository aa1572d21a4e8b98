"""The one table of metrics: unit, direction and default limit of each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class Direction(StrEnum):
    """Which way a metric gets better."""

    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One measured quantity.

    Attributes:
        name: Key in suites, baselines and results.
        title: Words for tables.
        unit: SI unit of the stored value.
        direction: Which way it gets better.
        limit: Default smallest change that matters, as a share (0.03 is 3 %); infinite for counts.
        min_queries: Below this many queries in a run the metric is reported, not gated.
    """

    name: str
    title: str
    unit: str
    direction: Direction
    limit: float
    min_queries: int = 0

    @property
    def limit_key(self) -> str:
        """The key a suite file uses: max_drop where higher is better, else max_rise."""
        return "max_drop" if self.direction is Direction.HIGHER else "max_rise"


_H, _L, _N = Direction.HIGHER, Direction.LOWER, Direction.NEITHER

METRICS: dict[str, Metric] = {
    m.name: m
    for m in (
        Metric(name="throughput", title="samples/s", unit="1/s", direction=_H, limit=0.03),
        Metric(name="tokens_per_second", title="tokens/s", unit="1/s", direction=_H, limit=0.03),
        Metric(name="latency_p50", title="p50 latency", unit="s", direction=_L, limit=0.05),
        Metric(name="latency_p90", title="p90 latency", unit="s", direction=_L, limit=0.03),
        Metric(
            name="latency_p99",
            title="p99 latency",
            unit="s",
            direction=_L,
            limit=0.10,
            min_queries=1000,
        ),
        Metric(name="ttft_p50", title="p50 TTFT", unit="s", direction=_L, limit=0.05),
        Metric(
            name="ttft_p99", title="p99 TTFT", unit="s", direction=_L, limit=0.10, min_queries=1000
        ),
        Metric(name="tpot_p50", title="p50 TPOT", unit="s", direction=_L, limit=0.05),
        Metric(
            name="tpot_p99", title="p99 TPOT", unit="s", direction=_L, limit=0.10, min_queries=1000
        ),
        Metric(name="itl_p50", title="p50 inter-token", unit="s", direction=_L, limit=0.05),
        Metric(
            name="itl_p99",
            title="p99 inter-token",
            unit="s",
            direction=_L,
            limit=0.10,
            min_queries=1000,
        ),
        Metric(
            name="tokens_per_sample", title="tokens/sample", unit="1", direction=_N, limit=math.inf
        ),
        Metric(name="samples_per_joule", title="samples/J", unit="1/J", direction=_H, limit=0.05),
        Metric(name="tokens_per_joule", title="tokens/J", unit="1/J", direction=_H, limit=0.05),
    )
}

COUNTS = frozenset({"tokens_per_sample", "gen_len"})
"""Counts of output that have no better and no worse: they are compared, never gated."""

EFFICIENCY = frozenset({"samples_per_joule", "tokens_per_joule"})
"""Metrics that need a power source; `test_efficiency` judges them."""

OFFLINE = frozenset({"throughput", "tokens_per_second"})
"""Metrics that a suite can gate in Offline; elsewhere throughput is the offered rate."""

LATENCIES = frozenset(METRICS) - EFFICIENCY - OFFLINE - COUNTS
"""Metrics that a suite can gate in every other scenario."""

_GATED: dict[str, tuple[str, ...]] = {
    "Offline": ("throughput",),
    "Server": ("latency_p50", "latency_p99"),
    "Interactive": ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99"),
    "SingleStream": ("latency_p90",),
    "MultiStream": ("latency_p99",),
}


def gated_metrics(scenario: str, *, tokens: bool = False) -> tuple[str, ...]:
    """Return the performance metrics a scenario is judged by when the suite names none.

    Args:
        scenario: Offline, Server, Interactive, SingleStream or MultiStream.
        tokens: The workload is a language model: Server is judged by token latencies.
    """
    return _GATED["Interactive" if tokens and scenario == "Server" else scenario]
