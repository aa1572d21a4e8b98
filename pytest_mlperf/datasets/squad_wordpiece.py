"""Split text into the word pieces of BERT's lower-cased vocabulary, in plain Python.

Equal to the Python tokenizers that MLPerf's BERT reference uses: BertTokenizer of transformers
2.4.0 for the features, BasicTokenizer of NVIDIA's DeepLearningExamples (PyTorch) for the answers'
texts. The `tokenizers` library is not: it lower-cases character by character, so "ΣΑΣ" ends in
another sigma there, and its tables are of another version of Unicode than Python's.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_mlperf.core.errors import RunError

UNKNOWN, FIRST, SEPARATOR = "[UNK]", "[CLS]", "[SEP]"
SPECIAL = (UNKNOWN, SEPARATOR, "[PAD]", FIRST, "[MASK]")
"""Words that stay as they are where they stand alone in a text."""

LONGEST_WORD = 100
"""Characters; a longer word becomes [UNK]."""

_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
"""Blocks of Unicode whose characters are words of their own: CJK unified ideographs."""


class _Cleaning(dict[int, str | None]):
    """A table of `str.translate`: drops control characters, parts ideographs, unifies spaces."""

    def __missing__(self, code: int) -> str | None:
        self[code] = self._replace(code)
        return self[code]

    @staticmethod
    def _replace(code: int) -> str | None:
        character = chr(code)
        category = unicodedata.category(character)
        if character in "\t\n\r" or category == "Zs":
            return " "
        if code == 0xFFFD or category.startswith("C"):
            return None
        if any(low <= code <= high for low, high in _IDEOGRAPHS):
            return f" {character} "
        return character


class _Splitting(dict[int, str | None]):
    """A table of `str.translate`: drops accents, parts punctuation marks."""

    def __missing__(self, code: int) -> str | None:
        self[code] = self._replace(code)
        return self[code]

    @staticmethod
    def _replace(code: int) -> str | None:
        character = chr(code)
        category = unicodedata.category(character)
        if category == "Mn":
            return None
        # BERT also takes the symbols of ASCII, e.g. $ and ^, for punctuation.
        symbol = 33 <= code <= 126 and not character.isalnum()
        return f" {character} " if symbol or category.startswith("P") else character


_CLEANING, _SPLITTING = _Cleaning(), _Splitting()


def basic_tokens(text: str) -> list[str]:
    """Return words in lower case without accents; punctuation marks and ideographs are words."""
    tokens: list[str] = []
    for word in text.translate(_CLEANING).split():
        if word in SPECIAL:
            tokens.append(word)
        else:
            plain = unicodedata.normalize("NFD", word.lower())
            tokens += plain.translate(_SPLITTING).split()
    return tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Word:
    """A word of a text, and what becomes of it.

    Attributes:
        text: The word as it was written.
        normalized: Its basic tokens, with spaces between them.
        pieces: Its word pieces.
    """

    text: str
    normalized: str
    pieces: tuple[str, ...]


class WordPieces:
    """Splits texts by one vocabulary, and remembers every word that it was asked for."""

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        """Take the vocabulary: the number of each piece; needs the pieces of `read_vocabulary`."""
        self._numbers = vocabulary
        self._words: dict[str, Word] = {}

    def word(self, text: str) -> Word:
        """Return what becomes of a word; equal words are the same object."""
        known = self._words.get(text)
        if known is None:
            normalized = " ".join(basic_tokens(text))
            known = Word(text=text, normalized=normalized, pieces=tuple(self.split(text)))
            self._words[text] = known
        return known

    def split(self, text: str) -> list[str]:
        """Return the word pieces of a text."""
        return [piece for token in basic_tokens(text) for piece in self._pieces(token)]

    def numbers(self, pieces: list[str]) -> list[int]:
        """Return the number of each piece, that of [UNK] where it has none."""
        unknown = self._numbers[UNKNOWN]
        return [self._numbers.get(piece, unknown) for piece in pieces]

    def _pieces(self, token: str) -> list[str]:
        """Return the longest piece that the token begins with, and so on with the rest."""
        if len(token) > LONGEST_WORD:
            return [UNKNOWN]
        pieces: list[str] = []
        start = 0
        while start < len(token):
            prefix = "##" if start else ""
            for end in range(len(token), start, -1):
                piece = prefix + token[start:end]
                if piece in self._numbers:
                    break
            else:
                return [UNKNOWN]
            pieces.append(piece)
            start = end
        return pieces


def read_vocabulary(path: Path) -> dict[str, int]:
    """Read vocab.txt: one piece a line, numbered from 0.

    Raises:
        RunError: It is no UTF-8 text, or lacks [UNK], [CLS] or [SEP].
    """
    try:
        with path.open(encoding="utf-8") as file:
            vocabulary = {line.rstrip("\n"): number for number, line in enumerate(file)}
    except UnicodeDecodeError as error:
        raise RunError(
            "dataset", f"{path}: is no UTF-8 text ({error}); get BERT's vocab.txt again"
        ) from error
    missing = [piece for piece in (UNKNOWN, FIRST, SEPARATOR) if piece not in vocabulary]
    if missing:
        raise RunError(
            "dataset",
            f"{path}: has {len(vocabulary)} lines, but none reads {missing[0]}, so it is no "
            "vocabulary of BERT; set vocab to the vocab.txt of the model (one word piece a line)",
        )
    return vocabulary
