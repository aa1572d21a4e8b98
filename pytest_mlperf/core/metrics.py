"""The one table of metrics: unit, direction and default limit of each."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

from pytest_mlperf.judge.inputs import Direction


class Dimension(StrEnum):
    """What a metric counts, whatever its unit."""

    TIME = "time"
    SAMPLES_PER_TIME = "samples per time"
    TOKENS_PER_TIME = "tokens per time"
    SAMPLES_PER_ENERGY = "samples per energy"
    TOKENS_PER_ENERGY = "tokens per energy"
    TOKENS_PER_SAMPLE = "tokens per sample"
    TOKENS_PER_STEP = "tokens per step"
    ENERGY_PER_SAMPLE = "energy per sample"
    SHARE = "share"
    MEMORY = "memory"
    START = "time before the first sample"
    STAGE = "time of a stage"
    REQUESTS = "requests in flight"


@dataclass(frozen=True, slots=True)
class Metric:
    """One measured quantity.

    Attributes:
        limit: Default smallest change that matters, as a share (0.03 is 3 %); infinite for counts.
        unit: SI unit of the stored value.
        min_queries: Below this many queries in a run the metric is reported, not gated.
        shown: Tables name it also where it is not gated; results hold it in any case.
    """

    name: str
    title: str
    dimension: Dimension
    limit: float
    unit: str = "1/s"
    direction: Direction = Direction.HIGHER
    min_queries: int = 0
    shown: bool = True

    @property
    def limit_key(self) -> str:
        """The key a suite file uses: max_drop where higher is better, else max_rise."""
        return "max_drop" if self.direction is Direction.HIGHER else "max_rise"


_time = partial(Metric, dimension=Dimension.TIME, unit="s", direction=Direction.LOWER)
_p90 = partial(_time, limit=0.05, min_queries=100, shown=False)

_per_joule = partial(Metric, limit=0.05, unit="1/J")

_beside = partial(Metric, direction=Direction.LOWER, shown=False)
_memory = partial(_beside, dimension=Dimension.MEMORY, unit="B")
_start = partial(_beside, dimension=Dimension.START, unit="s", limit=0.20)
_server = partial(Metric, limit=0.05, unit="1", shown=False)

SLOWEST_REPLICA = "slowest_replica"
"""Speed of the slowest replica as a share of the median one's."""

TURNS_TPS = "e2e_tps_per_user"
"""What the turns of conversations get in the time in which they are answered, pauses left out."""

CONCURRENCY = "concurrency"
"""Requests in flight that a search found, see `core.search`."""

DRAFT_ACCEPTANCE, DRAFT_LENGTH = "draft_acceptance", "draft_length"
PREFIX_HIT_SHARE = "prefix_hit_share"

SERVER_METRICS = frozenset({DRAFT_ACCEPTANCE, DRAFT_LENGTH, PREFIX_HIT_SHARE})
"""Metrics from a server's own counters: each is gated where `[limits]` or a scenario names it, on a
curve at every point or at the point that is named; without a limit it is only reported."""

PEAK_DEVICE_MEMORY, PEAK_HOST_MEMORY = "peak_device_memory", "peak_host_memory"
LOAD_TIME, BUILD_TIME = "load_time", "build_time"

RESOURCES = frozenset({PEAK_DEVICE_MEMORY, PEAK_HOST_MEMORY, LOAD_TIME, BUILD_TIME})
"""What a run takes before and beside its samples; a suite can gate it in every scenario."""

POINT_LIMIT = 0.05
"""Default limit of the throughput of one point of a curve: its mean over all points has less noise,
and the limit of that one is smaller."""

POINT = r"[1-9][0-9]{0,6}|(0|[1-9][0-9]{0,6})\.[0-9]{0,2}[1-9]"
"""A whole number, or one with three digits at most behind the point; each number is written in one
way only."""

