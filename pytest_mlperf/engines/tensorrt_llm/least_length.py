"""What TensorRT-LLM's `min_tokens` counts, found by asking: in 1.2 the prompt's tokens too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.engines.generation import Generation
from pytest_mlperf.engines.tensorrt_llm.arguments import sampling_arguments

Counted = Literal["answer", "prompt and answer", "nothing"]

COUNTED: Mapping[Counted, str] = {
    "answer": "of the answer",
    "prompt and answer": "of prompt and answer, made up for",
    "nothing": "not obeyed",
}
"""What the fingerprint says of it."""

Ask = Callable[[Sequence[int], Any], Awaitable[Sequence[int]]]
"""Returns the answer to a prompt with such SamplingParams."""


@dataclass(kw_only=True, slots=True)
class Sampling:
    """SamplingParams by prompt.

    Attributes:
        make: TensorRT-LLM's SamplingParams.
        generation: What an answer must look like.
        counted: What `min_tokens` is compared with.
    """

    make: Callable[..., Any]
    generation: Generation
    counted: Counted = "answer"
    _made: dict[int, Any] = field(default_factory=dict)

    @property
    def matters(self) -> bool:
        """Whether an end token is to be held back at all."""
        return bool(self.generation.min_new_tokens and self.generation.ends)

    def of(self, prompt: Sequence[int]) -> Any:
        """Return those of a prompt, the same for all of its length."""
        beside = len(prompt) if self.counted == "prompt and answer" else 0
        if beside not in self._made:
            given = sampling_arguments(self.generation, beside=beside)
            self._made[beside] = self.make(**given)
        return self._made[beside]

    async def find_out(self, ask: Ask, version: str) -> None:
        """Ask for a token, then for an answer that may not end with it at once.

        Raises:
            RunError: Nothing holds an end token back, and more than one token was to come before.
        """
        prompt = [self.generation.padding]
        plain = {"top_k": 1, "pad_id": self.generation.padding, "detokenize": False}
        (first,) = await ask(prompt, self.make(**plain, max_tokens=1, end_id=-1, ignore_eos=True))

        async def holds_back(least: int) -> bool:
            given: Mapping[str, Any] = {**plain, "max_tokens": 2, "end_id": first}
            row = await ask(prompt, self.make(**given, min_tokens=least))
            return bool(row) and row[0] != first

        if await holds_back(1):
            self.counted = "answer"
        elif await holds_back(len(prompt) + 1):
            self.counted = "prompt and answer"
        else:
            self.counted = "nothing"
        least = self.generation.min_new_tokens
        if self.counted == "nothing" and least > 1:  # 1 only keeps answers from ending at once
            raise RunError(
                "engine",
                f"min_new_tokens = {least}, but TensorRT-LLM {version} holds no end token back; "
                "set min_new_tokens = 1, or ignore_eos = true for answers of max_new_tokens tokens",
            )
