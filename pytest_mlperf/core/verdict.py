"""Define the outcomes that a user reads, and the verdict on one test of a case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from pytest_mlperf.core.case import Case, Kind
from pytest_mlperf.core.control import ControlComparison, steady
from pytest_mlperf.core.guarantees import Guarantee
from pytest_mlperf.core.measurement import Accuracy, Run, Subject
from pytest_mlperf.core.notes import Note, Words
from pytest_mlperf.core.numbers import (
    Count,
    NotNegative,
    Number,
    Positive,
    Probability,
    Slowdown,
)
from pytest_mlperf.core.reason import Reason
from pytest_mlperf.core.roofline.gpu import PerDollar
from pytest_mlperf.judge.inputs import DAYS


@dataclass(frozen=True, kw_only=True, slots=True)
class InterimAnalysis:
    """Hold the change from the baseline at one interim analysis, and its standard error.

    Attributes:
        change: Logarithm of the ratio of the means, below 0 if the runs are worse.
        se: Standard error of `change`, by rule R (the test of speed).
        df: Degrees of freedom of the standard error.
        session: Id of the baseline session that was compared with the others; "" for current runs.
    """

    change: Number
    se: NotNegative
    df: NotNegative
    session: str = ""


class Confirmation(StrEnum):
    """Name the result of runs interleaved with the baseline's build, or why there are none."""

    PROVEN = "proven"
    EXCLUDED = "excluded"
    UNDECIDED = "undecided"
    NO_BUILD = "no build"
    UNCHANGED = "unchanged"
    NOT_COMPARABLE = "not comparable"
    NOT_MADE = "not made"


@dataclass(frozen=True, kw_only=True)
class InterleavedRuns:
    """Describe a comparison with another build by interleaved runs, or why there is none.

    It confirms a drop, or with `--mlperf-against` replaces the stored baseline.

    Attributes:
        state: PROVEN: the drop exists; EXCLUDED: no drop of the limit; UNDECIDED: neither. Without
            runs NO_BUILD: the baseline's build is not available; UNCHANGED: it is this build, at
            the same commit; NOT_COMPARABLE: the runs may not be compared; NOT_MADE: the session
            ended before.
        metrics: Names of the metrics with a possible drop, or of those compared.
        build: Description of the other build; "" without runs.
        pairs: Number of pairs of runs up to the decision.
        runs: Number of runs that `Verdict.runs` lacks; for a confirmation, runs of both builds.
        reason: Why nothing is decided; "" after a decision.
        other_runs: Runs of the other build with `--mlperf-against`, oldest first; the n-th is
            paired with the verdict's n-th run.
        other_subject: Machine, engine and data of these runs.
        other_accuracy: Accuracy pass of the other build.
    """

    state: Confirmation
    metrics: tuple[str, ...] = ()
    build: str = ""
    pairs: Count = 0
    runs: Count = 0
    reason: Words = ""
    other_runs: tuple[Run, ...] = ()
    other_subject: Subject | None = None
    other_accuracy: Accuracy | None = None


class GateState(StrEnum):
    """Enumerate results of the accuracy gate: met, missed, undecided, or no reference score."""

    KEPT = "kept"
    FAILED = "failed"
    UNDECIDED = "not decided"
    NONE = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """Hold the result of the accuracy gate and its samples.

    Attributes:
        state: KEPT (all samples and metrics scored, gate met), FAILED (missed; on a part of the
            samples, proven by a test), UNDECIDED, or NONE (no reference score).
        samples: Number of scored samples.
        total: Number of samples in the gate's data set; above `samples` if only a part was scored.
        unscored: Metrics of the gate that the scorer did not compute.
    """

    state: GateState
    samples: Count
    total: Count
    unscored: tuple[str, ...] = ()

    @property
    def evaluated(self) -> bool:
        """Whether the gate was decided: its state is KEPT or FAILED."""
        return self.state in {GateState.KEPT, GateState.FAILED}

    @property
    def kept(self) -> bool:
        """Whether the gate was evaluated and no score missed it."""
        return self.state is GateState.KEPT

    @property
    def note(self) -> Note:
        """Result of the gate as a note."""
        counts = {"samples": self.samples, "total": self.total, "unscored": self.unscored}
        return Note.of("gate", state=str(self.state), **counts)