POINT_METRIC = re.compile(rf"(?P<base>\w+)@(?P<point>{POINT})")
"""A metric of one point of a curve: "tokens_per_second@64" is that with 64 requests under way,
"ttft_p50@0.5" that of an open loop with one request in two seconds."""


STAGE = "stage_"
STAGE_METRIC = re.compile(rf"{STAGE}(?P<stage>[a-z][a-z0-9_]{{0,31}})")
"""Time of one stage of the work, seconds per sample: "stage_unet". Engines and servers name the
stages, so that the table has no rows for them; they are reported, and no suite can gate one."""


def is_stage(metric: str) -> bool:
    """Whether a metric is the time of a stage, also at a point of a curve."""
    return STAGE_METRIC.fullmatch(metric.partition("@")[0]) is not None


def at_point(metric: str, point: float) -> str:
    """Return the name of a metric at one point of a curve."""
    return f"{metric}@{point}"


def point_of(metric: str) -> int | float | None:
    """Return the point of a curve that a metric is of; None: it is of none."""
    named = POINT_METRIC.fullmatch(metric)
    return _number(named["point"]) if named else None


def _number(point: str) -> int | float:
    return float(point) if "." in point else int(point)


class _Table(dict[str, Metric]):
    """Metrics by name; stages, and metrics at points of a curve, are made when somebody asks."""

    def __missing__(self, name: str) -> Metric:
        if stage := STAGE_METRIC.fullmatch(name):
            title = f"{stage['stage'].replace('_', ' ')} stage"
            return _time(name, title, dimension=Dimension.STAGE, limit=0.05)
        named = POINT_METRIC.fullmatch(name)
        if named is None or named["base"] not in self:
            raise KeyError(name)
        whole = self[named["base"]]
        limit = max(whole.limit, POINT_LIMIT) if named["base"] in RATES else whole.limit
        title = f"{whole.title} at {_number(named['point']):,}"
        return replace(whole, name=name, title=title, limit=limit)

    def __contains__(self, name: object) -> bool:
        if super().__contains__(name):
            return True
        named = POINT_METRIC.fullmatch(name) if isinstance(name, str) else None
        base = named["base"] if named else name
        return isinstance(base, str) and (super().__contains__(base) or is_stage(base))

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default


RATES = ("tokens_per_second", "throughput")
"""What a curve over requests under way is judged by, at each point and in the mean over all."""

