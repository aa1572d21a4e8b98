"""Define the data of the HTML page: plots with their rows, and files next to a results file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_mlperf import Outcome
from pytest_mlperf.core.baseline import Record
from pytest_mlperf.core.history import CaseHistory
from pytest_mlperf.core.verdict import SEVERITY
from pytest_mlperf.extension import METRICS, Case, CaseResult, Kind, MetricVerdict

Row = dict[str, Any]
"""A row of a figure and its table, by field; "case" is the index of its case."""

Packed = dict[str, Any]
"""A figure of one case, as compact JSON for the page's script."""

Tone = Literal["fail", "open", "good", "note"]
"""Colour and shape of a verdict: failed, undecided, passed, or only reported."""

TONES: tuple[Tone, ...] = ("fail", "open", "note", "good")
"""Tones in the order of importance."""

TIME_PARTS = ("before", "load", "warm-up", "measured", "accuracy pass")
_OPEN = frozenset(SEVERITY[SEVERITY.index(Outcome.SUSPECT) : SEVERITY.index(Outcome.EXPECTED) + 1])


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Hold the data of a plot and its table; plots.js draws the plot.

    Attributes:
        name: Name of the plot in plots.js.
        says: A sentence on how to read the plot.
        rows: Data, the most important rows first, all with the same keys; empty if there is none.
        without: A sentence on how to get data, shown if `rows` is empty.
        open: Whether the section is expanded when the page opens.
        runs: Whether the rows are metrics, whose runs the history plot of their case shows.
    """

    name: str
    title: str
    says: str
    rows: Sequence[Row]
    without: str
    open: bool = False
    runs: bool = False


@dataclass(frozen=True, kw_only=True)
class Percentiles:
    """Hold the percentiles of one kind of latency in a run.

    Attributes:
        timed: Kind of latency: "latency", "ttft" or "tpot".
        points: (fraction of queries, latency that this fraction did not exceed [s]), ascending.
        limit_s: LoadGen's latency limit [s]; None if there is none.
        limit_share: Fraction of queries that must be within the limit.
    """

    timed: str
    points: Sequence[tuple[float, float]]
    limit_s: float | None = None
    limit_share: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """Hold the content of files next to a results file, by test id; missing files are left out.

    Attributes:
        records: Baseline record with which the test was compared.
        versions: (date, version) of each engine version accepted as baseline, from git.
        percentiles: Percentiles of the last run.
        moments: Latency in the last run, a row per time interval: time since the run's start [s],
            p50 and p99 [s] of the queries that ended in the interval, queries in flight at its end.
        power: GPU power over the last run, see `report.power_of`.
        spent: Seconds per phase (`TIME_PARTS`) for each run, oldest first.
        sessions: Histories of comparable sessions from a database, by case id, with this session.
        folder: Whether the runs' folders are below the results file's folder.
        notes: Messages about files that could not be read.
    """

    records: Mapping[str, Record] = field(default_factory=dict)
    versions: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    percentiles: Mapping[str, Sequence[Percentiles]] = field(default_factory=dict)
    moments: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    power: Mapping[str, Packed] = field(default_factory=dict)
    spent: Mapping[str, Sequence[Mapping[str, float]]] = field(default_factory=dict)
    sessions: Mapping[str, Sequence[CaseHistory]] = field(default_factory=dict)
    folder: bool = False
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """Hold the tests of one case.

    Attributes:
        label: Name of the case, without the parts that all cases of the session have in common.
    """

    case: Case
    label: str
    results: tuple[CaseResult, ...]

    @property
    def worst(self) -> CaseResult:
        """Test with the worst outcome; failed tests come first."""
        kinds = (Kind.PERFORMANCE, Kind.EFFICIENCY, Kind.PAIR, Kind.ACCURACY)
        return min(
            self.results,
            key=lambda one: (
                not one.failed,
                SEVERITY.index(one.verdict.outcome),
                kinds.index(kind) if (kind := one.verdict.kind) in kinds else len(kinds),
            ),
        )

    @property
    def tone(self) -> Tone:
        """Tone ("fail", "open", "note" or "good") of the test with the worst outcome."""
        return tone(self.worst.verdict.outcome, failed=self.worst.failed)


def tone(outcome: Outcome | None, *, failed: bool = False) -> Tone:
    """Return the display category of an outcome.

    This is "note" for None, "fail" if it or the test `failed`, "open" if undecided, else "good".
    """
    if outcome is None:
        return "note"
    if failed or outcome.fails:
        return "fail"
    return "open" if outcome in _OPEN else "good"


def judged_metrics(result: CaseResult) -> list[MetricVerdict]:
    """Return the judged metrics of a performance or efficiency test; [] for other tests."""
    verdict = result.verdict
    if not verdict.kind.compares_runs:
        return []
    return [m for m in verdict.metrics if m.outcome is not None and METRICS.get(m.metric)]


def grouped(results: Sequence[CaseResult]) -> list[Grouped]:
    """Group a session's results by case; the case with the worst outcome comes first."""
    by_case: dict[tuple[str, Case], list[CaseResult]] = {}
    for result in results:
        by_case.setdefault((result.suite, result.verdict.case), []).append(result)
    label = _labels([case for _, case in by_case])
    groups = [
        Grouped(case=case, label=label[case], results=tuple(own))
        for (_, case), own in by_case.items()
    ]
    return sorted(
        groups, key=lambda one: (TONES.index(one.tone), SEVERITY.index(one.worst.verdict.outcome))
    )


def _labels(cases: Sequence[Case]) -> dict[Case, str]:
    """Return a short name for each case: workload, scenario, and what differs between cases."""
    parts = ("engine", "precision", "accelerator")
    alike: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        alike.setdefault((case.workload, case.scenario), []).append(case)
    labels = {}
    for (workload, scenario), group in alike.items():
        vary = [part for part in parts if len({getattr(case, part) for case in group}) > 1]
        for case in group:
            labels[case] = " ".join((workload, scenario, *(getattr(case, p) for p in vary)))
    return labels


def rounded(value: float) -> float | int:
    """Round a number as in tables: to an integer from 1,000 on, else to four significant digits."""
    if not math.isfinite(value):  # a file from elsewhere may hold it
        return value
    return round(value) if abs(value) >= 999.95 else float(f"{value:.4g}")


def per_cent(share: float) -> float:
    """Return a fraction in per cent, rounded to two decimals."""
    return round(100 * share, 2)
