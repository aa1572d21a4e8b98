from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_mlperf.adapters.scorers.rouge import text as rouge_text
from pytest_mlperf.adapters.scorers.rouge.text import ROUGE_METRICS, Vocabulary, f_measures
from pytest_mlperf.core.errors import EnvironmentFault, RunError
from tests.adapters.scorers import originals

pytest.importorskip("rapidfuzz")

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
def test_long_texts_and_pairs_of_several_batches_give_the_same_too() -> None:
    for pairs in (long_texts(5, size=700), long_texts(2 * rouge_text.BATCH_PAIRS + 3, size=12)):
        assert rouge_scores(pairs) == expected(pairs)


@given(st.lists(sentences, min_size=1, max_size=4), st.sampled_from(["\n", "  ", "\n\n", "\t"]))
def test_white_space_between_sentences_does_not_count(texts: list[str], space: str) -> None:
    """The reference puts one line break between sentences; that changes no F-measure."""
    prediction, reference = ". ".join(texts), "the cats ran. Happily."
    split = re.sub(r"(?<=[.!?])\s+", space, prediction)

    assert rouge_scores([(split, reference)]) == rouge_scores([(prediction, reference)])


@pytest.mark.slow
def test_the_words_of_a_text_are_what_rouge_score_takes_for_words() -> None:
    from nltk.stem.porter import PorterStemmer
    from rouge_score.tokenize import tokenize

    codes = [*range(0x3000), *range(0x3000, sys.maxunicode + 1, 997), *range(0xD800, 0xD900, 16)]
    vocabulary, stemmer = Vocabulary(), PorterStemmer()
    for code in codes:
        text = f"running{chr(code)}national x{chr(code)} {chr(code)}9"
        words = tokenize(text, stemmer)

        assert vocabulary.numbers(text) == [vocabulary.stems[word] for word in words]


def test_each_written_word_is_stemmed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from nltk.stem.porter import PorterStemmer

    stemmed: list[str] = []
    original = PorterStemmer.stem

    def stem(self: PorterStemmer, word: str) -> str:
        stemmed.append(word)
        return str(original(self, word))

    monkeypatch.setattr(PorterStemmer, "stem", stem)

    f_measures(["Running runs, running", "The running"], ["running runs", "RUNNING"])

    assert sorted(stemmed) == ["running", "runs"]


@pytest.mark.process
def test_the_number_of_processes_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are no more helpers than pairs, this process included."""
    started: list[Any] = []
    start = subprocess.Popen

    def count(*arguments: Any, **options: Any) -> Any:
        started.append(arguments)
        return start(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", count)
    pairs = [*long_texts(1, size=60), ("", ""), ("one", "")]

    assert rouge_scores(pairs, 50) == rouge_scores(pairs)
    assert len(started) == len(pairs) - 1


@pytest.mark.process
def test_a_helper_that_dies_is_an_error_of_the_scorer(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="zip"):
        f_measures(["one"], [])
    monkeypatch.setattr(sys, "executable", "false")

    with pytest.raises(RunError, match="a helper process ended early, with exit code 1") as caught:
        f_measures(["one"] * 2, ["two"] * 2, processes=2)

    assert caught.value.layer == "scorer"


@pytest.mark.process
def test_a_helper_ends_when_its_parent_does() -> None:
    """A parent that dies closes the pipe: while the helper works, before it has all, at once."""
    data = json.dumps(long_texts(300, size=600) * 10).encode()
    data = len(data).to_bytes(rouge_text.SIZE_BYTES, "little") + data
    command = [sys.executable, "-m", "pytest_mlperf.adapters.scorers.rouge.text"]
    endings = []
    for end in (len(data), len(data) - 1, 0):
        done = subprocess.run(
            command, input=data[:end], capture_output=True, check=False, timeout=60
        )
        endings.append((done.returncode, done.stdout, done.stderr))

    assert endings == [(1, b"", b""), (0, b"", b""), (0, b"", b"")]


@pytest.mark.parametrize("library", ["rapidfuzz.distance", "nltk.stem.porter", "rouge_score"])
def test_a_missing_library_names_the_extra_that_has_it(
    monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)

    with pytest.raises(EnvironmentFault, match=r"pip install 'pytest-mlperf\[scoring\]'"):
        f_measures(["one"], ["two"])


def test_values_are_between_0_and_1_and_one_row_per_metric() -> None:
    measured = f_measures(["the cat", "x"], ["the cat", "y"])

    assert measured.tolist() == [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]
    assert measured.dtype == np.float64
