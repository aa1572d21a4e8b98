"""Outcomes a user reads, and the verdict on one case and kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from pytest_mlperf.core.case import Case, Kind
from pytest_mlperf.core.control import ControlComparison
from pytest_mlperf.core.guarantees import APPEND_OPTIONS, MISSING_OPTION, Promise
from pytest_mlperf.core.measurement import Accuracy, Run, Subject
from pytest_mlperf.core.numbers import (
    Count,
    NotNegative,
    Number,
    Positive,
    Probability,
    Slowdown,
    plural,
)
from pytest_mlperf.core.reason import Reason
from pytest_mlperf.core.roofline.gpu import PerDollar
from pytest_mlperf.judge.inputs import DAYS


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What one comparison found.

    Attributes:
        change: Logarithm of the ratio of the means, below 0 where the runs are the worse ones.
        se: Its standard error, as rule R expects it.
        df: Degrees of freedom of that.
        session: Of a session of the baseline beside its other sessions: its id.
    """

    change: Number
    se: NotNegative
    df: NotNegative
    session: str = ""


class Turns(StrEnum):
    """What runs in turns with the baseline's own build said, or why there are none."""

    PROVEN = "proven"
    EXCLUDED = "excluded"
    UNDECIDED = "undecided"
    NO_BUILD = "no build"
    UNCHANGED = "unchanged"
    NOT_COMPARABLE = "not comparable"
    NOT_MADE = "not made"


@dataclass(frozen=True, kw_only=True)
class InTurns:
    """How a drop was confirmed, or why it could not be.

    Attributes:
        state: PROVEN: it is there; EXCLUDED: none of the limit is; UNDECIDED: neither. Without runs
            NO_BUILD: the build of the baseline cannot be had; UNCHANGED: it is this very one, at
            the same commit; NOT_COMPARABLE: the runs may not be compared; NOT_MADE: the session
            ended before.
        metrics: Names of the metrics that seemed to have dropped.
        build: What ran beside this build, in words; "" where nothing did.
        pairs: Pairs of runs up to the decision.
        runs: Runs that were made for it, on both sides together.
        reason: Why nothing was decided, in words; "" where it was.
    """

    state: Turns
    metrics: tuple[str, ...] = ()
    build: str = ""
    pairs: Count = 0
    runs: Count = 0
    reason: str = ""


UNKNOWN = "no reference score is known"


class GateState(StrEnum):
    """What the gate says of a pass."""

    KEPT = "kept"
    FAILED = "failed"
    UNDECIDED = "not decided"
    NONE = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """What was said of the gate, and on what.

    Attributes:
        state: The answer. KEPT needs the whole data set and all scores; FAILED on a part is proven;
            NONE: nobody gave a reference score.
        samples: Samples scored.
        total: Samples that the gate is defined on; more than `samples` for a part of them.
        unscored: Scores of the gate that the scorer did not give.
    """

    state: GateState
    samples: Count
    total: Count
    unscored: tuple[str, ...] = ()

    @property
    def evaluated(self) -> bool:
        """There is an answer."""
        return self.state in {GateState.KEPT, GateState.FAILED}

    @property
    def answer(self) -> str:
        """What stands behind a label: "kept on 50,000 samples"."""
        if self.state is GateState.NONE:
            return f"none: {UNKNOWN}"
        on = f"on {self.samples:,} samples"
        if self.samples < self.total:
            on = f"on {self.samples:,} of {self.total:,} samples"
        lacks = f", without {', '.join(self.unscored)}" if self.unscored else ""
        return f"{self.state} {on}{lacks}"

    @property
    def in_words(self) -> str:
        """The answer for people: "gate kept on 50,000 samples"."""
        return f"no gate: {UNKNOWN}" if self.state is GateState.NONE else f"gate {self.answer}"


class Outcome(StrEnum):
    """The word a verdict ends in."""

    OK = "ok"
    IMPROVED = "improved"
    PERF_DROP = "PERF DROP"
    PAIR_FAIL = "PAIR FAIL"
    ACC_DROP = "ACC DROP"
    POWER_DROP = "POWER DROP"
    GATE_FAIL = "GATE FAIL"
    INVALID = "INVALID"
    ERROR = "ERROR"
    SUSPECT = "SUSPECT"
    PROVISIONAL = "PROVISIONAL"
    INCONCLUSIVE = "INCONCLUSIVE"
    NO_BASELINE = "NO BASELINE"
    NOT_EVALUATED = "not evaluated"
    RECORDED = "recorded"
    EXPECTED = "expected failure"
    UNEXPECTED_PASS = "UNEXPECTED PASS"  # noqa: S105 - no password

    @property
    def fails(self) -> bool:
        """Whether this outcome alone makes the test fail."""
        return self in _FAILING


