"""Define all metrics: unit, direction and default limit of each."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.judge.inputs import Direction


class Dimension(StrEnum):
    """Enumerate the physical quantities that metrics measure, such as tokens per time."""

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
    """Define one measured quantity.

    Attributes:
        limit: Default smallest change that matters, as a share (0.03 is 3 %); infinite for counts.
        unit: SI unit of the stored value.
        min_queries: Fewest queries in a run for which the metric is gated, not only reported.
        shown: Whether tables show the metric even if it is not gated; results files always have it.
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
    def falls(self) -> bool:
        """Whether a smaller value is better."""
        return self.direction is Direction.LOWER

    @property
    def is_neutral(self) -> bool:
        """Whether neither a larger nor a smaller value is better."""
        return self.direction is Direction.NEITHER

    @property
    def limit_key(self) -> str:
        """Key of the limit in a suite file: max_drop if higher is better, else max_rise."""
        return "max_drop" if self.direction is Direction.HIGHER else "max_rise"


_falling = partial(Metric, direction=Direction.LOWER)
_time = partial(_falling, dimension=Dimension.TIME, unit="s")


def _percentiles(base: str, title: str) -> Iterator[Metric]:
    yield _time(f"{base}_p50", f"p50 {title}", limit=0.05)
    yield _time(f"{base}_p90", f"p90 {title}", limit=0.05, min_queries=100, shown=False)
    yield _time(f"{base}_p99", f"p99 {title}", limit=0.10, min_queries=1000)


_tokens = partial(Metric, dimension=Dimension.TOKENS_PER_TIME)
_per_joule = partial(Metric, limit=0.05, unit="1/J")
_joules = partial(_falling, dimension=Dimension.ENERGY_PER_SAMPLE, limit=0.05, unit="J")

_memory = partial(_falling, dimension=Dimension.MEMORY, unit="B", shown=False)
_start = partial(_falling, dimension=Dimension.START, unit="s", limit=0.20, shown=False)
_server = partial(Metric, limit=0.05, unit="1", shown=False)

SLOWEST_REPLICA = "slowest_replica"
"""Speed of the slowest replica relative to the median one's."""

TURNS_TPS = "e2e_tps_per_user"
"""Tokens per second within the turns of conversations, without the pauses."""

CONCURRENCY = "concurrency"
"""Requests in flight that a search found, see `core.search`."""

DRAFT_ACCEPTANCE, DRAFT_LENGTH = "draft_acceptance", "draft_length"
PREFIX_HIT_SHARE = "prefix_hit_share"

SERVER_METRICS = frozenset({DRAFT_ACCEPTANCE, DRAFT_LENGTH, PREFIX_HIT_SHARE})
"""Metrics from a server's own counters, gated only if limits name them."""

PEAK_DEVICE_MEMORY, PEAK_HOST_MEMORY = "peak_device_memory", "peak_host_memory"
LOAD_TIME, BUILD_TIME = "load_time", "build_time"

RESOURCES = frozenset({PEAK_DEVICE_MEMORY, PEAK_HOST_MEMORY, LOAD_TIME, BUILD_TIME})
"""Resources before and during a run; a suite can gate them in every scenario."""

POINT_LIMIT = 0.05
"""Limit of a throughput at one point; the mean over all points has less noise."""

POINT = r"[1-9][0-9]{0,6}|(0|[1-9][0-9]{0,6})\.[0-9]{0,2}[1-9]"
"""A whole number, or one with up to three decimals; each number has exactly one form."""

POINT_METRIC = re.compile(rf"(?P<base>\w+)@(?P<point>{POINT})")
"""A metric of one point of a curve: "tokens_per_second@64", "ttft_p50@0.5"."""


STAGE = "stage_"
STAGE_METRIC = re.compile(rf"{STAGE}(?P<stage>[a-z][a-z0-9_]{{0,31}})")
"""Time of a stage [s per sample], "stage_unet"; engines name stages, none can be gated."""


def is_stage(metric: str) -> bool:
    """Check whether a metric is a stage time, also one at a concurrency ("stage_queue@64")."""
    return STAGE_METRIC.fullmatch(metric.partition("@")[0]) is not None


def at_point(metric: str, point: float) -> str:
    """Return a metric's name at one concurrency or rate of a curve: "throughput@64"."""
    return f"{metric}@{point}"


def point_of(metric: str) -> int | float | None:
    """Return 64, a concurrency or rate, of "throughput@64"; None for a name without "@"."""
    named = POINT_METRIC.fullmatch(metric)
    return _number(named["point"]) if named else None


def _number(point: str) -> int | float:
    return float(point) if "." in point else int(point)


