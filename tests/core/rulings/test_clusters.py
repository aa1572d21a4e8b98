"""Samples that change by groups, and pseudo-values that show a part of what chance does."""

from __future__ import annotations

import math
import random
from statistics import stdev

import pytest

from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.inputs import Leverage
from pytest_mlperf.judge.mean_change import MIN_GROUPS, MIN_VARIANCE_SHARE, clustered, error_of
from pytest_mlperf.judge.rule_a import Paired, ScorePairs, judge_pairs


def judged(
    changes: list[float],
    groups: list[int] | None = None,
    *,
    leverage: Leverage | None = None,
    margin: float = 0.5,
) -> Paired:
    rng = random.Random(1)
    baseline_scores = [rng.uniform(20, 80) for _ in changes]
    new_scores = [score + change for score, change in zip(baseline_scores, changes, strict=True)]
    pairs = ScorePairs(
        before=baseline_scores, now=new_scores, margin=margin, groups=groups, leverage=leverage
    )
    return judge_pairs({"f1": pairs}, (len(changes),))["f1"]


def articles(rng: random.Random, sizes: list[int], sd: float) -> tuple[list[float], list[int]]:
    """Return changes that the samples of an article share in part, and the articles."""
    changes, groups = list[float](), list[int]()
    for article, size in enumerate(sizes):
        shared = rng.gauss(0, sd)
        changes += [shared + rng.gauss(0, 5) for _ in range(size)]
        groups += [article] * size
    return changes, groups


def test_groups_count_as_their_means_and_one_large_one_as_few() -> None:
    """Groups of one sample are independent samples."""
    values = [1.0, 4.0, -2.0, 0.5, 3.0]
    changes, groups = articles(random.Random(3), [20] * 12, 3.0)
    means = [math.fsum(changes[20 * i : 20 * i + 20]) / 20 for i in range(12)]
    large, of_large = articles(random.Random(4), [300, 10, 10, 10, 10], 1.0)

    alone, equal = clustered(values, range(5)), clustered(changes, groups)

    assert (alone.groups, alone.df) == (5, 4)
    assert alone.se == pytest.approx(stdev(values) / math.sqrt(5))
    assert (equal.groups, equal.df) == (12, 11)
    assert equal.se == pytest.approx(stdev(means) / math.sqrt(12))
    assert clustered(large, of_large).df == pytest.approx(1.0)
    assert clustered(large, [0] * len(large)).se == math.inf
    with pytest.raises(ValueError, match="3 groups for 2 samples"):
        ScorePairs(before=[1.0, 2.0], now=[1.0, 2.0], margin=1.0, groups=[0, 0, 1])


@pytest.mark.parametrize("builds", [60, pytest.param(120, marks=pytest.mark.nightly)])
def test_an_effect_that_articles_share_is_no_drop_and_no_proof_that_there_is_none(
    builds: int,
) -> None:
    """Without groups 36 % of unchanged builds fail, and 26 % of drops of the margin pass."""
    rng, wrong, missed = random.Random(5), 0, 0
    for _ in range(builds):
        changes, groups = articles(rng, [220, 220, 220, 220, 120], 2.0)
        wrong += judged(changes, groups).outcome is Answer.FAIL
        missed += judged([each - 0.5 for each in changes], groups).outcome is Answer.PASS
    alone = sum(
        judged(articles(random.Random(i), [220] * 5, 2.0)[0], None).outcome is Answer.FAIL
        for i in range(12)
    )

    assert wrong <= 0.025 * builds
    assert missed <= 0.092 * builds
    assert alone >= 2


def test_a_drop_of_every_article_is_still_proven() -> None:
    """Four fell far more than they differ by; too few groups are judged as independent samples.

    Forty lost answers, all of one article: another article may gain as many.
    """
    many, of_many = articles(random.Random(6), [25] * 48, 0.5)
    four, of_four = articles(random.Random(7), [107, 117, 96, 128], 2.0)
    few = [i % (MIN_GROUPS - 1) for i in range(300)]

    verdict = judged([each - 2 for each in many], of_many)
    independent = judged([-20.0 + i % 7 for i in range(300)], few)

    assert (verdict.outcome, verdict.groups) == (Answer.FAIL, 48)
    assert judged([each - 60 for each in four], of_four).outcome is Answer.FAIL
    assert (independent.outcome, independent.groups) == (Answer.FAIL, None)

    baseline_scores = [100.0] * 1000
    new_scores = [0.0] * 40 + [100.0] * 960
    by_article = ScorePairs(
        before=baseline_scores, now=new_scores, margin=0.5, groups=[i // 100 for i in range(1000)]
    )
    alone = ScorePairs(before=baseline_scores, now=new_scores, margin=0.5)

    assert judge_pairs({"x": alone}, (1000,))["x"].outcome is Answer.FAIL
    assert judge_pairs({"x": by_article}, (1000,))["x"].outcome is Answer.INCONCLUSIVE


N = 100
FULL = Leverage(seen=1.0, df=N - 1)
HALF = Leverage(seen=0.5, df=40)


def judged_with(changes: list[float], leverage: Leverage | None) -> Paired:
    return judged(changes, leverage=leverage, margin=0.2)


def noise(mean: float, seed: int = 2) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(mean, 10) for _ in range(N)]


def test_the_error_is_widened_by_the_unseen_part() -> None:
    """Few samples that changed are few degrees of freedom.

    If too little is seen, there is no verdict; large drops and gains are still decided.
    """
    changes = noise(0.0)
    plain = stdev(changes) / math.sqrt(N)
    hidden = Leverage(seen=0.5, df=40, hidden=2.0)

    assert error_of(changes, FULL)[0] == pytest.approx(plain)
    assert error_of(changes, HALF) == pytest.approx((plain * math.sqrt(2), 40))
    assert error_of(changes, hidden)[0] == pytest.approx(math.sqrt(2 * plain**2 + 2))
    assert error_of([9.0, -9.0] + [0.0] * (N - 2), FULL)[1] == pytest.approx(6, abs=0.1)

    little = Leverage(seen=MIN_VARIANCE_SHARE - 0.01, df=40)

    for changes in (noise(-30.0), noise(30.0), [-1.0] * N):
        verdict = judged_with(changes, little)
        assert (verdict.outcome, verdict.p) == (Answer.INCONCLUSIVE, 1.0)
        assert (verdict.low, verdict.high) == (-math.inf, math.inf)
    assert judged_with([0.0] * N, little).outcome is Answer.PASS
    assert judged_with(noise(-10.0), HALF).outcome is Answer.FAIL
    assert judged_with(noise(10.0), HALF).outcome is Answer.PASS


def test_a_drop_that_classes_of_one_image_may_explain_is_no_proven_drop() -> None:
    """Such a class fell from 100 to 0: all pseudo-values by as much, as if all images had."""
    fell = [-100 / 60] * N
    some = Leverage(seen=0.55, df=60, hidden=100 / 60)

    assert judged_with(fell, None).outcome is Answer.FAIL
    assert judged_with(fell, some).outcome is Answer.INCONCLUSIVE
    assert judged_with(noise(-15.0), some).outcome is Answer.FAIL

    changes = noise(-2.0)
    plain, full = judged_with(changes, None), judged_with(changes, FULL)

    assert full.low <= plain.low < plain.high <= full.high
    assert full.p >= plain.p
    assert full.low == pytest.approx(plain.low, rel=0.01)
