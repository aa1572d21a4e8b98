"""Parse fields that many tools write in the same way: times, rates, statistics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pytest_mlperf.addons.judge.model import COMPLETED, Fact, ToolPoint
from pytest_mlperf.core.measurement import moment_of

SHARE_TOLERANCE = 0.05
"""Difference of shares of tokens and of requests that chance explains."""

TOKENS = 0.02
"""Relative difference of mean lengths that random prompts of one setting explain."""

_COMPACT = re.compile(r"(\d{8})-?(\d{6})")

SECONDS_PER_UNIT = {
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

MAX_MOMENT = 1e11
"""Largest time in seconds since 1970, in the year 5138; larger numbers are in smaller units."""

MAX_MAGNITUDE = 1e100
"""Bound of numbers, so that squares do not overflow; infinity and NaN are beyond it."""


def number(value: Any) -> float | None:
    """Return a finite number; None for text such as "N/A", NaN, null, true and false."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        as_float = float(value)
    except OverflowError:
        return None
    return as_float if abs(as_float) < MAX_MAGNITUDE else None


def positive(value: Any, factor: float = 1.0) -> float | None:
    """Return value x factor if the value is above 0, else None; tools write 0 or -1 for none."""
    value = number(value)
    scaled = value * factor if value is not None and value > 0 else 0.0
    return scaled if 1e-30 < scaled < 1e30 else None


def per(total: Any, count: Any) -> float | None:
    """Return total / count; None if either is unknown or 0."""
    a, b = positive(total), positive(count)
    return a / b if a and b else None


def plain(value: Any) -> str | float | None:
    """Return a scalar as text or number ("inf" for infinity); None for lists, objects and null."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return number(value) if number(value) is not None else str(value)
    return None if value is None or isinstance(value, dict | list) else str(value)[:200]


def moment(value: Any) -> float | None:
    """Parse an ISO 8601 time, vLLM's date format or a number; return seconds since 1970.

    A text without a time zone is parsed as UTC, because only the day and the order of runs matter.
    Times before 1970, -1 and 0 give None: the time was not recorded.
    """
    if isinstance(value, str):
        compact = _COMPACT.fullmatch(value)
        text = f"{compact[1]}T{compact[2]}" if compact else value
        at = moment_of(text)
        text_s = at.timestamp() if at else 0.0
        return text_s if 0 < text_s <= MAX_MOMENT else None
    seconds = number(value)
    if seconds is None or seconds <= 0:
        return None
    while seconds > MAX_MOMENT:  # milliseconds, or nanoseconds
        seconds /= 1e3
    return seconds


class JsonObject(dict[str, Any]):
    """Access fields of a JSON object; absent keys and wrong types give None or an empty result."""

    def at(self, *keys: str) -> JsonObject:
        """Return the nested object at a path of keys; empty if there is none."""
        record = self
        for key in keys:
            value = record.get(key)
            record = JsonObject(value) if isinstance(value, Mapping) else JsonObject()
        return record

    def entries(self, key: str) -> list[JsonObject]:
        """Return the JSON objects in the list under a key; empty if there are none."""
        values = self.get(key)
        listed = values if type(values) is list else []
        return [JsonObject(value) for value in listed if isinstance(value, Mapping)]

    def plain(self, key: str) -> str | float | None:
        """Return a field as text or number; None for lists, objects, null or a missing key."""
        return plain(self.get(key))

    def number(self, key: str) -> float | None:
        """Return a field as a finite number, or None."""
        return number(self.get(key))

    def positive(self, key: str, factor: float = 1.0) -> float | None:
        """Return a field times `factor` if it is above 0, else None."""
        return positive(self.get(key), factor)

    def whole(self, key: str) -> int | None:
        """Return a field as an integer of at least 0, or None."""
        value = self.number(key)
        return int(value) if value is not None and value >= 0 and value == int(value) else None

    def moment(self, key: str) -> float | None:
        """Return a time field in seconds since 1970, or None."""
        return moment(self.get(key))

    def texts(self, *keys: str) -> dict[str, str]:
        """Return the values of `keys` as text of at most 120 characters; skip absent keys."""
        return {
            key: str(value)[:120]
            for key in keys
            if isinstance(value := self.get(key), str | int | float) and str(value)
        }

    def text(self, *keys: str) -> str | None:
        """Return the value of the first key that is present, as text; None if none is."""
        return next(iter(self.texts(*keys).values()), None)

    def facts(self, keys_by_title: Mapping[str, str], tolerance: float = 0.0) -> dict[str, Fact]:
        """Return the value at each dotted key as a Fact, by title, with this `tolerance`."""
        paths = {title: key.split(".") for title, key in keys_by_title.items()}
        return {
            title: Fact(self.at(*path).plain(key), (), tolerance)
            for title, (*path, key) in paths.items()
        }


STATISTICS = {"med": "p50", "median": "p50", "min": "min"} | dict.fromkeys(
    ("mean", "avg", "average"), "mean"
)

LEAST_RANK = 75.0
"""Percentiles below it, but for the median, are not read: they show no more than the median."""

LATENCY = re.compile(
    r"(?P<statistic>mean|median|p[0-9.]+)_(?P<base>ttft|tpot|itl|e2el|e2e_latency)(?P<unit>_ms)?"
)
"""Keys of latencies in the files of vLLM's serving benchmark and its descendants."""

