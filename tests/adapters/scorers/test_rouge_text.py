from __future__ import annotations

import random
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_mlperf.adapters.scorers.rouge import text as rouge_text
from pytest_mlperf.adapters.scorers.rouge.text import ROUGE_METRICS, f_measures
from pytest_mlperf.core.errors import EnvironmentFault, RunError
from tests.adapters.scorers import originals

pytest.importorskip("rouge_score")

Pairs = list[tuple[str, str]]


WORDS = (
    "a I the The THE cat cats cat's run running runs ran national nationally happy happily don't "
    "foo_bar 7 42 4x4 naïve Straße İstanbul 5\N{KELVIN SIGN} — . , ! \n \t"
)

words = st.sampled_from(WORDS.split(" "))
sentences = st.lists(words, max_size=30).map(" ".join)
anything = st.text(st.characters(codec=None, exclude_categories=()), max_size=40)
pairs_of_texts = st.lists(
    st.tuples(st.one_of(sentences, anything), st.one_of(sentences, anything)), max_size=6
)


def expected(pairs: Pairs) -> list[list[float]]:
    """Return what rouge_score gives: one row per metric."""
    original = originals.rouge(*ROUGE_METRICS)
    scores = [original.score(reference, prediction) for prediction, reference in pairs]
    return [[score[name].fmeasure for score in scores] for name in ROUGE_METRICS]


def rouge_scores(pairs: Pairs, processes: int = 1) -> list[list[float]]:
    """Return what this module gives, in the same shape."""
    predictions, references = [p for p, _ in pairs], [r for _, r in pairs]
    rows: list[list[float]] = f_measures(predictions, references, processes=processes).tolist()
    return rows


def long_texts(count: int, size: int) -> Pairs:
    """Return pairs of texts of about `size` words that have passages in common."""
    rng = random.Random(20)
    vocabulary = [
        f"{start}{end}"
        for start in ("pl", "tr", "rel", "nation", "hop", "x9", "contr", "Bay")
        for end in ("s", "ed", "ing", "ation", "al", "ally", "fulness", "y", "")
    ]
    pairs = []
    for _ in range(count):
        left = rng.choices(vocabulary, k=rng.randint(size // 2, size))
        cut = rng.randrange(len(left))
        right = left[cut:] + rng.choices(vocabulary, k=size // 2) + left[: cut // 2]
        pairs.append((" ".join(left), ", ".join(right)))
    return pairs


@pytest.mark.slow
@given(pairs_of_texts)
@example([("", ""), ("", "one"), ("one", ""), ("one", "one"), ("one one", "one")])
@example([("the cat the cat the cat", "the cat sat the cat"), ("... !", "- _ -")])
@settings(max_examples=150)
def test_f_measures_are_those_of_rouge_score_to_the_last_bit(pairs: Pairs) -> None:
    assert rouge_scores(pairs) == expected(pairs)


@pytest.mark.slow
def test_long_texts_give_the_same_too() -> None:
    pairs = long_texts(3, size=400)
    assert rouge_scores(pairs) == expected(pairs)


@given(st.lists(sentences, min_size=1, max_size=4), st.sampled_from(["\n", "  ", "\n\n", "\t"]))
def test_white_space_between_sentences_does_not_count(texts: list[str], space: str) -> None:
    """The reference puts one line break between sentences; that changes no F-measure."""
    prediction, reference = ". ".join(texts), "the cats ran. Happily."
    split = re.sub(r"(?<=[.!?])\s+", space, prediction)

    assert rouge_scores([(split, reference)]) == rouge_scores([(prediction, reference)])


def test_each_written_word_is_stemmed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from nltk.stem.porter import PorterStemmer

    stemmed: list[str] = []
    original = PorterStemmer.stem

    def stem(self: PorterStemmer, word: str) -> str:
        stemmed.append(word)
        return str(original(self, word))

    monkeypatch.setattr(PorterStemmer, "stem", stem)
    rouge_text._scorer.cache_clear()

    f_measures(["Running runs, running", "The running"], ["running runs", "RUNNING"])

    assert sorted(stemmed) == ["running", "runs"]


@pytest.mark.process
def test_the_number_of_processes_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process is worth its start only for many pairs."""
    monkeypatch.setattr(rouge_text, "PAIRS_PER_PROCESS", 1)
    pairs = [*long_texts(1, size=60), ("", ""), ("one", "")]

    assert rouge_scores(pairs, 2) == rouge_scores(pairs)


def test_a_helper_that_dies_is_an_error_of_the_scorer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(ThreadPoolExecutor):
        def __init__(self, processes: int, _: object) -> None:
            super().__init__(processes)

        def map(self, *_: Any, **__: Any) -> Any:
            raise BrokenProcessPool

    with pytest.raises(ValueError, match="zip"):
        f_measures(["one"], [])
    monkeypatch.setattr(rouge_text, "PAIRS_PER_PROCESS", 1)
    monkeypatch.setattr(rouge_text, "ProcessPoolExecutor", Broken)

    with pytest.raises(RunError, match="a helper process ended early") as caught:
        f_measures(["one"] * 2, ["two"] * 2, processes=2)

    assert caught.value.layer == "scorer"


@pytest.mark.parametrize("library", ["nltk.stem.porter", "rouge_score.rouge_scorer"])
def test_a_missing_library_names_the_extra_that_has_it(
    monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    import_module(library)  # an import that breaks off would leave NLTK half loaded
    monkeypatch.setitem(sys.modules, library, None)
    rouge_text._scorer.cache_clear()

    with pytest.raises(EnvironmentFault, match=r"pip install 'pytest-mlperf\[scoring\]'"):
        f_measures(["one"], ["two"])


def test_values_are_between_0_and_1_and_one_row_per_metric() -> None:
    measured = f_measures(["the cat", "x"], ["the cat", "y"])

    assert measured.tolist() == [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]
    assert measured.dtype == np.float64
