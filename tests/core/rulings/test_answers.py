"""Empty and cut answers: which first baseline is refused for them, and when they became more."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_mlperf.core.measurement import Accuracy, Subject
from pytest_mlperf.core.notes import Note
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


def empty(**values: int) -> Note:
    return Note.of("empty_answers", limit="64", **values)


def cut(allowed: float = 0.05, **values: int) -> Note:
    return Note.of("cut_answers", limit="64", allowed=allowed, **values)


@pytest.mark.parametrize(
    ("accuracy", "reason"),
    [
        (passed(60), None),
        (passed(0), None),
        (passed(99, 1, empty=1, cut_reasoning=1), None),
        (passed(40, 20, empty=20, cut_reasoning=20), empty(count=20, of=60, reasoning=20)),
        (passed(42, 18, empty=20, cut_reasoning=18), empty(count=20, of=60, reasoning=18)),
        (passed(1_200, empty=1_200), empty(count=1200, of=1200, reasoning=0)),
        (passed(57, 3), None),
        (passed(56, 4), cut(count=4, of=60)),
        (passed(0, 60, empty=60, fixed=True), None),
    ],
)
def test_a_first_baseline_has_few_empty_and_cut_answers(
    accuracy: Accuracy, reason: Note | None
) -> None:
    assert unfit_answers(accuracy, LIMIT) == reason


def test_a_reference_that_cuts_answers_allows_it() -> None:
    assert unfit_answers(passed(0, 60), LIMIT, 1.0) is None
    assert unfit_answers(passed(30, 30), LIMIT, 0.4) == cut(0.4, count=30, of=60)


def test_flaws_that_chance_explains_are_none_that_rose() -> None:
    baseline_counts = {"answers": 60}
    assert risen_flaws(passed(58, 2, empty=2, baseline_counts=baseline_counts), LIMIT) is None
    assert risen_flaws(passed(0, 60, fixed=True, baseline_counts=baseline_counts), LIMIT) is None
    assert risen_flaws(passed(0, 60), LIMIT) is None, "the baseline knows nothing of its answers"
    assert risen_flaws(passed(40, 20, baseline_counts={"answers": 60, "cut": 15}), LIMIT) is None
    values = {"count": 20, "of": 60, "limit": "64", "baseline": 0, "baseline_of": 60}
    for accuracy, note in (
        (
            passed(40, 20, empty=20, cut_reasoning=20, baseline_counts=baseline_counts),
            Note.of("more_empty", reasoning=20, **values),
        ),
        (passed(40, 20, empty=1, baseline_counts=baseline_counts), Note.of("more_cut", **values)),
    ):
        assert risen_flaws(accuracy, LIMIT) == note


def test_the_answers_of_a_pass_are_one_line() -> None:
    accuracy = passed(40, 20, empty=20, cut_reasoning=18, bad_calls=1, prompt_tokens=9)
    assert accuracy.answers_in_words == (
        "40 stop, 20 length; 20 empty, 18 cut while reasoning, 1 with tool calls that are not JSON"
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
    note = Note.of("cut_answers", count=60, of=60, allowed=0.05, limit="")
    assert unfit_answers(passed(0, 60), unknown) == note