SEVERITY = (
    Outcome.ERROR,
    Outcome.INVALID,
    Outcome.GATE_FAIL,
    Outcome.ACC_DROP,
    Outcome.PERF_DROP,
    Outcome.PAIR_FAIL,
    Outcome.POWER_DROP,
    Outcome.SUSPECT,
    Outcome.PROVISIONAL,
    Outcome.INCONCLUSIVE,
    Outcome.NO_BASELINE,
    Outcome.NOT_EVALUATED,
    Outcome.EXPECTED,
    Outcome.UNEXPECTED_PASS,
    Outcome.OK,
    Outcome.IMPROVED,
    Outcome.RECORDED,
)
"""From what decides a case first to what decides it last."""

_FAILING = {*SEVERITY[: SEVERITY.index(Outcome.SUSPECT)], Outcome.UNEXPECTED_PASS}


def worst(outcomes: list[Outcome]) -> Outcome:
    """Return the outcome that decides for several metrics of one case."""
    return min(outcomes, key=SEVERITY.index)


class Unchecked(StrEnum):
    """Why a verdict on speed or energy does not vouch for the answers' accuracy."""

    DUMMY = "dummy weights"
    SCORER_BROKE = "scorer broke"
    NOT_CHECKED = "not checked"

    @property
    def in_words(self) -> str:
        """What is said behind a headline."""
        return _UNCHECKED[self]


_UNCHECKED = {
    Unchecked.DUMMY: "accuracy not evaluated (dummy weights)",
    Unchecked.SCORER_BROKE: "accuracy not checked: the scorer broke",
    Unchecked.NOT_CHECKED: "accuracy not checked",
}


def beside_accuracy(headline: str, unchecked: Unchecked | None) -> str:
    """Return a headline on speed or energy, with what it does not vouch for."""
    return f"{headline}, {unchecked.in_words}" if unchecked else headline


@dataclass(frozen=True, kw_only=True)
class MetricVerdict:
    """What one metric says.

    Attributes:
        metric: Metric name.
        outcome: Its own outcome; None when it is only reported.
        baseline: Geometric mean of the baseline's runs, SI units; None without baseline.
        now: Geometric mean of the runs that were judged (accuracy: the score); None where the
            metric was not measured.
        change: Relative change; None without baseline.
        low, high: Interval of the change that the decision used; None without baseline.
        limit: The smallest change that matters, as a share; None when not gated. Of a gate's
            ceiling, below 0.
        detectable: The smallest change this baseline can prove, as a share.
        runs: Runs judged.
        runs_baseline: Runs of the baseline.
        note: A few words for the table, e.g. "advisory: 3 baseline runs".
        p: Chance that an unchanged metric looks this bad at any look of rule R; 1 after a pass,
            None where rule R did not judge.
        confirmed: Runs in turns with the baseline's own build proved the drop as well.
        leans: Of a PROVISIONAL metric: what it is if sessions differ by no more than is expected;
            of an INCONCLUSIVE one: a drop, if load took nothing.
        holds_to: Relative standard deviation of sessions up to which what was decided holds; None
            where nothing was decided.
        lacking: What the baseline lacks for a final word: "few sessions" or "old".
        stands: A drop is final, where it is one: what the baseline shows of sessions bears it.
        likely: A PROVISIONAL drop, where it is one, fails the test on the second day in a row.
        since: Day (UTC) of the first session in a row that saw this PROVISIONAL drop, where the
            drop fails the test; "": it does not.
        sessions_baseline: Days on which the baseline's sessions were made.
        strays: Runs that are worse than every run of the baseline, and by far.
        interrupted: The session ended before it was decided.
        looks: What rule R saw after each run, oldest first; empty where it did not judge.
        sessions: Each session of the baseline beside its other ones; empty where it has but one.
    """

    metric: str
    outcome: Outcome | None
    now: Number | None
    baseline: Number | None = None
    change: Number | None = None
    low: Number | None = None
    high: Number | None = None
    limit: Number | None = None
    detectable: NotNegative | None = None
    runs: Count = 1
    runs_baseline: Count = 0
    note: str = ""
    p: Probability | None = None
    confirmed: bool = False
    leans: Literal["ok", "drop"] | None = None
    holds_to: NotNegative | None = None
    lacking: Literal["few sessions", "old"] | None = None
    stands: bool = False
    likely: bool = False
    since: str = ""
    sessions_baseline: Count = 0
    strays: Count = 0
    interrupted: bool = False
    looks: tuple[Look, ...] = ()
    sessions: tuple[Look, ...] = ()

    @property
    def fails(self) -> bool:
        """Whether this metric alone makes the test fail.

        A provisional drop does on the second day in a row: one day in many is slow by chance.
        """
        repeated = self.seems_drop and bool(self.since)
        return repeated or (self.outcome is not None and self.outcome.fails)

    @property
    def seems_drop(self) -> bool:
        """Whether it is a PROVISIONAL drop."""
        return self.outcome is Outcome.PROVISIONAL and self.leans == "drop"

    @property
    def word(self) -> str:
        """What tables say of it: the outcome, and of a provisional one whether it is a drop."""
        return f"{self.outcome or 'reported'}{' drop' if self.leans == 'drop' else ''}"

    @property
    def lacking_sessions(self) -> Literal["few sessions", "old"] | None:
        """What the baseline lacks for this word; None also where runs in turns proved it."""
        return None if self.confirmed else self.lacking


