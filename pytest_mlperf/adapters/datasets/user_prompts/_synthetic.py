"""Generate synthetic prompts of common words, with random lengths."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any

from pytest_mlperf import RunError, SuiteError
from pytest_mlperf.adapters.datasets.files.tokenizer import load_tokenizer
from pytest_mlperf.adapters.datasets.prompts import MAX_LENGTH_TOKENS

VERSION = 1
"""Version of the generator: raise it if the prompts of the same options change."""

LENGTH_SPREAD_SHARE = 0.2
"""Default standard deviation of a length, as a share of its mean."""

TAIL = 3
"""Distance from the mean at which a normal distribution is cut, in standard deviations."""

COMMON_WORDS = (
    "the of and to in is for that on with as are was by at from be this have or an which one "
    "had not but all they their there been has when who will more no if out so up time what "
    "some into than them only new could other then first two any now may such like over our "
    "man me even most made after also did many must before through back years where much your "
    "way well down should because each just those people how too little state good very make "
    "world still own see men work long get here between both life being under never day same "
    "another know while last might us great old year off come since against go came right "
    "used take three"
)
"""Words that are one token in usual vocabularies, with the space before them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """Define a distribution of lengths [tokens]: normal, uniform or constant.

    Attributes:
        low, high: Minimum and maximum length; a normal distribution is cut at these.
        normal: Mean and standard deviation; None for a uniform distribution.
    """

    low: int
    high: int
    normal: tuple[float, float] | None = None

    @classmethod
    def parse(cls, option: str, value: object, *, least: int) -> Lengths:
        table = {"mean": value} if isinstance(value, int) else value
        keys = set(table) if isinstance(table, Mapping) else set()
        if isinstance(table, Mapping) and all(map(_is_number, table.values())):
            if keys in ({"mean"}, {"mean", "sd"}):
                mean = table["mean"]
                sd = table.get("sd", mean * LENGTH_SPREAD_SHARE)
                if least <= mean <= MAX_LENGTH_TOKENS and 0 < sd <= MAX_LENGTH_TOKENS:
                    low = max(least, round(mean - TAIL * sd))
                    return cls(low=low, high=round(mean + TAIL * sd), normal=(mean, sd))
            ends = {"fixed": ("fixed", "fixed"), "high low": ("low", "high")}
            names = ends.get(" ".join(sorted(map(str, keys))))
            if names is not None:
                low, high = (table[name] for name in names)
                whole = type(low) is int and type(high) is int
                if whole and least <= low <= high <= MAX_LENGTH_TOKENS:
                    return cls(low=low, high=high)
        raise SuiteError(
            f"data set prompts: {option} = {value!r} is not a distribution of lengths from "
            f"{least} to {MAX_LENGTH_TOKENS} tokens: write a mean, e.g. 1024, or "
            "{ mean = 1024, sd = 200 }, { low = 512, high = 2048 } or { fixed = 1024 }",
            option=option,
        )

    def draw(self, chance: float) -> int:
        if self.normal is None:
            return min(self.low + int(chance * (self.high - self.low + 1)), self.high)
        # The inverse, not rejection, gives the same number on every machine from one draw.
        between = NormalDist(*self.normal)
        below, above = between.cdf(self.low - 0.5), between.cdf(self.high + 0.5)
        inside = max(1e-12, below + chance * (above - below))
        return min(max(round(between.inv_cdf(min(inside, 1 - 1e-12))), self.low), self.high)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shared:
    """Describe shared prefixes: number (`prefixes`), length (`tokens`), `share` of prompts."""

    prefixes: int
    tokens: int
    share: float

    @classmethod
    def parse(cls, value: Mapping[str, Any] | None) -> Shared | None:
        if value is None:
            return None
        if set(value) == {"prefixes", "tokens", "share"}:
            counts = value["prefixes"], value["tokens"]
            whole = all(type(count) is int and 1 <= count <= MAX_LENGTH_TOKENS for count in counts)
            if whole and _is_number(value["share"]) and 0 < value["share"] <= 1:
                return cls(**value)
        raise SuiteError(
            f"data set prompts: shared = {value!r} must have the form "
            "{ prefixes = 8, tokens = 512, share = 0.5 }, with whole numbers of at least 1 for "
            "prefixes and tokens, and a share above 0 and at most 1",
            option="shared",
        )


