from __future__ import annotations

from enum import Enum
from typing import Any

from vllm.api import strict


class RequestOutputKind(Enum):
    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingParams:
    """Greedy only."""

    def __init__(self, **fields: Any) -> None:
        strict("SamplingParams", fields)
        self.temperature = fields.pop("temperature", 1.0)
        self.max_tokens = fields.pop("max_tokens", 16)
        self.min_tokens = fields.pop("min_tokens", 0)
        self.ignore_eos = fields.pop("ignore_eos", False)
        self.stop_token_ids = list(fields.pop("stop_token_ids", None) or [])
        self.detokenize = fields.pop("detokenize", True)
        self.prompt_logprobs = fields.pop("prompt_logprobs", None)
        self.output_kind = fields.pop("output_kind", RequestOutputKind.CUMULATIVE)
        assert not fields, "this stand-in cannot do that"
        if self.min_tokens > self.max_tokens:
            raise ValueError("min_tokens must be less than or equal to max_tokens")
        if self.temperature != 0:
            raise NotImplementedError("this stand-in is greedy")
