"""What the page shows: figures with their rows, and what lies beside a results file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_mlperf.core.baseline import Record
from pytest_mlperf.core.case import Case
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.verdict import SEVERITY, Outcome

Cell = str | int | float | bool | None
"""One value of a row; the case is its place in the list of cases."""

Tone = Literal["fail", "open", "good", "note"]
"""What a colour and a shape say of a verdict: failed, undecided, fine, only reported."""

TONES: tuple[Tone, ...] = ("fail", "open", "note", "good")
"""What matters most first."""

Readings = Sequence[tuple[float, float]]
"""Times, seconds, and values."""

_OPEN = frozenset(
    {
        Outcome.SUSPECT,
        Outcome.INCONCLUSIVE,
        Outcome.NO_BASELINE,
        Outcome.NOT_EVALUATED,
        Outcome.EXPECTED,
    }
)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A plot with its table.

    Attributes:
        name: Of the figure in the page's data.
        title: Its heading.
        says: How to read it, one sentence.
        fields: Names of a row's values.
        rows: What is drawn and written, what matters most first; empty: nothing to show.
        columns: Of the table: field and heading.
        spec: Vega-Lite's description, without data.
        without: What would give it data, one sentence.
        open: Unfolded when the page opens.
        runs: A row names a metric of a case, and stands for its runs: these are in its history.
    """

    name: str
    title: str
    says: str
    fields: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    columns: Sequence[tuple[str, str]]
    spec: Mapping[str, Any]
    without: str
    open: bool = False
    runs: bool = False


@dataclass(frozen=True, kw_only=True)
class Percentiles:
    """Part of a run's distribution of one time.

    Attributes:
        what: Which time: "latency", "ttft", "tpot".
        points: Share of the queries, and the seconds within which they were done.
        limit_s: What LoadGen was told as the limit; None: no limit.
        limit_share: Share of the queries that must keep it.
    """

    what: str
    points: Sequence[tuple[float, float]]
    limit_s: float | None = None
    limit_share: float | None = None


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Latencies of the queries that ended in one part of a run.

    Attributes:
        time_s: Middle of the part, seconds after the run began.
        p50_s, p99_s: Of these queries.
        outstanding: Queries that waited or ran at its end.
    """

    time_s: float
    p50_s: float
    p99_s: float
    outstanding: int


@dataclass(frozen=True, kw_only=True)
class GpuTrace:
    """One GPU over a run, thinned out; times in seconds after LoadGen's window began.

    Attributes:
        name: "GPU 0".
        power: Watts.
        clock: MHz of the streaming multiprocessors.
        temperature: Degrees Celsius.
        limit_w: The enforced power limit; None: not known.
    """

    name: str
    power: Readings
    clock: Readings
    temperature: Readings
    limit_w: float | None


@dataclass(frozen=True, kw_only=True)
class PowerTrace:
    """The GPUs of a run.

    Attributes:
        window_s: Length of LoadGen's window.
        gpus: At least one.
        held: Why clocks were held back, "fault", "cap" or "plain", and from when to when.
    """

    window_s: float
    gpus: Sequence[GpuTrace]
    held: Sequence[tuple[str, str, Sequence[tuple[float, float]]]] = ()


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Where the time of one process of a case went, by LoadGen's logs and the worker's.

    Attributes:
        before_s: From its start to LoadGen's window, less what is told below: waiting for the
            machine, starting, finding the rate.
        window_s: LoadGen's timed window.
        accuracy_s: The accuracy pass.
        load_s: Loading data and model; 0 where the worker did not tell.
        warm_s: Warm-up; 0 where the worker did not tell.
    """

    before_s: float
    window_s: float
    accuracy_s: float
    load_s: float = 0.0
    warm_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Beside:
    """What lies beside a results file, by test id; what is not there is left out.

    Attributes:
        records: The baseline's record that the verdict was judged against.
        versions: Dates on which another engine version was accepted, and which, by git.
        percentiles: Of the last run.
        moments: Of the last run.
        power: Of the last run.
        spent: One for each run, oldest first.
        folder: The runs' folders lie below the results file.
        notes: What was there and could not be read, and why.
    """

    records: Mapping[str, Record] = field(default_factory=dict)
    versions: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    percentiles: Mapping[str, Sequence[Percentiles]] = field(default_factory=dict)
    moments: Mapping[str, Sequence[Moment]] = field(default_factory=dict)
    power: Mapping[str, PowerTrace] = field(default_factory=dict)
    spent: Mapping[str, Sequence[Spent]] = field(default_factory=dict)
    folder: bool = False
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """The tests of one case.

    Attributes:
        case: The case.
        label: Its name without what all cases of the session share.
        results: Its tests, at least one.
    """

    case: Case
    label: str
    results: tuple[CaseResult, ...]

    @property
    def worst(self) -> CaseResult:
        """The test that decides; one that failed before all others."""
        kinds = ("performance", "efficiency", "pair", "accuracy")
        return min(
            self.results,
            key=lambda one: (
                not one.failed,
                SEVERITY.index(one.verdict.outcome),
                kinds.index(one.verdict.kind),
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


def grouped(results: Sequence[CaseResult]) -> list[Grouped]:
    """Return the cases of a session, those that failed first, else in their order."""
    by_case: dict[tuple[str, Case], list[CaseResult]] = {}
    for result in results:
        by_case.setdefault((result.suite, result.verdict.case), []).append(result)
    label = _labels([case for _, case in by_case])
    found = [
        Grouped(case=case, label=label[case], results=tuple(own))
        for (_, case), own in by_case.items()
    ]
    return sorted(found, key=lambda one: (TONES.index(one.tone), _severity(one)))


def _severity(one: Grouped) -> int:
    return SEVERITY.index(one.worst.verdict.outcome)


def _labels(cases: Sequence[Case]) -> dict[Case, str]:
    """Return names in which only what tells cases apart stands beside workload and scenario."""
    parts = ("engine", "precision", "accelerator")
    alike: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        alike.setdefault((case.workload, case.scenario), []).append(case)
    found = {}
    for (workload, scenario), own in alike.items():
        vary = [part for part in parts if len({getattr(case, part) for case in own}) > 1]
        for case in own:
            found[case] = " ".join((workload, scenario, *(getattr(case, p) for p in vary)))
    return found


def rounded(value: float) -> float | int:
    """Return a value with the digits that tables show: whole from 1,000 on, else four digits."""
    if not math.isfinite(value):  # a file from elsewhere may hold it
        return value
    return round(value) if abs(value) >= 999.95 else float(f"{value:.4g}")


def per_cent(share: float) -> float:
    """Return a share in per cent, to two decimals."""
    return round(100 * share, 2)
