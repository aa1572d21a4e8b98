"""Define what readers return: runs with points, metrics with units, and facts to compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from pytest_mlperf.core.metrics import STATISTIC_METRIC
from pytest_mlperf.extension import METRICS
from pytest_mlperf.judge import Direction


@dataclass(frozen=True, slots=True)
class Quantity:
    """Define a measured quantity.

    Attributes:
        unit: Unit of the stored value; "" for a number without unit.
        direction: NEITHER if unknown: the metric is reported and not judged.
        limit: Smallest change for the worse that matters, as a share.
    """

    title: str
    unit: str = ""
    direction: Direction = Direction.NEITHER
    limit: float = 0.05


USUAL_LIMIT, TAIL_LIMIT = 0.05, 0.10
"""Limits of a latency's statistics: percentiles from the 95th on vary more from run to run."""

SUCCESS = "success_share"

COMPLETED = "requests completed"
"""Fact that must be equal where the number of failed requests is unknown."""

RANKS = (
    *("output_tokens_per_second", "tokens_per_second", "total_tokens_per_second"),
    *("tokens_per_second_per_gpu", "requests_per_second"),
)
"""Rates of one run are proportional at equal work: the first that a tool reports is judged."""

BASES = (
    *(SUCCESS, *RANKS, "samples_per_second", "tokens_per_second_per_user", "goodput"),
    *("ttft", "ttst", "tpot", "itl", "latency", "time", "memory", "rate", "energy_per_token"),
    *("acceptance_rate", "acceptance_length", "cache_hit_share", "checks", "score"),
)
"""Bases of the metrics' names in the order of reports: "ttft" of "ttft_p99"."""


@cache
def named(metric: str) -> Quantity | None:
    """Return the quantity of a metric by its name; None if `METRICS` does not define it."""
    definition, (_, statistic) = METRICS.get(metric), split(metric)
    if definition is None:
        return None
    limit = definition.limit
    if statistic:
        tail = statistic == "max" or (statistic[0] == "p" and float(statistic[1:]) >= 95)
        limit = TAIL_LIMIT if tail else USUAL_LIMIT
    unit = definition.unit if definition.unit in {"s", "B", "J", "1/s"} else ""
    return Quantity(definition.title, unit, definition.direction, limit)


def split(metric: str) -> tuple[str, str]:
    """Split "ttft_p99" into quantity and statistic: ("ttft", "p99")."""
    match = STATISTIC_METRIC.fullmatch(metric)
    return (match["base"], match["statistic"]) if match else (metric, "")


@dataclass(frozen=True, slots=True)
class Fact:
    """Hold a condition that must be equal on both sides.

    Attributes:
        value: None if the file does not hold it.
        bases: Quantities ("ttft" of "ttft_p99") whose metrics depend on it; empty for all.
        tolerance: Largest relative difference of numbers, or absolute one if `absolute`.
        needed: Whether a metric for the worse stays undecided while it is unknown on both sides.
    """

    value: str | float | None
    bases: tuple[str, ...] = ()
    tolerance: float = 0.0
    absolute: bool = False
    needed: bool = False

    def __post_init__(self) -> None:
        """Store whole numbers as floats, as a stored baseline returns them."""
        if not isinstance(self.value, str | None):
            object.__setattr__(self, "value", float(self.value))

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
        quantities: Definitions of metrics that the table of metrics lacks.
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
        return self.quantities.get(metric) or named(metric) or Quantity(metric)


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
