"""An issue order that the data set fixes, whatever sample LoadGen asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, islice

from pytest_mlperf.core.extension import Engine, Sink
from pytest_mlperf.run.worker._handicap import EngineAround
from pytest_mlperf.run.worker._sink import GuardedSink


class InOrder(EngineAround):
    """Gives the engine the loaded samples in ascending order, round and round.

    So MLPerf's reference of DLRM v3 does, whose requests are a stream in time. It is for
    performance alone: an accuracy run asks each sample once, and its log has LoadGen's indices.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._next: Iterator[int] = iter(())

    def load_samples(self, indices: Sequence[int]) -> None:
        """Begin again with the first of these."""
        super().load_samples(indices)
        self._next = cycle(sorted(indices))

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Submit as many samples as LoadGen asks for, those that come next; one thread calls."""
        taken = list(islice(self._next, len(indices)))
        if isinstance(sink, GuardedSink) and sink.counts_tokens:
            sink.answer_tokens.asked(ids, taken)
        super().submit(ids, taken, sink)
