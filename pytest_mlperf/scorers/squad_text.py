"""From a span of word pieces to the text of an answer, and how well that answers a question."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def answer_text(reference: Mapping[str, Any], first: int, last: int) -> str:
    """Return the text that pieces `first` to `last` of a paragraph stand for, as it was written.

    Source: write_predictions in language/bert/accuracy-squad.py of
    https://github.com/mlcommons/inference.

    Args:
        reference: As data set squad gives it.
        first: Number of a piece in the paragraph.
        last: Number of that piece or of a later one.
    """
    joined = " ".join(reference["pieces"][first : last + 1]).replace(" ##", "").replace("##", "")
    words = slice(reference["word_of_piece"][first], reference["word_of_piece"][last] + 1)
    return written_text(
        found=" ".join(joined.split()),
        normalized=" ".join(text for text in reference["normalized"][words] if text),
        written=" ".join(reference["words"][words]),
    )


def written_text(*, found: str, normalized: str, written: str) -> str:
    """Cut from `written` what `found` was in it before it was normalized.

    Where both have the same number of characters other than spaces, these belong to each other one
    by one; where not, nothing can be cut off.

    Args:
        found: Part of `normalized`, or something else, as where a piece is [UNK].
        normalized: The basic tokens of `written`, with spaces between them.
        written: Whole words of the paragraph, with spaces between them.
    """
    start = normalized.find(found)
    places = [place for place, character in enumerate(written) if character != " "]
    if not found or start < 0 or len(places) != len(normalized) - normalized.count(" "):
        return written
    first = start - normalized.count(" ", 0, start)
    last = first + len(found) - found.count(" ") - 1
    return written[places[first] : places[last] + 1]


def scores(answer: str, accepted: Iterable[str]) -> tuple[float, bool]:
    """Return F1 (0–1) of the words, and whether all are equal, each at its best.

    Source: language/bert/evaluate_v1.1.py of https://github.com/mlcommons/inference.

    Args:
        answer: The text found.
        accepted: Texts that count as right, at least one.
    """
    found = normalized_words(answer)
    wanted = [normalized_words(text) for text in set(accepted)]
    return max(_f1(found, words) for words in wanted), found in wanted


def normalized_words(text: str) -> list[str]:
    """Return the words of a text in lower case, without ASCII's punctuation and without articles.

    A blank is put in place of an article, but not of a mark: "the-cat" becomes "thecat".
    """
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def _f1(found: list[str], wanted: list[str]) -> float:
    """Return the harmonic mean of precision and recall of the words; 0 where none is common."""
    common = sum((Counter(found) & Counter(wanted)).values())
    if not common:
        return 0.0
    precision, recall = common / len(found), common / len(wanted)
    return 2 * precision * recall / (precision + recall)