METRICS: dict[str, Metric] = _Table(
    (m.name, m)
    for m in (
        Metric("throughput", "samples/s", Dimension.SAMPLES_PER_TIME, 0.03),
        Metric("tokens_per_second", "tokens/s", Dimension.TOKENS_PER_TIME, 0.03),
        Metric(CONCURRENCY, "requests in flight", Dimension.REQUESTS, 0.05, unit="1"),
        _time("latency_p50", "p50 latency", limit=0.05),
        _time("latency_p90", "p90 latency", limit=0.03),
        _time("latency_p99", "p99 latency", limit=0.10, min_queries=1000),
        _time("ttft_p50", "p50 TTFT", limit=0.05),
        _p90("ttft_p90", "p90 TTFT"),
        _time("ttft_p99", "p99 TTFT", limit=0.10, min_queries=1000),
        _time("tpot_p50", "p50 TPOT", limit=0.05),
        _p90("tpot_p90", "p90 TPOT"),
        _time("tpot_p99", "p99 TPOT", limit=0.10, min_queries=1000),
        # In place of TTFT where answers came together: the first read holds more than one message.
        _time("first_read_p50", "p50 first read", limit=0.05),
        _p90("first_read_p90", "p90 first read"),
        _time("first_read_p99", "p99 first read", limit=0.10, min_queries=1000),
        _time("itl_p50", "p50 inter-token", limit=0.05),
        _p90("itl_p90", "p90 inter-token"),
        _time("itl_p99", "p99 inter-token", limit=0.10, min_queries=1000),
        # Of a call, over the rounds of a benchmark: pytest-benchmark's own three.
        _time("time_median", "median time", limit=0.05),
        _time("time_min", "fastest time", limit=0.05),
        _time("time_mean", "mean time", limit=0.05),
        Metric("goodput", "goodput/s", Dimension.SAMPLES_PER_TIME, 0.05, min_queries=100),
        Metric("tokens_per_second_per_user", "tokens/s/user", Dimension.TOKENS_PER_TIME, 0.05),
        # MLPerf Endpoints' interactivity, endpoints_rules.md of v1.0.
        Metric("tps_per_user", "1/p90 TPOT", Dimension.TOKENS_PER_TIME, 0.05, shown=False),
        Metric(TURNS_TPS, "tokens/s of a turn", Dimension.TOKENS_PER_TIME, 0.05, shown=False),
        Metric(
            "tokens_per_second_per_gpu",
            "tokens/s/GPU",
            Dimension.TOKENS_PER_TIME,
            0.03,
            shown=False,
        ),
        Metric(SLOWEST_REPLICA, "slowest replica", Dimension.SHARE, 0.05, unit="1", shown=False),
        _server(DRAFT_ACCEPTANCE, "draft acceptance", Dimension.SHARE),
        _server(DRAFT_LENGTH, "acceptance length", Dimension.TOKENS_PER_STEP),
        _server(PREFIX_HIT_SHARE, "prefix cache hits", Dimension.SHARE),
        Metric(
            "tokens_per_sample",
            "tokens/sample",
            Dimension.TOKENS_PER_SAMPLE,
            math.inf,
            unit="1",
            direction=Direction.NEITHER,
        ),
        _memory(PEAK_DEVICE_MEMORY, "peak GPU memory", limit=0.03),
        _memory(PEAK_HOST_MEMORY, "peak host memory", limit=0.10),
        _start(LOAD_TIME, "load time"),
        _start(BUILD_TIME, "build time"),
        _per_joule("samples_per_joule", "samples/J", Dimension.SAMPLES_PER_ENERGY),
        _per_joule("tokens_per_joule", "tokens/J", Dimension.TOKENS_PER_ENERGY),
        Metric(
            "net_joules_per_sample",
            "J/sample above idle",
            Dimension.ENERGY_PER_SAMPLE,
            0.05,
            unit="J",
            direction=Direction.LOWER,
        ),
        _per_joule("samples_per_joule_wall", "samples/J at the wall", Dimension.SAMPLES_PER_ENERGY),
        _per_joule("tokens_per_joule_wall", "tokens/J at the wall", Dimension.TOKENS_PER_ENERGY),
        _per_joule("samples_per_joule_dcgm", "samples/J by DCGM", Dimension.SAMPLES_PER_ENERGY),
        _per_joule("tokens_per_joule_dcgm", "tokens/J by DCGM", Dimension.TOKENS_PER_ENERGY),
    )
)

_PLACES = {name: place for place, name in enumerate(METRICS)}


def in_order(metric: str) -> tuple[float, int, str]:
    """Return a key that sorts metrics as the table does, stages and a curve's points behind it."""
    base, _, point = metric.partition("@")
    return float(point or 0), _PLACES.get(base, len(_PLACES)), base


COUNTS = frozenset({"tokens_per_sample", "gen_len"})
"""Counts of output that have no better and no worse: they are compared, never gated."""

OUTPUT_TOKENS = "output tokens"
"""What is kept of each answer beside its scores; no metric of a scorer has such a name."""

NET_JOULES_PER_SAMPLE = "net_joules_per_sample"

UNGATED = COUNTS | {NET_JOULES_PER_SAMPLE}
"""Metrics that no suite can gate: counts, and what rests on the power of an idle GPU."""

SAMPLES_PER_JOULE, TOKENS_PER_JOULE = "samples_per_joule", "tokens_per_joule"

