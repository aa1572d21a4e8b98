"""Read fields that several tools write alike: times, rates, tables of statistics."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import Any

from pytest_mlperf.addons.judge.model import Fact, number, positive

SGLANG = (
    *("total_output_tokens_retokenized", "sharegpt_output_len", "random_input_len", "server_info"),
    *("cache_report", "accept_length", "mean_e2e_latency_ms", "dataset_name", "random_range_ratio"),
)
"""Keys that only SGLang's benchmark writes."""

CACHE_TOLERANCE = 0.05
"""Difference of cache hit shares that random prompts explain."""


_COMPACT = re.compile(r"(\d{8})-?(\d{6})")

UNITS = {
    name: factor
    for factor, names in (
        (1.0, "s sec seconds second"),
        (1e-3, "ms milliseconds"),
        (1e-6, "us µs μs microseconds"),
        (1e-9, "ns nanoseconds"),
        (60.0, "min minutes"),
    )
    for name in names.split()
}
"""Seconds by the unit's name in a file."""


def moment(value: Any) -> float | None:
    """Return a time in seconds since 1970 of an ISO text, vLLM's text or a number of seconds.

    A text without a zone is taken as UTC: only days and the order of runs are read from it. -1 and
    0 mean that the time was not recorded.
    """
    if isinstance(value, str):
        compact = _COMPACT.fullmatch(value)
        text = f"{compact[1]}T{compact[2]}" if compact else value
        try:
            at = dt.datetime.fromisoformat(text)
        except ValueError:
            return None
        return (at if at.tzinfo else at.replace(tzinfo=dt.UTC)).timestamp()
    seconds = number(value)
    if seconds is None or seconds <= 0:
        return None
    while seconds > 1e11:  # milliseconds, or nanoseconds
        seconds /= 1e3
    return seconds


STATISTICS = {"mean": "mean", "avg": "mean", "average": "mean", "median": "p50", "med": "p50"}

LEAST_RANK = 75.0
"""Percentiles below it, but for the median, are not read: they show no more than the median."""


class Values:
    """Collect the figures of a point; a figure that a file states as 0, -1 or text is absent."""

    def __init__(self, raw: Mapping[str, Any] | None = None, keys: Mapping[str, str] = {}) -> None:
        """Read the key of each metric in `keys`; one that is absent or null is left out."""
        self.metrics: dict[str, float] = {}
        self.absent: dict[str, str] = {}
        for metric, key in keys.items():
            self.add(metric, (raw or {}).get(key))

    def add(self, metric: str, value: Any, factor: float = 1.0) -> None:
        """Add a value, times the factor to the unit of its quantity."""
        if (scaled := positive(value, factor)) is not None:
            self.metrics[metric] = scaled
        elif value is not None:
            self.absent[metric] = f"the file has {value!r}"[:60]

    def statistics(self, base: str, raw: Any, factor: float = 1.0) -> None:
        """Add an object of statistics: mean, avg, median, p50, p99, p(95)."""
        for key, value in raw.items() if isinstance(raw, Mapping) else ():
            rank = re.fullmatch(r"p\(?([0-9][0-9.]*)\)?", str(key))
            statistic = f"p{rank[1]}" if rank else STATISTICS.get(str(key), "")
            if statistic and not (rank and rank[1] != "50" and float(rank[1]) < LEAST_RANK):
                self.add(f"{base}_{statistic}", value, factor)

    def matching(self, raw: Mapping[str, Any], pattern: re.Pattern[str], factor: float) -> None:
        """Add the keys that match a pattern with the groups `base` and `statistic`."""
        for key, value in raw.items():
            if match := pattern.fullmatch(key):
                base = _BASES.get(match["base"], match["base"])
                statistic = STATISTICS.get(match["statistic"], match["statistic"])
                self.add(f"{base}_{statistic}", value, factor)

    @property
    def fields(self) -> dict[str, Any]:
        """The arguments of a `ToolPoint`."""
        return {"metrics": self.metrics, "absent": self.absent}


_BASES = {
    "e2el": "latency",
    "e2e_latency": "latency",
    "end_to_end_latency": "latency",
    "inter_token_latency": "itl",
}
"""Bases of metrics by the name that tools use in keys."""


def mapping(raw: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """Return the object at a path of keys; empty if there is none."""
    for key in keys:
        value = raw.get(key)
        raw = value if isinstance(value, Mapping) else {}
    return raw


def median(values: list[float]) -> float:
    """Return the median of values, of which there is at least one."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def load_name(rate: str | float | None, concurrency: str | float | None) -> str:
    """Return the name of a point by its load: "concurrency 64, rate 4"."""
    words = []
    if concurrency is not None:
        words.append(f"concurrency {Fact(concurrency).text}")
    if rate is not None and str(rate).lower() not in {"inf", "infinity"}:
        words.append(f"rate {Fact(rate).text}")
    return ", ".join(words) or "no limit of load"
