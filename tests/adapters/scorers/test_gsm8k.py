"""The number that an answer gives, and the score that MLPerf's reference prints for it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_mlperf.adapters.scorers.gsm8k import Gsm8kScorer
from pytest_mlperf.adapters.scorers.text import answer, is_right
from pytest_mlperf.core.errors import RunError, SuiteError, UnavailableError
from pytest_mlperf.testing import check_scorer
from tests.adapters.scorers.refusals import differences
from tests.adapters.scorers.tokenizers_made_here import byte_level

Build = Callable[..., Gsm8kScorer]

PREDICTED = [
    "5 + 3 = 8. The answer is 8.",
    "The answer is $1,080 a year, or 90 a month.\nQ: What is 2 + 2?\nA: The answer is 4.",
    "It is 7, or so.",
    "I do not know.",
    "",
    "The answer is -3.50",
    "The answer is 1. No: The answer is 2",
]
TARGETS = ["8", "1080", "7.0", "0", "0", "-3.5", "1"]
RIGHT = [True, True, True, False, False, True, False]


@pytest.fixture
def build(model: Path) -> Build:
    def with_options(**options: Any) -> Gsm8kScorer:
        return Gsm8kScorer(**{"model": str(model), **options})

    return with_options


def tokens(texts: list[str], dtype: str = "<i8") -> list[bytes]:
    """Return an engine's outputs: the tokens of each text and the end of sequence."""
    return [np.array([*one.ids, 2], dtype).tobytes() for one in byte_level().encode_batch(texts)]


NUMBERS = {
    "": "",
    "none at all": "",
    "3 apples and 4 pears": "4",
    "The answer is 3 apples and 4 pears": "3",
    "The answer is 3. 4 + 5. The answer is 6, not 7": "6",
    "There are 5. The answer is unknown.": "5",
    "There are 5. The answer is": "5",
    "the answer is 3 and 4": "4",
    "The answer is 3\nQ: 4?": "3",
    "It is 3\nQ: The answer is 4": "3",
    "\nQ: 4": "",
    "Q: 4": "4",
    "1,234,567.89": "1234567.89",
    "3,": "3",
    "3.": "3",
    ".5": ".5",
    "1.2.3": ".3",
    "-5": "-5",
    "7-5": "-5",
    "- 5": "5",
    "--5": "-5",
    "−5": "5",
    "$12.50 a day": "12.50",
    "12%": "12",
    ",,,5": "5",
    "1e3": "3",
    "٣": "٣",
    "2²": "2",
}
"""The first after the last delimiter, else the last; before the next question only."""

COMPARED = {
    ("It is 1,000.0", "1000"): True,
    ("It is 1000", "1,000"): False,
    ("It is 0.1", "0.10"): True,
    ("It is -0", "0"): True,
    ("It is 9007199254740993", "9007199254740992"): True,
    ("It is 5", "five"): False,
    ("nothing", "five"): False,
    ("nothing", ""): False,
    ("It is 5", "nan"): False,
    ("9" * 400, "inf"): True,
    ("٣", "3"): True,
}


def test_answers_are_read_and_compared_as_numbers() -> None:
    assert {text: answer(text) for text in NUMBERS} == NUMBERS
    assert {pair: is_right(*pair) for pair in COMPARED} == COMPARED


def plainly(text: str) -> str:
    """Return the number of an answer by the words of the rule, one character at a time."""
    text = text.partition("\nQ:")[0]
    if "The answer is" in text and (
        numbers_after_delimiter := numbers(text.split("The answer is")[-1])
    ):
        return numbers_after_delimiter[0].replace(",", "")
    return numbers(text)[-1].replace(",", "") if numbers(text) else ""


def numbers(text: str) -> list[str]:
    """Return the longest number from each place on, left to right, without overlap.

    A number is perhaps a minus, then digits and commas, perhaps a point, and digits at the end.
    """
    number_texts, at = [], 0
    while at < len(text):
        ends = [
            end for end in range(len(text), at, -1) if is_number(text[at:end].removeprefix("-"))
        ]
        if ends:
            number_texts.append(text[at : ends[0]])
        at = ends[0] if ends else at + 1
    return number_texts


