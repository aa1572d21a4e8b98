"""Make BERT's features of SQuAD's paragraphs: a question before each window of word pieces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.datasets.squad_file import Passage, Question
from pytest_mlperf.datasets.squad_wordpiece import FIRST, SEPARATOR, WordPieces

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SPACES = re.compile("[ \t\r\n\u202f]+")
"""What parts the words of a paragraph; other spaces are left to the tokenizer, as in MLPerf's."""

OTHER_PIECES = 3
"""[CLS], and [SEP] after the question and after the window."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Paragraph:
    """A paragraph, word by word and piece by piece.

    Attributes:
        words: As they were written.
        normalized: The basic tokens of each word, with spaces between them.
        pieces: Word pieces of all words.
        word_of_piece: The word that each piece is of.
        numbers: The number of each piece in the vocabulary.
    """

    words: list[str]
    normalized: list[str]
    pieces: list[str]
    word_of_piece: list[int]
    numbers: NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Feature:
    """A question before a window of its paragraph: pieces `start` to `start + length - 1`.

    Attributes:
        numbers: [CLS], the question and [SEP], as numbers in the vocabulary.
        max_context: Runs [begin, end) of the pieces that no other window of the question shows
            with more context.
    """

    question: Question
    numbers: NDArray[np.int32]
    paragraph: Paragraph
    start: int
    length: int
    max_context: list[list[int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Builder:
    """Makes features of passages.

    Attributes:
        pieces: Splits texts.
        max_seq_length: Word pieces of a feature at most.
        doc_stride: Word pieces from the start of a window to that of the next.
        max_query_length: Word pieces that are kept of a question.
    """

    pieces: WordPieces
    max_seq_length: int
    doc_stride: int
    max_query_length: int

    def features(self, passage: Passage) -> Iterator[Feature]:
        """Yield the features of each question, its windows from the left to the right.

        Raises:
            RunError: There are questions, but nothing to find their answers in.
        """
        import numpy as np

        if not passage.questions:
            return
        paragraph = self._paragraph(passage)
        for question in passage.questions:
            query = self.pieces.split(question.text)[: self.max_query_length]
            room = self.max_seq_length - len(query) - OTHER_PIECES
            windows = split_windows(len(paragraph.pieces), room, self.doc_stride)
            contexts = max_contexts(windows, len(paragraph.pieces))
            numbers = np.array(self.pieces.numbers([FIRST, *query, SEPARATOR]), np.int32)
            for (start, length), max_context in zip(windows, contexts, strict=True):
                yield Feature(
                    question=question,
                    numbers=numbers,
                    paragraph=paragraph,
                    start=start,
                    length=length,
                    max_context=max_context,
                )

    def _paragraph(self, passage: Passage) -> Paragraph:
        import numpy as np

        words = [self.pieces.word(text) for text in _SPACES.split(passage.context) if text]
        pieces = [piece for word in words for piece in word.pieces]
        if not pieces:
            raise RunError(
                "dataset",
                f"{passage.where}: its context {passage.context[:40]!r} has no word, so its "
                "questions have no feature; correct the file, or get dev-v1.1.json again",
            )
        return Paragraph(
            words=[word.text for word in words],
            normalized=[word.normalized for word in words],
            pieces=pieces,
            word_of_piece=[number for number, word in enumerate(words) for _ in word.pieces],
            numbers=np.array(self.pieces.numbers(pieces), np.int32),
        )


def split_windows(pieces: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Return start and length of the windows that show a paragraph of so many pieces."""
    windows = [(0, min(pieces, room))]
    while sum(windows[-1]) < pieces:
        start = windows[-1][0] + min(windows[-1][1], stride)
        windows.append((start, min(pieces - start, room)))
    return windows


def max_contexts(windows: list[tuple[int, int]], pieces: int) -> list[list[list[int]]]:
    """Return, for each window, the runs of pieces that it shows with the most context.

    The context of a piece is the smaller number of pieces on either side of it, plus a hundredth of
    the window's length; of equals, the first window has it.
    """
    import numpy as np

    if len(windows) == 1:
        return [[[0, pieces]]]
    piece = np.arange(pieces)
    contexts = np.full((len(windows), pieces), -1.0)
    for row, (start, length) in zip(contexts, windows, strict=True):
        inside = piece[start : start + length]
        row[inside] = np.minimum(inside - start, start + length - 1 - inside) + 0.01 * length
    owner = contexts.argmax(axis=0)
    edges = [0, *(np.flatnonzero(np.diff(owner)) + 1).tolist(), pieces]
    runs: list[list[list[int]]] = [[] for _ in windows]
    for begin, end in pairwise(edges):
        runs[owner[begin]].append([begin, end])
    return runs
