"""Answers that must equal their reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_mlperf.adapters.scorers.exact_match import ExactMatchScorer
from pytest_mlperf.core.errors import RunError, SuiteError
from pytest_mlperf.testing import check_scorer
from tests.adapters.scorers.tokenizers_made_here import byte_level

PAIRS = [
    ("Paris", "Paris"),
    ("paris ", "Paris"),
    (" Paris\n", "Paris"),
    ("Rome", "Paris"),
    ("", ""),
]
EQUAL = {
    (True, False): [1, 0, 1, 0, 1],
    (True, True): [1, 1, 1, 0, 1],
    (False, False): [1, 0, 0, 0, 1],
    (False, True): [1, 0, 0, 0, 1],
}


@pytest.mark.parametrize("answers", ["tokens", "text"])
@pytest.mark.parametrize(("strip", "casefold"), EQUAL)
def test_an_answer_counts_where_it_equals_the_reference(
    answers: str, strip: bool, casefold: bool, model: Path
) -> None:
    texts, references = zip(*PAIRS, strict=True)
    outputs = [text.encode() for text in texts]
    if answers == "tokens":
        outputs = [np.array([*e.ids, 2], "<i8").tobytes() for e in byte_level().encode_batch(texts)]
    equal = [100.0 * one for one in EQUAL[strip, casefold]]
    scorer = ExactMatchScorer(model=str(model), answers=answers, strip=strip, casefold=casefold)
    scores = scorer.score(outputs, references)
    assert scores.per_sample == {"exact_match": equal}
    assert scores.aggregate == {"exact_match": sum(equal) / len(equal)}


@pytest.mark.process
@pytest.mark.parametrize(("answers", "reference"), [("text", "a"), ("ids", [1]), ("tokens", "a")])
def test_it_keeps_the_contract_of_scorers(answers: str, reference: object, model: Path) -> None:
    outputs = [np.array([1, 2], "<i8").tobytes(), np.array([1], "<i8").tobytes()]
    options = {"answers": answers}
    check_scorer(ExactMatchScorer, outputs, [reference] * 2, model=str(model), options=options)


def test_token_ids_need_no_tokenizer() -> None:
    outputs = [np.array(ids, "<i4").tobytes() for ids in ([5, 2], [5, 2], [])]
    scores = ExactMatchScorer(answers="ids", dtype="int32").score(outputs, [[5, 2], [5, 3], []])
    assert scores.per_sample == {"exact_match": [100.0, 0.0, 100.0]}


def test_incomparable_inputs_are_refused() -> None:
    scorer: Any = ExactMatchScorer
    for option, value in {"answers": "words", "strip": 3, "casefold": "yes"}.items():
        with pytest.raises(SuiteError, match=f"scorer exact_match: {option} = {value!r} is "):
            scorer(**{"answers": "text", option: value})
    with pytest.raises(SuiteError, match="scorer exact_match decodes tokens, but neither its opt"):
        ExactMatchScorer()
    with pytest.raises(RunError, match="the reference of sample 0 is a int, but must be a text"):
        ExactMatchScorer(answers="text").score([b"1"], [1])
