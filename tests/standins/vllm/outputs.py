"""The parts of answers: only those that the engine may read."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class RequestStateStats:
    num_generation_tokens: int = 0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0


@dataclass(slots=True)
class CompletionOutput:
    token_ids: list[int]
    finish_reason: str | None


@dataclass(slots=True)
class Logprob:
    logprob: float


@dataclass(slots=True)
class RequestOutput:
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    metrics: RequestStateStats | None = field(default=None)
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
