"""Apply the accuracy gate to scores of a whole data set or, by a test, to those of a part."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from types import MappingProxyType

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.measurement import Accuracy, Scored
from pytest_mlperf.core.notes import Note, Words
from pytest_mlperf.core.rulings.ruling import Ruling
from pytest_mlperf.core.verdict import Gate, GateState, MetricBaseline, MetricVerdict, Outcome
from pytest_mlperf.judge.rule_a import holm


@dataclass(frozen=True, kw_only=True, slots=True)
class GateWindow:
    """Hold a gate: reference, limits `low`, `high` of the mean, score range `least` to `most`."""

    reference: float
    low: float | None
    high: float | None
    least: float | None = 0.0
    most: float | None = 100.0

    def missed(self, score: float) -> float | None:
        """Return the bound that a score misses; None if it meets both; NaN misses every bound."""
        if self.low is not None and not score >= self.low:
            return self.low
        return self.high if self.high is not None and not score <= self.high else None


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Hold an accuracy pass: scores, its random `order` of samples, `total` samples in the set."""

    accuracy: Accuracy
    scored: Scored
    order: Sequence[int]
    total: int

    @property
    def whole(self) -> bool:
        """Whether every sample of the gate's data set was scored."""
        return self.accuracy.full and self.accuracy.samples >= self.total

    @property
    def chosen(self) -> bool:
        """Whether the user selected a part of the data set, not at random."""
        return self.accuracy.total < self.total


MAX_BET_SHARE = 0.75
"""Share of the capital that one sample may lose; the test is valid for any value below 1."""

ROUNDING = 1e-6
"""Rounding error of floating-point sums [points]."""

MAX_LOOKS = 5
"""Most interim analyses of a part, over which tests but `betting_p_value` split their error."""


def betting_p_value(excess: Sequence[float | None], most: float, total: int) -> float:
    """Return the p value, from a part, of the hypothesis that a data set's mean is at least 0.

    Before each sample a bettor bets that the sample is below the mean that the rest of the data set
    needs. Under the hypothesis no strategy has an expected gain. So a capital of 1/p is reached
    with a probability of at most p, over all interim analyses and for any distribution of scores.

    Args:
        excess: Distance of each sample above the bound, in random order; None counts as 0.
        most: Largest possible value of a sample, above 0.
        total: Number of samples in the data set.

    Source: I. Waudby-Smith, A. Ramdas, "Estimating means of bounded random variables by betting",
        Journal of the Royal Statistical Society B 86 (2024), sections 4 and 5.
    """
    capital = largest = 0.0  # logarithms
    seen = mean = 0.0
    spread, count = (most / 2) ** 2, 1
    for index, value in enumerate(0.0 if one is None else one for one in excess):
        needed = -seen / (total - index)
        room = most - needed
        if room < -ROUNDING:
            return 0.0  # even the best possible scores of the rest would not suffice
        gap = max(0.0, needed - mean)
        bet = min(gap / (spread + gap * gap), MAX_BET_SHARE / room) if room > ROUNDING else 0.0
        capital += math.log1p(bet * (needed - value))
        largest = max(largest, capital)
        seen += value
        count += 1
        old_mean, mean = mean, mean + (value - mean) / count
        spread += ((value - old_mean) * (value - mean) - spread) / count
    return math.exp(-largest)


def below_by_influence(values: Sequence[float], bound: float, width: float) -> float:
    """Return the p value of H0 "score >= `bound`", by the empirical Bernstein inequality.

    `values` are pseudo-values of the scored samples (`Scores.whole`); their mean is the score. They
    may spread further than `width`, the score's range: a normal interval would be too narrow. The p
    value is corrected for `MAX_LOOKS` interim analyses (Bonferroni).

    Source: A. Maurer, M. Pontil, "Empirical Bernstein bounds and sample variance penalization",
        COLT 2009, theorem 4.
    """
    n = len(values)
    if n < 2:
        return 1.0
    mean = fmean(values)
    gap = bound - mean
    if gap <= 0:
        return 1.0
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    # gap = sqrt(2 variance L / n) + 7 width L / (3 (n - 1)) with p = 2 exp(-L)
    widest = max(width, max(values) - min(values))
    b, a = math.sqrt(2 * variance / n), 7 * widest / (3 * (n - 1))
    root = (math.sqrt(b * b + 4 * a * gap) - b) / (2 * a)
    return min(1.0, MAX_LOOKS * 2 * math.exp(-root * root))


ALPHA = 0.01
"""Probability that a part fails although the whole passes, over all scores and analyses."""

ROUNDING_SLACK = 0.06
"""Largest rounding of a printed score: MLPerf rounds some to one digit [points]."""


