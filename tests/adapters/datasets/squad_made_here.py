"""A data set in SQuAD's layout, its vocabulary, and logits for it, made from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def listed(text: str) -> list[str]:
    """Return what stands between the spaces of a text."""
    return text.split(" ")


SYLLABLES = listed(
    "ba be bi co da di el en er fo ga in ka la lo ma ne on or pa re ri so ta te ti un va"
)
ODDITIES = listed(
    "Café naïve Ångström cafe\u0301 I\u0307stanbul İzmir ΣΑΣ Straße 東京 ab東cd カタカナ 한국어 "
    "ﬁne (1895-1943). Smith's “quoted” $5.00 a--b ... U.S. 3½ № ™ 🙂 don't the An a\u00adb "
    "zero\u200bwidth x\u0000y \ufffd lone\u0301 \u0301 \ue000 [SEP] a[MASK]b ## # ≥ _under_ "
    "the-cat ,"
)
"""Words that tokenizers treat differently: accents, ideographs, controls, marks, special pieces."""

SPACES = (" ",) * 200 + ("  ", "\t", "\n", "\r\n", "\u00a0", "\u202f", "\u2028", "\u3000")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def vocabulary(rng: random.Random, words: Sequence[str]) -> list[str]:
    """Return pieces that cover most words: marks, letters, syllables, and some words whole."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789東京σς한국어ᄒ½"
    marks = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~“”‘’…"
    pieces = [*SPECIAL, *marks, *letters, *(f"##{letter}" for letter in letters), *SYLLABLES]
    pieces += [f"##{syllable}" for syllable in SYLLABLES]
    pieces += [word.lower() for word in rng.sample(words, len(words) // 2)]
    return list(dict.fromkeys(pieces))


def squad(
    seed: int, *, paragraphs: int, questions: int, words: int = 120, odd: float = 0.05
) -> tuple[dict[str, Any], list[str]]:
    """Return the content of a file and the lines of its vocabulary.

    Args:
        seed: Equal seeds give equal contents.
        paragraphs: How many there are; one in fifty is four times as long.
        questions: How many each has.
        words: Words of a paragraph.
        odd: Share of words that tokenizers treat differently.
    """
    rng = random.Random(seed)
    word_list = sorted({"".join(rng.choices(SYLLABLES, k=rng.randint(1, 3))) for _ in range(3000)})
    lines = vocabulary(rng, word_list)

    def word() -> str:
        if rng.random() < odd:
            return rng.choice(ODDITIES)
        plain = rng.choice(word_list)
        return rng.choice((plain, plain, plain, plain.capitalize(), f"{plain},", f"{plain}."))

    def text(length: int) -> str:
        return "".join(word() + rng.choice(SPACES) for _ in range(length))

    def answers(context: str) -> list[dict[str, Any]]:
        answers = []
        for _ in range(rng.randint(1, 4)):
            start = rng.randrange(len(context))
            end = start + rng.choice((1, 8, 20))
            answers.append({"answer_start": start, "text": context[start:end]})
        return [*answers, rng.choice(answers)]

    entries = []
    for number in range(paragraphs):
        context = text(words * (4 if number % 50 == 7 else 1))
        questions_of_context = [
            {
                "id": f"{number}-{nth}",
                "question": text(rng.choice((0, 8, 12, 12, 12, 90))) + "?",
                "answers": answers(context),
            }
            for nth in range(questions)
        ]
        entries.append({"context": context, "qas": questions_of_context})
    articles = [
        {"title": f"Article {first}", "paragraphs": entries[first : first + 40]}
        for first in range(0, len(entries), 40)
    ]
    return {"version": "1.1", "data": articles}, lines


def write(folder: Path, content: Any, lines: Sequence[str]) -> Path:
    """Write dev-v1.1.json and vocab.txt into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dev-v1.1.json").write_text(json.dumps(content), "utf-8")
    (folder / "vocab.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return folder


def logits(seed: int, positions: int, *, levels: int | None = None) -> NDArray[np.float32]:
    """Return shape (positions, 2): logits with some high ones, as of a model that is unsure.

    Args:
        seed: Equal seeds give equal logits.
        positions: How many there are.
        levels: Round to this many distinct values, so that some are equal; None disables rounding.
    """
    rng = np.random.default_rng(seed)
    values = rng.normal(-4, 2, (positions, 2))
    start = int(rng.integers(positions))
    values[start, 0] += 9
    values[min(start + int(rng.integers(6)), positions - 1), 1] += 9
    if levels:
        values = np.round(values * levels / 20)
    return values.astype(np.float32)
