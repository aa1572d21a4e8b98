"""Convert SQuAD to BERT's features: a question followed by a window of word pieces.

Words are split as in MLPerf's BERT reference: by BertTokenizer of transformers 2.4.0 for features,
by BasicTokenizer of NVIDIA's DeepLearningExamples (PyTorch) for answers. The `tokenizers` library
gives other results: it lower-cases each character alone, so the last sigma of "ΣΑΣ" differs, and
its Unicode version is not that of Python.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from pytest_mlperf.adapters.datasets.files import wrong
from pytest_mlperf.adapters.lazy import NDArray, np

SQUAD_VERSION = "1.1"
FILE_ADVICE = "correct the file, or get dev-v1.1.json again"

T = TypeVar("T", str, list[Any])

_TYPE_NAMES = {str: "a text", list: "a list"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    identity: str
    text: str
    answers: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """Hold a paragraph and its questions, in the order of the file.

    Attributes:
        where: File and position in it, for error messages.
        article: Number of the article, from 1.
    """

    where: str
    article: int
    context: str
    questions: list[Question]


def read_passages(path: Path) -> list[Passage]:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise wrong(
            path,
            f"is not JSON ({error}): the file is incomplete or the wrong one",
            "get SQuAD's dev-v1.1.json again",
        ) from error
    version = _field(content, "version", str, where=str(path))
    if version != SQUAD_VERSION:
        raise wrong(
            path,
            f"is SQuAD version {version!r}, but MLPerf's BERT needs version {SQUAD_VERSION!r}",
            "set path to dev-v1.1.json",
        )
    passages: list[Passage] = []
    seen: set[str] = set()
    for article, entry in enumerate(_field(content, "data", list, where=str(path)), start=1):
        inside = f"{path}: article {article}"
        for number, paragraph in enumerate(_field(entry, "paragraphs", list, where=inside), 1):
            passages.append(_passage(paragraph, article, f"{inside}, paragraph {number}", seen))
    return passages


def _passage(record: Any, article: int, where: str, seen: set[str]) -> Passage:
    """Return a paragraph; raise RunError if `seen` has a question's id, else add the id to it."""
    questions = []
    for number, entry in enumerate(_field(record, "qas", list, where=where), 1):
        question = _question(entry, f"{where}, question {number}")
        if question.identity in seen:
            defect = f"an earlier question already has the id {question.identity!r}"
            raise wrong(where, defect, FILE_ADVICE)
        seen.add(question.identity)
        questions.append(question)
    context = _field(record, "context", str, where=where)
    return Passage(where=where, article=article, context=context, questions=questions)


def _question(record: Any, where: str) -> Question:
    answers = _field(record, "answers", list, where=where)
    if not answers:
        defect = f"has no answer, but each question of SQuAD {SQUAD_VERSION} has at least one"
        raise wrong(where, defect, FILE_ADVICE)
    return Question(
        identity=_field(record, "id", str, where=where),
        text=_field(record, "question", str, where=where),
        answers=[
            _field(answer, "text", str, where=f"{where}, answer {number}")
            for number, answer in enumerate(answers, 1)
        ],
    )


def _field(record: Any, key: str, kind: type[T], *, where: str) -> T:
    expected = f"but SQuAD {SQUAD_VERSION} needs an object with key {key!r}, {_TYPE_NAMES[kind]}"
    if not isinstance(record, dict):
        actual = f"is a value of type {type(record).__name__}"
    elif key not in record:
        actual = f"has {', '.join(map(repr, list(record)[:8])) or 'no key'}"
    elif not isinstance(record[key], kind):
        actual = f"has {key!r} of type {type(record[key]).__name__}"
    else:
        value: T = record[key]
        return value
    raise wrong(where, f"{actual}, {expected}", FILE_ADVICE)


UNK_TOKEN, CLS_TOKEN, SEP_TOKEN = "[UNK]", "[CLS]", "[SEP]"
SPECIAL = (UNK_TOKEN, SEP_TOKEN, "[PAD]", CLS_TOKEN, "[MASK]")
"""Words that are not split."""

MAX_WORD_CHARACTERS = 100
"""Maximum characters of a word; a longer one becomes [UNK]."""

_IDEOGRAPH = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f]"
)
"""CJK unified ideographs, each of which is a word."""


class _Replacing(dict[int, str | None]):
    """Map code points for `str.translate` by a function that is called once per character."""

    def __init__(self, replace: Callable[[str, str], str | None]) -> None:
        self._replace = replace

    def __missing__(self, code: int) -> str | None:
        character = chr(code)
        self[code] = self._replace(character, unicodedata.category(character))
        return self[code]


def _clean(character: str, category: str) -> str | None:
    if character in "\t\n\r" or category == "Zs":
        return " "
    if character == "\ufffd" or category.startswith("C"):
        return None
    return f" {character} " if _IDEOGRAPH.match(character) else character


def _space_symbol(character: str, category: str) -> str | None:
    """Return a character, with spaces around it if punctuation or symbol; None for an accent."""
    if category == "Mn":
        return None
    symbol = "!" <= character <= "~" and not character.isalnum()
    return f" {character} " if symbol or category.startswith("P") else character


_CLEANING, _SPLITTING = _Replacing(_clean), _Replacing(_space_symbol)


def basic_tokens(text: str) -> list[str]:
    """Split a text into lower-case words without accents; punctuation and ideographs are words."""
    tokens: list[str] = []
    for word in text.translate(_CLEANING).split():
        if word in SPECIAL:
            tokens.append(word)
        else:
            tokens += unicodedata.normalize("NFD", word.lower()).translate(_SPLITTING).split()
    return tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Word:
    """Hold a word, its basic tokens with spaces between them, and its word pieces."""

    text: str
    normalized: str
    pieces: tuple[str, ...]