@dataclass(frozen=True, kw_only=True)
class SyntheticPrompts:
    """Generate synthetic prompts and answer lengths by index; each index has its own generator.

    Attributes:
        tokenizer: Folder of the model's tokenizer; None counts a word as a token.
    """

    seed: int
    input: Lengths
    output: Lengths | None
    shared: Shared | None
    tokenizer: str | None

    def prompt(self, index: int) -> str:
        """Return a prompt; with a tokenizer its number of tokens is exactly the random length."""
        count, group, draw = self._draw_prompt(index)
        begin: list[str] = []
        if self.shared is not None and group is not None:
            common = random.Random(f"prefix {VERSION} {self.seed} {group}")
            begin = common.choices(self._words, k=self.shared.tokens)
        return self._fit(count, begin, draw)

    def prefix_share(self, indices: Sequence[int]) -> float:
        """Return the share of prompt tokens that belong to a prefix of an earlier prompt."""
        total = cached = 0
        groups: set[int] = set()
        for count, group, _ in map(self._draw_prompt, indices):
            total += count
            if self.shared is not None and group is not None:
                cached += self.shared.tokens * (group in groups)
                groups.add(group)
        return cached / total if total else 0.0

    def _draw_prompt(self, index: int) -> tuple[int, int | None, random.Random]:
        """Draw a prompt's length and shared prefix (index or None); return its generator third."""
        draw = random.Random(f"prompts {VERSION} {self.seed} {index}")
        count = self.input.draw(draw.random())
        if self.shared is None or draw.random() >= self.shared.share:
            return count, None, draw
        group = draw.randrange(self.shared.prefixes)
        return max(count, self.shared.tokens + 1), group, draw

    def input_tokens(self, index: int) -> int:
        return len(self._tokenizer(self.prompt(index))["input_ids"])

    def output_tokens(self, index: int) -> int | None:
        if self.output is None:
            return None
        return self.output.draw(random.Random(f"answer {VERSION} {self.seed} {index}").random())

    def digest(self, samples: int) -> str:
        return self._digest("prompts", samples, self.input, self.output, self.shared)

    def _digest(self, kind: str, samples: int, *settings: object) -> str:
        text = repr((VERSION, COMMON_WORDS, samples, self.seed, *settings))
        if self.tokenizer is not None:
            text += repr((self._words, [self.prompt(index) for index in range(min(samples, 16))]))
        return hashlib.sha256(f"{kind} {text}".encode()).hexdigest()

    def _fit(self, count: int, begin: Sequence[str], draw: random.Random) -> str:
        words = [*begin, *draw.choices(self._words, k=count - len(begin))]
        if self.tokenizer is None:
            return " ".join(words)
        # A begin token, or a first word without a space before it, also takes tokens.
        for _ in range(4):
            text = " ".join(words)
            over = len(self._tokenizer(text)["input_ids"]) - count
            if over == 0:
                return text
            if over >= len(words):
                break
            words = words[:-over] if over > 0 else [*words, *draw.choices(self._words, k=-over)]
        raise RunError(
            "dataset",
            f"data set prompts: no text of exactly {count} tokens can be made with the tokenizer "
            f"in {self.tokenizer}; set input_tokens higher, or remove tokenizer for approximate "
            "lengths",
        )

    @cached_property
    def _words(self) -> Sequence[str]:
        if self.tokenizer is None:
            return COMMON_WORDS.split()
        alone = len(self._tokenizer("x")["input_ids"])
        whole = [
            word
            for word in COMMON_WORDS.split()
            if len(self._tokenizer(f"x {word}")["input_ids"]) == alone + 1
        ]
        if len(whole) < 8:
            raise RunError(
                "dataset",
                f"data set prompts: the tokenizer in {self.tokenizer} encodes fewer than 8 common "
                "English words as one token, so that prompts of an exact length cannot be made; "
                "remove the option tokenizer for approximate lengths",
            )
        return whole

    @cached_property
    def _tokenizer(self) -> Any:
        assert self.tokenizer is not None
        return load_tokenizer("prompts", self.tokenizer)
