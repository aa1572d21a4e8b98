"""What the page shows: figures with their rows, and what lies beside a results file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_mlperf import Outcome
from pytest_mlperf.core.baseline import Record
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.history import CaseHistory
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.verdict import SEVERITY, MetricVerdict
from pytest_mlperf.extension import Case, CaseResult

Row = dict[str, Any]
"""What is drawn and written, by field; "case" is its place in the list of cases."""

Packed = dict[str, Any]
"""A figure of one case, in as few numbers as the page's script needs."""

Tone = Literal["fail", "open", "good", "note"]
"""What a colour and a shape say of a verdict: failed, undecided, fine, only reported."""

TONES: tuple[Tone, ...] = ("fail", "open", "note", "good")
"""What matters most first."""

TIME_PARTS = ("before", "load", "warm-up", "measured", "accuracy pass")
_OPEN = frozenset(SEVERITY[SEVERITY.index(Outcome.SUSPECT) : SEVERITY.index(Outcome.EXPECTED) + 1])


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A plot with its table; plots.js says how its rows are drawn.

    Attributes:
        name: Of the figure in plots.js.
        says: How to read it, one sentence.
        rows: What matters most first, all with the same fields; empty: nothing to show.
        without: What would give it data, one sentence.
        open: Unfolded when the page opens.
        runs: A row names a metric of a case, and stands for its runs: these are in its history.
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
    """Part of a run's distribution of one time.

    Attributes:
        timed: Which time: "latency", "ttft", "tpot".
        points: Share of the queries, and the seconds within which they were done.
        limit_s: What LoadGen was told as the limit; None: no limit.
        limit_share: Share of the queries that must keep it.
    """

    timed: str
    points: Sequence[tuple[float, float]]
    limit_s: float | None = None
    limit_share: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """What lies beside a results file, by test id; what is not there is left out.

    Attributes:
        records: The baseline's record that the verdict was judged against.
        versions: Dates on which another engine version was accepted, and which, by git.
        percentiles: Of the last run.
        moments: Of the last run, for each part of it: seconds after the run began, p50 and p99 in
            seconds of the queries that ended in it, and how many waited or ran at its end.
        power: Of the last run; see `_beside.power_of`.
        spent: Seconds by `TIME_PARTS`, for each run, oldest first.
        sessions: Of each case id the sessions that a store remembers, this one among them, in
            series that may be compared.
        folder: The runs' folders lie below the results file.
        notes: What was there and could not be read, and why.
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
    """The tests of one case.

    Attributes:
        label: Its name without what all cases of the session share.
    """

    case: Case
    label: str
    results: tuple[CaseResult, ...]

    @property
    def worst(self) -> CaseResult:
        """The test that decides; one that failed before all others."""
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
        """Of the whole case."""
        return tone(self.worst.verdict.outcome, failed=self.worst.failed)


def tone(outcome: Outcome | None, *, failed: bool = False) -> Tone:
    """Return what colour and shape say of an outcome."""
    if outcome is None:
        return "note"
    if failed or outcome.fails:
        return "fail"
    return "open" if outcome in _OPEN else "good"


def gated(result: CaseResult) -> list[MetricVerdict]:
    """Return the judged metrics of a performance or efficiency test; none of any other test."""
    verdict = result.verdict
    if not verdict.kind.is_of_runs:
        return []
    return [m for m in verdict.metrics if m.outcome is not None and m.metric in METRICS]


def grouped(results: Sequence[CaseResult]) -> list[Grouped]:
    """Return the cases of a session, those that failed first, else in their order."""
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
    """Return names in which only what tells cases apart stands beside workload and scenario."""
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
    """Return a value with the digits that tables show: whole from 1,000 on, else four digits."""
    if not math.isfinite(value):  # a file from elsewhere may hold it
        return value
    return round(value) if abs(value) >= 999.95 else float(f"{value:.4g}")


def per_cent(share: float) -> float:
    """Return a share in per cent, to two decimals."""
    return round(100 * share, 2)