@dataclass(frozen=True, kw_only=True)
class PairedVerdict:
    """What the paired comparison of one score says; differences are in the score's own points.

    Attributes:
        metric: Metric name.
        outcome: Its own outcome; None for a count of output, which is only compared.
        baseline: Mean of the baseline's scores of the samples that were judged.
        now: Mean of this build's.
        change: now - baseline.
        low, high: The bounds of the change that decided; None for counts, and where too few samples
            bound it.
        margin: Largest change for the worse that does not matter; None for counts.
        samples: Samples judged.
        changed: Samples whose score is another one.
        down, up: Samples that got worse, that got better.
        p: One-sided p of the plain paired test for a drop of any size; None for counts.
        lower: The score is better when lower.
        correlation: Of the scores of now and then, sample by sample; None where there is none.
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
    def bound(self) -> float | None:
        """The change that must be excluded: the margin with its sign."""
        return None if self.margin is None else self.margin if self.lower else -self.margin

    @property
    def worst(self) -> float | None:
        """The end of the interval that is worse."""
        return self.high if self.lower else self.low

    @property
    def best(self) -> float | None:
        """The end of the interval that is better."""
        return self.low if self.lower else self.high


@dataclass(frozen=True, kw_only=True)
class RatioVerdict:
    """What runs of two engine entries in turns say about the claim that one beats the other.

    Attributes:
        metric: Metric name.
        outcome: Its own outcome.
        a, b: Ids of the two cases.
        value_a, value_b: Geometric means of their runs, SI units.
        ratio: How many times better a is; above 1 it is better, whatever the metric's direction.
        low, high: Interval of the ratio that the decision used.
        least: The claim.
        pairs: Runs of each, made in turns.
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


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer for one test.

    Attributes:
        case: What was judged.
        kind: Which test asked.
        outcome: The word.
        headline: What follows the word on the first line, at most some 60 characters.
        metrics: One entry per metric, gated first.
        paired: One entry per score that was compared with the accuracy baseline, sample by sample.
        ratio: What was found about a claim, where a pair was judged.
        runs: Every performance run of the case so far, oldest first; of a pair a's first, b's
            first, a's second, and so on.
        invalid_runs: Runs that may not be judged, oldest first. Each was measured again, but for
            the last one where `reasons` says why there is no verdict on it.
        reasons: Why the last run may not be judged, where no further one was made.
        accuracy: The accuracy pass the verdict rests on.
        gate: What that pass says of its gate, and on how many samples; None: no pass, or an older
            release.
        subject: Machine, engine and data.
        changed: "engine 1.2.0 -> 1.2.1": differences from the baseline's fingerprint, and files
            that changed in git since its commit.
        unknown: "weights: not known, …": what cannot be compared with the baseline's.
        notes: Sentences for the failure message, most important first.
        baseline_file: Path of the baseline file, or where it would be.
        baseline_set: "2026-11-20, 1a2b3c4, reason": where the baseline comes from.
        baseline_id: Tells the accepted runs of one baseline from those of another; "": none.
        cost: What a dollar buys, where the suite says what a GPU costs.
        folder: Folder with the logs of the last run.
        steady: After a change: nothing of the machine's own speed was further from the baseline's
            than chance explains; None: it was not compared.
        machine: What was compared then, by the fixed micro-benchmark.
        log: The log to read after an ERROR.
        promise: What rule R promises against that baseline; None: it judged nothing, or an older
            release did.
        turns: How a drop was measured again beside the build of its baseline, or why not; None: no
            drop was to be confirmed.
        unchecked: Why it does not vouch for accuracy; None: it does, or is on accuracy itself.
        handicap: Share of speed that was taken away from its runs.
        log_tail: The last lines of that log, where what broke is told there alone.
    """

    case: Case
    kind: Kind
    outcome: Outcome
    headline: str
    metrics: tuple[MetricVerdict, ...] = ()
    paired: tuple[PairedVerdict, ...] = ()
    ratio: RatioVerdict | None = None
    runs: tuple[Run, ...] = ()
    invalid_runs: tuple[Run, ...] = ()
    reasons: tuple[Reason, ...] = ()
    accuracy: Accuracy | None = None
    gate: Gate | None = None
    subject: Subject | None = None
    changed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    baseline_file: str | None = None
    baseline_set: str | None = None
    baseline_id: str = ""
    cost: PerDollar | None = None
    folder: str | None = None
    steady: bool | None = None
    machine: tuple[ControlComparison, ...] = ()
    log: str | None = None
    promise: Promise | None = None
    turns: InTurns | None = None
    unchecked: Unchecked | None = None
    handicap: Slowdown = 0.0
    log_tail: tuple[str, ...] = ()

    @property
    def fails(self) -> bool:
        """Whether it makes its test fail, whatever is asked."""
        provisional = self.outcome is Outcome.PROVISIONAL
        return self.outcome.fails or (provisional and any(m.fails for m in self.metrics))

    @property
    def warns(self) -> bool:
        """Whether it is PROVISIONAL, and seems a drop from a baseline that has its days."""
        return self.outcome is Outcome.PROVISIONAL and any(
            m.seems_drop and m.sessions_baseline >= DAYS for m in self.metrics
        )

    @property
    def measured_again(self) -> tuple[Run, ...]:
        """The INVALID runs that another run stands for."""
        return self.invalid_runs[:-1] if self.reasons else self.invalid_runs


CALIBRATE = "pytest-mlperf calibrate"

_BUILD = (
    "name the baseline's build in the suite (baseline_engine): a drop is then measured again "
    "beside it, in turns"
)


def deciding_of(metrics: Sequence[MetricVerdict], outcome: Outcome | None) -> MetricVerdict | None:
    """Return the metric that an outcome is about; of provisional ones a drop says more."""
    of_it = [metric for metric in metrics if metric.outcome is outcome]
    return next((m for m in of_it if m.leans == "drop"), of_it[0] if of_it else None)


def final_word(verdict: Verdict) -> str | None:
    """Return what a PROVISIONAL verdict lacks, and what would settle it; None of any other."""
    metric = deciding_of(verdict.metrics, Outcome.PROVISIONAL)
    if verdict.outcome is not Outcome.PROVISIONAL or metric is None:
        return None
    until = verdict.promise.final_until if verdict.promise else None
    return f"{_lacks(metric, until)}: {_cure(metric)}"


def _lacks(metric: MetricVerdict, until: str | None) -> str:
    has = metric.sessions_baseline
    if metric.lacking == "old":
        return f"the baseline was final until {until}" if until else "the baseline is of one day"
    if metric.lacking is None:
        return "the baseline's sessions differ by too much"
    if has < DAYS:
        return f"the baseline has {has} of {DAYS} days"
    return f"{plural(has, 'day')} of the baseline show too little of what sessions differ by"


def _cure(metric: MetricVerdict) -> str:
    """Return what to do; the baseline's build proves a drop, and no ok."""
    if metric.lacking != "few sessions":
        steps = f"append a session of its build on another day ({APPEND_OPTIONS})"
    elif metric.sessions_baseline < DAYS:
        steps = f"run its build with {MISSING_OPTION} on other days, and it grows"
    else:
        steps = f"calibrate on other days ({CALIBRATE})"
    return f"{steps}, or {_BUILD}" if metric.leans == "drop" else steps
