"""Empty and cut answers: which first baseline is refused for them, and when they became more."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_mlperf.core.measurement import Accuracy, Subject
from pytest_mlperf.core.rulings.accuracy import risen_flaws, unfit_answers

LIMIT = Subject(identity={}, fingerprint={"engine.generation.max_new_tokens": "64"})


def passed(
    stop: int, length: int = 0, *, fixed: bool = False, baseline_counts: Any = None, **counts: int
) -> Accuracy:
    """Return a pass of `stop` and `length` finish reasons, with some counted flaws."""
    finishes = {name: n for name, n in {"stop": stop, "length": length}.items() if n}
    return Accuracy(
        scores={"exact_match": 50.0},
        samples=stop + length,
        full=True,
        folder="x",
        finishes=finishes,
        answer_counts={"answers": stop + length, **counts} if counts else {},
        fixed_lengths=fixed,
        baseline_answers=baseline_counts or {},
    )


@pytest.mark.parametrize(
    ("accuracy", "reason"),
    [
        (passed(60), ""),
        (passed(0), ""),
        (passed(99, 1, empty=1, cut_reasoning=1), ""),
        (
            passed(40, 20, empty=20, cut_reasoning=20),
            "20 of 60 answers are empty: cut at max_new_tokens = 64 while reasoning",
        ),
        (
            passed(42, 18, empty=20, cut_reasoning=18),
            "20 of 60 answers are empty: 18 cut at max_new_tokens = 64 while reasoning",
        ),
        (passed(1_200, empty=1_200), "1,200 of 1,200 answers are empty"),
        (passed(57, 3), ""),
        (passed(56, 4), "4 of 60 answers are cut at max_new_tokens = 64 (5 % allowed)"),
        (passed(0, 60, empty=60, fixed=True), ""),
    ],
)
def test_a_first_baseline_has_few_empty_and_cut_answers(accuracy: Accuracy, reason: str) -> None:
    assert unfit_answers(accuracy, LIMIT) == reason


def test_a_reference_that_cuts_answers_allows_it() -> None:
    assert unfit_answers(passed(0, 60), LIMIT, 1.0) == ""
    assert unfit_answers(passed(30, 30), LIMIT, 0.4).endswith("(40 % allowed)")


def test_flaws_that_chance_explains_are_none_that_rose() -> None:
    baseline_counts = {"answers": 60}
    assert risen_flaws(passed(58, 2, empty=2, baseline_counts=baseline_counts), LIMIT) == ""
    assert risen_flaws(passed(0, 60, fixed=True, baseline_counts=baseline_counts), LIMIT) == ""
    assert risen_flaws(passed(0, 60), LIMIT) == "", "the baseline knows nothing of its answers"
    assert risen_flaws(passed(40, 20, baseline_counts={"answers": 60, "cut": 15}), LIMIT) == ""
    assert risen_flaws(
        passed(40, 20, empty=20, cut_reasoning=20, baseline_counts=baseline_counts), LIMIT
    ) == (
        "20 of 60 answers are empty, 0 of 60 in the baseline: cut at max_new_tokens = 64 while "
        "reasoning"
    )
    assert risen_flaws(passed(40, 20, empty=1, baseline_counts=baseline_counts), LIMIT) == (
        "20 of 60 answers are cut, 0 of 60 in the baseline, at max_new_tokens = 64"
    )


def test_the_answers_of_a_pass_are_one_line() -> None:
    accuracy = passed(40, 20, empty=20, cut_reasoning=18, bad_calls=1, prompt_tokens=9)
    assert accuracy.answers_in_words == (
        "40 stop, 20 length; 20 empty, 18 cut while reasoning, 1 with calls that are no JSON"
    )
    assert accuracy.answers == {
        "answers": 60,
        "cut": 20,
        "empty": 20,
        "cut_reasoning": 18,
        "bad_calls": 1,
    }
    assert (passed(0).answers, passed(0).answers_in_words) == ({}, "")
    assert passed(0, 60, fixed=True).answers == {"answers": 60}


def test_a_limit_that_no_engine_tells_has_no_number() -> None:
    unknown = Subject(identity={}, fingerprint={})
    assert unfit_answers(passed(0, 60), unknown) == (
        "60 of 60 answers are cut at their most tokens (5 % allowed)"
    )
