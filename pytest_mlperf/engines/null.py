"""An engine that answers each sample with its own index: measures everything but inference."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import ClassVar

from pytest_mlperf.core.extension import Dataset, Engine, Sink
from pytest_mlperf.engines.queueing import WorkQueue

SPIN_BELOW_S = 1e-3
"""Shorter waits spin: a sleep would overshoot by the timer's slack."""


class NullEngine(Engine):
    """Takes a known time per sample and answers with the index as 8 bytes, little-endian."""

    libraries: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        dataset: Dataset,
        model: str | None = None,
        precision: str = "",
        *,
        latency_s: float = 0.0,
        batch_size: int = 1,
        threads: int = 0,
        tokens: int = 0,
    ) -> None:
        """Keep the options.

        Args:
            dataset: Not read.
            model: Not read.
            precision: Not read.
            latency_s: Seconds of work per sample.
            batch_size: Samples completed together.
            threads: Long-lived threads that work; 0 completes inside `submit`.
            tokens: Output tokens reported per sample; 0 for an engine that has no tokens.

        Raises:
            ValueError: An option is out of range.
        """
        del dataset, model, precision
        if latency_s < 0 or batch_size < 1 or threads < 0 or tokens < 0:
            raise ValueError(
                f"null engine: latency_s={latency_s!r}, batch_size={batch_size!r}, "
                f"threads={threads!r}, tokens={tokens!r}; batch_size must be at least 1, "
                "the others at least 0"
            )
        self._latency_s = latency_s
        self._batch_size = batch_size
        self._tokens = tokens
        self._instant = not latency_s and not tokens
        self._threads = threads
        self._queue: WorkQueue | None = None

    def __enter__(self) -> NullEngine:
        """Start the threads."""
        if self._threads:
            # One thread may take all that waits; several share it by batches.
            batch = None if self._threads == 1 else self._batch_size
            self._queue = WorkQueue(self._complete, threads=self._threads, max_batch=batch)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the threads."""
        if self._queue is not None:
            self._queue.close()

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Complete the samples here, or hand them to the threads."""
        if self._queue is None:
            self._complete(ids, indices, sink)
        else:
            self._queue.put(ids, indices, sink)

    def describe(self) -> Mapping[str, str]:
        """Return the options that decide how long work takes."""
        return {
            "engine": "null",
            "latency_s": repr(self._latency_s),
            "batch_size": str(self._batch_size),
            "threads": str(self._threads),
            "tokens": str(self._tokens),
        }

    def _complete(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        size = self._batch_size
        if len(ids) <= size:
            # This engine measures the path around it, so it must cost next to nothing itself.
            if self._instant and not sink.wants_output:
                sink.done(ids)
            else:
                self._complete_batch(ids, indices, sink)
            return
        for start in range(0, len(ids), size):
            part = slice(start, start + size)
            self._complete_batch(ids[part], indices[part], sink)

    def _complete_batch(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        work_s = self._latency_s * len(ids)
        n_tokens = None
        if self._tokens:
            step_s = work_s / self._tokens
            if step_s:
                _work(step_s)
            sink.first_tokens(ids)
            work_s -= step_s
            n_tokens = [self._tokens] * len(ids)
            if work_s and sink.times_tokens:
                for _ in range(self._tokens - 1):
                    _work(step_s)
                    sink.next_tokens(ids)
                work_s = 0
        if work_s:
            _work(work_s)
        outputs = None
        if sink.wants_output:
            outputs = [index.to_bytes(8, "little") for index in indices]
        sink.done(ids, outputs, n_tokens)


def _work(duration_s: float) -> None:
    """Take this long: asleep where the timer is precise enough, else busy."""
    if duration_s >= SPIN_BELOW_S:
        time.sleep(duration_s)
        return
    end = time.perf_counter() + duration_s
    while time.perf_counter() < end:
        pass
