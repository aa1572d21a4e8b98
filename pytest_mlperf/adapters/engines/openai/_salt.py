"""Insert random words (a salt) into a run's prompts, so that no prefix cache contains them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

Count = Callable[[Sequence[str]], list[int]]


SALT = (
    "able also area away back ball band bank base bird blue boat body book born both call came "
    "card care case city cold come cost dark data date days dead deal deep door down draw drop "
    "each east easy even ever face fact fall farm fast feel feet felt fire fish five food foot "
    "form four free full game gave girl give goes gold gone good grew half hall hand hard have "
    "head hear held help here high hill home hope hour idea into iron just keep kept kind king "
    "knew know lake land last late lead left less life line list live long look lost love made "
    "main make many mark mean meet mind mine miss moon more most move much must name near need "
    "next note once only open over page"
)
"""128 words that are one token each in usual vocabularies, with the space before them."""

SALT_WORDS = 10
"""Number of words: 70 bits, and the same number of tokens in every salt."""

MARKS = (b'{"prompt":[', b'{"prompt":"', b'{"messages":[{"role":"user","content":"')
"""Beginnings of requests, up to the part that a salt may change."""

MAX_POOL_ITEMS = 128
"""Maximum number of words or ids to draw from; a word of a salt has up to seven bits."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Salt:
    """Make random words for the beginning of prompts; each key gives other words, equally many.

    Attributes:
        pool: Words or token ids to choose from; () inserts words of `SALT` before a text.
        between: Separator after each word or token id.
        replaces: Whether the words replace as many words or ids of the prompt, so that its length
            does not change.
        count: Function that counts the tokens of texts; None without a tokenizer.
        around: Bytes to insert before and after words of `SALT`.
    """

    pool: tuple[bytes, ...] = ()
    between: bytes = b" "
    replaces: bool = False
    count: Count | None = None
    around: tuple[bytes, bytes] = (b"", b"")
    _made: dict[tuple[str, int], bytes] = field(default_factory=dict)

    def text(self, key: str, replaced: bytes = b"") -> bytes:
        """Return random words for `key` as JSON; if `self.replaces`, as many as in `replaced`."""
        words = replaced.count(self.between) if self.replaces else SALT_WORDS
        if (made := self._made.get((key, words))) is None:
            made = salt_of(key).join(self.around)
            if self.pool:
                made = b"".join(word + self.between for word in _drawn(key, self.pool)[:words])
            self._made[key, words] = made
        return made

    def tokens(self, key: str) -> int:
        """Return the number of tokens that the random words for a key add to a prompt."""
        if self.replaces or self.pool or self.count is None:
            return 0 if self.replaces else SALT_WORDS
        salt = self.text(key).decode().replace("\\n", "\n")
        with_salt, without = self.count([f"{salt}x", "x"])
        return with_salt - without

    def split(self, data: bytes) -> tuple[bytes, bytes, bytes]:
        """Return a request before the salt, the words that it replaces, and the rest.

        The salt is before a text, or after the first word or token id.
        """
        begin = next(len(mark) for mark in MARKS if data.startswith(mark))
        size = 0
        if self.pool:
            whole = data[begin : data.index(b"]" if self.between == b"," else b'"', begin)]
            parts = whole.split(self.between, SALT_WORDS + 1)
            # A begin token stays first, and a word with a space before it replaces one.
            begin += len(parts[0] + self.between) if len(parts) > 1 else 0
            size = sum(len(part + self.between) for part in parts[1:-1]) if self.replaces else 0
        return data[:begin], data[begin : begin + size], data[begin + size :]


def salt_for(
    prompts: Sequence[tuple[Sequence[int], str]], count: Count | None, *, replaces: bool
) -> Salt:
    """Return the source of random words (salt) for prompts of token ids or text.

    Token ids are chosen from the middle of the range that the prompts use, because the first and
    last ids of a vocabulary are often special. `count` counts the tokens of texts; None without a
    tokenizer. With `replaces` (synthetic prompts) salt replaces words.
    """
    if ids := sorted({one for of_prompt, _ in prompts for one in of_prompt}):
        few = ids[max(0, (len(ids) - MAX_POOL_ITEMS) // 2) :][:MAX_POOL_ITEMS]
        pool = tuple(str(one).encode() for one in few)
        return Salt(pool=pool, between=b",", replaces=replaces)
    words = sorted({word for _, text in prompts for word in text.split(" ")[1:]})
    return Salt(
        pool=tuple(word.encode() for word in words[:MAX_POOL_ITEMS]) if replaces else (),
        replaces=replaces,
        count=count,
    )


def _drawn(key: str, words: Sequence[T]) -> list[T]:
    drawn = int.from_bytes(hashlib.sha256(key.encode()).digest())
    return [words[(drawn >> 7 * place) % len(words)] for place in range(SALT_WORDS)]


def salt_of(key: str) -> bytes:
    """Return the random words that `key` draws to make a prompt unique, escaped for JSON."""
    return f"[{' '.join(_drawn(key, SALT.split()))}]\\n\\n".encode()
