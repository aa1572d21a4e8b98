"""Samples of one group, such as the questions of one article, may change together."""

from __future__ import annotations

import math
import random
from statistics import stdev

import pytest

from pytest_mlperf.core.judge._mean_change import FEWEST_GROUPS, clustered
from pytest_mlperf.core.judge.rule_a import Paired, ScorePairs, judge_pairs
from pytest_mlperf.core.judge.standing import Decision


def judged(changes: list[float], groups: list[int] | None, margin: float = 0.5) -> Paired:
    """Judge all samples of a data set at once."""
    rng = random.Random(1)
    before = [rng.uniform(20, 80) for _ in changes]
    now = [score + change for score, change in zip(before, changes, strict=True)]
    pairs = ScorePairs(before=before, now=now, margin=margin, groups=groups)
    return judge_pairs({"f1": pairs}, (len(changes),))["f1"]


def articles(rng: random.Random, sizes: list[int], sd: float) -> tuple[list[float], list[int]]:
    """Return changes that the samples of an article share in part, and the articles."""
    changes, groups = list[float](), list[int]()
    for article, size in enumerate(sizes):
        shared = rng.gauss(0, sd)
        changes += [shared + rng.gauss(0, 5) for _ in range(size)]
        groups += [article] * size
    return changes, groups


def test_groups_of_one_sample_are_independent_samples() -> None:
    values = [1.0, 4.0, -2.0, 0.5, 3.0]

    found = clustered(values, range(5))

    assert (found.groups, found.df) == (5, 4)
    assert found.se == pytest.approx(stdev(values) / math.sqrt(5))


def test_equal_groups_are_as_good_as_their_means() -> None:
    rng = random.Random(3)
    changes, groups = articles(rng, [20] * 12, 3.0)
    means = [math.fsum(changes[20 * i : 20 * i + 20]) / 20 for i in range(12)]

    found = clustered(changes, groups)

    assert (found.groups, found.df) == (12, 11)
    assert found.se == pytest.approx(stdev(means) / math.sqrt(12))


def test_one_large_group_counts_as_few() -> None:
    changes, groups = articles(random.Random(4), [300, 10, 10, 10, 10], 1.0)

    assert clustered(changes, groups).df == pytest.approx(1.0)
    assert clustered(changes, [0] * len(changes)).se == math.inf


def test_an_effect_that_articles_share_is_no_drop_and_no_proof_that_there_is_none() -> None:
    """Without groups 36 % of unchanged builds fail, and 26 % of drops of the margin pass."""
    rng, wrong, missed = random.Random(5), 0, 0
    for _ in range(120):
        changes, groups = articles(rng, [220, 220, 220, 220, 120], 2.0)
        wrong += judged(changes, groups).decision is Decision.FAIL
        missed += judged([each - 0.5 for each in changes], groups).decision is Decision.PASS
    alone = sum(
        judged(articles(random.Random(i), [220] * 5, 2.0)[0], None).decision is Decision.FAIL
        for i in range(30)
    )

    assert wrong <= 3
    assert missed <= 11
    assert alone >= 5


def test_a_drop_of_every_article_is_still_proven() -> None:
    changes, groups = articles(random.Random(6), [25] * 48, 0.5)

    found = judged([each - 2 for each in changes], groups)

    assert found.decision is Decision.FAIL
    assert found.groups == 48


def test_right_and_wrong_answers_of_articles_are_judged_by_articles() -> None:
    """Forty lost answers, all of one article: another article may gain as many."""
    before = [100.0] * 1000
    now = [0.0] * 40 + [100.0] * 960
    by_article = ScorePairs(
        before=before, now=now, margin=0.5, groups=[i // 100 for i in range(1000)]
    )
    alone = ScorePairs(before=before, now=now, margin=0.5)

    assert judge_pairs({"x": alone}, (1000,))["x"].decision is Decision.FAIL
    assert judge_pairs({"x": by_article}, (1000,))["x"].decision is Decision.INCONCLUSIVE


def test_too_few_groups_are_judged_as_independent_samples() -> None:
    changes = [-20.0 + i % 7 for i in range(300)]
    groups = [i % (FEWEST_GROUPS - 1) for i in range(300)]

    found = judged(changes, groups)

    assert (found.decision, found.groups) == (Decision.FAIL, None)


def test_a_broken_model_fails_on_four_articles() -> None:
    """All fell far more than they differ by: a test of signs alone could not say so."""
    changes, groups = articles(random.Random(7), [107, 117, 96, 128], 2.0)

    assert judged([each - 60 for each in changes], groups).decision is Decision.FAIL


def test_groups_belong_to_the_samples_one_by_one() -> None:
    with pytest.raises(ValueError, match="3 groups for 2 samples"):
        ScorePairs(before=[1.0, 2.0], now=[1.0, 2.0], margin=1.0, groups=[0, 0, 1])
