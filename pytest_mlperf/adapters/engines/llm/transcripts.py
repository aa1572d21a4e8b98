"""Report answers of Whisper models: count tokens, log characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_mlperf import Sink
from pytest_mlperf.adapters.engines.llm.generation import Answers, Generation, Tokens
from pytest_mlperf.adapters.engines.llm.speech import spelled


class Transcripts(Answers):
    """Report transcripts as characters; the token count includes the end token."""

    def __init__(self, generation: Generation, tokenizer: Any, *, watch_ends: bool) -> None:
        super().__init__(generation, watch_ends=watch_ends)
        self._tokenizer = tokenizer

    def checked(
        self, indices: Sequence[int], rows: Sequence[Tokens], sink: Sink
    ) -> tuple[list[bytes] | None, list[int]]:
        outputs, counts = super().checked(indices, rows, sink)
        if outputs is None:
            return None, counts
        texts = self._tokenizer.batch_decode([list(row) for row in rows], skip_special_tokens=True)
        return [spelled(text) for text in texts], counts