def is_number(text: str) -> bool:
    head, point, after = text.rpartition(".")
    if not point:
        head, after = text[:-1], text[-1:]
    return bool(re.fullmatch(r"\d+", after)) and all(c == "," or re.match(r"\d", c) for c in head)


parts = st.sampled_from(
    [
        *"0123456789,.-$ ",
        "\n",
        "\nQ:",
        "The answer is",
        "The answer is ",
        "1,000",
        "-2.50",
        "é",
        "٣",
    ]
)


@given(st.lists(parts, max_size=12).map("".join))
@example("The answer is 1,2.3-4")
@settings(max_examples=60)
def test_any_text_gives_the_number_that_the_words_of_the_rule_give(text: str) -> None:
    assert answer(text) == plainly(text)


@given(st.text())
@settings(max_examples=40)
def test_an_answer_is_a_number_or_nothing(text: str) -> None:
    number = answer(text)

    assert number == "" or np.isfinite(float(number)) or len(number) > 300


@given(st.floats(-1e12, 1e12), st.text("abc \n,.", max_size=20))
def test_a_number_after_the_delimiter_is_found(number: float, prefix: str) -> None:
    text = f"{number:.4f}"

    assert is_right(f"{prefix} 17 The answer is {text}", text)


def test_each_sample_is_100_or_0_and_the_aggregate_their_mean(build: Build) -> None:
    outputs = tokens(PREDICTED)

    scores = build().score(outputs, TARGETS)

    assert scores.per_sample["gsm8k"] == [100.0 * right for right in RIGHT]
    assert scores.aggregate["gsm8k"] == 100.0 * sum(RIGHT) / len(RIGHT)
    counts = [len(output) // 8 for output in outputs]
    assert scores.per_sample["tokens_per_sample"] == counts
    assert scores.aggregate["tokens_per_sample"] == round(sum(counts) / len(counts), 1)
    assert (scores.lower, scores.whole) == (frozenset(), frozenset())
    assert json.loads(json.dumps(dict(scores.per_sample))) == scores.per_sample
    assert {type(value) for value in scores.aggregate.values()} == {float}
    assert build(dtype="int32").score(tokens(PREDICTED, "<i4"), TARGETS) == scores


def test_a_model_that_says_nothing_scores_0(build: Build) -> None:
    scores = build().score([b""], ["3"])

    assert scores.per_sample == {"gsm8k": [0.0], "tokens_per_sample": [0.0]}


def test_wrong_inputs_and_options_are_refused(build: Build, tmp_path: Path) -> None:
    rows: list[tuple[bytes, Any, str]] = [
        (b"", 7, "scorer gsm8k: the reference of sample 1 is a int, but must be a text"),
        (b"", None, "scorer gsm8k: the reference of sample 1 is a NoneType, but must be a text"),
        (b"", ["a"], "scorer gsm8k: the reference of sample 1 is a list, but must be a text"),
        (b"1234567", "2", "scorer gsm8k: the output of sample 1 has 7 bytes"),
        (
            np.array([10**6], "<i8").tobytes(),
            "2",
            "scorer gsm8k: token 1000000 of sample 1 is not in",
        ),
    ]
    score = build().score

    assert differences(lambda output, two: score([b"", output], ["1", two]), RunError, rows) == []
    with pytest.raises(SuiteError, match="scorer gsm8k: dtype = 'float' is not one of"):
        build(dtype="float")
    with pytest.raises(UnavailableError, match="scorer gsm8k: the folder"):
        build(tokenizer=str(tmp_path))


@pytest.mark.process
def test_the_scorer_keeps_the_contract(model: Path) -> None:
    scores = check_scorer(Gsm8kScorer, tokens(PREDICTED), TARGETS, model=str(model))

    assert scores.per_sample["gsm8k"] == [100.0 * right for right in RIGHT]
