"""Prompts as token ids, tokenised and checked while LoadGen does not count the time."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Dataset


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a prompt must fit.

    Attributes:
        vocabulary: Token ids are below this.
        context: Most tokens of prompt and answer together; None when the model states none.
        max_new_tokens: Most tokens of an answer.
        max_prompt_tokens: Prompts are cut to so many tokens; None cuts none.
    """

    vocabulary: int
    context: int | None
    max_new_tokens: int
    max_prompt_tokens: int | None = None


@dataclass(kw_only=True, slots=True)
class Prompts:
    """The loaded samples' token ids by data set index.

    Attributes:
        dataset: Gives text, or lists of token ids.
        tokenizer: The model's; None where the data set gives token ids.
        limits: What a prompt must fit.
    """

    dataset: Dataset
    tokenizer: Any
    limits: Limits
    _ids: dict[int, list[int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> list[int]:
        return self._ids[index]

    @property
    def longest(self) -> int:
        """Tokens of the longest loaded prompt."""
        return max(map(len, self._ids.values()), default=0)

    def load(self, indices: Sequence[int]) -> None:
        """Tokenise and check samples, beside those that are loaded.

        Raises:
            RunError: A sample is no prompt for this model.
        """
        for index in indices:
            if index not in self._ids:
                self._ids[index] = self._checked(index, self._cut(index))

    def unload(self, indices: Sequence[int]) -> None:
        """Forget these samples."""
        for index in indices:
            self._ids.pop(index, None)

    def _cut(self, index: int) -> list[int]:
        return self._tokens(index)[: self.limits.max_prompt_tokens]

    def _tokens(self, index: int) -> list[int]:
        given = self.dataset.input(index)
        if isinstance(given, str) and self.tokenizer is not None:
            return list(self.tokenizer(given)["input_ids"])
        try:
            return [operator.index(token) for token in given]
        except TypeError:
            raise _refused(
                index,
                f"is {type(given).__name__}; this engine takes text or lists of token ids, and a "
                "data set gives one of the two throughout",
            ) from None

    def _checked(self, index: int, tokens: list[int]) -> list[int]:
        limits = self.limits
        if not tokens:
            raise _refused(index, "is an empty prompt; leave it out of the data set")
        if min(tokens) < 0 or max(tokens) >= limits.vocabulary:
            wrong = next(token for token in tokens if not 0 <= token < limits.vocabulary)
            raise _refused(
                index,
                f"has token id {wrong}, but the model's vocabulary has {limits.vocabulary} tokens; "
                "use the data set that was tokenised for this model",
            )
        if limits.context is not None and len(tokens) + limits.max_new_tokens > limits.context:
            raise _refused(
                index,
                f"has {len(tokens)} tokens, and max_new_tokens = {limits.max_new_tokens} more do "
                f"not fit the model's context of {limits.context}; set max_new_tokens to at most "
                f"{limits.context - len(tokens)}, or shorten the prompt"
                if len(tokens) < limits.context
                else f"has {len(tokens)} tokens and leaves no room for max_new_tokens = "
                f"{limits.max_new_tokens} in the model's context of {limits.context}; shorten the "
                "prompt, or use a model with a longer context",
            )
        return tokens


def _refused(index: int, what: str) -> RunError:
    return RunError("engine", f"sample {index} of the data set {what}")
