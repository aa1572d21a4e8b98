"""A bound that few broken samples do not deceive, and what rule A makes of it."""

from __future__ import annotations

import math
import random
from collections import Counter
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.mean_change import BINS, low_of_rare, merged, usual_loss
from pytest_mlperf.judge.rule_a import (
    FIRST_LOOK,
    LATER_LOOKS,
    LOOK_SAMPLES,
    Paired,
    ScorePairs,
    analysis_sizes,
    errors_at,
    judge_pairs,
)

CHANGES = st.dictionaries(
    st.floats(-100, 100, allow_subnormal=False).map(lambda x: round(x, 2)),
    st.integers(1, 500),
    min_size=1,
    max_size=30,
)


def judged(
    baseline_scores: list[float], new_scores: list[float], margin: float, total: int
) -> Paired:
    pairs = {"x": ScorePairs(before=baseline_scores, now=new_scores, margin=margin)}
    return judge_pairs(pairs, analysis_sizes(total, sequential=True))["x"]


def test_losses_of_one_size_have_the_exact_bound_of_a_share() -> None:
    """Many ordinary changes have the bound of the normal distribution."""
    from scipy import stats

    for error in (0.05, 0.01):
        for n, lost in ((1024, 0), (1024, 1), (1000, 7), (100, 50), (20, 3)):
            bound = low_of_rare({0.0: n - lost, -60.0: lost}, 60.0, error)
            assert bound == pytest.approx(-60 * stats.beta.isf(error, lost + 1, n - lost), rel=0.01)

    rng = random.Random(1)
    changes = Counter(rng.gauss(0, 3) for _ in range(8000))
    mean, sd = fmean(changes), math.sqrt(fmean(x * x for x in changes))

    bound = low_of_rare(changes, 9.0, 0.01)

    assert bound == pytest.approx(mean - 2.326 * sd / math.sqrt(8000), rel=0.05)


@settings(max_examples=50)
@given(changes=CHANGES, unseen=st.floats(0, 100), error=st.floats(0.001, 0.2))
def test_the_bound_lies_between_the_worst_and_the_mean(
    changes: dict[float, int], unseen: float, error: float
) -> None:
    """A smaller error and a larger unseen loss lower it."""
    unseen = max(unseen, -min(changes))
    bound = low_of_rare(changes, unseen, error)
    mean = sum(change * count for change, count in changes.items()) / sum(changes.values())

    assert min(-unseen, *changes) - 1e-6 <= bound <= mean + 1e-6
    assert low_of_rare(changes, unseen, error / 2) <= bound + 1e-6
    assert low_of_rare(changes, unseen + 10, error) <= bound + 1e-6


def test_merging_keeps_the_mean_and_the_count() -> None:
    """The usual loss of right answers is all, and of graded scores more than the mean."""
    rng = random.Random(2)
    changes = Counter(rng.gauss(0, 3) for _ in range(3000))

    merged_changes = merged(changes)

    assert len(merged_changes) <= BINS + 1
    assert sum(merged_changes.values()) == 3000
    assert sum(k * n for k, n in merged_changes.items()) == pytest.approx(sum(changes))
    whole = low_of_rare(dict(list(changes.items())), 20.0, 0.01)
    assert low_of_rare(merged_changes, 20.0, 0.01) == pytest.approx(whole, rel=1e-3)

    losses = [usual_loss(scores) for scores in ({0.0: 70, 100.0: 30}, {20.0: 50, 60.0: 50})]
    assert [*losses, usual_loss({0.0: 10}), usual_loss({})] == [100, 50, 0, 0]


