"""A plain reimplementation of MLPerf's create_squad_data.py, step by step."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

IDEOGRAPHS = [*range(0x3400, 0x4DC0), *range(0x4E00, 0xA000), *range(0xF900, 0xFB00)]
IDEOGRAPHS += [*range(0x20000, 0x2A6E0), *range(0x2A700, 0x2CEB0), *range(0x2F800, 0x2FA20)]
IDEOGRAPH = frozenset(map(chr, IDEOGRAPHS))
ASCII_MARKS = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
WHOLE = ("[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]")


def basic_tokens(text: str) -> list[str]:
    """Clean, part at spaces, lower, strip accents, part at marks: character by character."""
    cleaned = ""
    for character in text:
        category = unicodedata.category(character)
        if character in "\t\n\r" or category == "Zs":
            cleaned += " "
        elif category[0] != "C" and character != "\ufffd":
            cleaned += f" {character} " if character in IDEOGRAPH else character
    tokens = ""
    for word in cleaned.split():
        if word in WHOLE:
            tokens += f" {word}"
            continue
        tokens += " "
        for character in unicodedata.normalize("NFD", word.lower()):
            category = unicodedata.category(character)
            if character in ASCII_MARKS or category[0] == "P":
                tokens += f" {character} "
            elif category != "Mn":
                tokens += character
    return tokens.split()


def word_pieces(text: str, vocabulary: Mapping[str, int]) -> list[str]:
    """Take the longest piece, and the longest piece of the rest; else the word is unknown."""
    pieces = []
    for token in basic_tokens(text):
        pieces_so_far, rest = list[str](), token
        while rest and len(token) <= 100:
            heads = [
                ("##" if pieces_so_far else "") + rest[:size] for size in range(len(rest), 0, -1)
            ]
            heads_in_vocabulary = [head for head in heads if head in vocabulary]
            if not heads_in_vocabulary:
                break
            rest = rest[len(heads_in_vocabulary[0]) - (2 if pieces_so_far else 0) :]
            pieces_so_far.append(heads_in_vocabulary[0])
        pieces += ["[UNK]"] if rest else pieces_so_far
    return pieces


@dataclass(frozen=True, kw_only=True)
class Plain:
    """A feature of the reference: by the names that it has there."""

    identity: str
    tokens: list[str]
    token_to_orig_map: dict[int, int]
    token_is_max_context: dict[int, bool]
    input_ids: list[int]
    segment_ids: list[int]


def split_words(context: str) -> list[str]:
    """Part a paragraph at four kinds of space and at the narrow one."""
    for space in "\t\r\n\u202f":
        context = context.replace(space, " ")
    return [word for word in context.split(" ") if word]


def features(
    content: Any, lines: list[str], *, longest: int = 384, stride: int = 128, query: int = 64
) -> list[Plain]:
    """Return all features of a file's content, without the zeros at their ends."""
    vocabulary = {line: number for number, line in enumerate(lines)}
    rows = []
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            words = split_words(paragraph["context"])
            whole = [
                (piece, number)
                for number, word in enumerate(words)
                for piece in word_pieces(word, vocabulary)
            ]
            for question in paragraph["qas"]:
                head = ["[CLS]", *word_pieces(question["question"], vocabulary)[:query], "[SEP]"]
                spans = windows(len(whole), longest - len(head) - 1, stride)
                for number, (start, end) in enumerate(spans):
                    tokens = [*head, *(piece for piece, _ in whole[start:end]), "[SEP]"]
                    places = dict(enumerate(range(start, end), start=len(head)))
                    ids = [vocabulary.get(token, vocabulary["[UNK]"]) for token in tokens]
                    rows.append(
                        Plain(
                            identity=question["id"],
                            tokens=tokens,
                            token_to_orig_map={k: whole[piece][1] for k, piece in places.items()},
                            token_is_max_context={
                                k: best_window(spans, piece) == number
                                for k, piece in places.items()
                            },
                            input_ids=ids,
                            segment_ids=[0] * len(head) + [1] * (len(tokens) - len(head)),
                        )
                    )
    return rows


def windows(pieces: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Return [start, end) of each window."""
    spans, start = list[tuple[int, int]](), 0
    while not spans or spans[-1][1] < pieces:
        end = min(start + room, pieces)
        spans.append((start, end))
        start += min(end - start, stride)
    return spans


def best_window(spans: list[tuple[int, int]], piece: int) -> int:
    """Return the window with the most context on the poorer side, longer ones a little ahead."""
    best, most = -1, -1.0
    for number, (start, end) in enumerate(spans):
        if start <= piece < end:
            context = min(piece - start, end - 1 - piece) + 0.01 * (end - start)
            if context > most:
                best, most = number, context
    return best
