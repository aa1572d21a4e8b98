"""Wrap an engine, to slow it down by a known share or to submit samples in a fixed order."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice
from typing import Any, Self, cast

from pytest_mlperf.core.extension import Engine, Outputs, Sink
from pytest_mlperf.run.worker._sink import GuardedSink


def _forwarded(name: str) -> Any:
    return lambda wrapper, *arguments: getattr(wrapper._engine, name)(*arguments)


class EngineAround(Engine):
    """Forward all calls to another engine; subclasses override single methods."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __enter__(self) -> Self:
        self._engine.__enter__()
        return self

    __exit__ = _forwarded("__exit__")
    load_samples = _forwarded("load_samples")
    unload_samples = _forwarded("unload_samples")
    submit = _forwarded("submit")
    client_lateness = _forwarded("client_lateness")
    null_client = _forwarded("null_client")
    accepted_drafts = _forwarded("accepted_drafts")
    answer_counts = _forwarded("answer_counts")
    stage_seconds = _forwarded("stage_seconds")
    metrics_pages = _forwarded("metrics_pages")
    counted_again = _forwarded("counted_again")
    describe = _forwarded("describe")


SPIN_BELOW_S = 1e-3
"""Waits shorter than this spin [s], because a sleep overshoots by the timer's slack."""


class HandicapEngine(EngineAround):
    """Make an engine's work take 1 / (1 - handicap) times as long.

    The completing thread waits before it reports. Work that goes on in this time, as on an
    accelerator or a server, hides part of the wait.
    """

    def __init__(self, engine: Engine, handicap: float) -> None:
        if not 0 <= handicap < 1:
            raise ValueError(f"handicap={handicap!r}; must be at least 0 and below 1")
        super().__init__(engine)
        self._stretch = handicap / (1 - handicap)
        self._slow: SlowSink | None = None

    def client_lateness(self) -> Mapping[str, float]:
        return {}

    def null_client(self, tokens: int) -> None:
        del tokens

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        if self._slow is None or self._slow.sink is not sink:
            self._slow = SlowSink(sink, self._stretch)
        self._slow.expect(ids)
        self._engine.submit(ids, indices, cast("Sink", self._slow))


class SlowSink:
    """Slow an engine down: delay its reports by `stretch` times the time that a sample took."""

    def __init__(self, sink: Sink, stretch: float) -> None:
        self.sink = sink
        self._stretch = stretch
        self._issued_s: dict[int, float] = {}
        self._thread = threading.local()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped sink, for calls that the handicap does not delay."""
        return getattr(self.sink, name)

    def expect(self, ids: Sequence[int]) -> None:
        self._issued_s.update(dict.fromkeys(ids, time.perf_counter()))

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[bytes] | None = None) -> None:
        self._wait(ids)
        self.sink.first_tokens(ids, tokens)
        self._thread.returned_s = time.perf_counter()

    def next_tokens(self, ids: Sequence[int]) -> None:
        self._wait(ids)
        self.sink.next_tokens(ids)
        self._thread.returned_s = time.perf_counter()

    def done(
        self, ids: Sequence[int], outputs: Outputs = None, n_tokens: Sequence[int] | None = None
    ) -> None:
        self._wait(ids)
        for sample in ids:
            self._issued_s.pop(sample, None)
        self.sink.done(ids, outputs, n_tokens)
        self._thread.returned_s = time.perf_counter()

    def lost(self, ids: Sequence[int]) -> None:
        """Report failed requests without delay, as no work was done on them."""
        for sample in ids:
            self._issued_s.pop(sample, None)
        lost = getattr(self.sink, "lost")  # noqa: B009 - a sink that lets some fail has it
        lost(ids)

    def _wait(self, ids: Sequence[int]) -> None:
        now_s = time.perf_counter()
        issued_s = min((self._issued_s.get(sample, now_s) for sample in ids), default=now_s)
        # The thread did not work on these samples while it waited for earlier ones.
        begun_s = max(issued_s, getattr(self._thread, "returned_s", 0.0))
        owed_s = (now_s - begun_s) * self._stretch + getattr(self._thread, "owed_s", 0.0)
        end_s = now_s + owed_s
        while (left := end_s - time.perf_counter()) > 0:
            if left > SPIN_BELOW_S:
                time.sleep(left - SPIN_BELOW_S / 2)
        # The next wait compensates for an overlong sleep.
        self._thread.owed_s = end_s - time.perf_counter()


class InOrder(EngineAround):
    """Submit the loaded samples in ascending order, in a cycle.

    MLPerf's reference implementation of DLRM v3 does this, because its requests are ordered in
    time. Only performance runs use it: an accuracy run needs each sample under LoadGen's index.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._next: Iterator[int] = iter(())

    def load_samples(self, indices: Sequence[int]) -> None:
        super().load_samples(indices)
        self._next = cycle(sorted(indices))

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Submit the next samples in load order, ignoring `indices`; call it in one thread only."""
        next_indices = list(islice(self._next, len(indices)))
        if isinstance(sink, GuardedSink) and sink.counts_tokens:
            sink.answer_tokens.record_indices(ids, next_indices)
        super().submit(ids, next_indices, sink)
