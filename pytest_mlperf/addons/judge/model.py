"""Define what the readers return: runs with points, metrics with units, and conditions."""

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
        direction: NEITHER if unknown; then the metric is reported but not judged.
        limit: Smallest relevant change for the worse, as a share.
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
    """Return the definition of a metric's quantity; None if `METRICS` does not have it."""
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
    """Hold a condition that must be equal in baseline and new runs.

    Attributes:
        value: None if the result file does not state it.
        bases: Quantities ("ttft" of "ttft_p99") that depend on the condition; empty for all.
        tolerance: Largest relative difference of numbers, or absolute one if `absolute`.
        needed: Whether a drop in `bases` cannot be proven if neither side states the value.
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
        """Value as text for messages; "not recorded" for None."""
        if self.value is None:
            return "not recorded"
        return f"{self.value:g}" if isinstance(self.value, float | int) else self.value


@dataclass(frozen=True, slots=True)
class TaskScore:
    """Hold the score of an evaluation task.

    Attributes:
        stderr: Standard error of the mean over documents; None if unknown.
        samples: Score of each document, by id; empty if the file holds totals only.
    """

    value: float
    stderr: float | None = None
    samples: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolPoint:
    """Hold the measured values of a run for one concurrency, benchmark or task.

    Attributes:
        metrics: Values by name, above 0, in the unit of their quantity.
        absent: Reason why a metric has no value, such as "skipped", by its name.
        facts: Conditions that must be equal on both sides, by name.
        quantities: Definitions of metrics that `METRICS` lacks.
        sent, failed: Numbers of requests; None if the file does not state them.
        broken: Reason if the whole benchmark failed, else "".
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
        """Return a metric's definition; without unit and direction if it is unknown."""
        return self.quantities.get(metric) or named(metric) or Quantity(metric)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolRun:
    """Hold one run of a tool.

    Attributes:
        source: Path of the file; with ":NUMBER" if the file holds several runs.
        folder: Folder of the file.
        digest: SHA-256 of the run's content.
        started: Time in seconds since 1970; None if the file has none. Times without a zone are
            taken as UTC.
        details: Reported facts that may differ between the runs compared: versions, flags.
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