HARDER_PART_SHARE = 0.1
"""Share of the reference by which a selected part may be harder than the whole: the first questions
of SQuAD are about one article, and the first hours of a day's clicks differ from the others."""


@dataclass(frozen=True, kw_only=True)
class _ScoreSeries:
    """Hold one score: its value per scored sample, and its estimate (`score`) for the data set.

    Attributes:
        per_sample: Factor from `score` to the mean of `values`: 1, or for sums 1 / data set size.
        influence: Whether `values` are jackknife pseudo-values, as `score` is not a sample mean.
    """

    values: Sequence[float | None]
    score: float
    per_sample: float
    influence: bool


def proven_misses(measured: Pass, bounds: Mapping[str, GateWindow]) -> dict[str, float]:
    """Return the estimated scores of the whole set that provably miss a bound, by metric.

    The scored part is a random draw, or the user selected it, see `HARDER_PART_SHARE`. Each bound
    is a hypothesis; Holm's procedure keeps `ALPHA` over all bounds and interim analyses.
    """
    p_values: dict[tuple[str, int], float] = {}
    scores: dict[tuple[str, int], float] = {}
    for name, window in bounds.items():
        series = _series(measured, name)
        slack = HARDER_PART_SHARE * window.reference if measured.chosen else 0.0
        for sign, bound in ((1, window.low), (-1, window.high)):
            if bound is None:
                continue
            p_values[name, sign] = 1.0
            if series is not None and window.missed(series.score) == bound:
                needed = bound - sign * slack
                p_values[name, sign] = _miss_p_value(series, window, sign, needed, measured.total)
                scores[name, sign] = series.score
    rejected = holm(p_values, ALPHA)
    return {name: score for (name, sign), score in scores.items() if (name, sign) in rejected}


def _series(measured: Pass, name: str) -> _ScoreSeries | None:
    accuracy, scored = measured.accuracy, measured.scored
    printed, values = accuracy.scores.get(name), scored.per_sample.get(name, ())
    there = [value for value in values if value is not None]
    # A distance between distributions, as FID, is larger for fewer samples.
    if printed is None or not there or name in {*accuracy.whole} & {*accuracy.lower}:
        return None
    mean, summed = fmean(there), sum(there)
    by_index = dict(zip(scored.indices, values, strict=True))
    ordered = [by_index[index] for index in measured.order if index in by_index]
    share = 1 / measured.total
    for aggregate, score, per_sample in ((mean, printed, 1.0), (summed, mean / share, share)):
        if abs(printed - aggregate) <= ROUNDING_SLACK + 1e-6 * abs(aggregate):
            return _ScoreSeries(
                values=ordered, score=score, per_sample=per_sample, influence=name in accuracy.whole
            )
    return None


def _miss_p_value(
    series: _ScoreSeries, window: GateWindow, sign: int, bound: float, total: int
) -> float:
    """Return the p value of the null hypothesis that the mean of all samples meets `bound`.

    With `sign` 1 the bound is a minimum, with -1 a maximum. The test is by betting, or for
    pseudo-values by Bernstein's inequality; `total` is the number of samples in the data set.
    """
    there = [value for value in series.values if value is not None]
    if series.influence:
        if window.least is None or window.most is None or sign < 0:
            return 1.0
        return below_by_influence(there, bound, window.most - window.least)
    best, needed = window.most if sign > 0 else window.least, bound * series.per_sample
    if best is None or max(sign * (value - best) for value in there) > 0:
        return 1.0
    excess = [None if value is None else sign * (value - needed) for value in series.values]
    return betting_p_value(excess, sign * (best - needed), total)


NEAR_GATE_DEVIATIONS = 2.0
OWN_REFERENCE = "this suite's own"


def gate(
    measured: Pass,
    bounds: Mapping[str, GateWindow] | None,
    *,
    whose: str,
    complete: bool,
    rerun_sd: Mapping[str, float] = MappingProxyType({}),
) -> Ruling:
    """Compare scores with their bounds; `bounds` is None without a reference score.

    Scores of a whole data set are compared directly. A part fails if a one-sided test proves
    that the whole set misses a bound; a part never passes. A missing score is an error if
    `complete`. `whose` names the reference, and `rerun_sd` (sd of re-runs) adds notes.
    """
    if bounds is None:
        return _undecided(measured, GateState.NONE)
    if not measured.whole:
        return _of_part(measured, bounds, whose)
    scores = measured.accuracy.scores
    missing = tuple(name for name in bounds if name not in scores)
    if missing and (complete or whose == OWN_REFERENCE):
        raise _incomplete(missing, scores, whose)
    there = {name: own for name, own in bounds.items() if name in scores}
    rows = [_metric(name, scores[name], own, whose) for name, own in there.items()]
    failed = [note for note, metric in rows if metric.outcome is Outcome.GATE_FAIL]
    state = GateState.FAILED if failed else GateState.UNDECIDED if missing else GateState.KEPT
    ruling = _undecided(measured, state, missing)
    kept = failed or ([] if missing else [note for note, _ in rows])
    return replace(
        ruling,
        outcome=Outcome.GATE_FAIL if failed else Outcome.OK,
        headline=kept[0] if kept else ruling.headline,
        metrics=tuple(metric for _, metric in rows) or ruling.metrics,
        notes=tuple(
            note
            for name, own in there.items()
            if (note := _near(name, scores[name], own, rerun_sd.get(name, 0.0)))
        ),
    )


