"""Submit samples in a fixed order instead of LoadGen's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, islice

from pytest_mlperf.core.extension import Engine, Sink
from pytest_mlperf.run.worker._handicap import EngineAround
from pytest_mlperf.run.worker._sink import GuardedSink


class InOrder(EngineAround):
    """Submit the loaded samples in ascending order, in a cycle.

    MLPerf's reference of DLRM v3 does this, as its requests are a stream in time. It applies to
    performance runs only: an accuracy run uses each sample once, under LoadGen's index.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._next: Iterator[int] = iter(())

    def load_samples(self, indices: Sequence[int]) -> None:
        super().load_samples(indices)
        self._next = cycle(sorted(indices))

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Submit the next samples of the cycle; one thread calls."""
        next_indices = list(islice(self._next, len(indices)))
        if isinstance(sink, GuardedSink) and sink.counts_tokens:
            sink.answer_tokens.asked(ids, next_indices)
        super().submit(ids, next_indices, sink)