def test_the_looks_share_beta_so_that_all_of_them_keep_it() -> None:
    """Losses are counted: the worst share of all, at which most drops of the margin pass."""
    from scipy import stats

    at = (*LOOK_SAMPLES, 24_576)
    errors = [errors_at(position, at).rare for position in range(len(LOOK_SAMPLES))]
    assert errors == pytest.approx([0.05 * FIRST_LOOK, *[0.05 * LATER_LOOKS] * 3])

    def passes(expected: float) -> float:
        """Return how often a count is small enough in an interim analysis.

        `expected` by the first.
        """
        going, passed, last_look = np.array([1.0]), 0.0, 0
        for look, error in zip(LOOK_SAMPLES, errors, strict=True):
            more = stats.poisson.pmf(range(300), (look - last_look) / LOOK_SAMPLES[0] * expected)
            going = np.convolve(going, more)[:300]
            mean, last_look = look / LOOK_SAMPLES[0] * expected, look
            small = stats.poisson.cdf(range(len(going)), mean) <= error
            passed += float(going[small].sum())
            going[small] = 0
        return passed

    assert max(passes(expected / 4) for expected in range(2, 48)) <= 0.05


def test_a_first_part_without_a_change_excludes_no_drop_that_it_cannot_have_seen() -> None:
    """1,024 of 50,000 answers alike leave 0.34 % of them possible; a margin of 0.1 does not."""
    same = [100.0] * 1024

    assert judged(same, same, 0.1, 50_000).outcome is Answer.MORE
    verdict = judged(same, same, 0.4, 50_000)
    assert (verdict.outcome, verdict.changed) == (Answer.PASS, 0)
    assert -0.4 < verdict.low < -0.3

    baseline_scores = [100.0] * 1000
    lost = [0.0, 0.0, *[100.0] * 998]
    nearly = [0.0, 0.0, 99.0, *[100.0] * 997]

    binary, graded = (judged(baseline_scores, now, 0.5, 1000) for now in (lost, nearly))

    assert binary.outcome is graded.outcome is Answer.INCONCLUSIVE
    assert graded.low == pytest.approx(binary.low, rel=0.1)


def test_samples_that_change_alike_count_like_coins() -> None:
    """Two samples that fall by the same amount may do so by chance; ten may not."""
    two = judged([50.0, 60.0], [45.0, 55.0], 1.0, 2)
    ten = judged([50.0 + i for i in range(10)], [45.0 + i for i in range(10)], 1.0, 10)
    same = judged([100.0] * 25, [100.0] * 25, 2.0, 25)

    assert (two.p, two.outcome) == (0.25, Answer.INCONCLUSIVE)
    assert two.low <= two.change < 0 <= two.high
    assert (ten.p, ten.outcome) == (0.5**10, Answer.FAIL)
    assert (same.outcome, same.low, same.high) == (Answer.PASS, 0, 0)
    assert same.unseen == pytest.approx(100 * (1 - 0.05 ** (1 / 25)), rel=0.02)


@pytest.mark.parametrize("tries", [8, pytest.param(150, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("margin", "loss", "right"),
    [(0.222, 44.0, False), (0.1, 44.0, False), (0.1, 100.0, True)],
    ids=["margin 0.222", "margin 0.1", "right or wrong"],
)
def test_a_drop_of_the_margin_by_few_broken_samples_passes_at_most_5_percent(
    margin: float, loss: float, right: bool, tries: int
) -> None:
    """An engine that always answers alike breaks few outputs: seen at a part, or not at all."""
    rng = random.Random(int(margin * 1000))
    at, passed = analysis_sizes(24_576, sequential=True), 0
    for _ in range(tries):
        baseline_scores = [
            100.0 if right else rng.betavariate(1.76, 2.24) * 100 for _ in range(3072)
        ]
        new_scores = [0.0 if rng.random() < margin / loss else score for score in baseline_scores]
        verdict = judge_pairs(
            {"x": ScorePairs(before=baseline_scores, now=new_scores, margin=margin)}, at
        )["x"]
        passed += verdict.outcome is Answer.PASS

    assert passed <= 0.05 * tries + 2 * (0.05 * 0.95 * tries) ** 0.5
