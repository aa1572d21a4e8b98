"""Outcomes a user reads, and the verdict on one case and kind."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pytest_mlperf.core.case import Case, Kind
from pytest_mlperf.core.gate import Gate
from pytest_mlperf.core.measurement import Accuracy, Run, Subject
from pytest_mlperf.core.ranges import Count, NotNegative, Number, Positive, Probability
from pytest_mlperf.core.reason import Reason
from pytest_mlperf.core.roofline.cost import PerDollar


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


_FAILING = frozenset(
    {
        Outcome.PERF_DROP,
        Outcome.PAIR_FAIL,
        Outcome.ACC_DROP,
        Outcome.POWER_DROP,
        Outcome.GATE_FAIL,
        Outcome.INVALID,
        Outcome.ERROR,
        Outcome.UNEXPECTED_PASS,
    }
)

SEVERITY = (
    Outcome.ERROR,
    Outcome.INVALID,
    Outcome.GATE_FAIL,
    Outcome.ACC_DROP,
    Outcome.PERF_DROP,
    Outcome.PAIR_FAIL,
    Outcome.POWER_DROP,
    Outcome.SUSPECT,
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


def worst(outcomes: list[Outcome]) -> Outcome:
    """Return the outcome that decides for several metrics of one case."""
    return min(outcomes, key=SEVERITY.index)


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
        changed: "engine 1.2.0 -> 1.2.1": differences from the baseline's fingerprint.
        notes: Sentences for the failure message, most important first.
        baseline_file: Path of the baseline file, or where it would be.
        baseline_set: "2026-11-20, 1a2b3c4, reason": where the baseline comes from.
        cost: What a dollar buys, where the suite says what a GPU costs.
        folder: Folder with the logs of the last run.
        timeline: Picture of the last run's power, clock and temperature.
        steady: After a drop: the machine's own speed was compared with the baseline's, and is the
            same; None: it was not compared.
        log: The log to read after an ERROR.
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
    notes: tuple[str, ...] = ()
    baseline_file: str | None = None
    baseline_set: str | None = None
    cost: PerDollar | None = None
    folder: str | None = None
    timeline: str | None = None
    steady: bool | None = None
    log: str | None = None

    @property
    def measured_again(self) -> tuple[Run, ...]:
        """The INVALID runs that another run stands for."""
        return self.invalid_runs[:-1] if self.reasons else self.invalid_runs
