"""Rule A on scores that only a whole data set has: mAP and AUC, of few and of unequal samples.

Two passes of one build over one data set are drawn anew each time, with its samples: their scores
differ by chance alone. The shipped influences, weights and rule say what they say of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from decisions_lib.noise import Floats
from decisions_lib.performance import SEED
from pytest_mlperf.adapters.scorers import auc
from pytest_mlperf.adapters.scorers.detection import interpolated
from pytest_mlperf.adapters.scorers.leverage import Shares, influences
from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.inputs import Leverage
from pytest_mlperf.judge.mean_change import error_of
from pytest_mlperf.judge.rule_a import ScorePairs, judge_pairs

PASSES = 200
"""Pairs of passes of a row; each counts twice, as either pass may be the baseline."""

MARGIN = 0.005
"""Share of the score that may be lost: the default."""

OVERLAPS = (0.45, 0.7)
CLICKED = 0.25


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is said of one data set's shape, as shares of comparisons.

    Attributes:
        what: In words.
        samples: Of the data set.
        told: Standard error that the rule works with / the true one, root mean squares; None where
            nothing was decided.
        passed: A drop of the margin passes; at most 5 % may.
        failed: Nothing dropped, and it fails; at most 1 % may.
        unseen: Samples that show too little, so that nothing is decided.
        passes: Comparisons.
    """

    what: str
    samples: int
    told: float | None
    passed: float
    failed: float
    unseen: float
    passes: int


@dataclass(frozen=True)
class Drawn:
    """Two passes of one build.

    Attributes:
        scores: Of each pass, points.
        samples: Pseudo-values of each pass, shape (2, samples).
        leverage: Of the samples.
    """

    scores: tuple[float, float]
    samples: Floats
    leverage: Leverage


Draw = Callable[[np.random.Generator], Drawn]


def shapes() -> Iterator[tuple[str, int, Draw]]:
    """Yield data sets: in words, their samples, and what draws two passes over one."""
    for images, classes in ((60, 20), (100, 60), (300, 60), (64, 5)):
        what = f"mAP, {images} images, {classes} classes"
        yield what, images, partial(detections, images=images, classes=classes)
    what = "mAP, 100 images, 60 classes, one image in ten answered otherwise"
    yield what, 100, lambda rng: detections(rng, 100, 60, changed=0.1)
    what = "mAP, 100 images, 60 classes, most of them rare"
    yield what, 100, lambda rng: detections(rng, 100, 60, rare=1.0)
    yield "AUC, 50 samples of 5 pairs", 50, lambda rng: clicks(rng, np.full(50, 5))
    yield "AUC, 512 samples of 20 pairs", 512, lambda rng: clicks(rng, np.full(512, 20))
    huge = np.where(np.arange(500) < 10, 500, 5)
    yield "AUC, 500 samples, 2 % of them 100 times as large", 500, lambda rng: clicks(rng, huge)


def rows(passes: int = PASSES) -> list[Row]:
    """Return a row for each shape of a data set."""
    return [
        row(what, samples, draw, passes, np.random.default_rng([SEED, 63, stream]))
        for stream, (what, samples, draw) in enumerate(shapes())
    ]


def detections(
    rng: np.random.Generator, images: int, classes: int, *, rare: float = 0.0, changed: float = 1.0
) -> Drawn:
    """Draw two passes of a detector over images of varying difficulty, with wrong boxes besides.

    Args:
        rng: Draws.
        images: How many.
        classes: How many there are; some may have no box.
        rare: Power of its rank that a class's frequency falls by; 0: all are alike.
        changed: Share of images that the second pass answers otherwise.
    """
    frequency = 1 / np.arange(1, classes + 1) ** rare
    frequency /= frequency.sum()
    boxes, wrong = 1 + rng.poisson(1.5, images), rng.poisson(2, images)
    is_box = np.repeat([True, False], [boxes.sum(), wrong.sum()])
    image = np.repeat(np.tile(np.arange(images), 2), np.concatenate([boxes, wrong]))
    label = rng.choice(classes, len(image), p=frequency)
    easy = 0.5 * rng.beta(4, 2, len(image)) + 0.5 * rng.beta(4, 2, images)[image]
    quality = np.where(is_box, easy, rng.beta(2, 5, len(image)))
    there = np.zeros((classes, images), np.int64)
    np.add.at(there, (label[is_box], image[is_box]), 1)
    chance = np.where(is_box, 0.3 + 0.7 * quality, 0.8)
    anew = (rng.random(images) < changed)[image]
    first = noises = rng.normal(0, 1, (2, len(image))), rng.random(len(image))
    found = []
    for second in (False, True):
        if second:
            other = rng.normal(0, 1, (2, len(image))), rng.random(len(image))
            noises = np.where(anew, other[0], first[0]), np.where(anew, other[1], first[1])
        (rank, overlap), drawn = noises
        seen = np.flatnonzero(drawn < chance)
        order = seen[np.lexsort((-(quality + 0.08 * rank)[seen], label[seen]))]
        overlaps = np.where(is_box, quality + 0.1 * overlap, 0.0)[order]
        found.append(_mean_ap(label[order], image[order], overlaps, there))
    shares = Shares(images)
    for each in there[there.any(axis=1)]:
        shares.add(each)
    (one, samples_1), (two, samples_2) = found
    return Drawn((one, two), np.array([samples_1, samples_2]), shares.leverage(100.0))


