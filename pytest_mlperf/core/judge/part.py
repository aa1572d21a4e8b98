"""Which scores of a whole data set a part of it proves to miss their gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from pytest_mlperf.core.judge.bounds import Bounds, Pass
from pytest_mlperf.core.judge.proof import below, below_by_influence
from pytest_mlperf.core.judge.rule_a import holm


class Side(StrEnum):
    """Which end of a window."""

    LOW = "low"
    HIGH = "high"


ALPHA = 0.01
"""How often a part may fail whose whole keeps its gate, over all scores and looks."""

PRINTED = 0.06
"""How far a printed score may be from what its samples give: MLPerf rounds some to one digit."""


UNLIKE = 0.1
"""Share of the reference by which a part that somebody chose may be harder than the whole.

The first questions of SQuAD are about one article, and the first hours of a day's clicks are not
the others: such a part only fails by what this cannot explain."""


@dataclass(frozen=True, kw_only=True)
class _Series:
    """One score of a part.

    Attributes:
        values: Of each sample, in the random order in which it was measured.
        score: What the whole data set is estimated to score.
        per_sample: What a bound of that score is for the mean of the samples, as a factor: below 1
            where the score is a sum, such as gen_len.
        influence: The values are pseudo-values of a score that is no mean over samples.
    """

    values: Sequence[float | None]
    score: float
    per_sample: float
    influence: bool


def proven_misses(measured: Pass, bounds: Mapping[str, Bounds]) -> dict[str, float]:
    """Return the estimated scores of the whole that are proven to miss a bound, by metric.

    Each bound is a hypothesis of its own; Holm's procedure keeps `ALPHA` over them. The looks of a
    sequential pass need no share of it: the test holds at all of them together.

    Args:
        measured: A part of the data set: drawn from it, or chosen; see `UNLIKE`.
        bounds: By metric.
    """
    p_values: dict[str, float] = {}
    scores: dict[str, tuple[str, float]] = {}
    for name, own in bounds.items():
        series = _series(measured, name)
        slack = UNLIKE * own.reference if measured.chosen else 0.0
        for side, bound in ((Side.LOW, own.low), (Side.HIGH, own.high)):
            if bound is None:
                continue
            key = f"{name} {side}"
            p_values[key] = 1.0
            if series is not None and own.missed(series.score) == bound:
                needed = bound - slack if side is Side.LOW else bound + slack
                p_values[key] = _p(series, own, side, needed, measured.total)
                scores[key] = name, series.score
    rejected = holm(p_values, ALPHA)
    return dict(score for key, score in scores.items() if key in rejected)


def _series(measured: Pass, name: str) -> _Series | None:
    """Return a score with its samples; None where they do not tell how it comes about."""
    accuracy, scored = measured.accuracy, measured.scored
    printed, values = accuracy.scores.get(name), scored.per_sample.get(name, ())
    there = [value for value in values if value is not None]
    # A distance of distributions, as FID, grows when it is estimated from fewer samples.
    if printed is None or not there or name in {*accuracy.whole} & {*accuracy.lower}:
        return None
    mean, summed = fmean(there), sum(there)
    by_index = dict(zip(scored.indices, values, strict=True))
    ordered = [by_index[index] for index in measured.order if index in by_index]
    share = 1 / measured.total
    for told, score, per_sample in ((mean, printed, 1.0), (summed, mean / share, share)):
        if abs(printed - told) <= PRINTED + 1e-6 * abs(told):
            return _Series(
                values=ordered,
                score=score,
                per_sample=per_sample,
                influence=name in accuracy.whole,
            )
    return None


def _p(series: _Series, own: Bounds, side: Side, bound: float, total: int) -> float:
    """Return the p that the whole misses a bound; 1 where the scale of the score is not known."""
    there = [value for value in series.values if value is not None]
    least, most, needed = own.least, own.most, bound * series.per_sample
    if series.influence:
        if least is None or most is None or side is Side.HIGH:
            return 1.0
        return below_by_influence(there, bound, most - least)
    if side is Side.LOW:
        if most is None or max(there) > most:
            return 1.0
        excess = [None if value is None else value - needed for value in series.values]
        return below(excess, most - needed, total)
    if least is None or min(there) < least:
        return 1.0
    return below([None if v is None else needed - v for v in series.values], needed - least, total)