class Outcome(StrEnum):
    """Enumerate the outcomes of verdicts, most severe first; the most severe decides a case."""

    ERROR = "ERROR"
    INVALID = "INVALID"
    GATE_FAIL = "GATE FAIL"
    ACC_DROP = "ACC DROP"
    PERF_DROP = "PERF DROP"
    PAIR_FAIL = "PAIR FAIL"
    POWER_DROP = "POWER DROP"
    SUSPECT = "SUSPECT"
    PROVISIONAL = "PROVISIONAL"
    INCONCLUSIVE = "INCONCLUSIVE"
    NO_BASELINE = "NO BASELINE"
    NOT_EVALUATED = "not evaluated"
    EXPECTED = "expected failure"
    UNEXPECTED_PASS = "UNEXPECTED PASS"  # noqa: S105 - no password
    OK = "ok"
    IMPROVED = "improved"
    RECORDED = "recorded"

    @property
    def fails(self) -> bool:
        """Whether this outcome alone fails the test."""
        return self in _FAILING


SEVERITY = tuple(Outcome)
"""Outcomes in the order in which they decide a case."""

_FAILING = {*SEVERITY[: SEVERITY.index(Outcome.SUSPECT)], Outcome.UNEXPECTED_PASS}


def worst(outcomes: list[Outcome]) -> Outcome:
    """Return the worst of several outcomes, which becomes the outcome of the case."""
    return min(outcomes, key=SEVERITY.index)


class Unchecked(StrEnum):
    """Enumerate the reasons why accuracy was not checked for a verdict on speed or energy."""

    DUMMY = "dummy weights"
    SCORER_BROKE = "scorer broke"
    NOT_CHECKED = "not checked"

    @property
    def note(self) -> Note:
        """Note for a verdict's headline that accuracy was not checked, for this reason."""
        return Note.of("unchecked", state=str(self))


