"""Define what readers return: runs with points, metrics with units, and facts to compare."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from pytest_mlperf.judge.inputs import Direction

LOWER, HIGHER, NEITHER = Direction.LOWER, Direction.HIGHER, Direction.NEITHER


@dataclass(frozen=True, slots=True)
class Quantity:
    """Define a measured quantity.

    Attributes:
        unit: Unit of the stored value; "" for a number without unit.
        direction: NEITHER if unknown: the metric is reported and not judged.
        limit: Smallest change for the worse that matters, as a share.
    """

    title: str
    unit: str
    direction: Direction
    limit: float = 0.05


TAIL_LIMIT = 0.10
"""Limit of percentiles from the 95th on, which vary more from run to run than medians."""

TAIL_FROM = 95.0

SUCCESS = "success_share"

JUDGED_QUANTITIES = {
    "requests_per_second": Quantity("requests/s", "req/s", HIGHER, 0.03),
    "output_tokens_per_second": Quantity("output tokens/s", "tokens/s", HIGHER, 0.03),
    "total_tokens_per_second": Quantity("tokens/s", "tokens/s", HIGHER, 0.03),
    "input_tokens_per_second": Quantity("input tokens/s", "tokens/s", HIGHER, 0.03),
    "prompt_tokens_per_second": Quantity("prompt tokens/s", "tokens/s", HIGHER, 0.03),
    "tokens_per_second": Quantity("tokens/s", "tokens/s", HIGHER, 0.03),
    "tokens_per_second_per_user": Quantity("tokens/s/user", "tokens/s", HIGHER),
    "tokens_per_second_per_gpu": Quantity("tokens/s/GPU", "tokens/s", HIGHER, 0.03),
    "output_tokens_per_second_per_gpu": Quantity("output tokens/s/GPU", "tokens/s", HIGHER, 0.03),
    "input_tokens_per_second_per_gpu": Quantity("input tokens/s/GPU", "tokens/s", HIGHER, 0.03),
    "samples_per_second": Quantity("samples/s", "samples/s", HIGHER, 0.03),
    "goodput": Quantity("goodput", "req/s", HIGHER),
    "ttft": Quantity("TTFT", "s", LOWER),
    "ttst": Quantity("time to second token", "s", LOWER),
    "tpot": Quantity("TPOT", "s", LOWER),
    "itl": Quantity("ITL", "s", LOWER),
    "latency": Quantity("latency", "s", LOWER),
    "time": Quantity("time", "s", LOWER),
    "memory": Quantity("memory", "B", LOWER),
    "rate": Quantity("rate", "1/s", HIGHER),
    "bytes_per_second": Quantity("bytes/s", "B/s", HIGHER),
    "energy_per_token": Quantity("energy per token", "J", LOWER),
    "acceptance_rate": Quantity("draft acceptance", "", HIGHER),
    "acceptance_length": Quantity("acceptance length", "", HIGHER),
    "cache_hit_share": Quantity("cache hits", "", HIGHER),
    "checks": Quantity("checks passed", "", HIGHER, 0.01),
    "score": Quantity("score", "", HIGHER, 0.01),
    SUCCESS: Quantity("successful requests", "", HIGHER, 0.01),
}
"""Quantities by the base of a metric's name: "ttft" of "ttft_p99"."""

_STATISTIC = re.compile(r"(?P<base>\w+)_(?P<statistic>mean|min|max|p[0-9][0-9.]*)")

RANKS = (
    *("output_tokens_per_second", "tokens_per_second", "total_tokens_per_second"),
    *("tokens_per_second_per_gpu", "requests_per_second"),
)
"""Rates of one run are proportional at equal work: the first that a tool reports is judged."""