_BASES = {
    "e2el": "latency",
    "e2e_latency": "latency",
    "end_to_end_latency": "latency",
    "inter_token_latency": "itl",
}
"""Bases of metrics by the name that tools use in keys."""


class Values:
    """Collect a point's metrics, facts and request counts; metrics of 0, -1 or text are absent."""

    def __init__(self, raw: Mapping[str, Any] | None = None, keys: Mapping[str, str] = {}) -> None:
        """Read values from `raw`; `keys` maps metric names to the keys of the file."""
        self.metrics: dict[str, float] = {}
        self.absent: dict[str, str] = {}
        self.facts: dict[str, Fact] = {}
        self.sent: int | None = None
        self.failed: int | None = None
        for metric, key in keys.items():
            self.add(metric, (raw or {}).get(key))

    def add(self, metric: str, value: Any, factor: float = 1.0) -> None:
        """Set a metric to value x factor; ignore None, and record in `absent` one not above 0."""
        if (scaled := positive(value, factor)) is not None:
            self.metrics[metric] = scaled
        elif value is not None:
            self.absent[metric] = f"the file has {value!r}"[:60]

    def statistics(self, base: str, raw: Any, factor: float = 1.0) -> None:
        """Add statistics of metric `base`, times `factor`, from object `raw` (mean, p50, p(95))."""
        for key, value in raw.items() if isinstance(raw, Mapping) else ():
            rank = re.fullmatch(r"p\(?([0-9][0-9.]*)\)?", str(key))
            statistic = f"p{rank[1]}" if rank else STATISTICS.get(str(key), "")
            if statistic and not (rank and rank[1] != "50" and float(rank[1]) < LEAST_RANK):
                self.add(f"{base}_{statistic}", value, factor)

    def latencies(
        self, raw: Mapping[str, Any], factor: float, pattern: re.Pattern[str] = LATENCY
    ) -> None:
        """Add latencies x `factor`; `pattern` splits their keys into "base" and "statistic"."""
        for key, value in raw.items():
            if match := pattern.fullmatch(key):
                base = _BASES.get(match["base"], match["base"])
                statistic = STATISTICS.get(match["statistic"], match["statistic"])
                self.add(f"{base}_{statistic}", value, factor)

    def requests(self, sent: int | None, completed: int | None, *failures: int | None) -> None:
        """Set the numbers of sent, failed and completed requests from a file's fields.

        Args:
            failures: Failed requests by each of the fields that hold them. Requests without an
                answer have failed as well.
        """
        unanswered = None if sent is None or completed is None else max(sent - completed, 0)
        self.failed = max((n for n in (*failures, unanswered) if n is not None), default=None)
        if sent is None and completed is not None and self.failed is not None:
            sent = completed + self.failed
        self.sent = sent
        self.facts[COMPLETED] = Fact(completed)

    def lengths(self, count: Any, tokens_in: Any, tokens_out: Any) -> None:
        """Add mean input and output tokens as facts: totals / `count` (1 if given as means)."""
        for side, total in (("input", tokens_in), ("output", tokens_out)):
            self.facts[f"{side} tokens per request"] = Fact(per(total, count), tolerance=TOKENS)

    def share(self, name: str, part: float | None, whole: float | None = 1.0) -> None:
        """Add fact `name`, the ratio part / whole; its value is None if unknown or whole is 0."""
        value = part / whole if part is not None and whole else None
        self.facts[name] = Fact(value, tolerance=SHARE_TOLERANCE, absolute=True)

    def goodput(self, value: Any, target: str | float | None = None) -> None:
        """Add a goodput, and as fact "goodput target" its latency limits, None if unknown."""
        self.add("goodput", value)
        self.facts["goodput target"] = Fact(target, ("goodput",), needed=True)

    def point(self, name: str, **more: Any) -> ToolPoint:
        """Create a point with the collected values; `more` are further fields of `ToolPoint`."""
        return ToolPoint(name=name, **vars(self), **more)

    def at_load(
        self, concurrency: Any, rate: Any = None, *further: str, otherwise: str = "", **more: Any
    ) -> ToolPoint:
        """Create a point named by its load, such as "concurrency 64, rate 4".

        Args:
            further: Parts of the name after the load; `more`: other fields of `ToolPoint`.
            otherwise: Name of a point without concurrency and rate.
        """
        concurrency, rate = plain(concurrency), plain(rate)
        words = [] if concurrency is None else [f"concurrency {Fact(concurrency).text}"]
        if rate is not None and str(rate).lower() not in {"inf", "infinity"}:
            words.append(f"rate {Fact(rate).text}")
        name = ", ".join((*(words or [otherwise or "no limit of load"]), *further))
        axis = concurrency if isinstance(concurrency, float) else None
        return self.point(name, axis=axis, **more)
