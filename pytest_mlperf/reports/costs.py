"""Estimate how long cases take, from earlier sessions or from the suite's settings."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pytest_mlperf.core.measurement import moment_of
from pytest_mlperf.core.results import Results, performance
from pytest_mlperf.suite.pairs import Testable

CaseKey = tuple[str, str]
"""Case id and profile."""

USUAL_RUNS = 2
"""Runs after which rule R has usually decided on a change that is none, or a large one."""

SETUP_SECONDS = 2.0
"""Time of a process outside its timed part, for an engine that loads nothing."""


@dataclass(frozen=True, kw_only=True)
class CaseCost:
    """Hold the wall-clock time of a case.

    Attributes:
        first_s: Time until the earliest possible verdict: loading, first runs, accuracy pass.
        more_s: Time of each further run.
        sessions: Number of earlier sessions that measured the case; 0 if planned from the suite.
        first_runs: Number of runs in `first_s`.
        first_more_s: Extra time of the first runs if their searches for a rate take longest.
    """

    first_s: float
    more_s: float
    sessions: int = 0
    first_runs: int = 1
    first_more_s: float = 0.0

    def at_most_s(self, max_runs: int) -> float:
        """Return the longest time of `max_runs` runs, with searches of maximum length [s]."""
        further = max(max_runs - self.first_runs, 0) * self.more_s
        return self.first_s + self.first_more_s + further

    def usual_s(self, runs: int = USUAL_RUNS) -> float:
        """Return the expected time of `runs` runs, with searches of usual length [s]."""
        return self.at_most_s(runs) - max(1, runs / self.first_runs) * self.first_more_s


Costs = Mapping[tuple[Path, str], CaseCost]
"""Cost of each case by suite file and case id."""


def cost_of(planned: Testable, measured: Costs) -> CaseCost:
    """Return a case's cost in earlier sessions, else an estimate from its suite's settings."""
    seconds, runs = planned.seconds_per_run + SETUP_SECONDS, planned.fewest_runs
    usual, most = planned.runs_per_value
    audits = sum(kind.is_audit for kind in planned.kinds)  # one run each
    unmeasured = CaseCost(
        first_s=(runs * usual + audits) * seconds,
        more_s=most * seconds,
        first_runs=runs,
        first_more_s=runs * (most - usual) * seconds,
    )
    return measured.get((planned.path, planned.case.id), unmeasured)


def measured_costs(cases: Iterable[Testable], sessions: Iterable[tuple[Path, Results]]) -> Costs:
    """Return the costs of cases in earlier sessions (file, results), by suite file and case id."""
    past = costs(sessions)
    keys = {(one.path, one.case.id): (one.case.id, one.suite.profile) for one in cases}
    return {key: past[case] for key, case in keys.items() if case in past}


def costs(sessions: Iterable[tuple[Path, Results]]) -> dict[CaseKey, CaseCost]:
    """Return the median wall-clock cost of each case over earlier sessions.

    A process lasts until the next process of its session starts. Loading, warm-up, accuracy pass
    and scoring count; waiting for other sessions does not. Sessions with overlapping processes,
    and runs with a handicap or a simulated accelerator, are left out.
    """
    first: dict[CaseKey, list[float]] = defaultdict(list)
    more: dict[CaseKey, list[float]] = defaultdict(list)
    for _, results in sessions:
        try:
            walls = _walls(results)
        except (ValueError, OverflowError):
            continue  # a time that is none: a file from elsewhere
        for result in performance(results):
            runs = [walls[run.folder] for run in result.verdict.runs if run.folder in walls]
            other = result.verdict.interleaved
            if other and other.runs and not result.verdict.replaces_baseline:
                runs = runs[:-1]  # those in turns came behind it
            if not runs or result.handicap or result.pretended:
                continue
            key = (result.verdict.case.id, result.profile)
            first[key].append(runs[0])
            more[key] += runs[1:]
    return {
        key: CaseCost(
            first_s=median(taken),
            more_s=median(more[key]) if more[key] else median(taken),
            sessions=len(taken),
        )
        for key, taken in first.items()
    }


def _walls(results: Results) -> dict[str, float]:
    verdicts = [result.verdict for result in performance(results)]
    runs = {
        run.folder: run
        for verdict in verdicts
        for run in (*verdict.runs, *verdict.invalid_runs, *verdict.other_runs)
    }
    ordered = sorted(runs.values(), key=lambda run: _moment(run.started))
    begin = _moment(results.started)
    if not ordered or _moment(ordered[0].started) < begin:
        return {}
    end = begin + dt.timedelta(seconds=results.seconds)
    waits = [dt.timedelta(seconds=run.load.waited_s or 0.0) for run in ordered]
    begins = [_moment(run.started) - wait for run, wait in zip(ordered, waits, strict=True)]
    ends = [*begins[1:], end]
    walls = {}
    for run, until in zip(ordered, ends, strict=True):
        seconds = (until - _moment(run.started)).total_seconds()
        if seconds < run.duration_s - 1:  # times are kept in whole seconds
            return {}
        walls[run.folder] = max(seconds, run.duration_s)
    return walls


def _moment(started: str) -> dt.datetime:
    moment = moment_of(started)
    if moment is None:
        raise ValueError(started)
    return moment