@cache
def named(metric: str) -> Quantity | None:
    """Return the quantity of a metric by its name; None if `JUDGED_QUANTITIES` lacks it."""
    if metric in JUDGED_QUANTITIES:
        return JUDGED_QUANTITIES[metric]
    base, statistic = split(metric)
    if not statistic or base not in JUDGED_QUANTITIES:
        return None
    whole = JUDGED_QUANTITIES[base]
    rank = float(statistic[1:]) if statistic.startswith("p") else 0.0
    tail = statistic == "max" or rank >= TAIL_FROM
    limit = max(whole.limit, TAIL_LIMIT) if tail else whole.limit
    return replace(whole, title=f"{statistic} {whole.title}", limit=limit)


def split(metric: str) -> tuple[str, str]:
    """Return base and statistic of a metric's name: ("ttft", "p99")."""
    match = _STATISTIC.fullmatch(metric)
    return (match["base"], match["statistic"]) if match else (metric, "")


@dataclass(frozen=True, slots=True)
class Fact:
    """Hold a condition that must be equal on both sides.

    Attributes:
        value: None if the file does not hold it.
        bases: Bases of the metrics that depend on it; empty for all of them.
        tolerance: Largest relative difference of numbers, or absolute one if `absolute`.
        needed: Whether a metric for the worse stays undecided while it is unknown on both sides.
    """

    value: str | float | None
    bases: tuple[str, ...] = ()
    tolerance: float = 0.0
    absolute: bool = False
    needed: bool = False

    def agrees(self, other: Fact) -> bool:
        """Return whether both values are equal within the tolerance."""
        a, b = self.value, other.value
        if isinstance(a, str) or isinstance(b, str) or a is None or b is None:
            return a == b
        scale = 1.0 if self.absolute else max(abs(a), abs(b))
        return a == b or abs(a - b) <= self.tolerance * scale

    @property
    def text(self) -> str:
        """The value for messages."""
        if self.value is None:
            return "not recorded"
        return f"{self.value:g}" if isinstance(self.value, float | int) else self.value


@dataclass(frozen=True, slots=True)
class TaskScore:
    """Hold the score of an evaluation task.

    Attributes:
        stderr: Standard error over documents; None if unknown.
        samples: Score of each document, by id; empty if the file holds totals only.
    """

    value: float
    stderr: float | None = None
    samples: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolPoint:
    """Hold the figures of one case of a run: a concurrency, a benchmark, a task.

    Attributes:
        metrics: Values by name, above 0, in the unit of their quantity.
        absent: Metrics without a value, and why.
        facts: Conditions that must be equal on both sides, by name.
        quantities: Definitions of metrics that `JUDGED_QUANTITIES` lacks.
        sent, failed: Requests; None if the file does not hold the number.
        broken: Why the case failed as a whole; "" if it did not.
        axis: Position on a curve, such as the concurrency; None if the point is on no curve.
    """

    name: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Fact] = field(default_factory=dict)
    quantities: Mapping[str, Quantity] = field(default_factory=dict)
    scores: Mapping[str, TaskScore] = field(default_factory=dict)
    sent: int | None = None
    failed: int | None = None
    broken: str = ""
    axis: float | None = None

    def quantity(self, metric: str) -> Quantity:
        """Return the quantity of a metric; one without unit and direction if unknown."""
        return (
            self.quantities.get(metric) or named(metric) or Quantity(metric, "", Direction.NEITHER)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolRun:
    """Hold one run of a tool.

    Attributes:
        source: File, and number of the run if the file holds several.
        folder: Folder of the file.
        digest: SHA-256 of the run's content.
        started: Time in seconds since 1970; None if the file has none. Times without a zone are
            taken as UTC.
        details: Facts that are reported and may differ between sides: versions, flags.
        notes: Parts of the file that the reader could not use.
        duration_s: Duration of the run [s]; None if unknown.
    """

    tool: str
    source: str
    digest: str
    points: tuple[ToolPoint, ...]
    folder: str = ""
    started: float | None = None
    host: str | None = None
    commit: str | None = None
    version: str | None = None
    details: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    duration_s: float | None = None
