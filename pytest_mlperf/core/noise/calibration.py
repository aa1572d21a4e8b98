"""Define the noise calibration of an accelerator: A/A runs, their noise, and run lengths."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from pytest_mlperf.core.baseline import Property, differences, require_positive
from pytest_mlperf.core.measurement import day_groups
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.noise import FLOOR_SD, Learnt, Noise, Series, moderated, spread
from pytest_mlperf.core.numbers import plural
from pytest_mlperf.judge.formulas import t_isf
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.judge.rule_r import RuleR, Value, minimum_detectable_change

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationRun:
    """Hold one A/A run: a fresh process of unchanged code.

    Attributes:
        number: Number of the run of the case in its session, from 1.
        session: Id of the session, whose runs share the state of the machine.
        metrics: Values of the gated metrics by name, SI units, positive.
        within_se: Relative standard error within the run by metric name, if known.
        start_s: Time outside the timed part: loading, warm-up, the micro-benchmark [s].
    """

    number: int
    session: str
    started: str
    metrics: dict[str, float]
    within_se: dict[str, float]
    duration_s: float
    start_s: float

    def __post_init__(self) -> None:
        require_positive("metric", self.metrics)
        require_positive("value", {**self.within_se, "start_s": self.start_s}, or_zero=True)
        if not 0 < self.duration_s < math.inf:
            raise ValueError(f"duration_s is {self.duration_s!r}; must be positive and finite")


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibratedCase:
    """Hold the A/A runs of one case.

    Attributes:
        digest: Digest of engine, options, data and run length, which all runs must share.
        limits: Gated metrics with their limits (shares) at the latest measurement.
        runs: At least one run, sorted by session and number.
    """

    case: str
    profile: str
    digest: str
    target_qps: float | None
    limits: dict[str, float]
    runs: tuple[CalibrationRun, ...]

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError("a case needs at least one run")

    @property
    def series(self) -> tuple[Series, ...]:
        """Series of values per gated metric that all runs have; metrics with `within_se` first."""
        names = [name for name in self.limits if all(name in run.metrics for run in self.runs)]
        names.sort(key=lambda name: name not in self.runs[0].within_se)
        return tuple(
            Series(case=f"{self.case} {self.profile}", metric=name, runs=self.values(name))
            for name in names
        )

    @property
    def groups(self) -> dict[str, str]:
        """For each session id, the id of the first session on the same day; see `day_groups`."""
        return day_groups((run.session, run.started, "") for run in self.runs)

    def values(self, metric: str) -> tuple[Value, ...]:
        """Return the values of one metric as input of rule R."""
        groups = self.groups
        return tuple(
            Value(
                value=run.metrics[metric],
                within_se=run.within_se.get(metric, 0.0),
                session=groups[run.session],
            )
            for run in self.runs
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class NoiseSettings:
    """Hold the noise that a calibration measured on an accelerator, and its amount of data.

    Attributes:
        prior_df, prior_sd: Degrees of freedom (ν0) and relative sd between runs (s0).
        prior_sd_low, prior_sd_high: 90 % interval of s0, likewise of φ; None for one session.
        session_share: Share of the variance that all runs of one session have in common (φ).
        max_runs: Recommended maximum runs of a case; --mlperf-max-runs sets the number in use.
        sessions: Number of days with runs.
        session_df: Degrees of freedom of φ: days of one case less one; None in older files.
    """

    date: str
    prior_df: float
    prior_sd: float
    prior_sd_low: float | None
    prior_sd_high: float | None
    session_share: float
    max_runs: int
    cases: int
    runs: int
    sessions: int
    session_df: int | None = None
    session_share_low: float | None = None
    session_share_high: float | None = None

    def __post_init__(self) -> None:
        _ = self.rule(self.max_runs)  # raises ValueError for settings that rule R does not accept

    @property
    def noise(self) -> Noise:
        """Noise prior for rule R."""
        return Noise(
            prior_df=self.prior_df,
            prior_sd=self.prior_sd,
            session_share=self.session_share,
            session_df=self.sessions - 1 if self.session_df is None else self.session_df,
        )

    def rule(self, max_runs: int) -> RuleR:
        """Return rule R with this noise as its prior."""
        return self.noise.rule(max_runs)

    @property
    def in_words(self) -> str:
        """Note for a verdict: date and amount of data of the calibration."""
        cases, days = plural(self.cases, "case"), plural(self.sessions, "day")
        runs = plural(self.runs, "run")
        return f"noise as calibrated {self.date}: {cases}, {runs} on {days}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibrated:
    """Hold A/A runs of one machine type and the noise `settings` estimated from them (or None)."""

    identity: dict[str, Property]
    settings: NoiseSettings | None
    cases: tuple[CalibratedCase, ...]

    @property
    def series(self) -> tuple[Series, ...]:
        """One series of runs for each gated metric of each calibrated case."""
        return tuple(series for case in self.cases for series in case.series)

    def rule(self, settings: NoiseSettings, max_runs: int) -> RuleR:
        """Return rule R with the settings' noise; limit session df to calibrated days less one."""
        noise, days = settings.noise, {day for case in self.cases for day in case.groups.values()}
        df = min(noise.session_df, len(days) - 1) if days else noise.session_df
        return dataclasses.replace(noise, session_df=df).rule(max_runs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Hold the calibration file of an accelerator such as "8xH100", with an entry per machine."""

    schema: int = SCHEMA_VERSION
    kind: Literal["calibration"] = "calibration"
    accelerator: str
    machines: tuple[Calibrated, ...]

    def of(self, identity: Mapping[str, Property]) -> Calibrated | None:
        """Return the calibration of exactly this hardware, or None."""
        same = (one for one in self.machines if not differences(one.identity, identity))
        return next(same, None)

    def having(self, machine: Calibrated) -> Calibration:
        """Return a copy with this machine added or, if present, replaced."""
        old = self.of(machine.identity)
        kept = tuple(other for other in self.machines if other is not old)
        return dataclasses.replace(self, machines=(*kept, machine))


def settings_of(learnt: Learnt, *, date: str, max_runs: int) -> NoiseSettings:
    """Convert a noise estimate to rounded settings of a calibration file."""
    noise = learnt.noise
    sd_low, sd_high = learnt.sd or (None, None)
    share_low, share_high = learnt.share or (None, None)
    return NoiseSettings(
        date=date,
        prior_df=round(noise.prior_df, 3),
        prior_sd=float(f"{noise.prior_sd:.4g}"),
        prior_sd_low=sd_low and float(f"{sd_low:.4g}"),
        prior_sd_high=sd_high and float(f"{sd_high:.4g}"),
        session_share=round(noise.session_share, 4),
        max_runs=max_runs,
        cases=learnt.cases,
        runs=learnt.runs,
        sessions=learnt.sessions,
        session_df=noise.session_df,
        session_share_low=share_low and round(share_low, 4),
        session_share_high=share_high and round(share_high, 4),
    )


def merged(
    older: Iterable[CalibratedCase], newer: Iterable[CalibratedCase]
) -> tuple[tuple[CalibratedCase, ...], tuple[str, ...]]:
    """Merge the runs of two calibrations; return the sorted cases, and notes on omitted runs.

    Runs with another engine, data set or run length than the newest run are omitted.
    """
    cases = {(case.case, case.profile): case for case in older}
    notes = []
    for case in newer:
        old = cases.get((case.case, case.profile))
        runs = {(run.session, run.number): run for run in case.runs}
        if old and old.digest == case.digest:
            runs = {(run.session, run.number): run for run in old.runs} | runs
        elif old:
            notes.append(
                f"{case.case}: {plural(len(old.runs), 'older run')} left out: engine, options, "
                "data or run length changed"
            )
        ordered = tuple(runs[key] for key in sorted(runs))
        cases[case.case, case.profile] = dataclasses.replace(case, runs=ordered)
    return tuple(cases[key] for key in sorted(cases)), tuple(notes)


MIN_RUN_SECONDS, MAX_RUN_SECONDS = 1.0, 600.0
"""Bounds of the recommended run length; the upper one is MLPerf's own."""

MIN_BASELINE_RUNS, MAX_BASELINE_RUNS, USUAL_BASELINE_RUNS = 3, 8, 5
"""Bounds of the recommended K: with 2 one disturbed run decides, above 8 little is gained."""

_DRIFT = 0.001
"""Probability of a false warning of drift, if the runs are independent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Drift:
    """Hold the relative change of all cases from a session's first round of runs to its last."""

    change: float
    proven: bool


def best_length(
    runs: Sequence[Value], noise: Noise, *, length_s: float, start_s: float
) -> float | None:
    """Return the run length that proves a change in the least total time [s].

    k runs of L seconds take k·(c0 + L) and have the variance (b² + a/L)/k, where a/L is the
    variance inside a run. The time is least at L* = √(a·c0)/b, limited to `MIN_RUN_SECONDS` and
    `MAX_RUN_SECONDS`. a is the runs' within_se² times their length, c0 the time outside the timed
    part, b² the moderated variance between runs. None if a is unknown.
    """
    varies = spread(runs)
    if varies is None or not varies.within:
        return None
    of_runs = (1 - noise.session_share) * moderated(varies, noise) - varies.within
    best = math.sqrt(varies.within * length_s * start_s / max(of_runs, FLOOR_SD**2))
    return min(max(best, MIN_RUN_SECONDS), MAX_RUN_SECONDS)


def runs_to_detect(gated: Sequence[tuple[Sequence[Value], float]], noise: Noise) -> int:
    """Return the fewest runs to prove a drop by each limit of `gated`: (values, limit) pairs."""
    last = noise.rule(MAX_BASELINE_RUNS)
    able = [one for one in gated if minimum_detectable_change(one[0], rule=last) <= one[1]]
    if not able:
        return USUAL_BASELINE_RUNS
    for runs in range(MIN_BASELINE_RUNS, MAX_BASELINE_RUNS):
        rule = noise.rule(runs)
        if all(minimum_detectable_change(sample, rule=rule) <= limit for sample, limit in able):
            return runs
    return MAX_BASELINE_RUNS


def drift(series: Sequence[Series], session: str) -> Drift | None:
    """Return the common drift of all cases during a session; None with too few runs.

    Least-squares line of log values over run order, one metric per case, weight 1 / variance.
    """
    weighted = slopes = squares = 0.0
    df = -1
    for entry in {each.case: each for each in reversed(series)}.values():
        sign = 1 if METRICS[entry.metric].direction is Direction.HIGHER else -1
        logs = [sign * math.log(run.value) for run in entry.runs if run.session == session]
        if len(logs) < 3:
            continue
        mean, last = fmean(logs), len(logs) - 1
        variance = max(math.fsum((x - mean) ** 2 for x in logs) / last, FLOOR_SD**2)
        places = [index / last - 0.5 for index in range(len(logs))]
        weighted += math.fsum(x * y for x, y in zip(places, logs, strict=True)) / variance
        slopes += math.fsum(x * x for x in places) / variance
        squares += math.fsum((y - mean) ** 2 for y in logs) / variance
        df += last
    if df < 2:
        return None
    slope = weighted / slopes
    left = max(squares - weighted * slope, 1e-12) / df
    proven = abs(slope) / math.sqrt(left / slopes) > t_isf(_DRIFT / 2, df)
    return Drift(change=math.expm1(slope), proven=proven)
