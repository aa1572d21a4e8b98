"""Engines that count output tokens, as those of workloads without token latencies do."""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pytest_mlperf.builtin.synthetic import SyntheticDataset
from pytest_mlperf.core.extension import Dataset, Engine, Sink
from pytest_mlperf.run.work_queue import WorkQueue


def tokens_of(index: int) -> int:
    """Return how many tokens the answer to a sample has; some have none."""
    return index % 7


class Counts(Engine):
    """Answer from three threads, and log at the end the answers of its measured run."""

    forgets = 0
    """Batches of the measured run that it does not count."""

    def __init__(self, dataset: Dataset, model: str | None, precision: str) -> None:
        self._lock = threading.Lock()
        self._loads = 0
        self._calls = self._samples = self._tokens = 0

    def __enter__(self) -> Counts:
        self._queue = WorkQueue(self._complete, threads=3, max_batch=5)
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.close()
        print(f"counted {self._samples} {self._tokens}", flush=True)

    def load_samples(self, indices: Sequence[int]) -> None:
        # Warm-up loads first, so the second time is LoadGen's.
        self._loads += 1

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        self._queue.put(ids, indices, sink)

    def _complete(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        counts = [tokens_of(index) for index in indices]
        if self._loads > 1:
            with self._lock:
                self._calls += 1
                self._samples += len(ids)
                self._tokens += sum(counts)
            if self._calls <= self.forgets:
                sink.done(ids)
                return
        sink.done(ids, None, counts)


class Forgets(Counts):
    forgets = 1


class SaysNothing(Counts):
    def _complete(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        sink.done(ids, None, [0] * len(ids))


class Spells(Engine):
    """Answers with 20 numbers, and counts the 3 tokens that it made them of."""

    facts: ClassVar[Mapping[str, str]] = {}

    def __init__(self, dataset: Dataset, model: str | None, precision: str) -> None:
        """Nothing is kept."""

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        outputs = [struct.pack("<20q", *range(20))] * len(ids) if sink.wants_output else None
        sink.done(ids, outputs, [3] * len(ids))

    def describe(self) -> Mapping[str, str]:
        return self.facts


class SpellsText(Spells):
    facts: ClassVar[Mapping[str, str]] = {"outputs": "text, tokenised again"}


class Clips(SyntheticDataset):
    def input(self, index: int) -> dict[str, Any]:  # type: ignore[override]
        return {"audio": [0.0], "sampling_rate": 16_000}
