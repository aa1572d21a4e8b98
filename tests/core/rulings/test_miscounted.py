"""Timed counts of tokens are held against those of the answers to the same samples."""

from __future__ import annotations

from random import Random

import pytest

from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.rulings.ruling import miscounted


def lengths(seed: int, samples: int, spread: float = 0.5) -> dict[int, int]:
    """Return the tokens of answers, as skewed as those of language models are."""
    random = Random(seed)
    return {n: max(1, round(random.lognormvariate(4, spread))) for n in range(samples)}


def once(counts: dict[int, int]) -> dict[int, list[int]]:
    return {sample: [tokens] for sample, tokens in counts.items()}


TEN = dict.fromkeys(range(32), 10)
LONG = lengths(1, 1000)
SAME = ()


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize(
    ("timed", "answers", "answer"),
    [
        (dict.fromkeys(range(32), 30), TEN, ("30", "10")),
        (dict.fromkeys(range(32), 11), TEN, ("11", "10")),
        (dict.fromkeys(range(8), 9), TEN, ("9", "10")),
        ({n: 3 * tokens for n, tokens in LONG.items()}, LONG, ("181.1", "60.36")),
        ({n: tokens - 5 for n, tokens in LONG.items()}, LONG, ("55.36", "60.36")),
        (dict.fromkeys(range(16), 2), dict.fromkeys(range(16), 0), ("2", "0")),
        (TEN, TEN, SAME),
        ({**TEN, 7: 1000}, TEN, SAME),
        ({**LONG, 7: 5000}, LONG, SAME),
        ({n: tokens + (n % 50 == 0) for n, tokens in LONG.items()}, LONG, SAME),
        (dict.fromkeys(range(32), 101), dict.fromkeys(range(32), 100), SAME),
    ],
)
def test_a_systematic_difference_is_one_and_single_answers_are_not(
    timed: dict[int, int], answers: dict[int, int], answer: tuple[str, ...], *, drawn: bool
) -> None:
    counts = once({sample: max(0, tokens) for sample, tokens in timed.items()})
    notes = miscounted(counts, dict(answers), drawn=drawn)
    assert notes is not None
    assert [tuple(note.values.values()) for note in notes] == ([answer] if answer else [])


@pytest.mark.parametrize("spread", [0.3, 1.0])
@pytest.mark.parametrize("repeats", [1, 6])
def test_answers_drawn_again_are_the_same(spread: float, repeats: int) -> None:
    """Of 400 data sets each, none is called miscounted; thrice the tokens are, of each."""
    for seed in range(400):
        answers = {n: float(tokens) for n, tokens in lengths(seed, 60, spread).items()}
        again = [lengths(1000 + seed * 10 + k, 60, spread) for k in range(repeats)]
        timed = {n: [one[n] for one in again] for n in answers}
        assert miscounted(timed, answers, drawn=True) == SAME
        if spread < 1:
            thrice = {n: [3 * tokens for tokens in each] for n, each in timed.items()}
            assert miscounted(thrice, answers, drawn=True)


def test_only_samples_of_both_sides_count() -> None:
    """Samples that were asked in neither or one run, or not counted, say nothing."""
    timed = {0: [30, 30, 30], 1: [10], 2: [10], 5: [90]}
    answers = {0: 30.0, 1: 10.0, 2: 10.0, 3: 1.0, 5: None}
    assert miscounted(timed, answers, drawn=False) == SAME
    assert miscounted({**timed, 1: [30], 2: [30]}, {1: 10.0, 2: 10.0}, drawn=False)
    for few in ({}, {1: 10.0}, {7: 10.0, 8: 10.0}):
        assert miscounted(timed, few, drawn=False) is None
    assert miscounted(timed, answers, drawn=True) is None, "chance alone can make three alike"


def test_both_numbers_are_of_the_same_answers() -> None:
    """A sample that was asked more often weighs more on both sides."""
    timed = {0: [30] * 9, 1: [300]}
    assert miscounted(timed, {0: 10.0, 1: 100.0}, drawn=False) == (
        Note.of("miscounted", timed="57", answers="19"),
    )
