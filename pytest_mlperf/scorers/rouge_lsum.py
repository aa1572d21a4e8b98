"""ROUGE-L of summaries, sentence by sentence, equal to `rouge_score`'s "rougeLsum" to the bit.

Each sentence of the reference is compared with each of the prediction. A word of the reference
counts when it is in the longest common subsequence with any of them, at most as often as both texts
have it. There can be several longest subsequences: the one that `rouge_score` reads out is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_mlperf.scorers.rouge_text import Vocabulary, plain

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Sentence = list[int]
"""Words as numbers; words with the same stem have the same."""


def summary_f_measures(
    predictions: Sequence[str], references: Sequence[str]
) -> NDArray[np.float64]:
    """Return the F-measures of pairs of texts with one sentence per line.

    Equal to `rouge_score.rouge_scorer.RougeScorer(["rougeLsum"], use_stemmer=True)`.

    Args:
        predictions: What was written, one text per pair.
        references: What should have been written.

    Returns:
        Shape (pairs,), values from 0 to 1.
    """
    import numpy as np

    vocabulary = Vocabulary()
    return np.array(
        [
            _f_measure(_sentences(reference, vocabulary), _sentences(prediction, vocabulary))
            for prediction, reference in zip(predictions, references, strict=True)
        ],
        np.float64,
    )


def _sentences(text: str, vocabulary: Vocabulary) -> list[Sentence]:
    lines = [plain(line).split() for line in text.split("\n")]
    return [[vocabulary[word] for word in line] for line in lines if line]


def _f_measure(meant: Sequence[Sentence], said: Sequence[Sentence]) -> float:
    if not meant or not said:
        return 0.0
    of_meant = Counter(word for sentence in meant for word in sentence)
    of_said = Counter(word for sentence in said for word in sentence)
    hits = 0
    for sentence in meant:
        for word in _covered(sentence, said):
            if of_said[word] > 0 and of_meant[word] > 0:
                hits += 1
                of_said[word] -= 1
                of_meant[word] -= 1
    recall = hits / sum(map(len, meant))
    precision = hits / sum(map(len, said))
    total = precision + recall
    return 2 * precision * recall / total if total > 0 else 0.0


def _covered(sentence: Sentence, others: Sequence[Sentence]) -> list[int]:
    """Return the words of a sentence that are in a common subsequence with any other, in order."""
    places = set().union(*(_common(sentence, other) for other in others))
    return [sentence[place] for place in sorted(places)]


def _common(sentence: Sentence, other: Sentence) -> list[int]:
    """Return where in a sentence the words of a longest common subsequence stand.

    Of several it is the one found from the ends: equal words are taken, else the last word of the
    sentence is left out if the length allows that, else the last of the other.
    """
    if not set(sentence) & set(other):
        return []
    lengths = _lengths(sentence, other)
    row, column, places = len(sentence), len(other), []
    while row and column:
        if sentence[row - 1] == other[column - 1]:
            row, column = row - 1, column - 1
            places.append(row)
        elif lengths[row - 1][column] == lengths[row][column]:
            row -= 1
        else:
            column -= 1
    return places


def _lengths(sentence: Sentence, other: Sentence) -> list[list[int]]:
    """Return for each number of first words of both how long their longest subsequence is."""
    above = [0] * (len(other) + 1)
    table = [above]
    for word in sentence:
        left, row = 0, [0]
        for column, one in enumerate(other):
            if word == one:
                left = above[column] + 1
            elif above[column + 1] > left:
                left = above[column + 1]
            row.append(left)
        table.append(row)
        above = row
    return table
