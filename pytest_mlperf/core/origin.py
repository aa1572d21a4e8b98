"""Where a printed figure comes from, and what its round reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from pytest_mlperf.core.units import listed


class Source(StrEnum):
    """Whose word a figure is."""

    MLPERF = "mlperf"
    PREVIEW = "mlperf-preview"
    VENDOR = "vendor"
    UNVERIFIED = "unverified"

    @property
    def official(self) -> bool:
        """The figure is a result that MLCommons published."""
        return self in (Source.MLPERF, Source.PREVIEW)


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerator:
    """What a figure was measured on.

    Attributes:
        name: Class: "H200".
        count: How many; None: not printed.
        variant: What else tells it from others of its class: "SXM 141GB CTS".
        power: A power setting that is known: "MaxQ", "700 W"; None: none is printed.
    """

    name: str
    count: int | None
    variant: str = ""
    power: str | None = None

    def __str__(self) -> str:
        return self.name if self.count in (None, 1) else f"{self.count}x{self.name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where a figure comes from; None is not stated.

    Attributes:
        source: Whose word it is.
        round: MLPerf round: "v4.1".
        division: MLPerf division.
        availability: MLPerf category of the system.
        submitter: Who submitted it.
        system: Their name of the system.
        link: Document that prints it.
        line: Line of that document.
        path: Its place in MLCommons' results of the round.

    Raises:
        ValueError: An official figure without round, division or availability, or whose source
            and availability contradict each other.
    """

    source: Source
    round: str | None = None
    division: Literal["closed", "open"] | None = None
    availability: Literal["available", "preview", "rdi"] | None = None
    submitter: str | None = None
    system: str | None = None
    link: str | None = None
    line: int | None = None
    path: str | None = None

    def __post_init__(self) -> None:
        if not self.source.official:
            return
        needed = ("round", "division", "availability")
        if missing := [name for name in needed if getattr(self, name) is None]:
            raise ValueError(f"an official MLPerf figure needs {listed(missing)}")
        if (self.availability == "preview") is not (self.source is Source.PREVIEW):
            raise ValueError(
                f"source {self.source} and availability {self.availability} contradict each other: "
                f"{Source.PREVIEW} is for systems in preview, {Source.MLPERF} for all others"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundResults:
    """What MLPerf's checker reports in one round.

    Attributes:
        round: "v4.1".
        fields: The result field, by workload and scenario.
    """

    round: str
    fields: Mapping[str, Mapping[str, str]]

    def field(self, workload: str, scenario: str | None) -> str:
        """Return the field that the checker reports.

        Raises:
            ValueError: The round has no such workload, or the workload no such scenario.
        """
        scenarios = self.scenarios(workload)
        if scenario is None or scenario not in scenarios:
            raise ValueError(
                f"{workload} has no scenario {scenario} in {self.round}; it has {listed(scenarios)}"
            )
        return scenarios[scenario]

    def scenarios(self, workload: str) -> Mapping[str, str]:
        """Return a workload's result fields by scenario.

        Raises:
            ValueError: The round has no such workload.
        """
        if workload not in self.fields:
            raise ValueError(
                f"unknown workload {workload!r} in {self.round}; known: {listed(self.fields)}"
            )
        return self.fields[workload]
