"""Figures that somebody printed: what they are of, who says so, and what they cannot be.

For reference only: no verdict is ever reached against them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

from pytest_mlperf.core.conversions import (
    SamplesPerQuery,
    TokensPerSample,
    queries_to_samples,
    samples_to_tokens,
    tokens_to_samples,
)
from pytest_mlperf.core.metrics import BY_GPUS, EFFICIENCY, METRICS, PUBLISHED, Direction, Metric
from pytest_mlperf.core.origin import Accelerator, Origin, RoundResults
from pytest_mlperf.core.printed import Printed
from pytest_mlperf.core.units import Kind, Quantity, Unit, exact, listed, rounded, unit_of_result

SCHEMA = 1
"""The version of the file format that this release reads and writes."""

_QUERIES = {
    Kind.QUERIES_PER_TIME: Kind.SAMPLES_PER_TIME,
    Kind.QUERIES_PER_ENERGY: Kind.SAMPLES_PER_ENERGY,
}

_METRIC_OF = {
    Kind.SAMPLES_PER_TIME: "throughput",
    Kind.QUERIES_PER_TIME: "throughput",
    Kind.TOKENS_PER_TIME: "tokens_per_second",
    Kind.SAMPLES_PER_ENERGY: "samples_per_watt_system",
    Kind.QUERIES_PER_ENERGY: "samples_per_watt_system",
    Kind.TOKENS_PER_ENERGY: "tokens_per_watt_system",
}

_BY_WALL_METER = ("samples_per_watt_system", "tokens_per_watt_system")


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """One printed figure.

    Attributes:
        metric: Name in the metric table.
        printed: The quantity, with the digits that were printed.
        workload: Our name of the benchmark, without target: "llama2-70b".
        variant: Accuracy target in per cent: "99.9"; None where the workload has one, or unknown.
        scenario: MLPerf scenario; None: the figure is of no MLPerf run.
        batch: Samples worked on together, where stated.
        accelerator: What it was measured on.
        precision: As stated, or as the code of an official submission says.
        software: As stated.
        origin: Where it comes from.
        result_field: The field of LoadGen's detail log that an official figure is made from.
        logged: The unrounded official value, in the printed unit.
        tokens_per_sample: Of the run itself.
        better: Which way the source says is better, where it does.
        note: What a reader must know.

    Raises:
        ValueError: The figure cannot be: unit, metric, direction, scenario and source contradict
            each other.
    """

    metric: str
    printed: Printed
    workload: str
    variant: str | None = None
    scenario: str | None = None
    batch: int | None = None
    accelerator: Accelerator
    precision: str | None = None
    software: str | None = None
    origin: Origin
    result_field: str | None = None
    logged: float | None = None
    tokens_per_sample: TokensPerSample | None = None
    better: Direction | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        metric = metric_named(self.metric)
        if self.origin.source.official:
            self._require_the_round_s_unit()
        unit = self.quantity.unit
        if _counts(unit.kind, self.scenario) is not metric.kind:
            raise ValueError(
                f"{self.metric} counts {metric.kind}, but {self.printed.text} is in {unit}"
                f"{f' in {self.scenario}' if self.scenario else ''}"
            )
        if self.better not in (None, metric.direction):
            raise ValueError(
                f"{self.metric} is better when {metric.direction}, not when {self.better}"
            )
        if self.logged is not None and not self.printed.rounds(self.logged):
            raise ValueError(
                f"{self.printed.text} {unit} is no rounding of the logged {exact(self.logged)}"
            )

    @classmethod
    def checked(cls, results: RoundResults, **given: Any) -> Self:
        """Build a figure, an official one with the result field that its round has for it.

        Args:
            results: The round of an official figure; of any other, where its workload is known.
            given: The attributes, without `result_field`.

        Raises:
            ValueError: As the class; or the round has no such workload or scenario.
        """
        origin: Origin = given["origin"]
        results.scenarios(given["workload"])
        if origin.source.official:
            if origin.round != results.round:
                raise ValueError(f"a figure of {origin.round} cannot be checked by {results.round}")
            field = results.field(given["workload"], given.get("scenario"))
            if given.setdefault("result_field", field) != field:
                raise ValueError(
                    f"{given['workload']} {given.get('scenario')} in {results.round} is "
                    f"{field}, not {given['result_field']}"
                )
        return cls(**given)

    @property
    def quantity(self) -> Quantity:
        """The printed quantity."""
        return self.printed.quantity

    @property
    def samples(self) -> Quantity:
        """The printed quantity, with queries of the scenario counted as their samples."""
        if self.quantity.unit.kind not in _QUERIES:
            return self.quantity
        per_query = SamplesPerQuery.of(self.scenario or "")
        return queries_to_samples(self.quantity, samples_per_query=per_query).quantity

    @property
    def server_rate(self) -> Literal["scheduled", "completed"] | None:
        """What the figure of a Server run counts; None: another scenario, or not known.

        MLPerf reported the scheduled rate up to v4.0, but for llama2-70b; the completed one since.
        """
        known = self.origin.round
        if self.scenario != "Server" or known is None:
            return None
        older = tuple(map(int, known.removeprefix("v").split("."))) < (4, 1)
        return "scheduled" if older and self.workload != "llama2-70b" else "completed"

    def _require_the_round_s_unit(self) -> None:
        field = self.result_field
        if field is None:
            raise ValueError("an official MLPerf figure needs result_field")
        if self.metric in EFFICIENCY:
            whose = "the accelerators' own counters" if self.metric in BY_GPUS else "any meter"
            raise ValueError(
                f"MLPerf Power measures the whole system by a wall meter, so {self.metric}, which "
                f"is by {whose}, cannot be; use {listed(_BY_WALL_METER)}"
            )
        right, unit = unit_of_result(field), self.quantity.unit
        if self.metric in _BY_WALL_METER:
            right = right.per_watt
        if _counts(unit.kind, self.scenario) is right.kind:
            return
        other = self._in_the_printed_unit(right)
        raise ValueError(
            f"{self.workload} {self.scenario} in {self.origin.round}: {self.printed.text} is "
            f"printed in {unit}, but {field} is in {right.value.removesuffix('/W')}: the number is "
            f"{self.printed.text} {right}{f', which is {other}' if other else ''}"
        )

    def _in_the_printed_unit(self, right: Unit) -> str | None:
        """Return what a mislabelled number is when it is taken in its right unit and converted."""
        tokens = self.tokens_per_sample
        if tokens is None and "_inferred_" in (self.result_field or ""):
            tokens = TokensPerSample.of_loadgen()
        if tokens is None:
            return None
        taken = Quantity(value=self.quantity.value, unit=right)
        counts_tokens = right.kind in (Kind.TOKENS_PER_TIME, Kind.TOKENS_PER_ENERGY)
        convert = tokens_to_samples if counts_tokens else samples_to_tokens
        found = convert(taken, tokens_per_sample=tokens)
        return f"{rounded(found.quantity.value)} {found.quantity.unit} by {tokens}"


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedFile:
    """What one file of published figures holds.

    Attributes:
        schema: Version of the file format.
        purpose: What the figures are for.
        round: MLPerf round of all of them.
        source: Where the official values were logged.
        figures: In the order of the document that prints them.

    Raises:
        ValueError: A figure is of another round, or is not official.
    """

    schema: int = SCHEMA
    purpose: str
    round: str
    source: str
    figures: tuple[Published, ...]

    def __post_init__(self) -> None:
        for place, figure in enumerate(self.figures):
            if figure.origin.round != self.round or not figure.origin.source.official:
                raise ValueError(
                    f"figures[{place}] is {figure.origin.source} of {figure.origin.round}; "
                    f"this file is for official figures of {self.round}"
                )


def metric_named(name: str) -> Metric:
    """Return a metric, measured here or only published.

    Raises:
        ValueError: There is none of this name.
    """
    known = {**METRICS, **PUBLISHED}
    if name not in known:
        raise ValueError(f"unknown metric {name!r}; known: {listed(known)}")
    return known[name]


def metric_of(unit: Unit) -> str:
    """Return the metric of an official result by its printed unit.

    Raises:
        ValueError: No official result is printed in this unit.
    """
    if unit.kind not in _METRIC_OF:
        raise ValueError(f"MLPerf prints no throughput and no efficiency in {unit}")
    return _METRIC_OF[unit.kind]


def _counts(kind: Kind, scenario: str | None) -> Kind:
    """Return what a unit counts in a scenario: queries are samples where the rules say how many."""
    if kind in _QUERIES and scenario in ("Server", "Interactive", "SingleStream", "MultiStream"):
        return _QUERIES[kind]
    return kind