def with_unchecked_note(headline: Words, unchecked: Unchecked | None) -> Words:
    """Return a headline on speed or energy, with a note if accuracy was not checked."""
    note = unchecked and unchecked.note
    return Note.of("with_unchecked", headline=headline, note=note) if note else headline


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricBaseline:
    """Hold the baseline of one metric.

    Attributes:
        value: Geometric mean of the baseline's runs, SI units; None without baseline.
        runs: Number of the baseline's runs.
        days: Number of days with sessions.
        detectable: Smallest change that these runs can prove, as a share; None if not judged.
        lacks: Why a verdict is not final: "few sessions" or "old"; None if it is final.
        sessions: Comparison of each session with the other sessions; empty if there is only one.
    """

    value: Number | None = None
    runs: Count = 0
    days: Count = 0
    detectable: NotNegative | None = None
    lacks: Literal["few sessions", "old"] | None = None
    sessions: tuple[InterimAnalysis, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MetricVerdict:
    """Hold the verdict on one metric.

    Attributes:
        metric: Metric name.
        outcome: Outcome of the metric; None if the metric is only reported.
        now: Geometric mean of the judged runs (accuracy: the score); None if it was not measured.
        baseline: The same metric of the baseline.
        change: Relative change; None without baseline.
        low, high: Confidence interval behind the outcome; None without baseline.
        limit: The smallest change that matters, as a share; None if not gated. Below 0 for an upper
            bound of the gate.
        runs: Number of judged runs.
        note: Note for the table; None without one.
        p: Probability that an unchanged metric looks this bad at any interim analysis of rule R; 1
            after a pass, None if rule R did not judge.
        confirmed: Whether runs interleaved with the baseline's own build proved the drop as well.
        direction: For a PROVISIONAL metric, the outcome at the expected between-session variance;
            for an INCONCLUSIVE one, "drop" if only the machine's load prevents a drop.
        robust_to: Relative standard deviation of sessions up to which the decision is robust; None
            without decision.
        robust: Whether a drop would be final: the baseline's sessions are close enough together.
        likely: Whether a PROVISIONAL drop would fail the test on the second day in a row.
        since: Day (UTC) of the first session in a row with this PROVISIONAL drop, if the drop fails
            the test; else "".
        outliers: Number of runs much worse than every run of the baseline.
        interrupted: Whether the session ended before a decision.
        analyses: Interim analysis of rule R after each run, oldest first; empty if rule R did not
            judge.
    """

    metric: str
    outcome: Outcome | None
    now: Number | None
    baseline: MetricBaseline = MetricBaseline()
    change: Number | None = None
    low: Number | None = None
    high: Number | None = None
    limit: Number | None = None
    runs: Count = 1
    note: Words | None = None
    p: Probability | None = None
    confirmed: bool = False
    direction: Literal["ok", "drop"] | None = None
    robust_to: NotNegative | None = None
    robust: bool = False
    likely: bool = False
    since: str = ""
    outliers: Count = 0
    interrupted: bool = False
    analyses: tuple[InterimAnalysis, ...] = ()

    @property
    def fails(self) -> bool:
        """Whether this metric fails the test; also as a second PROVISIONAL drop in a row."""
        repeated = self.seems_drop and bool(self.since)
        return repeated or (self.outcome is not None and self.outcome.fails)

    @property
    def seems_drop(self) -> bool:
        """Whether this metric is a PROVISIONAL drop."""
        return self.outcome is Outcome.PROVISIONAL and self.direction == "drop"

    @property
    def word(self) -> str:
        """The outcome in tables, such as "PROVISIONAL drop"; "reported" for a metric not gated."""
        return f"{self.outcome or 'reported'}{' drop' if self.direction == 'drop' else ''}"

    @property
    def lacking_sessions(self) -> Literal["few sessions", "old"] | None:
        """Why the outcome is provisional (few or only old sessions); None if it is final."""
        return None if self.confirmed else self.baseline.lacks


@dataclass(frozen=True, kw_only=True)
class PairedVerdict:
    """Hold the paired comparison of one score with the baseline, in the unit of the score.

    Attributes:
        metric: Metric name.
        outcome: Outcome of the score; None for a count of output, which is not judged.
        baseline: Mean of the baseline's scores over the judged samples.
        now: Mean of this build's scores.
        change: now - baseline.
        low, high: Confidence bounds of the change; None for counts, and with too few samples.
        margin: Largest tolerated change for the worse; None for counts.
        samples: Number of judged samples.
        changed: Number of samples whose score changed.
        down, up: Number of samples that got worse, and that got better.
        p: One-sided p value of the paired test for a drop of any size; None for counts.
        lower: Whether the score is better when lower.
        correlation: Correlation of the scores of both passes per sample; None if undefined.
    """

    metric: str
    outcome: Outcome | None
    baseline: Number
    now: Number
    change: Number
    low: Number | None
    high: Number | None
    margin: NotNegative | None
    samples: Count
    changed: Count
    down: Count
    up: Count
    p: Probability | None
    lower: bool = False
    correlation: Number | None = None

    @property
    def as_metric(self) -> MetricVerdict:
        """The score as a `MetricVerdict` with a relative change and without interval."""
        return MetricVerdict(
            metric=self.metric,
            outcome=self.outcome,
            now=self.now,
            baseline=MetricBaseline(value=self.baseline),
            change=self.change / self.baseline if self.baseline else None,
        )

    @property
    def bound(self) -> float | None:
        """Largest tolerated change: +margin if lower is better, else -margin; None if unjudged."""
        return None if self.margin is None else self.margin if self.lower else -self.margin

    @property
    def worst(self) -> float | None:
        """Confidence bound of `change` on the worse side; None for counts and too few samples."""
        return self.high if self.lower else self.low

    @property
    def best(self) -> float | None:
        """Better end of the confidence interval; None without one."""
        return self.low if self.lower else self.high


@dataclass(frozen=True, kw_only=True)
class RatioVerdict:
    """Hold the result of interleaved runs that test whether one engine entry beats another.

    Attributes:
        metric: Metric name.
        outcome: Outcome of the claim.
        a, b: Ids of the two cases.
        value_a, value_b: Geometric means of their runs, SI units.
        ratio: Ratio of a to b; above 1 if a is better, whatever the metric's direction.
        low, high: Confidence interval of the ratio.
        least: Smallest ratio that the suite claims.
        pairs: Number of interleaved runs of each case.
    """

    metric: str
    outcome: Outcome
    a: str
    b: str
    value_a: Positive
    value_b: Positive
    ratio: Positive
    low: NotNegative
    high: NotNegative
    least: Positive
    pairs: Count


@dataclass(frozen=True, kw_only=True, slots=True)
class BaselineReference:
    """Describe the baseline of a verdict, and the tested build's differences from it.

    Attributes:
        file: Path of the baseline file, or where it would be.
        source: "2026-11-20, 1a2b3c4, reason": when, at which commit and why it was accepted.
        id: Id of the accepted runs; "" without a baseline.
        changed: "engine 1.2.0 -> 1.2.1": differences from the baseline's fingerprint, and files
            that changed in git since its commit.
        unknown: "weights: not known, …": facts that cannot be compared with the baseline's.
        guarantee: Error guarantee of rule R; None if rule R judged nothing.
    """

    file: str | None = None
    source: str | None = None
    id: str = ""
    changed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    guarantee: Guarantee | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Logs:
    """Hold the paths of a test's logs.

    Attributes:
        folder: Folder with the logs of the last run.
        file: The log to read after an ERROR.
        tail: The last lines of that file, if the headline does not name the cause.
    """

    folder: str | None = None
    file: str | None = None
    tail: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Hold the verdict on one test.

    Attributes:
        case: The judged case.
        kind: Kind of the test: accuracy, performance, efficiency, pair, compliance test.
        outcome: Outcome of the test.
        headline: Text after the outcome on the first line, at most about 60 characters.
        metrics: One entry per metric, gated first.
        paired: One entry per score that was compared with the accuracy baseline, sample by sample.
        ratio: Result of a claim about a pair of cases.
        runs: Every performance run of the case so far, oldest first; for a pair alternately of a
            and b.
        invalid_runs: Runs that may not be judged, oldest first. Each was repeated, except the last
            one if `reasons` is not empty.
        reasons: Why the last run may not be judged, if it was not repeated.
        accuracy: The accuracy pass behind the verdict.
        gate: Result of that pass's gate, and its number of samples; None without a pass, and in
            older results.
        subject: Machine, engine and data.
        notes: For the failure message, most important first.
        baseline: The baseline, and the differences from it.
        cost: Samples or tokens per dollar, if the suite states a GPU price.
        logs: Paths of the logs.
        machine: Comparison of the micro-benchmark with the baseline's, if metrics changed.
        interleaved: Confirmation of a drop by runs interleaved with the baseline's build; None
            without a drop to confirm.
        unchecked: Why accuracy was not checked; None if it was, and for verdicts on accuracy.
        handicap: Share of speed that --mlperf-handicap took from the runs.
    """

    case: Case
    kind: Kind
    outcome: Outcome
    headline: Words
    metrics: tuple[MetricVerdict, ...] = ()
    paired: tuple[PairedVerdict, ...] = ()
    ratio: RatioVerdict | None = None
    runs: tuple[Run, ...] = ()
    invalid_runs: tuple[Run, ...] = ()
    reasons: tuple[Reason, ...] = ()
    accuracy: Accuracy | None = None
    gate: Gate | None = None
    subject: Subject | None = None
    notes: tuple[Words, ...] = ()
    baseline: BaselineReference = BaselineReference()
    cost: PerDollar | None = None
    logs: Logs = Logs()
    machine: tuple[ControlComparison, ...] = ()
    interleaved: InterleavedRuns | None = None
    unchecked: Unchecked | None = None
    handicap: Slowdown = 0.0

    @property
    def other_runs(self) -> tuple[Run, ...]:
        """Runs of `--mlperf-against`'s build, the n-th paired with the n-th of `runs`; else ()."""
        return self.interleaved.other_runs if self.interleaved else ()

    @property
    def replaces_baseline(self) -> bool:
        """Whether only interleaved runs decide the verdict, without a stored baseline."""
        return bool(self.other_runs or (self.interleaved and self.interleaved.other_accuracy))

    @property
    def steady(self) -> bool | None:
        """Whether the micro-benchmark shows the machine's speed unchanged; None if not compared."""
        return steady(self.machine)

    @property
    def fails(self) -> bool:
        """Whether the verdict fails its test even without --mlperf-fail-on, which adds outcomes."""
        provisional = self.outcome is Outcome.PROVISIONAL
        return self.outcome.fails or (provisional and any(m.fails for m in self.metrics))

    @property
    def warns(self) -> bool:
        """Whether a drop is PROVISIONAL although the baseline has the days that rule R asks for."""
        return self.outcome is Outcome.PROVISIONAL and any(
            m.seems_drop and m.baseline.days >= DAYS for m in self.metrics
        )

    @property
    def measured_again(self) -> tuple[Run, ...]:
        """The INVALID runs that were repeated."""
        return self.invalid_runs[:-1] if self.reasons else self.invalid_runs


def deciding_metric(
    metrics: Sequence[MetricVerdict], outcome: Outcome | None
) -> MetricVerdict | None:
    """Return the first metric with this outcome, a provisional drop preferred; else None."""
    of_it = [metric for metric in metrics if metric.outcome is outcome]
    return next((m for m in of_it if m.direction == "drop"), of_it[0] if of_it else None)
