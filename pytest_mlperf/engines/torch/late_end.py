"""Fewest tokens of an answer in continuous batching, where requests of all ages share a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import transformers
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
)

from pytest_mlperf.engines.generation import Generation


class LateEnd:
    """Forbids the end tokens in the first tokens of an answer, request by request.

    transformers' own processor for this sees the whole batch as one age, and is left out there.
    """

    supported_kwargs: Mapping[str, type] = {}
    ignored_kwargs: tuple[str, ...] = ()

    def __init__(self, generation: Generation, device: Any) -> None:
        self._ends = torch.tensor(generation.ends, device=device)
        self._min_new_tokens = generation.min_new_tokens

    def fill_defaults(self, int32_tensor: Any) -> None:
        """Forbid nothing by default: `int32_tensor` has one flag per row of scores."""
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: Sequence[Any]) -> Any:
        """Return a flag for each request whose next token must not be an end, int32 (rows,)."""
        flags = [
            self._generated(request.state) < self._min_new_tokens
            for request in requests_with_new_token
        ]
        return torch.tensor(flags, dtype=torch.int32)

    def __call__(self, scores: Any, tensor_arg: Any) -> Any:
        """Return scores (rows, vocabulary) with forbidden ends at minus infinity."""
        young = tensor_arg[: scores.shape[0], None].bool()
        scores[:, self._ends] = scores[:, self._ends].masked_fill(young, -math.inf)
        return scores

    def _generated(self, state: Any) -> int:
        # position_offset counts all tokens that have been read, this step's included; the token
        # lists lag one step behind where transformers prepares batches ahead.
        prompt = state._true_initial_tokens or len(state.initial_tokens)
        return int(state.position_offset) - prompt


# transformers looks for its own base class; a subclass could not be typed where it is missing.
ContinuousBatchingLogitsProcessor.register(LateEnd)


def late_end(generation: Generation, device: Any) -> Any:
    """Return the processors of a manager that lets no answer end before its fewest tokens."""
    processors = ContinuousBatchingLogitsProcessorList(
        transformers.LogitsProcessorList([LateEnd(generation, device)])
    )
    # What transformers counts only where it made the processors per request itself.
    processors.tensors_required = 1
    return processors
