"""Conventions that adapters of different kinds share: labels, prompts, options, JSON, outputs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

NEGATIVE_PROMPT = "normal quality, low quality, worst quality, low res, blurry, nsfw, nude"
"""What images of MLPerf's Stable Diffusion XL are led away from."""


MATRIX_CONVOLUTIONS = "matrix_convolutions"
"""Key of a UNet's configuration: names of its convolutions whose weights are written as matrices,
(outputs, height x width x inputs), for kernels of matrix products."""


SPEECH_LABELS = " abcdefghijklmnopqrstuvwxyz'0123456789$%+-"
"""What transcripts of MLPerf's Whisper are written in: each int64 of one is a place in it."""


LOGPROB_RECORD = (("token", "<i4"), ("logprob", "<f4"))
"""What is logged of each token of a prompt whose log-probabilities are asked for, as numpy names
its fields: its id, and the natural logarithm of its probability given all tokens before it."""


def pack_logprobs(tokens: Sequence[int], logprobs: Sequence[float]) -> bytes:
    """Return a prompt's tokens and their log-probabilities, NaN for the first, as they are logged.

    >>> len(pack_logprobs([1, 5], [float("nan"), -0.5]))
    16
    """
    import numpy as np

    records = np.empty(len(tokens), np.dtype(list(LOGPROB_RECORD)))
    records["token"], records["logprob"] = tokens, logprobs
    return records.tobytes()


def json_in(text: str, default: Any) -> Any:
    """Parse a text as JSON; return the default if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return default