def title(metric: str) -> str:
    """Return the title of a metric, or its name if the metric is unknown."""
    definition = METRICS.get(metric)
    return definition.title if definition else metric


STATISTIC_METRIC = re.compile(r"(?P<base>\w+)_(?P<statistic>mean|min|max|p[0-9][0-9.]*)")
RATE_METRIC = re.compile(
    r"(?P<noun>((output|input|prompt|total)_)?tokens|requests|samples|bytes)_per_second"
    r"(_per_(?P<unit>user|gpu))?"
)

_TIMED_BASES = {
    "ttft": "TTFT",
    "ttst": "time to second token",
    "tpot": "TPOT",
    "itl": "inter-token",
    "latency": "latency",
    "time": "time",
}


def _of_other_tools(name: str) -> Metric | None:
    """Return the time statistic or rate that only other tools report by this name, or None."""
    timed, rate = STATISTIC_METRIC.fullmatch(name), RATE_METRIC.fullmatch(name)
    if timed and timed["base"] in _TIMED_BASES:
        title = f"{timed['statistic']} {_TIMED_BASES[timed['base']]}"
        return _time(name, title, limit=0.05)
    if rate:
        title = f"{rate['noun'].replace('_', ' ')}/s"
        title += f"/{'GPU' if rate['unit'] == 'gpu' else rate['unit']}" if rate["unit"] else ""
        return Metric(name, title, Dimension.TOKENS_PER_TIME, 0.03)
    return _OF_OTHER_TOOLS.get(name)


class _Table(dict[str, Metric]):
    """Map names to metrics; create metrics of stages and of points of a curve when looked up.

    Metrics that only other tools measure are defined too, but `in` is False for them, because no
    suite can name them.
    """

    def __missing__(self, name: str) -> Metric:
        if other := _of_other_tools(name):
            return other
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
"""Throughput metrics that judge a concurrency curve, at each point and in the mean."""

METRICS: dict[str, Metric] = _Table(
    (m.name, m)
    for m in (
        Metric("throughput", "samples/s", Dimension.SAMPLES_PER_TIME, 0.03),
        _tokens("tokens_per_second", "tokens/s", limit=0.03),
        Metric(CONCURRENCY, "requests in flight", Dimension.REQUESTS, 0.05, unit="1"),
        _time("latency_p50", "p50 latency", limit=0.05),
        _time("latency_p90", "p90 latency", limit=0.03),
        _time("latency_p99", "p99 latency", limit=0.10, min_queries=1000),
        *_percentiles("ttft", "TTFT"),
        *_percentiles("tpot", "TPOT"),
        # In place of TTFT if answers came together: the first read holds more than one message.
        *_percentiles("first_read", "first read"),
        *_percentiles("itl", "inter-token"),
        # Time of a call over the rounds of a benchmark: pytest-benchmark's own three.
        _time("time_median", "median time", limit=0.05),
        _time("time_min", "fastest time", limit=0.05),
        _time("time_mean", "mean time", limit=0.05),
        Metric("goodput", "goodput/s", Dimension.SAMPLES_PER_TIME, 0.05, min_queries=100),
        _tokens("tokens_per_second_per_user", "tokens/s/user", limit=0.05),
        # Interactivity of MLPerf Endpoints, endpoints_rules.md of v1.0.
        _tokens("tps_per_user", "1/p90 TPOT", limit=0.05, shown=False),
        _tokens(TURNS_TPS, "tokens/s of a turn", limit=0.05, shown=False),
        _tokens("tokens_per_second_per_gpu", "tokens/s/GPU", limit=0.03, shown=False),
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
        _joules("net_joules_per_sample", "J/sample above idle"),
        _per_joule("samples_per_joule_wall", "samples/J at the wall", Dimension.SAMPLES_PER_ENERGY),
        _per_joule("tokens_per_joule_wall", "tokens/J at the wall", Dimension.TOKENS_PER_ENERGY),
        _per_joule("samples_per_joule_dcgm", "samples/J by DCGM", Dimension.SAMPLES_PER_ENERGY),
        _per_joule("tokens_per_joule_dcgm", "tokens/J by DCGM", Dimension.TOKENS_PER_ENERGY),
    )
)

_share = partial(Metric, dimension=Dimension.SHARE, unit="1", limit=0.01)

_OF_OTHER_TOOLS = {
    metric.name: metric
    for metric in (
        Metric("rate", "rate", Dimension.SAMPLES_PER_TIME, 0.05),
        _memory("memory", "memory", limit=0.05),
        _joules("energy_per_token", "J/token", shown=False),
        _share("acceptance_rate", "draft acceptance", limit=0.05),
        _share("acceptance_length", "acceptance length", limit=0.05),
        _share("cache_hit_share", "cache hits", limit=0.05),
        _share("checks", "checks passed"),
        _share("score", "score"),
        _share("success_share", "successful requests"),
    )
}