class WordPieces:
    """Split texts into word pieces of a vocabulary, and cache the pieces of each word."""

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        self._numbers = vocabulary
        self._words: dict[str, Word] = {}

    def word(self, text: str) -> Word:
        """Return a word with its pieces; calls with the same text return the same object."""
        word = self._words.get(text)
        if word is None:
            normalized = " ".join(basic_tokens(text))
            word = Word(text=text, normalized=normalized, pieces=tuple(self.split(text)))
            self._words[text] = word
        return word

    def split(self, text: str) -> list[str]:
        return [piece for token in basic_tokens(text) for piece in self._pieces(token)]

    def numbers(self, pieces: list[str]) -> list[int]:
        """Return the vocabulary id of each piece; unknown pieces get the id of [UNK]."""
        unknown = self._numbers[UNK_TOKEN]
        return [self._numbers.get(piece, unknown) for piece in pieces]

    def _pieces(self, token: str) -> list[str]:
        if len(token) > MAX_WORD_CHARACTERS:
            return [UNK_TOKEN]
        pieces: list[str] = []
        start = 0
        while start < len(token):
            prefix = "##" if start else ""
            for end in range(len(token), start, -1):
                piece = prefix + token[start:end]
                if piece in self._numbers:
                    break
            else:
                return [UNK_TOKEN]
            pieces.append(piece)
            start = end
        return pieces


def read_vocabulary(path: Path) -> dict[str, int]:
    """Read vocab.txt: return the ids of word pieces, which are their line numbers from 0."""
    try:
        with path.open(encoding="utf-8") as file:
            vocabulary = {line.rstrip("\n"): number for number, line in enumerate(file)}
    except UnicodeDecodeError as error:
        raise wrong(path, f"is not UTF-8 text ({error})", "get BERT's vocab.txt again") from error
    missing = [piece for piece in (UNK_TOKEN, CLS_TOKEN, SEP_TOKEN) if piece not in vocabulary]
    if missing:
        raise wrong(
            path,
            f"has {len(vocabulary)} lines, but none reads {missing[0]}, so it is not a "
            "vocabulary of BERT",
            "set vocab to the vocab.txt of the model (one word piece a line)",
        )
    return vocabulary


_SPACES = re.compile("[ \t\r\n\u202f]+")
"""Separators of words in a paragraph, as in MLPerf; the tokenizer splits at other spaces."""

OTHER_PIECES = 3
"""[CLS], and [SEP] after the question and after the window."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Paragraph:
    """Hold the words and word pieces of a paragraph.

    Attributes:
        normalized: Basic tokens of each word, joined by spaces.
        word_of_piece: Index of the word of each piece.
        numbers: Vocabulary id of each piece.
    """

    article: int
    words: list[str]
    normalized: list[str]
    pieces: list[str]
    word_of_piece: list[int]
    numbers: NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Feature:
    """Hold a question and a window of its paragraph: pieces `start` to `start + length - 1`.

    `numbers` are the ids of [CLS], the question and [SEP]. `max_context` has ranges [begin, end) of
    the pieces for which this window gives the most context, see `max_contexts`.
    """

    question: Question
    numbers: NDArray[np.int32]
    paragraph: Paragraph
    start: int
    length: int
    max_context: list[list[int]]


def features_of(
    passage: Passage,
    vocabulary: WordPieces,
    *,
    max_seq_length: int,
    doc_stride: int,
    max_query_length: int,
) -> Iterator[Feature]:
    """Yield the features of a passage; lengths are in word pieces, see `SquadOptions`."""
    if not passage.questions:
        return
    paragraph = _paragraph(passage, vocabulary)
    for question in passage.questions:
        query = vocabulary.split(question.text)[:max_query_length]
        room = max_seq_length - len(query) - OTHER_PIECES
        windows = split_windows(len(paragraph.pieces), room, doc_stride)
        contexts = max_contexts(windows, len(paragraph.pieces))
        numbers = np.array(vocabulary.numbers([CLS_TOKEN, *query, SEP_TOKEN]), np.int32)
        for (start, length), max_context in zip(windows, contexts, strict=True):
            yield Feature(
                question=question,
                numbers=numbers,
                paragraph=paragraph,
                start=start,
                length=length,
                max_context=max_context,
            )


def _paragraph(passage: Passage, vocabulary: WordPieces) -> Paragraph:
    words = [vocabulary.word(text) for text in _SPACES.split(passage.context) if text]
    pieces = [piece for word in words for piece in word.pieces]
    if not pieces:
        raise wrong(
            passage.where,
            f"its context {passage.context[:40]!r} has no words, so no features can be made of it",
            FILE_ADVICE,
        )
    return Paragraph(
        article=passage.article,
        words=[word.text for word in words],
        normalized=[word.normalized for word in words],
        pieces=pieces,
        word_of_piece=[number for number, word in enumerate(words) for _ in word.pieces],
        numbers=np.array(vocabulary.numbers(pieces), np.int32),
    )


def split_windows(pieces: int, max_length: int, stride: int) -> list[tuple[int, int]]:
    """Return (start, length) of the windows over `pieces`: up to `max_length`, every `stride`."""
    windows = [(0, min(pieces, max_length))]
    while sum(windows[-1]) < pieces:
        start = windows[-1][0] + min(windows[-1][1], stride)
        windows.append((start, min(pieces - start, max_length)))
    return windows


def max_contexts(windows: list[tuple[int, int]], pieces: int) -> list[list[list[int]]]:
    """Return for each window the ranges [begin, end) of pieces to which it gives most context.

    The context of a piece in a window is the number of the window's pieces before it or after it,
    whichever is smaller, plus 0.01 times the window's length. In a tie the first window wins.
    """
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