def _undecided(measured: Pass, state: GateState, unscored: tuple[str, ...] = ()) -> Ruling:
    accuracy = measured.accuracy
    answer = Gate(
        state=state,
        samples=accuracy.samples,
        total=max(measured.total, accuracy.total, accuracy.samples),
        unscored=unscored,
    )
    scores = (Note.of("score", metric=name, score=score) for name, score in accuracy.scores.items())
    return Ruling(
        gate=answer,
        outcome=Outcome.OK,
        headline=Note.of("scores", scores=tuple(scores), gate=answer.note),
        metrics=tuple(
            MetricVerdict(metric=name, outcome=None, now=score)
            for name, score in accuracy.scores.items()
        ),
    )


def _incomplete(missing: Sequence[str], scores: Mapping[str, float], whose: str) -> RunError:
    names = ", ".join(missing)
    asks = f"{whose} gate needs {names}", "see the scorer's options"
    if whose == OWN_REFERENCE:
        asks = f"[workload] reference names {names}", "correct reference, or the scorer's options"
    text = f"{asks[0]}, but the scorer returned only {', '.join(scores)}; {asks[1]}"
    return RunError("scorer", text)


def _of_part(measured: Pass, bounds: Mapping[str, GateWindow], whose: str) -> Ruling:
    missed = proven_misses(measured, bounds)
    if not missed:
        return _undecided(measured, GateState.UNDECIDED)
    ruling = _undecided(measured, GateState.FAILED)
    rows = [_metric(name, score, bounds[name], whose) for name, score in missed.items()]
    assert ruling.gate is not None
    counts = {"samples": ruling.gate.samples, "total": ruling.gate.total}
    return replace(
        ruling,
        outcome=Outcome.GATE_FAIL,
        headline=Note.of("proven_miss", note=rows[0][0], **counts),
        metrics=tuple(metric for _, metric in rows),
    )


def _near(name: str, score: float, bounds: GateWindow, sd: float) -> Note | None:
    distances = {b: abs(score - b) for b in (bounds.low, bounds.high) if b is not None}
    bound = min(distances, key=distances.__getitem__)
    if not distances[bound] < NEAR_GATE_DEVIATIONS * sd:
        return None
    missed = bounds.missed(score) == bound
    values = {"distance": distances[bound], "missed": missed, "sd": sd}
    return Note.of("near_gate", metric=name, **values)


def _metric(name: str, score: float, window: GateWindow, whose: str) -> tuple[Note, MetricVerdict]:
    missed = window.missed(score)
    bound = missed if missed is not None else window.low if window.low is not None else window.high
    assert bound is not None
    share = bound / window.reference
    values = {"score": score, "bound": bound, "share": share, "whose": whose}
    upper = bound == window.high
    return (
        Note.of("gate_score", metric=name, missed=missed is not None, upper=upper, **values),
        MetricVerdict(
            metric=name,
            outcome=Outcome.OK if missed is None else Outcome.GATE_FAIL,
            now=score,
            baseline=MetricBaseline(value=window.reference),
            change=score / window.reference - 1,
            limit=1 - share,
        ),
    )


def combine(gated: Ruling, ruling: Ruling | None, missing_note: Words) -> Ruling:
    """Join the accuracy gate's ruling with that against the baseline, else with `missing_note`."""
    paired = ruling.paired if ruling else ()
    if gated.outcome is Outcome.GATE_FAIL:
        if ruling is None:
            return gated
        notes = (*gated.notes, ruling.quoted("against_baseline"))
        return replace(gated, paired=paired, notes=notes)
    if ruling is None:
        kept = gated.gate is not None and gated.gate.kept
        note = Note.of("only_gate", note=missing_note) if kept else missing_note
        outcome = Outcome.OK if kept else Outcome.NO_BASELINE
        return replace(gated, outcome=outcome, notes=(*gated.notes, note))
    return Ruling(
        outcome=ruling.outcome,
        headline=ruling.headline,
        metrics=tuple(metric for metric in gated.metrics if metric.outcome is not None),
        paired=paired,
        notes=(*gated.notes, *ruling.notes),
        gate=gated.gate,
    )