_PLACES = {name: place for place, name in enumerate(METRICS)}


def metric_sort_key(metric: str) -> tuple[float, int, str]:
    """Return a sort key: first by concurrency or rate ("@64"), then in the order of `METRICS`."""
    base, _, point = metric.partition("@")
    return float(point or 0), _PLACES.get(base, len(_PLACES)), base


COUNTS = frozenset({"tokens_per_sample", "gen_len"})
"""Counts of output, which are compared but never gated."""

OUTPUT_TOKENS = "output tokens"
"""Name under which the length of each answer is kept with its scores; no scorer's metric."""

NET_JOULES_PER_SAMPLE = "net_joules_per_sample"

UNGATED = COUNTS | {NET_JOULES_PER_SAMPLE}
"""Metrics that cannot be gated: counts, and those based on the power of an idle GPU."""

SAMPLES_PER_JOULE, TOKENS_PER_JOULE = "samples_per_joule", "tokens_per_joule"

BY_GPUS = frozenset({SAMPLES_PER_JOULE, TOKENS_PER_JOULE})
"""Metrics of the board energy that GPUs count."""

BY_METER = frozenset(f"{name}_wall" for name in BY_GPUS)
"""Metrics of the energy of a whole machine, by a wall meter; never compared with `BY_GPUS`."""

BY_EXPORTER = frozenset(f"{name}_dcgm" for name in BY_GPUS)
"""Metrics of the energy of remote GPUs, by a DCGM exporter; never compared with the others."""

EFFICIENCY = BY_GPUS | BY_METER | BY_EXPORTER

OF_ENERGY = EFFICIENCY | {NET_JOULES_PER_SAMPLE}
"""Metrics that are as uncertain as the energy behind them."""

OFFLINE = frozenset({"throughput", "tokens_per_second", "tokens_per_second_per_gpu"})
"""Metrics that a suite can gate in Offline; elsewhere throughput is the offered rate."""

SERVED = frozenset({"goodput"})
"""Metrics of scenarios with limits only: Server and Interactive."""

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
"""Metrics that judge a curve over arrival rates; its throughput is the offered rate."""

AT_POINTS = ARRIVAL_METRICS | {*RATES, "tps_per_user", TURNS_TPS}
"""Metrics that each point of a curve has."""

SEARCH_METRICS = CURVE | {CONCURRENCY}
"""Metrics that a suite can gate where a search finds the load: latencies lie at their limit. Where
that is a rate, throughput alone."""

_GATED: dict[Scenario, tuple[str, ...]] = {
    Scenario.OFFLINE: ("throughput",),
    Scenario.SERVER: ("latency_p50", "latency_p99"),
    Scenario.INTERACTIVE: ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99"),
    Scenario.SINGLE_STREAM: ("latency_p90",),
    Scenario.MULTI_STREAM: ("latency_p99",),
    Scenario.CONCURRENCY: ("throughput",),
    Scenario.OPEN_LOOP: ("latency_p50",),
    Scenario.BENCHMARK: ("time_median",),
}


def curve_metrics(scenario: Scenario, measured: Collection[str]) -> tuple[str, ...]:
    """Return a curve's gated metrics: means over the curve, then at its points; () if no curve."""
    for tokens in (True, False) if scenario.is_curve else ():
        wholes = gated_metrics(scenario, tokens=tokens)
        points = [n for n in measured if "@" in n and n.partition("@")[0] in wholes]
        if points:
            return *wholes, *sorted(points, key=metric_sort_key)
    return ()


def gated_metrics(
    scenario: Scenario, *, tokens: bool = False, searched: bool = False
) -> tuple[str, ...]:
    """Return gated metrics; `tokens`: if tokens are timed, `searched`: if the rate is searched."""
    if searched and scenario != Scenario.CONCURRENCY:
        return ("throughput",)
    if searched:
        return *gated_metrics(scenario, tokens=tokens), CONCURRENCY
    if tokens and scenario.is_curve:
        return (
            ("tokens_per_second",) if scenario == Scenario.CONCURRENCY else ("ttft_p50", "tpot_p50")
        )
    if scenario.rate_is_condition:
        return _GATED[Scenario.INTERACTIVE if tokens else Scenario.SERVER]
    return _GATED[scenario]


def official_metric(scenario: Scenario) -> str:
    """Return the metric that MLPerf reports: a latency in Single- or MultiStream, else a rate."""
    return _GATED[scenario][0] if scenario.answers_one_at_a_time else "throughput"
