"""Pseudo-values of few samples for each class show a part of what chance does."""

from __future__ import annotations

import math
import random
from statistics import stdev

import pytest

from pytest_mlperf.core.extension import Leverage
from pytest_mlperf.core.judge._mean_change import LEAST_SEEN, error_of
from pytest_mlperf.core.judge.rule_a import Paired, ScorePairs, judge_pairs
from pytest_mlperf.core.judge.standing import Decision

N = 100
FULL = Leverage(seen=1.0, df=N - 1)
HALF = Leverage(seen=0.5, df=40)


def judged(changes: list[float], leverage: Leverage | None, margin: float = 0.2) -> Paired:
    """Judge all samples of a data set at once."""
    rng = random.Random(1)
    before = [rng.uniform(20, 80) for _ in changes]
    now = [score + change for score, change in zip(before, changes, strict=True)]
    pairs = ScorePairs(before=before, now=now, margin=margin, leverage=leverage)
    return judge_pairs({"map": pairs}, (len(changes),))["map"]


def noise(mean: float, seed: int = 2) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(mean, 10) for _ in range(N)]


def test_the_error_is_widened_by_what_is_not_seen() -> None:
    """Few samples that changed are few degrees of freedom."""
    changes = noise(0.0)
    plain = stdev(changes) / math.sqrt(N)
    hidden = Leverage(seen=0.5, df=40, hidden=2.0)

    assert error_of(changes, FULL)[0] == pytest.approx(plain)
    assert error_of(changes, HALF) == pytest.approx((plain * math.sqrt(2), 40))
    assert error_of(changes, hidden)[0] == pytest.approx(math.sqrt(2 * plain**2 + 2))
    assert error_of([9.0, -9.0] + [0.0] * (N - 2), FULL)[1] == pytest.approx(6, abs=0.1)


def test_a_drop_that_classes_of_one_image_may_explain_is_no_proven_drop() -> None:
    """Such a class fell from 100 to 0: all pseudo-values by as much, as if all images had."""
    fell = [-100 / 60] * N
    some = Leverage(seen=0.55, df=60, hidden=100 / 60)

    assert judged(fell, None).decision is Decision.FAIL
    assert judged(fell, some).decision is Decision.INCONCLUSIVE
    assert judged(noise(-15.0), some).decision is Decision.FAIL


def test_where_too_little_is_seen_neither_word_is_said() -> None:
    """Large drops and gains are still decided."""
    little = Leverage(seen=LEAST_SEEN - 0.01, df=40)

    for changes in (noise(-30.0), noise(30.0), [-1.0] * N):
        found = judged(changes, little)
        assert (found.decision, found.p) == (Decision.INCONCLUSIVE, 1.0)
        assert (found.low, found.high) == (-math.inf, math.inf)
    assert judged([0.0] * N, little).decision is Decision.PASS
    assert judged(noise(-10.0), HALF).decision is Decision.FAIL
    assert judged(noise(10.0), HALF).decision is Decision.PASS


def test_the_interval_is_never_narrower_than_without() -> None:
    """Scores of samples have no leverage, and neither have passes of an older release."""
    changes = noise(-2.0)
    plain, full = judged(changes, None), judged(changes, FULL)

    assert full.low <= plain.low < plain.high <= full.high
    assert full.p >= plain.p
    assert full.low == pytest.approx(plain.low, rel=0.01)
