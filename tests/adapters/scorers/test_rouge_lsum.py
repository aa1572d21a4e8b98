"""ROUGE-L sentence by sentence, equal to rouge_score's rougeLsum to the bit."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_mlperf.adapters.scorers.rouge.text import f_measures
from tests.adapters.scorers import originals


def summary_f_measures(predictions: list[str], references: list[str]) -> Any:
    return f_measures(predictions, references, metrics=("rougeLsum",))[0]


words = st.sampled_from(
    ["a", "b", "c", "d", "cats", "cat's", "running", "ran", "The", "İstanbul", "42", ".", "\n"]
)
texts = st.lists(words, max_size=25).map(" ".join)
anything = st.text(max_size=40)


def expected(prediction: str, reference: str) -> float:
    f_measure: float = (
        originals.rouge("rougeLsum").score(reference, prediction)["rougeLsum"].fmeasure
    )
    return f_measure


@given(st.one_of(texts, anything), st.one_of(texts, anything))
@example("", "")
@example("a\n\n", "\n...\na")
@example("a b\nb a", "b a b\na a")
def test_any_pair_of_texts_scores_as_rouge_score_scores_it(prediction: str, reference: str) -> None:
    assert summary_f_measures([prediction], [reference]).tolist() == [
        expected(prediction, reference)
    ]


@given(st.lists(st.tuples(texts, texts), max_size=4))
@settings(max_examples=50)
def test_pairs_do_not_see_each_other(pairs: list[tuple[str, str]]) -> None:
    measured = summary_f_measures([p for p, _ in pairs], [r for _, r in pairs])

    assert measured.tolist() == [expected(*pair) for pair in pairs]


def test_long_summaries_score_as_rouge_score_scores_them() -> None:
    """Sentences of up to 60 words, of which many are common."""
    rng = random.Random(3)
    words = [f"word{number}" for number in range(25)]
    pairs = []
    for _ in range(10):
        lines = [" ".join(rng.choices(words, k=rng.randint(1, 60))) for _ in range(10)]
        pairs.append(("\n".join(lines[:5]), "\n".join(lines[3:8])))

    measured = summary_f_measures([p for p, _ in pairs], [r for _, r in pairs])

    assert measured.tolist() == [expected(*pair) for pair in pairs]
    assert len(set(measured.tolist())) == 10


def test_scores_by_hand() -> None:
    """Sentences may change places; words in one may not; repeats count once per partner."""
    scores = {
        ("a b c", "a b c"): 1.0,
        ("a b\nc d", "c d\na b"): 1.0,
        ("a b c d", "d c b a"): 0.25,
        ("a\nb\nc\nd", "d c b a"): 1.0,
        ("a a a", "a"): 0.5,
        ("", "a"): 0.0,
        ("...", "a"): 0.0,
    }

    assert {pair: summary_f_measures([pair[0]], [pair[1]])[0] for pair in scores} == scores
