"""What an accelerator's calibration file holds: A/A runs, and the noise that was learnt of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from pytest_mlperf.core.baseline import Property, differences
from pytest_mlperf.core.judge.rule_r import RuleR, Value
from pytest_mlperf.core.noise import Learnt, Noise, Series

SCHEMA = 1
"""The version of the file format that this release reads and writes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationRun:
    """One A/A run: a fresh process of unchanged code.

    Attributes:
        number: Which run of the case in its session, from 1.
        session: Runs of one session were made one after another on a machine in one state.
        started: ISO 8601 UTC.
        metrics: Values of the gated metrics by name, SI units, positive.
        within_se: Relative standard error within the run by metric name, where known.
        duration_s: Length of the timed part.
        start_s: What the process took beside that: loading, warm-up, the machine's control.
    """

    number: int
    session: str
    started: str
    metrics: dict[str, float]
    within_se: dict[str, float]
    duration_s: float
    start_s: float

    def __post_init__(self) -> None:
        for name, value in self.metrics.items():
            if not 0 < value < math.inf:
                raise ValueError(f"metric {name!r} is {value!r}; must be positive and finite")
        for name, value in {**self.within_se, "start_s": self.start_s}.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"{name!r} is {value!r}; must be 0 or positive")
        if not 0 < self.duration_s < math.inf:
            raise ValueError(f"duration_s is {self.duration_s!r}; must be positive and finite")


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibratedCase:
    """The A/A runs of one case.

    Attributes:
        case: The case's id.
        profile: "quick" or "official".
        what: Digest of engine, options, data and run length: others do not belong together.
        target_qps: Rate the runs were offered or sized by, or None.
        limits: Gated metrics with their limits, as shares, when it was measured last.
        runs: At least one, by session and number.
    """

    case: str
    profile: str
    what: str
    target_qps: float | None
    limits: dict[str, float]
    runs: tuple[CalibrationRun, ...]

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError("a case needs at least one run")

    @property
    def series(self) -> tuple[Series, ...]:
        """Its gated metrics that every run has, those that a run inside is known of first."""
        names = [name for name in self.limits if all(name in run.metrics for run in self.runs)]
        names.sort(key=lambda name: name not in self.runs[0].within_se)
        return tuple(
            Series(case=f"{self.case} {self.profile}", metric=name, runs=self.values(name))
            for name in names
        )

    def values(self, metric: str) -> tuple[Value, ...]:
        """Return one metric as rule R takes it."""
        return tuple(
            Value(
                value=run.metrics[metric],
                within_se=run.within_se.get(metric, 0.0),
                session=run.session,
            )
            for run in self.runs
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What the judge uses, and what it rests on.

    Attributes:
        date: When it was learnt, ISO 8601 UTC.
        prior_df: ν0.
        prior_sd: s0.
        prior_sd_low: Lower end of a 90 % interval of s0.
        prior_sd_high: Its upper end.
        session_share: φ.
        max_runs: K that is recommended; the option --mlperf-max-runs decides.
        cases: Cases it was learnt from.
        runs: Their runs.
        sessions: Their sessions.
    """

    date: str
    prior_df: float
    prior_sd: float
    prior_sd_low: float
    prior_sd_high: float
    session_share: float
    max_runs: int
    cases: int
    runs: int
    sessions: int

    def __post_init__(self) -> None:
        _ = self.rule(self.max_runs)  # a file that rule R refuses is defective

    @property
    def noise(self) -> Noise:
        """What rule R expects."""
        return Noise(
            prior_df=self.prior_df, prior_sd=self.prior_sd, session_share=self.session_share
        )

    def rule(self, max_runs: int) -> RuleR:
        """Return rule R with this noise."""
        return self.noise.rule(max_runs)

    @property
    def in_words(self) -> str:
        """The note of a verdict."""
        cases, sessions = _plural(self.cases, "case"), _plural(self.sessions, "session")
        runs = _plural(self.runs, "run")
        return f"noise as calibrated {self.date}: {cases}, {runs} in {sessions}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibrated:
    """One machine's calibration.

    Attributes:
        identity: Properties of the hardware; a machine must equal all of them.
        settings: What was learnt; None: runs only.
        cases: The runs.
    """

    identity: dict[str, Property]
    settings: Settings | None
    cases: tuple[CalibratedCase, ...]

    @property
    def series(self) -> tuple[Series, ...]:
        """Every gated metric of every case."""
        return tuple(series for case in self.cases for series in case.series)


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """The file of one accelerator.

    Attributes:
        schema: Version of the file format.
        kind: What the file is.
        accelerator: Class and count, e.g. "8xH100".
        machines: One per hardware identity.
    """

    schema: int = SCHEMA
    kind: Literal["calibration"] = "calibration"
    accelerator: str
    machines: tuple[Calibrated, ...]

    def of(self, identity: Mapping[str, Property]) -> Calibrated | None:
        """Return the calibration of exactly this hardware, or None."""
        for machine in self.machines:
            if not differences(machine.identity, identity):
                return machine
        return None

    def having(self, machine: Calibrated) -> Calibration:
        """Return the file with this machine in the place of the one of its identity, or added."""
        old = self.of(machine.identity)
        kept = tuple(other for other in self.machines if other is not old)
        return dataclasses.replace(self, machines=(*kept, machine))


def settings_of(learnt: Learnt, *, date: str, max_runs: int) -> Settings:
    """Return what is stored of what was learnt."""
    noise = learnt.noise
    return Settings(
        date=date,
        prior_df=round(noise.prior_df, 3),
        prior_sd=float(f"{noise.prior_sd:.4g}"),
        prior_sd_low=float(f"{learnt.low:.4g}"),
        prior_sd_high=float(f"{learnt.high:.4g}"),
        session_share=round(noise.session_share, 4),
        max_runs=max_runs,
        cases=learnt.cases,
        runs=learnt.runs,
        sessions=learnt.sessions,
    )


def merged(
    older: Iterable[CalibratedCase], newer: Iterable[CalibratedCase]
) -> tuple[tuple[CalibratedCase, ...], tuple[str, ...]]:
    """Return the cases with the runs of both, sorted, and what was left out, in words.

    Runs of an engine, data set or run length that is no longer the newest's are left out: what
    they differ by is no noise.

    Args:
        older: Cases as they were stored.
        newer: Cases measured since.
    """
    cases = {(case.case, case.profile): case for case in older}
    notes = []
    for case in newer:
        old = cases.get((case.case, case.profile))
        runs = {(run.session, run.number): run for run in case.runs}
        if old and old.what == case.what:
            runs = {(run.session, run.number): run for run in old.runs} | runs
        elif old:
            notes.append(
                f"{case.case}: {_plural(len(old.runs), 'older run')} left out: engine, options, "
                "data or run length changed"
            )
        ordered = tuple(runs[key] for key in sorted(runs))
        cases[case.case, case.profile] = dataclasses.replace(case, runs=ordered)
    return tuple(cases[key] for key in sorted(cases)), tuple(notes)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
