"""Scorer word_accuracy is MLPerf's script for Whisper, its greedy joining of words included."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.adapters.conventions import SPEECH_LABELS
from pytest_mlperf.adapters.scorers.word_accuracy import (
    MAX_ANSWER_CHARACTERS,
    WordAccuracyScorer,
    normaliser,
    word_errors,
)
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.testing import check_scorer
from tests.adapters.scorers.refusals import differences

pytest.importorskip("rapidfuzz", reason="needs pytest-mlperf[speech]")
pytest.importorskip("whisper_normalizer", reason="needs pytest-mlperf[speech]")


def answer(text: str) -> bytes:
    return np.array([SPEECH_LABELS.index(character) for character in text], "<i8").tobytes()


def accuracy(*pairs: tuple[str, str]) -> float:
    heard, spoken = zip(*pairs, strict=True)
    return WordAccuracyScorer().score(list(map(answer, heard)), spoken).aggregate["accuracy"]


def test_words_and_errors_are_the_references() -> None:
    errors = {
        ("every one left", "everyone left"): (0, 2),
        ("to day is good", "today is good"): (0, 3),
        ("ab c d", "a b c d"): (0, 4),
        ("a b c", "a x b c"): (1, 4),
        ("", "one two"): (2, 2),
        ("one two", ""): (2, 0),
        ("a b c d", "abcd"): (4, 1),  # four words are not joined
        ("x everyone", "every one"): (2, 2),  # no look back: Levenshtein's way round costs no less
    }

    assert {pair: word_errors(pair[0].split(), pair[1].split()) for pair in errors} == errors


def test_words_are_normalised_as_openai_whisper_does() -> None:
    texts = {
        "mr colour won't": "mister color will not",
        "twenty one dollars": "$21",
        "i'm um going": "i am going",
        "kinda sorta dunno cause": "kinda sorta dunno cause",  # openai-whisper leaves these
        "gonna wanna": "going to want to",
    }

    assert {text: " ".join(normaliser()(text).split()) for text in texts} == texts
    assert SPEECH_LABELS[27:] == "'0123456789$%+-"
    assert (len(SPEECH_LABELS), SPEECH_LABELS[:2], SPEECH_LABELS[26]) == (42, " a", "z")


def test_the_error_rate_is_over_all_words_and_not_a_mean_of_samples() -> None:
    assert accuracy(("a b c", "a b c"), ("x", "y")) == (1 - 1 / 4) * 100
    assert accuracy(("a", "a"), ("one two three", "")) == (1 - 1 / 1) * 100
    assert accuracy(("x y z", "b")) == -200.0


def test_a_transcript_loses_what_is_no_label() -> None:
    """Like MLPerf's manifest, which keeps no capital letters."""
    assert accuracy(("left", "Xleft,")) == 100.0
    with pytest.raises(RunError, match="all 1 samples have no word in lower case"):
        accuracy(("left", "LEFT"))


PAIRS = [("every one left", "everyone left"), ("a b", "a x b c"), ("", "x y"), ("hum", "hum")]


@pytest.mark.process
def test_it_keeps_the_contract_of_scorers() -> None:
    scores = check_scorer(
        WordAccuracyScorer, [answer(heard) for heard, _ in PAIRS], [text for _, text in PAIRS]
    )

    assert scores.whole == {"accuracy"}
    assert scores.aggregate["accuracy"] == pytest.approx(100 * (1 - 4 / 9))


texts = st.lists(st.sampled_from(["a", "b", "ab", "aba", "c", "mister"]), max_size=8)


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=20))
@settings(deadline=None, max_examples=40)
def test_pseudo_values_add_up_and_follow_the_change_of_one_sample(
    lists: list[tuple[list[str], list[str]]],
) -> None:
    pairs = [(" ".join(heard), " ".join(spoken)) for heard, spoken in lists] + [("a", "a")]
    heard, spoken = zip(*pairs, strict=True)

    scores = WordAccuracyScorer().score(list(map(answer, heard)), spoken)

    values = [value for value in scores.per_sample["accuracy"] if value is not None]
    assert math.fsum(values) / len(values) == pytest.approx(scores.aggregate["accuracy"])
    counts = np.array([word_errors(one.split(), two.split()) for one, two in pairs], float)
    for sample, value in enumerate(values):
        weights = np.ones(len(values))
        weights[sample] += 1e-6
        errors, words = weights @ counts
        moved = 100 * (1 - errors / words) - scores.aggregate["accuracy"]
        influence = (value - scores.aggregate["accuracy"]) / len(values)
        assert moved / 1e-6 == pytest.approx(influence, rel=1e-3, abs=1e-3)


def test_an_output_that_is_no_text_names_its_sample() -> None:
    defects = [
        (b"\1", "has 1 bytes"),
        (np.array([1, 2, 3], "<i4").tobytes(), "has 12 bytes"),
        (
            np.array([1, 2], "<i4").tobytes(),
            r"has the number 8589934593, which is not one of 0 to 41",
        ),
        (np.array([-1], "<i8").tobytes(), "has the number -1"),
        (np.array([42], "<i8").tobytes(), "has the number 42"),
        (np.array([math.nan]).tobytes(), "has the number 9221120237041090560"),
        (bytes(8 * MAX_ANSWER_CHARACTERS + 8), "has 65544 bytes"),
    ]
    rows = [(output, f"output of sample 1 {defect}") for output, defect in defects]

    score = WordAccuracyScorer().score
    assert (
        differences(lambda output: score([answer("a"), output], ["a", "a"]), RunError, rows) == []
    )


def test_a_hostile_answer_is_scored_at_once() -> None:
    """Of 5,000 digits the normaliser makes no number, and ends with an error."""
    for piece in ("a", " ", " '", "1", "one ", "1 ", "$", "'s ", "double ", "-"):
        longest = (piece * MAX_ANSWER_CHARACTERS)[:MAX_ANSWER_CHARACTERS]
        assert accuracy((longest, "a")) <= 100
    digits = "1" * 5000
    assert accuracy((digits, "a b"), ("a", "a")) == pytest.approx(100 / 3)
    with pytest.raises(RunError, match="the transcript of sample 1, '1111"):
        accuracy(("a", "a"), ("a", digits))


@given(st.lists(st.text(SPEECH_LABELS, max_size=30), min_size=1, max_size=4))
@settings(deadline=None, max_examples=40)
def test_any_text_is_right_to_itself(spoken: list[Any]) -> None:
    assert accuracy(*zip(spoken, spoken, strict=True), ("a", "a")) == 100.0
