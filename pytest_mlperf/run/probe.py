"""Bring an engine to speed without LoadGen, and find the rate to offer it."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from time import perf_counter

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Engine
from pytest_mlperf.run.logs import Detail
from pytest_mlperf.run.protocol import LoadGenSettings
from pytest_mlperf.run.sink import CountingSink, Fail

WARMUP_BATCH = 64
"""Samples in one warm-up list of Offline."""

PROBE_S = 1.0
"""A probe lasts at least this long."""

SERVER_SHARES = (0.8, 0.65, 0.5, 0.35, 0.25, 0.15, 0.1)
"""Shares of the Offline rate that are tried in Server, highest first."""

SERVER_PROBE_S = 2.0
"""Length of one such try."""

HEADROOM = 0.8
"""A rate is taken when the limited latency stays below this share of its limit."""


class Driver:
    """Submits samples and waits until they are done, the way a scenario does."""

    def __init__(self, engine: Engine, indices: Sequence[int], fail: Fail) -> None:
        """Drive `engine` round and round over `indices`, which are loaded."""
        self.sink = CountingSink(fail)
        self._engine = engine
        self._indices = cycle(indices)
        self._fail = fail
        self._next_id = 1

    def submit(self, samples: int) -> float:
        """Submit one list of samples and return the seconds until all were done."""
        ids = list(range(self._next_id, self._next_id + samples))
        indices = list(islice(self._indices, samples))
        self._next_id += samples
        begun_s = perf_counter()
        self.sink.expect(ids)
        self._engine.submit(ids, indices, self.sink)
        self.sink.idle.wait()
        took_s = perf_counter() - begun_s
        if self.sink.faults.count:
            self._fail(RunError("engine", f"during warm-up, {self.sink.faults.texts[0]}"))
        return took_s


def query_size(settings: LoadGenSettings) -> int:
    """Return how many samples the scenario hands over at a time, in warm-up."""
    if settings.scenario == "Offline":
        return min(WARMUP_BATCH, settings.performance_samples)
    return settings.samples_per_query if settings.scenario == "MultiStream" else 1


def warm_up(driver: Driver, settings: LoadGenSettings, shortest_s: float) -> float:
    """Submit as the scenario does for at least this long, at least once; return the seconds."""
    samples = query_size(settings)
    begun_s = perf_counter()
    while True:
        driver.submit(samples)
        took_s = perf_counter() - begun_s
        if took_s >= shortest_s:
            return took_s


def probe_offline(driver: Driver) -> float:
    """Return samples/s of the first doubled list that takes long enough."""
    samples = WARMUP_BATCH
    while (took_s := driver.submit(samples)) < PROBE_S:
        samples *= 2
    return samples / took_s


def probe_stream(driver: Driver, samples: int) -> float:
    """Return queries/s of one query after the other, by their median latency."""
    latencies_s: list[float] = []
    begun_s = perf_counter()
    while perf_counter() - begun_s < PROBE_S:
        latencies_s.append(driver.submit(samples))
    return 1 / statistics.median(latencies_s)


def probe_server(
    peak_qps: float, settings: LoadGenSettings, attempt: Callable[[LoadGenSettings], Detail]
) -> float:
    """Return the highest tried rate whose latencies stay well below their limits.

    Args:
        peak_qps: The Offline rate.
        settings: The case; its rate and length are replaced.
        attempt: Makes a short LoadGen run.

    Returns:
        The rate, or the lowest that was tried when none was good.
    """
    for share in SERVER_SHARES:
        trial = dataclasses.replace(
            settings,
            target_qps=peak_qps * share,
            fixed_work_s=SERVER_PROBE_S,
            min_query_count=1,
        )
        if _has_headroom(attempt(trial), settings):
            break
    return peak_qps * share


def _has_headroom(detail: Detail, settings: LoadGenSettings) -> bool:
    pairs: tuple[tuple[int | None, int | None], ...] = (
        (detail.percentile_ns("ttft", settings.latency_percentile), settings.ttft_limit_ns),
        (detail.percentile_ns("tpot", settings.latency_percentile), settings.tpot_limit_ns),
    )
    if settings.ttft_limit_ns is None:
        latency_ns = detail.percentile_ns("latency", settings.latency_percentile)
        pairs = ((latency_ns, settings.latency_limit_ns),)
    return all(
        value is not None and limit is not None and value < HEADROOM * limit
        for value, limit in pairs
    )
