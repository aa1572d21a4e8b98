"""Rule A sees small drops because it compares sample by sample, with the error rates it states."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import fmean

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.mean_change import MIN_NORMAL_FLIPS, mcnemar_mid_p, newcombe
from pytest_mlperf.judge.rule_a import (
    LOOK_SAMPLES,
    Paired,
    ScorePairs,
    analysis_sizes,
    holm,
    judge_pairs,
)

SCORES = st.lists(st.integers(0, 10_000).map(lambda step: step / 100), min_size=2, max_size=60)


def graded(
    rng: np.random.Generator, samples: int, *, drop: float = 0.0, correlation: float = 0.95
) -> tuple[list[float], list[float]]:
    """Return ROUGE-like scores of two passes: mean 44, standard deviation 22, correlated."""
    shared, alone = math.sqrt(correlation) * 22, math.sqrt(1 - correlation) * 22
    common = rng.normal(44, shared, samples)
    baseline = rng.normal(common, alone)
    return baseline.tolist(), (rng.normal(common, alone) - drop).tolist()


def judged(baseline: Sequence[float], current: Sequence[float], margin: float, *at: int) -> Paired:
    pairs = {"x": ScorePairs(before=baseline, now=current, margin=margin)}
    return judge_pairs(pairs, at or (len(baseline),))["x"]


def decide(
    baseline: list[float], current: list[float], margin: float, *, sequential: bool
) -> Answer:
    return judged(
        baseline, current, margin, *analysis_sizes(len(baseline), sequential=sequential)
    ).outcome


def test_looks_grow_and_end_with_the_whole_data_set() -> None:
    """A margin must allow something, and scores need a partner."""
    sizes = [analysis_sizes(samples, sequential=True) for samples in (500, 1024, 1025, 24_576)]

    whole = (1024, 3072, 8192, 16_384, 24_576)
    assert sizes == [(500,), (1024,), (1024, 1025), whole]
    assert analysis_sizes(24_576, sequential=False) == (24_576,)
    assert tuple(sorted(LOOK_SAMPLES)) == LOOK_SAMPLES

    for margin in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="margin"):
            ScorePairs(before=[1.0], now=[1.0], margin=margin)
    with pytest.raises(ValueError, match="cannot be paired"):
        ScorePairs(before=[1.0, 2.0], now=[1.0], margin=1.0)


@settings(max_examples=50)
@given(scores=SCORES, fall=st.floats(0.02, 50), margin=st.floats(0.01, 10), seed=st.integers(0))
@example(scores=[0.0, 0.0], fall=6.2518490503445445, margin=7.0, seed=0)  # off by rounding
def test_the_same_scores_pass_and_bounds_enclose_a_change_in_any_order(
    scores: list[float], fall: float, margin: float, seed: int
) -> None:
    """A fall of every sample alike is certain."""
    rng = random.Random(seed)
    order, current = list(range(len(scores))), [rng.uniform(0, 100) for _ in scores]
    rng.shuffle(order)
    fell = judged(scores, [score - fall for score in scores], margin)
    first = judged(scores, current, 1.0)
    again = judged([scores[i] for i in order], [current[i] for i in order], 1.0)

    assert judged(scores, scores, margin).outcome is Answer.PASS
    # Rounding keeps equal differences from being equal; where they are, nothing is left to chance.
    if fall > margin * 1.01 and len(scores) > 2 and fell.low == fell.high:
        assert fell.outcome is Answer.FAIL
    assert fell.outcome is not Answer.MORE
    assert fell.change == pytest.approx(-fall, abs=1e-6)
    assert first.low <= first.change <= first.high
    assert first.change == pytest.approx(fmean(current) - fmean(scores), abs=1e-9)
    assert again.outcome is first.outcome
    assert (again.low, again.high) == pytest.approx((first.low, first.high))
    assert first.changed == first.down + first.up


@pytest.mark.slow
@pytest.mark.parametrize("passes", [15, pytest.param(400, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("drop", "samples", "sequential", "never", "at_most"),
    [
        (0.0, 2000, False, Answer.FAIL, 0.02),
        (0.0, 4000, True, Answer.FAIL, 0.02),
        (0.5, 2000, False, Answer.PASS, 0.07),
        (0.5, 4000, True, Answer.PASS, 0.07),
    ],
)
def test_the_stated_error_rates_hold(
    drop: float, samples: int, sequential: bool, never: Answer, at_most: float, passes: int
) -> None:
    """Nominal 1 % and 5 %; 400 replications leave about two standard errors of room."""
    rng = np.random.default_rng(samples + int(100 * drop))
    wrong = sum(
        decide(*graded(rng, samples, drop=drop), 0.5, sequential=sequential) is never
        for _ in range(passes)
    )

    assert wrong <= at_most * passes + (passes < 100)


def test_a_drop_of_two_points_is_seen_where_an_unpaired_test_sees_nothing() -> None:
    """512 samples, two points of 44, standard deviation 22: an unpaired test sees it 1 % of the
    time or less; see the table in the derivation this rule comes from."""
    rng = np.random.default_rng(2)
    seen = sum(
        decide(*graded(rng, 512, drop=2.0), 0.22, sequential=False) is Answer.FAIL
        for _ in range(40)
    )

    assert seen >= 39


def test_a_broken_model_is_found_at_the_first_look_and_unchanged_code_in_a_tenth() -> None:
    """What is not decided yet asks for more, and at the end stays open."""
    rng, at = np.random.default_rng(4), analysis_sizes(24_576, sequential=True)
    baseline, current = graded(np.random.default_rng(3), 24_576, drop=10.0)

    verdict = judged(baseline[:1024], current[:1024], 0.2, *at)
    used = [judged(*graded(rng, 24_576), 0.5, *at).samples for _ in range(8)]

    assert (verdict.outcome, verdict.samples) == (Answer.FAIL, 1024)
    assert fmean(used) < 4000

    baseline, current = graded(np.random.default_rng(5), 4000, drop=0.2)
    at = analysis_sizes(4000, sequential=True)

    assert judged(baseline[:1024], current[:1024], 0.25, *at).outcome is Answer.MORE
    assert judged(baseline, current, 0.25, *at).outcome is Answer.INCONCLUSIVE


def test_mid_p_is_that_of_the_binomial_and_intervals_are_newcombes() -> None:
    """P(X > down) + P(X = down) / 2 for X ~ Bin(down + up, 1/2), by hand; both sides sum to 1.

    Newcombe's own example: right in both, before only, now only, in neither; two-sided 95 %. With
    nothing wrong it is the reach of Wilson's interval.
    """
    paper, wilson = (newcombe(counts, 0.025, 0.025) for counts in ((36, 12, 2, 0), (50, 0, 0, 0)))

    assert paper == pytest.approx((-0.3404, -0.0569), abs=5e-5)
    assert wilson == pytest.approx((-0.07135, 0.07135), abs=5e-5)

    by_hand = {(0, 0): 1.0, (1, 0): 0.25, (0, 1): 0.75, (2, 0): 0.125, (1, 1): 0.5}
    by_hand |= {(3, 1): (1 + 4 / 2) / 16, (5, 0): 1 / 64}
    for down, up in ((60, 40), (3, 9), (700, 650), (0, 64), (64, 0)):
        n = down + up
        tail = sum(math.comb(n, k) for k in range(down + 1, n + 1))
        by_hand[down, up] = (2 * tail + math.comb(n, down)) / 2 ** (n + 1)
        assert mcnemar_mid_p(down, up) + mcnemar_mid_p(up, down) == pytest.approx(1.0)

    assert {counts: mcnemar_mid_p(*counts) for counts in by_hand} == pytest.approx(by_hand)


def binary(right: int, lost: int, won: int, wrong: int) -> tuple[list[float], list[float]]:
    baseline = [100.0] * right + [100.0] * lost + [0.0] * won + [0.0] * wrong
    current = [100.0] * right + [0.0] * lost + [100.0] * won + [0.0] * wrong
    return baseline, current


def test_right_and_wrong_answers_are_judged_by_their_flips() -> None:
    """Few flips have a wider interval than the normal one."""
    cases = {
        (493, 0, 0, 7): Answer.PASS,  # nothing changed
        (493, 0, 3, 4): Answer.PASS,  # better
        (488, 5, 0, 7): Answer.INCONCLUSIVE,  # 5 lost of 500: mid-p 1.6 %
        (483, 10, 0, 7): Answer.FAIL,  # 10 lost, none won: mid-p 0.05 %
        (440, 30, 23, 7): Answer.INCONCLUSIVE,  # 7 more lost than won in 53 flips
        (400, 80, 13, 7): Answer.FAIL,
    }
    for counts, expected in cases.items():
        verdict = judged(*binary(*counts), 0.49)
        assert (verdict.down, verdict.up) == counts[1:3]
        assert verdict.outcome is expected

    baseline, current = binary(900, MIN_NORMAL_FLIPS // 2, 0, 50)
    verdict = judged(baseline, current, 1.0)
    share = (MIN_NORMAL_FLIPS // 2) / len(current)
    normal = 100 * (-share - 1.645 * math.sqrt(share * (1 - share) / len(current)))

    assert verdict.low < verdict.change < verdict.high < 0
    assert verdict.low == pytest.approx(normal, rel=0.25)


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1), max_size=6), st.floats(0.001, 0.2))
def test_holm_steps_down_and_rejects_at_least_as_much_as_bonferroni(
    p: dict[str, float], alpha: float
) -> None:
    rejected = holm(p, alpha)

    assert {name for name, value in p.items() if value <= alpha / max(1, len(p))} <= rejected
    assert rejected <= {name for name, value in p.items() if value <= alpha}
    for values, names in (
        ((0.001, 0.5, 0.6), {"a"}),
        ((0.004, 0.5, 0.6), set()),
        ((0.003, 0.004, 0.6), {"a", "b"}),
        ((0.003, 0.004, 0.009), {"a", "b", "c"}),
        ((0.02,), set()),
    ):
        assert holm(dict(zip("abc", values, strict=False)), 0.01) == names


def test_a_metric_that_passed_hands_its_alpha_to_no_other() -> None:
    """Two of three pass at the first look: the third must still meet a third of the error."""
    n, at = 3072, analysis_sizes(3072, sequential=True)
    rng = random.Random(7)
    noise = [rng.gauss(0, 1) for _ in range(n)]
    centre, spread = fmean(noise), math.sqrt(fmean((x - fmean(noise)) ** 2 for x in noise))
    # p between alpha / (3 looks) / 3 metrics and alpha / looks at the last look
    fall = [(x - centre) / spread - 2.75 / math.sqrt(n) for x in noise]
    same = [0.0] * n
    flat = ScorePairs(before=same, now=same, margin=5.0)
    third = ScorePairs(before=same, now=fall, margin=0.001)

    alone = judge_pairs({"c": third}, at)["c"]
    among = judge_pairs({"a": flat, "b": flat, "c": third}, at)

    assert 0.01 / len(at) / 3 < alone.p < 0.01 / len(at)
    assert alone.outcome is Answer.FAIL
    assert among["a"].outcome is Answer.PASS
    assert among["c"].outcome is Answer.INCONCLUSIVE


@pytest.mark.parametrize("passes", [25, pytest.param(600, marks=pytest.mark.nightly)])
def test_three_unchanged_metrics_fail_as_seldom_as_one(passes: int) -> None:
    """Each pass has three metrics without a change; the stated 1 % is for any of them."""
    rng = np.random.default_rng(21)
    wrong = 0
    for _ in range(passes):
        metrics = {}
        for name in "abc":
            baseline, current = graded(rng, 600, correlation=0.9)
            metrics[name] = ScorePairs(before=baseline, now=current, margin=0.3)
        verdicts_by_metric = judge_pairs(metrics, (100, 300, 600))
        wrong += any(one.outcome is Answer.FAIL for one in verdicts_by_metric.values())

    assert wrong <= 0.02 * passes