def _mean_ap(
    labels: np.ndarray, images: np.ndarray, overlaps: Floats, there: np.ndarray
) -> tuple[float, Floats]:
    """Return mAP and the pseudo-values of images; detections by class, best score first."""
    precisions, influence = list[float](), np.zeros(there.shape[1])
    for label in np.flatnonzero(there.any(axis=1)):
        own = slice(*np.searchsorted(labels, [label, label + 1]))
        for least in OVERLAPS:
            right = overlaps[own] > least
            precisions.append(interpolated(right, int(there[label].sum())))
            influence += influences(right, images[own], there[label])
    value = 100 * math.fsum(precisions) / len(precisions)
    return value, value + 100 * len(influence) * influence / len(precisions)


def clicks(rng: np.random.Generator, sizes: np.ndarray) -> Drawn:
    """Draw two passes of a model over samples with so many pairs, which share an effect."""
    ends, sample = np.cumsum(sizes), np.repeat(np.arange(len(sizes)), sizes)
    clicked = rng.random(len(sample)) < CLICKED
    truth = clicked + rng.normal(0, 1, len(sample)) + rng.normal(0, 0.5, len(sizes))[sample]
    scores, samples = list[float](), list[Floats]()
    for _ in range(2):
        noise = rng.normal(0, 0.4, len(sample)) + rng.normal(0, 0.4, len(sizes))[sample]
        pairs = auc.UserItemPairs(
            predictions=(truth + noise).astype(np.float32), clicked=clicked, ends=ends
        )
        area, influence = auc.auc(pairs)
        scores.append(100 * area)
        samples.append(100 * (area + len(sizes) * influence))
    shares = Shares(len(sizes))
    for part in (clicked, ~clicked):
        shares.add(np.bincount(sample[part], minlength=len(sizes)))
    return Drawn((scores[0], scores[1]), np.array(samples), shares.leverage(100.0))


def row(what: str, samples: int, draw: Draw, passes: int, rng: np.random.Generator) -> Row:
    """Return what is said of pairs of passes over such a data set."""
    decided = {0: list[Answer](), 1: list[Answer]()}
    told, changes, unseen = list[float](), list[float](), 0
    for _ in range(passes):
        drawn = draw(rng)
        change = drawn.samples[1] - drawn.samples[0]
        error, _ = error_of(change.tolist(), drawn.leverage)
        unseen += math.isinf(error)
        if math.isfinite(error):
            told.append(error**2)
            changes.append(float(change.mean()) ** 2)
        for turn in (1, -1):
            before, now = drawn.samples[::turn]
            margin = MARGIN * drawn.scores[::turn][0]
            for drop, own in decided.items():
                own.append(_judged(before, now - drop * margin, margin, drawn.leverage))
    return Row(
        what=what,
        samples=samples,
        told=math.sqrt(math.fsum(told) / math.fsum(changes)) if told else None,
        passed=decided[1].count(Answer.PASS) / len(decided[1]),
        failed=decided[0].count(Answer.FAIL) / len(decided[0]),
        unseen=unseen / passes,
        passes=2 * passes,
    )


def _judged(before: Floats, now: Floats, margin: float, leverage: Leverage) -> Answer:
    pairs = ScorePairs(
        before=before.tolist(), now=now.tolist(), margin=max(margin, 1e-9), leverage=leverage
    )
    return judge_pairs({"score": pairs}, (len(before),))["score"].outcome
