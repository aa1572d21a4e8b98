"""Rule A where few samples break, where answers are right or wrong, where samples share an effect.

The passes of `accuracies` have 5 % of other answers besides, which hides what is rare. Here a build
breaks few outputs, and the others answer as before, or nearly: the mean falls by the margin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from decisions_lib.accuracies import MEAN, Differences, decide, drawn, scores
from decisions_lib.noise import Floats
from decisions_lib.performance import SEED
from decisions_lib.rule import FAIL, PASS
from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.mean_change import usual_loss
from pytest_mlperf.judge.rule_a import Paired, ScorePairs, analysis_sizes, judge_pairs

PASSES, LISTED = 3000, 300
"""Passes of a row: by arrays, and where each sample is judged by the shipped rule itself."""

Draw = Callable[[np.random.Generator, int], Floats]


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is said of one way to break, as shares of passes.

    Attributes:
        what: In words.
        samples: Of the data set.
        margin: Points.
        passed: A drop of the margin passes; at most 5 % may.
        failed: Nothing dropped, and it fails; at most 1 % may.
        used: Share of the samples that were measured where nothing dropped.
        passes: How many passes of each.
    """

    what: str
    samples: int
    margin: float
    passed: float
    failed: float
    used: float
    passes: int


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a build breaks outputs.

    Attributes:
        what: In words.
        samples: Of the data set.
        margin: Points.
        before: Draws the baseline's scores.
        lost: Draws what broken samples lose.
        changed: Draws by how much other samples changed.
        others: Share of other samples that changed.
        gain: What those gain on average, points.
    """

    what: str
    samples: int
    margin: float
    before: Draw
    lost: Draw
    changed: Draw
    others: float
    gain: float = 0.0

    def differences(self, rng: np.random.Generator, passes: int, *, drop: float) -> Differences:
        """Return passes whose mean falls by so much."""
        many = np.random.default_rng(0)
        loss, possible = self.lost(many, 50_000).mean(), self.before(many, 50_000)
        broken = (drop + self.others * self.gain) / loss
        return drawn(
            rng,
            passes,
            analysis_sizes(self.samples, sequential=True),
            lambda count: -self.lost(rng, count),
            lambda count: self.changed(rng, count),
            (broken, self.others),
            unseen=usual_loss(dict.fromkeys(possible.tolist(), 1)),
        )


def redrawn(draw: Draw) -> Draw:
    """Return changes of answers that are others of the same quality."""
    return lambda rng, count: draw(rng, count) - draw(rng, count)


def answers(rng: np.random.Generator, count: int) -> Floats:
    """Return F1 scores of extracted answers: most right, some in part, few wrong; mean 90."""
    kind = rng.random(count)
    found: Floats = np.where(
        kind < 0.85, 100.0, np.where(kind < 0.95, rng.uniform(0, 100, count), 0.0)
    )
    return found


def lost_answers(rng: np.random.Generator, count: int) -> Floats:
    """Return what broken answers lose: those that had something to lose."""
    found: Floats = np.where(rng.random(count) < 0.9, 100.0, rng.uniform(0, 100, count))
    return found


def sixty(rng: np.random.Generator, count: int) -> Floats:  # noqa: ARG001 - draws like the others
    """Return losses of 60 points each."""
    return np.full(count, 60.0)


def one(rng: np.random.Generator, count: int) -> Floats:  # noqa: ARG001 - draws like the others
    """Return gains of a point each."""
    return np.ones(count)


def ways() -> Iterator[Way]:
    """Return every way to break outputs that is simulated by arrays."""
    for margin in (0.005 * MEAN, 0.1):
        for others in (0.0, 0.002, 0.01, 0.02, 0.05):
            yield Way(
                what=f"few broken, {100 * others:g} % of other answers changed",
                samples=24_576,
                margin=margin,
                before=scores,
                lost=scores,
                changed=redrawn(scores),
                others=others,
            )
    for others in (0.0, 0.002, 0.02):
        yield Way(
            what=f"answers like F1, {100 * others:g} % of others changed",
            samples=10_833,
            margin=0.45,
            before=answers,
            lost=lost_answers,
            changed=redrawn(answers),
            others=others,
        )
    yield Way(
        what="few lose 60 points, 12 % gain one",
        samples=5_000,
        margin=0.222,
        before=scores,
        lost=sixty,
        changed=one,
        others=0.12,
        gain=1.0,
    )


def rows(passes: int = PASSES, listed: int = LISTED) -> list[Row]:
    """Return a row for each way to break, for right-or-wrong answers and for shared effects."""
    found = [_of_way(way, passes, stream) for stream, way in enumerate(ways())]
    for margin in (0.38, 0.1):
        found.append(_of_flips(margin, listed))
    for samples, size, sd in ((1000, 5, 2.0), (1000, 220, 2.0), (10_833, 220, 0.5)):
        found.append(_of_groups(samples, size, sd, listed))
    return found


def _of_way(way: Way, passes: int, stream: int) -> Row:
    rng = np.random.default_rng([SEED, 60, stream])
    fell = decide(way.differences(rng, passes, drop=way.margin), way.margin)
    same_differences = way.differences(rng, passes, drop=0.0)
    same, at = decide(same_differences, way.margin), np.array(same_differences.at)
    return Row(
        what=way.what,
        samples=way.samples,
        margin=way.margin,
        passed=fell.share(PASS),
        failed=same.share(FAIL),
        used=float((at[same.runs - 1] / way.samples).mean()),
        passes=passes,
    )


def _of_flips(margin: float, passes: int, samples: int = 50_000) -> Row:
    """Judge lost answers of a classifier that otherwise answers as before; early looks decide."""
    rng, seen = np.random.default_rng([SEED, 61, int(1000 * margin)]), 8192

    def judged(share: float) -> Paired:
        right = rng.random(seen) < 0.76
        kept = right & (rng.random(seen) >= share / 0.76)
        before: Floats = np.where(right, 100.0, 0.0)
        now: Floats = np.where(kept, 100.0, 0.0)
        return _judged(before, now, margin, samples)

    fell = [judged(margin / 100) for _ in range(passes)]
    same = [judged(0.0) for _ in range(passes)]
    return _row("right or wrong, no other answer changed", samples, margin, fell, same)


def _of_groups(samples: int, size: int, sd: float, passes: int, margin: float = 0.5) -> Row:
    """Judge a build that moves all samples of a group alike, 0 on average over groups."""
    rng = np.random.default_rng([SEED, 62, samples, size])

    def judged(drop: float) -> Paired:
        group = rng.permutation(np.arange(samples) // size)
        shared = rng.normal(0, sd, group.max() + 1)[group]
        before = scores(rng, samples)
        now = before + shared + rng.normal(0, 5, samples) - drop
        return _judged(before, now, margin, samples, group.tolist())

    fell = [judged(margin) for _ in range(passes)]
    same = [judged(0.0) for _ in range(passes)]
    what = f"groups of {size} share an effect of {sd:g} points"
    return _row(what, samples, margin, fell, same)


def _judged(
    before: Floats, now: Floats, margin: float, total: int, groups: list[int] | None = None
) -> Paired:
    pairs = ScorePairs(before=before.tolist(), now=now.tolist(), margin=margin, groups=groups)
    return judge_pairs({"score": pairs}, analysis_sizes(total, sequential=True))["score"]


def _row(what: str, samples: int, margin: float, fell: list[Paired], same: list[Paired]) -> Row:
    return Row(
        what=what,
        samples=samples,
        margin=margin,
        passed=sum(own.outcome is Answer.PASS for own in fell) / len(fell),
        failed=sum(own.outcome is Answer.FAIL for own in same) / len(same),
        used=sum(own.samples for own in same) / len(same) / samples,
        passes=len(fell),
    )
