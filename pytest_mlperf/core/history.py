"""A case over sessions: one value of each metric a session, in series that may be compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pytest_mlperf.core.baseline import Property
from pytest_mlperf.core.case import Case, Kind, Profile
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.core.search import CONDITIONS
from pytest_mlperf.core.trend import engine_versions
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.judge.drift import LevelChange, level_changes
from pytest_mlperf.judge.inputs import Direction

UNUSABLE = {Outcome.ERROR, Outcome.INVALID}
"""After such a word nothing was measured that could be compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseSeries:
    """What all points of a series share: another value of any of these is another series.

    Attributes:
        kind: Which test measured it.
        metric: Metric name.
        identity: Properties of the hardware.
        conditions: What else must be equal for two values to be compared: the offered rate, the
            data set's content, the division, and what `core.search` calls conditions.
    """

    case: Case
    kind: Kind
    profile: Profile
    metric: str
    identity: Mapping[str, Property]
    conditions: Mapping[str, str]

    @property
    def key(self) -> str:
        """A digest: equal series have equal keys, on every machine."""
        conditions = sorted(self.conditions.items())
        about = [self.case.id, self.kind, self.profile, self.metric, self._hardware, conditions]
        return _digest(about)[:32]

    @property
    def machine(self) -> str:
        """A short digest of the hardware, to tell machines of one class apart."""
        return _digest(self._hardware)[:8]

    @property
    def _hardware(self) -> list[tuple[str, Property]]:
        return sorted(self.identity.items())


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


class SessionPoint(NamedTuple):
    """What one session measured.

    Attributes:
        run: Id of the session.
        started: When it began, ISO 8601 UTC.
        commit: Commit of the tested project, or None.
        value: Geometric mean of the runs that were judged; of a score, the score. SI units.
        runs: How many these were.
        baseline: What it was judged against; None without.
        outcome: The metric's own word, else that of the test.
        failed: The test failed.
        accepted: The session recorded it as a baseline.
        fingerprint: Engine, versions, weights, options, data.
    """

    run: str
    started: str
    commit: str | None
    value: float
    runs: int
    baseline: float | None
    outcome: str
    failed: bool
    accepted: bool
    fingerprint: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class CaseHistory:
    """A series with its points, oldest first."""

    series: CaseSeries
    points: Sequence[SessionPoint]

    @cached_property
    def values(self) -> list[float]:
        """The value of each point."""
        return [point.value for point in self.points]

    @cached_property
    def versions(self) -> list[str]:
        """The engine of each point, by what tells them apart."""
        builds = {id(point.fingerprint): point.fingerprint for point in self.points}
        names = engine_versions([(build, self.series.case.engine) for build in builds.values()])
        by_build = dict(zip(builds, names, strict=True))
        return [by_build[id(point.fingerprint)] for point in self.points]

    @cached_property
    def accepted(self) -> list[bool]:
        """Whether a baseline was accepted at a point: by its session, or between the last and it.

        Another baseline than before is one that was accepted meanwhile.
        """
        marks, before, explained = [], None, False
        for point in self.points:
            is_new = None not in (before, point.baseline) and point.baseline != before
            marks.append(point.accepted or (is_new and not explained))
            if point.baseline is not None:
                before, explained = point.baseline, False
            # What it recorded is what the next one is judged by.
            explained = explained or point.accepted
        return marks

    @cached_property
    def changes(self) -> list[LevelChange]:
        """Where its level changed."""
        return level_changes(self.values)

    def is_worse(self, change: float) -> bool | None:
        """Whether a relative change of its metric is for the worse; None: neither way is better."""
        direction = METRICS[self.series.metric].direction
        if direction is Direction.NEITHER:
            return None
        return (change < 0) is (direction is Direction.HIGHER)


def histories_of(sessions: Iterable[Results]) -> list[CaseHistory]:
    """Return the series of sessions, each session once, in the order in which they began."""
    once = {results.run: results for results in sessions}
    series: dict[str, CaseSeries] = {}
    points: dict[str, list[SessionPoint]] = {}
    for results in sorted(once.values(), key=lambda one: (one.started, one.run)):
        for one, point in points_of_session(results):
            key = one.key
            series.setdefault(key, one)
            points.setdefault(key, []).append(point)
    return [CaseHistory(series=series[key], points=points[key]) for key in series]


def points_of_session(results: Results) -> Iterator[tuple[CaseSeries, SessionPoint]]:
    """Yield each value that a session may be remembered by, with the series that it is a point of.

    What was slowed, pretended, INVALID or broke says nothing of the case and is left out, as are
    values that are not above 0: histories are of ratios.
    """
    for result in results.cases:
        subject = result.verdict.subject
        if subject is None or result.handicap or result.pretended:
            continue
        if result.verdict.kind == "pair" or result.verdict.outcome in UNUSABLE:
            continue
        conditions = _conditions(result, subject.fingerprint)
        for metric in result.verdict.metrics:
            usable = metric.metric in METRICS and metric.outcome not in UNUSABLE
            if usable and metric.now and metric.now > 0:
                series = CaseSeries(
                    case=result.verdict.case,
                    kind=result.verdict.kind,
                    profile=result.profile,
                    metric=metric.metric,
                    identity=subject.identity,
                    conditions=conditions,
                )
                point = SessionPoint(
                    run=results.run,
                    started=results.started,
                    commit=results.commit,
                    value=metric.now,
                    runs=metric.runs,
                    baseline=metric.baseline.value,
                    outcome=str(metric.outcome or result.verdict.outcome),
                    failed=result.failed,
                    accepted=result.verdict.outcome is Outcome.RECORDED,
                    fingerprint=subject.fingerprint,
                )
                yield series, point


def _conditions(result: CaseResult, fingerprint: Mapping[str, str]) -> dict[str, str]:
    loaded = result.verdict.case.rate_is_condition and result.target_qps is not None
    conditions = {
        "rate": f"{result.target_qps:g}" if loaded else "",
        "dataset": fingerprint.get("dataset", ""),
        "division": result.division if result.division != "closed" else "",
        **{key: fingerprint.get(key, "") for key in CONDITIONS},
    }
    return {name: value for name, value in conditions.items() if value}


@dataclass(frozen=True, kw_only=True, slots=True)
class LatestVerdict:
    """The newest verdict of a test.

    Attributes:
        test: Pytest's node id.
        case: Case id.
        metric: The first metric that it gates, else the first it has; "" without any.
        accelerator, workload: Of the case.
        outcome, headline: As they were told.
    """

    test: str
    case: str
    kind: Kind
    profile: Profile
    workload: str
    accelerator: str
    metric: str
    outcome: str
    failed: bool
    headline: str
    run: str
    started: str


def latest_of(results: Results) -> Iterator[LatestVerdict]:
    """Yield the verdicts of a session, in its order; what was slowed or pretended is left out."""
    for result in results.cases:
        if result.handicap or result.pretended:
            continue
        metrics = result.verdict.metrics
        gated = next((m.metric for m in metrics if m.limit is not None), None)
        yield LatestVerdict(
            test=result.test,
            case=result.verdict.case.id,
            kind=result.verdict.kind,
            profile=result.profile,
            workload=result.verdict.case.workload,
            accelerator=result.verdict.case.accelerator,
            metric=gated or next((m.metric for m in metrics), ""),
            outcome=str(result.verdict.outcome),
            failed=result.failed,
            headline=result.verdict.headline,
            run=results.run,
            started=results.started,
        )
