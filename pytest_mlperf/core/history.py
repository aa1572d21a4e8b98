"""Build the history of a case: one value of each metric per session, in comparable series."""

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
from pytest_mlperf.core.notes import Words
from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.core.search import CONDITIONS
from pytest_mlperf.core.trend import engine_versions
from pytest_mlperf.core.verdict import MetricVerdict, Outcome
from pytest_mlperf.judge.drift import LevelChange, level_changes
from pytest_mlperf.judge.inputs import Direction

UNUSABLE = {Outcome.ERROR, Outcome.INVALID}


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseSeries:
    """Identify a time series of a metric by everything that its sessions must have in common.

    `conditions` are the offered rate, the data set's content, the MLPerf division, and
    `search.CONDITIONS`.
    """

    case: Case
    kind: Kind
    profile: Profile
    metric: str
    identity: Mapping[str, Property]
    conditions: Mapping[str, str]

    @property
    def key(self) -> str:
        """Digest of case, kind of test, profile, metric, hardware and conditions of the series."""
        conditions = sorted(self.conditions.items())
        about = [self.case.id, self.kind, self.profile, self.metric, self._hardware, conditions]
        return _digest(about)[:32]

    @property
    def machine(self) -> str:
        """Short digest of the hardware, to distinguish machines with the same accelerator."""
        return _digest(self._hardware)[:8]

    @property
    def _hardware(self) -> list[tuple[str, Property]]:
        return sorted(self.identity.items())


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


class SessionPoint(NamedTuple):
    """Hold the value of one metric in one session.

    Attributes:
        run: Id of the session.
        value: Geometric mean of the judged runs in SI units, or the score.
        baseline: Value of the baseline; None without a baseline.
        outcome: Outcome of the metric, or of the test if the metric has none.
        accepted: Whether the session recorded `value` as a baseline.
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
    """Hold the history of one metric of a case: one point per session, oldest first."""

    series: CaseSeries
    points: Sequence[SessionPoint]

    @cached_property
    def values(self) -> list[float]:
        """Value of each point."""
        return [point.value for point in self.points]

    @cached_property
    def versions(self) -> list[str]:
        """Engine version of each point, shortened to the parts that differ."""
        builds = {id(point.fingerprint): point.fingerprint for point in self.points}
        names = engine_versions([(build, self.series.case.engine) for build in builds.values()])
        by_build = dict(zip(builds, names, strict=True))
        return [by_build[id(point.fingerprint)] for point in self.points]

    @cached_property
    def accepted(self) -> list[bool]:
        """For each session, whether a baseline was accepted in it or since the previous one."""
        marks, baseline, explained = [], None, False
        for point in self.points:
            is_new = None not in (baseline, point.baseline) and point.baseline != baseline
            marks.append(point.accepted or (is_new and not explained))
            if point.baseline is not None:
                baseline, explained = point.baseline, False
            # The next session is judged by the baseline that this one recorded.
            explained = explained or point.accepted
        return marks

    @cached_property
    def changes(self) -> list[LevelChange]:
        """Level shifts (change points) in the values."""
        return level_changes(self.values)

    def is_worse(self, change: float) -> bool | None:
        """Check whether a relative change is a regression; None if the metric has no direction."""
        direction = METRICS[self.series.metric].direction
        if direction is Direction.NEITHER:
            return None
        return (change < 0) is (direction is Direction.HIGHER)


def histories_of(sessions: Iterable[Results]) -> list[CaseHistory]:
    """Return the history of each case and metric over sessions; each session counts once."""
    once = {results.run: results for results in sessions}
    series: dict[str, CaseSeries] = {}
    points: dict[str, list[SessionPoint]] = {}
    for results in sorted(once.values(), key=lambda entry: (entry.started, entry.run)):
        for entry, point in points_of_session(results):
            key = entry.key
            series.setdefault(key, entry)
            points.setdefault(key, []).append(point)
    return [CaseHistory(series=series[key], points=points[key]) for key in series]


def points_of_session(results: Results) -> Iterator[tuple[CaseSeries, SessionPoint]]:
    """Yield each metric value of a session as a point, with the series that it belongs to.

    Cases with a handicap, simulated accelerator, ERROR or INVALID, and values of 0 are left out.
    """
    for result in results.cases:
        subject = result.verdict.subject
        if subject is None or result.handicap or result.pretended:
            continue
        if result.verdict.kind == Kind.PAIR or result.verdict.outcome in UNUSABLE:
            continue
        conditions = _conditions(result, subject.fingerprint)
        for metric in result.verdict.metrics:
            usable = METRICS.get(metric.metric) and metric.outcome not in UNUSABLE
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
                    baseline=None if result.verdict.other_runs else metric.baseline.value,
                    outcome=str(metric.outcome or result.verdict.outcome),
                    failed=result.failed,
                    accepted=result.verdict.outcome is Outcome.RECORDED,
                    fingerprint=subject.fingerprint,
                )
                if other := _other_build_point(result, metric, point):
                    yield series, other
                yield series, point


def _other_build_point(
    result: CaseResult, metric: MetricVerdict, point: SessionPoint
) -> SessionPoint | None:
    """Return `point` with the values of the other interleaved build; None if there is no other."""
    verdict, other = result.verdict, result.verdict.interleaved
    value = metric.baseline.value
    if not verdict.other_runs or not verdict.kind.compares_runs or not value:
        return None
    subject = other.other_subject if other else None
    return point._replace(
        run=f"{point.run}-against",
        commit=verdict.other_runs[0].commit,
        value=value,
        runs=metric.baseline.runs,
        outcome="compared",
        failed=False,
        fingerprint=subject.fingerprint if subject else {},
    )


def _conditions(result: CaseResult, fingerprint: Mapping[str, str]) -> dict[str, str]:
    loaded = result.verdict.case.scenario.rate_is_condition and result.target_qps is not None
    conditions = {
        "rate": f"{result.target_qps:g}" if loaded else "",
        "dataset": fingerprint.get("dataset", ""),
        "division": result.division if result.division != "closed" else "",
        **{key: fingerprint.get(key, "") for key in CONDITIONS},
    }
    return {name: value for name, value in conditions.items() if value}


@dataclass(frozen=True, kw_only=True, slots=True)
class LatestVerdict:
    """Hold a test's newest verdict, with its first gated metric, else its first metric."""

    test: str
    case: str
    kind: Kind
    profile: Profile
    workload: str
    accelerator: str
    metric: str
    outcome: str
    failed: bool
    headline: Words
    run: str
    started: str


def latest_of(results: Results) -> Iterator[LatestVerdict]:
    """Yield a session's verdicts on real accelerators, except those of deliberately slowed runs."""
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
