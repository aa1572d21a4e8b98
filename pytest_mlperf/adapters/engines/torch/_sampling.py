"""Tokens that are drawn: each row by numbers of its own, whatever rows are beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessor

from pytest_mlperf.adapters.engines.llm.generation import Generation


def numbers(generation: Generation, indices: Sequence[int], device: Any) -> Any:
    """Return what samples' tokens are drawn by, from 0 to 1: (tokens, rows)."""
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


def drawn(scores: Any, numbers: Any, generation: Generation) -> Any:
    """Draw a token for each row of scores (rows, vocabulary), by its number from 0 to 1.

    Tokens stand in the order of their scores, each as wide as its share.
    """
    ordered, tokens = (scores.double() / generation.temperature).sort(1, descending=True)
    shares = ordered.softmax(1)
    kept = shares.cumsum(1) - shares < generation.top_p
    if generation.top_k is not None:
        kept[:, generation.top_k :] = False
    ends = (shares * kept).cumsum(1)
    places = torch.searchsorted(ends, numbers[:, None] * ends[:, -1:], right=True)
    return tokens.gather(1, places.clamp(max=kept.sum(1, keepdim=True) - 1)).squeeze(1)


class DrawnOnly(LogitsProcessor):
    """Leaves each row the score of the drawn token alone, which greedy search then takes."""

    def __init__(self, generation: Generation, numbers: Any, width: int) -> None:
        self._generation = generation
        self._numbers = numbers
        self._width = width

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Return scores (rows, vocabulary) of the next token of `input_ids` (rows, tokens)."""
        step = self._numbers[input_ids.shape[1] - self._width]
        tokens = drawn(scores, step, self._generation)
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens[:, None], 0.0)
