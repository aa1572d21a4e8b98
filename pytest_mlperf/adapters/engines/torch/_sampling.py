"""Sample each row's tokens with its own random numbers, independently of the other rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessor

from pytest_mlperf.adapters.engines.llm.generation import Generation


def numbers(generation: Generation, indices: Sequence[int], device: Any) -> Any:
    """Return uniform random numbers in [0, 1) for sampling: float64, shape (tokens, samples)."""
    rows = []
    for index in indices:
        source = torch.Generator()
        seed = generation.seed_of(index)
        if seed is None:
            source.seed()
        else:
            source.manual_seed(seed)
        rows.append(torch.rand(generation.max_new_tokens, generator=source, dtype=torch.float64))
    return torch.stack(rows, 1).to(device)


def sample_tokens(logits: Any, uniforms: Any, generation: Generation) -> Any:
    """Sample a token per row of logits by inverse transform; `uniforms` has one number per row."""
    ordered, tokens = (logits.double() / generation.temperature).sort(1, descending=True)
    shares = ordered.softmax(1)
    kept = shares.cumsum(1) - shares < generation.top_p
    if generation.top_k is not None:
        kept[:, generation.top_k :] = False
    ends = (shares * kept).cumsum(1)
    positions = torch.searchsorted(ends, uniforms[:, None] * ends[:, -1:], right=True)
    return tokens.gather(1, positions.clamp(max=kept.sum(1, keepdim=True) - 1)).squeeze(1)


class DrawnOnly(LogitsProcessor):
    """Mask all tokens except each row's sampled token, so that greedy search selects it."""

    def __init__(self, generation: Generation, numbers: Any, width: int) -> None:
        self._generation = generation
        self._numbers = numbers
        self._width = width

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Return scores (rows, vocabulary) of 0 for each sampled token and -inf for all others."""
        step = self._numbers[input_ids.shape[1] - self._width]
        tokens = sample_tokens(scores, step, self._generation)
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens[:, None], 0.0)
