"""Test answers drawn at a temperature: unchanged models do not fail, and real drops do.

Two passes over the questions of gpt-oss's data set without programs, as often as it has each, are
drawn again in every trial and judged as a session judges them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from random import Random

import pytest

from pytest_mlperf.adapters.scorers.reasoning.scorer import REPEATS
from pytest_mlperf.core.baseline import rounded_scores, steps_per_point
from pytest_mlperf.core.measurement import Accuracy, Scored
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.rulings.accuracy import DEFAULT_MARGIN, PassContext, rule_on_scores
from pytest_mlperf.core.rulings.ruling import Ruling
from pytest_mlperf.core.verdict import Outcome
from tests.core.made import make_accuracy_baseline, present

QUESTIONS = {"aime25": 30, "gpqa_diamond": 198}
FEW, MANY = 12, 300
TRIALS = [FEW, pytest.param(MANY, marks=pytest.mark.nightly)]
"""Twelve simulated passes show a rule that is broken; three hundred also its error rate."""

ROWS = [
    (part, question)
    for part, count in QUESTIONS.items()
    for question in range(count)
    for _ in range(REPEATS[part])
]
GROUPS = tuple(ROWS.index(row) for row in ROWS)
TOTAL = sum(QUESTIONS.values())
WEIGHTS = [len(ROWS) / REPEATS[part] / TOTAL for part, _ in ROWS]

Chances = dict[tuple[str, int], float]
"""How often each question is answered rightly."""


def chances(random: Random) -> Chances:
    """Draw how hard questions are: many are nearly always right, some nearly never."""
    return {row: random.betavariate(2.4, 0.6) for row in dict.fromkeys(ROWS)}


def answered(chance: Chances, random: Random) -> list[float]:
    """Return the scores of a pass, weighed as scorer gpt_oss does."""
    return [
        100.0 * weight * (random.random() < chance[row])
        for row, weight in zip(ROWS, WEIGHTS, strict=True)
    ]


def judged(
    baseline_scores: Sequence[float], new_scores: Sequence[float], *, drawn: bool = True
) -> Ruling:
    name, count = "exact_match", len(ROWS)
    steps = steps_per_point(baseline_scores)
    baseline = make_accuracy_baseline(
        round="v6.0",
        samples=count,
        scores={name: sum(baseline_scores) / count},
        steps={name: steps},
    )
    scores = {name: sum(new_scores) / count}
    return rule_on_scores(
        baseline,
        {name: rounded_scores(baseline_scores, steps)},
        Accuracy(scores=scores, samples=count, total=count, full=True, folder="", whole=(name,)),
        Scored(indices=tuple(range(count)), per_sample={name: list(new_scores)}, groups=GROUPS),
        list(range(count)),
        margin=lambda _: DEFAULT_MARGIN,
        sequential=False,
        context=PassContext(drawn=drawn),
    )


Change = Callable[[Chances, Random], Chances]


def nothing(chance: Chances, _: Random) -> Chances:
    return chance


def all_a_little(chance: Chances, _: Random) -> Chances:
    return {row: 0.9 * each for row, each in chance.items()}


def some_altogether(chance: Chances, random: Random) -> Chances:
    lost = set(random.sample(sorted(chance), round(0.1 * len(chance))))
    return {row: 0.0 if row in lost else each for row, each in chance.items()}


@cache
def outcomes(change: Change, trials: int) -> Counter[Outcome]:
    random, words = Random(20261123), Counter[Outcome]()
    for _ in range(trials):
        chance = chances(random)
        baseline_scores, new_scores = (
            answered(chance, random),
            answered(change(chance, random), random),
        )
        words[judged(baseline_scores, new_scores).outcome] += 1
    return words


@pytest.mark.parametrize("trials", TRIALS)
def test_an_unchanged_model_fails_in_one_of_a_hundred_and_is_ok_nearly_always(trials: int) -> None:
    """Of 4,000 trials 30 failed; so few as here may be three deviations off.

    The margin is twice what chance reaches, so that 5 % stay undecided.
    """
    counts = outcomes(nothing, trials)

    assert counts[Outcome.ACC_DROP] <= 0.01 * trials + 3 * (0.01 * trials) ** 0.5
    assert counts[Outcome.OK] >= 0.93 * trials - (trials == FEW)


@pytest.mark.parametrize("trials", TRIALS)
@pytest.mark.parametrize("share", [0.002, 0.01, 0.05])
def test_an_unchanged_model_is_ok_if_few_answers_are_drawn_differently(
    share: float, trials: int
) -> None:
    """As with a seed on another CPU, where rounding changes few of the drawn tokens."""
    random, words = Random(20261128), Counter[Outcome]()
    for _ in range(trials):
        chance = chances(random)
        baseline_scores, others = answered(chance, random), answered(chance, random)
        pairs = zip(baseline_scores, others, strict=True)
        new_scores = [other if random.random() < share else score for score, other in pairs]
        words[judged(baseline_scores, new_scores).outcome] += 1

    assert words[Outcome.OK] >= 0.95 * trials
    assert words[Outcome.ACC_DROP] <= 0.02 * trials


@pytest.mark.parametrize("trials", TRIALS)
@pytest.mark.parametrize("change", [all_a_little, some_altogether])
def test_a_drop_of_a_tenth_is_found(change: Change, trials: int) -> None:
    assert outcomes(change, trials)[Outcome.ACC_DROP] >= 0.95 * trials
    assert not outcomes(change, trials)[Outcome.OK]


def test_the_margin_is_what_chance_hides_unless_answers_come_again_by_their_seed() -> None:
    """A suite may state another one."""
    random = Random(5)
    chance = chances(random)
    baseline_scores, new_scores = answered(chance, random), answered(chance, random)

    ruling = judged(baseline_scores, new_scores)
    (verdict,), (again,) = ruling.paired, judged(baseline_scores, baseline_scores).paired

    assert 2 < present(verdict.margin) < 5
    values = {"metric": "exact_match", "samples": 1230, "margin": verdict.margin}
    assert ruling.notes[0] == Note.of("sampled_answers", **values)
    assert judged(baseline_scores, new_scores, drawn=False).outcome is Outcome.INCONCLUSIVE
    assert again.outcome is Outcome.OK
    assert again.margin == pytest.approx(0.005 * sum(baseline_scores) / len(baseline_scores))
