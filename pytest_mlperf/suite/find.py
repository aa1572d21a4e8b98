"""Define the table `find` of a scenario: a search for the highest load within limits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, WithJsonSchema

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.metrics import CONCURRENCY, METRICS, OF_BENCHMARKS, Dimension
from pytest_mlperf.core.numbers import quantity
from pytest_mlperf.core.search import Condition
from pytest_mlperf.core.untrusted_text import nearest, quoted
from pytest_mlperf.suite.values import MAX_CONCURRENCY, Defect, Rates, Share, seconds

LATENCIES = tuple(
    name
    for name, metric in METRICS.items()
    if metric.dimension is Dimension.TIME and name not in OF_BENCHMARKS
)
"""Metrics that a condition can name."""

MAX_PRECISION_SHARE = 0.2
USUAL_RUNS = 4
"""Runs of a search that starts close to a rate that holds, measured by simulation."""

_CONDITION = r"\s*([A-Za-z][A-Za-z0-9_]*)\s*<\s*(\S.*)"
_PATTERN = r"^\s*[a-z0-9_]+\s*<\s*([0-9]+(\.[0-9]+)?|\.[0-9]+)\s*(ms|s|min|m|h)\s*$"


def _condition(value: object) -> Condition:
    match = re.fullmatch(_CONDITION, value) if isinstance(value, str) else None
    if not match:
        raise ValueError(f'{quoted(value)} is not a condition; write it as "ttft_p99 < 1 s"')
    metric, limit = match[1], match[2]
    if metric not in LATENCIES:
        raise ValueError(f"unknown latency {metric!r}{nearest(metric, LATENCIES)}")
    return Condition(metric=metric, below=seconds(limit))


def _conditions(value: object) -> tuple[Condition, ...]:
    if isinstance(value, list):
        if not value:
            raise ValueError("must name at least one condition")
        return tuple(map(_condition, value))
    return (_condition(value),)


_TEXT_SCHEMA = {"type": "string", "pattern": _PATTERN}

Conditions = Annotated[
    tuple[Condition, ...],
    BeforeValidator(_conditions),
    WithJsonSchema(
        {"anyOf": [_TEXT_SCHEMA, {"type": "array", "items": _TEXT_SCHEMA, "minItems": 1}]}
    ),
]


def _bounds(value: object) -> tuple[int, int]:
    low, high = value if isinstance(value, list | tuple) and len(value) == 2 else (0, 0)
    if type(low) is int and type(high) is int and 1 <= low < high <= MAX_CONCURRENCY:
        return low, high
    raise ValueError(
        f"{quoted(value)} are not bounds; write the minimum and maximum of requests in flight, 1 "
        f"to {MAX_CONCURRENCY:,}: [1, 512]"
    )


_Requests = Annotated[int, Field(ge=1, le=MAX_CONCURRENCY)]


class FindEntry(BaseModel):
    """A search: the load to maximise, and the conditions to meet."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    maximise: Literal["target_qps", "concurrency"]
    """Searched load: the offered rate; in Concurrency the requests in flight."""
    subject_to: Conditions
    """Conditions: "ttft_p99 < 1 s", or several in an array."""
    precision: Share = 0.02
    """Width of the final bracket relative to the rate."""
    max_runs: Annotated[StrictInt, Field(ge=3, le=50)] = 8
    """Maximum runs of one search, each in a new process."""
    start: Rates | None = None
    """First rate without a baseline; one number or one per accelerator; default: probed; in
    Concurrency the geometric mean of the bounds."""
    bounds: Annotated[tuple[_Requests, _Requests], BeforeValidator(_bounds)] | None = None
    """Concurrency: minimum and maximum of requests in flight: [1, 512]."""

    @property
    def in_words(self) -> str:
        """Conditions of the search, as text for results."""
        return " and ".join(one.in_words for one in self.subject_to)

    def start_on(self, accelerator: str) -> float | None:
        """Return the first rate of the search on an accelerator [samples/s]; None if not set."""
        return self.start.get(accelerator) if isinstance(self.start, dict) else self.start


def find_defects(scenario: Any, limits: Mapping[str, float], *, tokens: bool) -> Iterator[Defect]:
    """Yield the defects of a scenario's search; key paths are relative to the scenario.

    Args:
        limits: Latency limits that LoadGen applies, by metric [s].
    """
    find: FindEntry = scenario.find
    is_rate = scenario.name.rate_is_condition
    if not is_rate and scenario.name is not Scenario.CONCURRENCY:
        has = "Server, Interactive and Concurrency have"
        yield ("find",), f"{scenario.name} has no load to search; {has}"
        return
    maximised, fixed = ("target_qps", "target_qps") if is_rate else (CONCURRENCY, "points")
    if find.maximise != maximised:
        yield ("find", "maximise"), f"must be {maximised!r} in {scenario.name}"
    if getattr(scenario, fixed) is not None:
        noun = "rate" if is_rate else CONCURRENCY
        yield ("find",), f"write find or {fixed}, not both: a search finds the {noun} itself"
    yield from _bounds_defects(find, is_rate=is_rate)
    if find.precision > MAX_PRECISION_SHARE:
        yield ("find", "precision"), f"must be at most {MAX_PRECISION_SHARE:.0%} of the rate"
    where = ("find", "subject_to")
    names = [condition.metric for condition in find.subject_to]
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        yield where, f"{name} is limited twice"
    for condition in find.subject_to:
        base, _, percentile = condition.metric.rpartition("_p")
        if base != "latency" and not tokens:
            yield where, f"{condition.metric} is measured only for language models (tokens = true)"
        bound = limits.get(f"{base}_p99")
        if bound is not None and int(percentile) <= 99 and condition.below > bound:
            yield (
                where,
                f"{condition.in_words} has no effect: LoadGen's limit {base}_p99 < "
                f"{quantity(condition.metric, bound)} is stricter; lower this bound, or raise "
                f"{base}_limit",
            )


def _bounds_defects(find: FindEntry, *, is_rate: bool) -> Iterator[Defect]:
    if is_rate != (find.bounds is None):
        lacks = "needs the minimum and maximum of requests in flight: bounds = [1, 512]"
        yield (
            ("find",),
            "bounds are for requests in flight, not for a rate; remove them" if is_rate else lacks,
        )
    if is_rate or find.bounds is None:
        return
    low, high = find.bounds
    starts = find.start if isinstance(find.start, dict) else {"": find.start or low}
    if any(start != int(start) or not low <= start <= high for start in starts.values()):
        yield ("find", "start"), f"must be a whole number of requests from {low} to {high}"


def limits_of(scenario: Any, constants: Any, *, tokens: bool) -> dict[str, float]:
    """Return p99 limits [s] of TTFT and TPOT (`tokens`) or latency, by suite or else by round."""
    limits: dict[str, float] = {}
    for of in ("ttft", "tpot") if tokens else ("latency",):
        limit: float | None = getattr(scenario, f"{of}_limit")
        rounds: float | None = getattr(constants, f"{of}_limit_ms", None)
        if limit is not None:
            limits[f"{of}_p99"] = limit
        elif rounds is not None:
            limits[f"{of}_p99"] = rounds / 1e3
    return limits
