"""The one table of metrics: unit, direction and default limit of each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from pytest_mlperf.core.units import Kind


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
        kind: What it counts; only a figure in a unit of this kind can be this metric.
        direction: Which way it gets better.
        limit: Default smallest change that matters, as a share (0.03 is 3 %); infinite for counts.
        min_queries: Below this many queries in a run the metric is reported, not gated.
        shown: Tables name it also where it is not gated; results hold it in any case.
    """

    name: str
    title: str
    unit: str
    kind: Kind
    direction: Direction
    limit: float
    min_queries: int = 0
    shown: bool = True

    @property
    def limit_key(self) -> str:
        """The key a suite file uses: max_drop where higher is better, else max_rise."""
        return "max_drop" if self.direction is Direction.HIGHER else "max_rise"


_H, _L, _N = Direction.HIGHER, Direction.LOWER, Direction.NEITHER


def _rate(name: str, title: str, unit: str, kind: Kind, limit: float = math.inf) -> Metric:
    return Metric(name=name, title=title, unit=unit, kind=kind, direction=_H, limit=limit)


def _time(
    name: str, title: str, limit: float, min_queries: int = 0, *, shown: bool = True
) -> Metric:
    return Metric(
        name=name,
        title=title,
        unit="s",
        kind=Kind.TIME,
        direction=_L,
        limit=limit,
        min_queries=min_queries,
        shown=shown,
    )


def _p90(name: str, title: str) -> Metric:
    return _time(name, title, 0.05, min_queries=100, shown=False)


_WALL = "at the wall"

METRICS: dict[str, Metric] = {
    m.name: m
    for m in (
        _rate("throughput", "samples/s", "1/s", Kind.SAMPLES_PER_TIME, 0.03),
        _rate("tokens_per_second", "tokens/s", "1/s", Kind.TOKENS_PER_TIME, 0.03),
        _time("latency_p50", "p50 latency", 0.05),
        _time("latency_p90", "p90 latency", 0.03),
        _time("latency_p99", "p99 latency", 0.10, min_queries=1000),
        _time("ttft_p50", "p50 TTFT", 0.05),
        _p90("ttft_p90", "p90 TTFT"),
        _time("ttft_p99", "p99 TTFT", 0.10, min_queries=1000),
        _time("tpot_p50", "p50 TPOT", 0.05),
        _p90("tpot_p90", "p90 TPOT"),
        _time("tpot_p99", "p99 TPOT", 0.10, min_queries=1000),
        _time("itl_p50", "p50 inter-token", 0.05),
        _p90("itl_p90", "p90 inter-token"),
        _time("itl_p99", "p99 inter-token", 0.10, min_queries=1000),
        Metric(
            name="goodput",
            title="goodput/s",
            unit="1/s",
            kind=Kind.SAMPLES_PER_TIME,
            direction=_H,
            limit=0.05,
            min_queries=100,
        ),
        _rate("tokens_per_second_per_user", "tokens/s/user", "1/s", Kind.TOKENS_PER_TIME, 0.05),
        Metric(
            name="tokens_per_second_per_gpu",
            title="tokens/s/GPU",
            unit="1/s",
            kind=Kind.TOKENS_PER_TIME,
            direction=_H,
            limit=0.03,
            shown=False,
        ),
        Metric(
            name="tokens_per_sample",
            title="tokens/sample",
            unit="1",
            kind=Kind.TOKENS_PER_SAMPLE,
            direction=_N,
            limit=math.inf,
        ),
        _rate("samples_per_joule", "samples/J", "1/J", Kind.SAMPLES_PER_ENERGY, 0.05),
        _rate("tokens_per_joule", "tokens/J", "1/J", Kind.TOKENS_PER_ENERGY, 0.05),
        Metric(
            name="net_joules_per_sample",
            title="J/sample above idle",
            unit="J",
            kind=Kind.ENERGY_PER_SAMPLE,
            direction=_L,
            limit=0.05,
        ),
        _rate("samples_per_joule_wall", f"samples/J {_WALL}", "1/J", Kind.SAMPLES_PER_ENERGY, 0.05),
        _rate("tokens_per_joule_wall", f"tokens/J {_WALL}", "1/J", Kind.TOKENS_PER_ENERGY, 0.05),
    )
}

_WHOLE = "of the whole system"

PUBLISHED: dict[str, Metric] = {
    m.name: m
    for m in (
        _rate("samples_per_watt_system", f"samples/s/W {_WHOLE}", "1/J", Kind.SAMPLES_PER_ENERGY),
        _rate("tokens_per_watt_system", f"tokens/s/W {_WHOLE}", "1/J", Kind.TOKENS_PER_ENERGY),
        _rate("decode_tokens_per_second", "tokens/s while decoding", "1/s", Kind.TOKENS_PER_TIME),
        Metric(
            name="usd_per_gpu_hour",
            title="USD per GPU-hour",
            unit="USD/h",
            kind=Kind.PRICE,
            direction=_L,
            limit=math.inf,
        ),
        _rate("tokens_per_usd", "tokens/USD", "1/USD", Kind.TOKENS_PER_MONEY),
        _rate("relative_value", "relative value", "1", Kind.RATIO),
    )
}
"""What others print and no run here measures; a suite cannot gate it.

The two "per_watt_system" are by the wall meter of the whole system, as MLPerf Power asks;
samples_per_joule and tokens_per_joule are by the accelerators' own counters, which see a part of
that. They never compare.
"""

COUNTS = frozenset({"tokens_per_sample", "gen_len"})
"""Counts of output that have no better and no worse: they are compared, never gated."""

NET_JOULES_PER_SAMPLE = "net_joules_per_sample"

UNGATED = COUNTS | {NET_JOULES_PER_SAMPLE}
"""Metrics that no suite can gate: counts, and what rests on the power of an idle GPU."""

SAMPLES_PER_JOULE, TOKENS_PER_JOULE = "samples_per_joule", "tokens_per_joule"

BY_GPUS = frozenset({SAMPLES_PER_JOULE, TOKENS_PER_JOULE})
"""Metrics of the energy that GPUs count: that of their boards."""

BY_METER = frozenset(f"{name}_wall" for name in BY_GPUS)
"""Metrics of the energy of a whole machine, by a wall meter; never compared with `BY_GPUS`."""

EFFICIENCY = BY_GPUS | BY_METER
"""Metrics that need a power source; `test_efficiency` judges them."""

OF_ENERGY = EFFICIENCY | {NET_JOULES_PER_SAMPLE}
"""Metrics that are worth no more than the energy that they were made of."""

OFFLINE = frozenset({"throughput", "tokens_per_second", "tokens_per_second_per_gpu"})
"""Metrics that a suite can gate in Offline; elsewhere throughput is the offered rate."""

FOUND = frozenset({"throughput"})
"""Metrics that a suite can gate where a search finds the rate: latencies lie at their limit."""

SERVED = frozenset({"goodput"})
"""Metrics that only a scenario with limits has: Server and Interactive."""

LATENCIES = frozenset(METRICS) - EFFICIENCY - OFFLINE - UNGATED
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
