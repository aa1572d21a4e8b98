"""Conventions that adapters of different kinds share: labels, prompts, options, JSON in text."""

from __future__ import annotations

import json
from typing import Any

NEGATIVE_PROMPT = "normal quality, low quality, worst quality, low res, blurry, nsfw, nude"
"""What images of MLPerf's Stable Diffusion XL are led away from."""


MATRIX_CONVOLUTIONS = "matrix_convolutions"
"""Key of a UNet's configuration: names of its convolutions whose weights are written as matrices,
(outputs, height x width x inputs), for kernels of matrix products."""


SPEECH_LABELS = " abcdefghijklmnopqrstuvwxyz'0123456789$%+-"
"""What transcripts of MLPerf's Whisper are written in: each int64 of one is a place in it."""


def json_in(text: str, default: Any) -> Any:
    """Parse a text as JSON; return the default if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return default
