"""A language model's engine whose timed runs may count other tokens than its answers have."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_mlperf.core.extension import Dataset, Engine, Scores, Sink


class Miscounting(Engine):
    """Answers of `tokens` tokens and a few more; timed runs count `factor` times as many.

    Variable MISCOUNT stands for a change of the code that no option and no version shows.
    """

    def __init__(
        self,
        dataset: Dataset,
        model: str | None = None,
        precision: str = "",
        *,
        tokens: int = 8,
        everywhere: bool = False,
    ) -> None:
        """Keep the options; `everywhere` miscounts also in runs with outputs."""
        del dataset, model, precision
        self._tokens = tokens
        self._everywhere = everywhere
        self._factor = float(os.environ.get("MISCOUNT", "1"))

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Answer one sample after the other."""
        for sample, index in zip(ids, indices, strict=True):
            tokens = list(range(5, 5 + self._tokens + index % 4))
            counted = len(tokens)
            if self._everywhere or not sink.wants_output:
                counted = round(counted * self._factor)
            if sink.times_tokens:
                sink.first_tokens([sample])
                time.sleep(0.002)
            outputs = [struct.pack(f"<{len(tokens)}q", *tokens)] if sink.wants_output else None
            sink.done([sample], outputs, [counted])

    def describe(self) -> Mapping[str, str]:
        """Return what decides the answers."""
        return {"generation.max_new_tokens": str(self._tokens + 3)}


class AnyAnswer:
    """A scorer that takes any answer for right."""

    def __init__(self, model: str | None = None) -> None:
        """Nothing is kept."""

    def score(self, outputs: Sequence[bytes], references: Sequence[Any]) -> Scores:
        """Return 100 for each."""
        del references
        every = [100.0] * len(outputs)
        return Scores(per_sample={"right": every}, aggregate={"right": 100.0})