BY_GPUS = frozenset({SAMPLES_PER_JOULE, TOKENS_PER_JOULE})
"""Metrics of the energy that GPUs count: that of their boards."""

BY_METER = frozenset(f"{name}_wall" for name in BY_GPUS)
"""Metrics of the energy of a whole machine, by a wall meter; never compared with `BY_GPUS`."""

BY_EXPORTER = frozenset(f"{name}_dcgm" for name in BY_GPUS)
"""Metrics of the energy of another machine's GPUs, by a DCGM exporter; never compared likewise."""

EFFICIENCY = BY_GPUS | BY_METER | BY_EXPORTER
"""Metrics that need a power source; `test_efficiency` judges them."""

OF_ENERGY = EFFICIENCY | {NET_JOULES_PER_SAMPLE}
"""Metrics that are worth no more than the energy that they were made of."""

OFFLINE = frozenset({"throughput", "tokens_per_second", "tokens_per_second_per_gpu"})
"""Metrics that a suite can gate in Offline; elsewhere throughput is the offered rate."""

SERVED = frozenset({"goodput"})
"""Metrics that only a scenario with limits has: Server and Interactive."""

OF_BENCHMARKS = ("time_median", "time_min", "time_mean")
"""Metrics of tests with pytest-benchmark, which no suite measures."""

LATENCIES = frozenset(METRICS).difference(
    *(EFFICIENCY, OFFLINE, UNGATED, RESOURCES, SERVER_METRICS, OF_BENCHMARKS),
    {"tps_per_user", TURNS_TPS, CONCURRENCY},
)
"""Metrics that a suite can gate in every other scenario."""

CURVE = frozenset({*RATES, "tokens_per_second_per_gpu"})
"""Metrics that a curve has as a whole: geometric means over its points."""

ARRIVAL_METRICS = LATENCIES - SERVED - {SLOWEST_REPLICA}
"""What a curve over rates of arrival is judged by, likewise; its throughput is what was offered."""

AT_POINTS = ARRIVAL_METRICS | {*RATES, "tps_per_user", TURNS_TPS}
"""Metrics that each point of a curve has."""

SEARCH_METRICS = CURVE | {CONCURRENCY}
"""Metrics that a suite can gate where a search finds the load: latencies lie at their limit. Where
that is a rate, throughput alone."""

_GATED: dict[str, tuple[str, ...]] = {
    "Offline": ("throughput",),
    "Server": ("latency_p50", "latency_p99"),
    "Interactive": ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99"),
    "SingleStream": ("latency_p90",),
    "MultiStream": ("latency_p99",),
    "Concurrency": ("throughput",),
    "OpenLoop": ("latency_p50",),
    "Benchmark": ("time_median",),
}

LOOPS = ("Concurrency", "OpenLoop")
"""Scenarios of our own loops, which measure a curve."""


def of_curve(scenario: str, measured: Collection[str]) -> tuple[str, ...]:
    """Return what a scenario's curve is judged by, of what was measured; (): it is no curve."""
    for tokens in (True, False) if scenario in LOOPS else ():
        wholes = gated_metrics(scenario, tokens=tokens)
        points = [n for n in measured if "@" in n and n.partition("@")[0] in wholes]
        if points:
            return *wholes, *sorted(points, key=in_order)
    return ()


def gated_metrics(
    scenario: str, *, tokens: bool = False, searched: bool = False
) -> tuple[str, ...]:
    """Return what judges a scenario when the suite names nothing; under load it may be tokens."""
    if searched and scenario != "Concurrency":
        return ("throughput",)
    if searched:
        return *gated_metrics(scenario, tokens=tokens), CONCURRENCY
    if tokens and scenario in LOOPS:
        return ("tokens_per_second",) if scenario == "Concurrency" else ("ttft_p50", "tpot_p50")
    if scenario in {"Server", "Interactive"}:
        return _GATED["Interactive" if tokens else "Server"]
    return _GATED[scenario]
