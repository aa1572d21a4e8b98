"""Provide an engine that answers each sample with its index, to measure harness overhead."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.core.extension import Dataset, Engine, Sink
from pytest_mlperf.run.work_queue import WorkQueue

SPIN_BELOW_S = 1e-3
"""Shorter waits spin, because a sleep would overshoot by the timer's slack."""


@dataclass(frozen=True, kw_only=True)
class NullOptions:
    """Options of the null engine, which simulates work.

    Attributes:
        latency_s: Seconds of work per sample.
        batch_size: Samples completed together.
        threads: Number of threads that answer samples; 0 answers inside `submit`.
        tokens: Output tokens reported per sample; 0 for an engine that has no tokens.
    """

    latency_s: float = 0.0
    batch_size: int = 1
    threads: int = 0
    tokens: int = 0


class NullEngine(Engine):
    """Answer each sample after `latency_s` with its index as 8 bytes, little-endian."""

    first_suite: ClassVar[str] = "nothing; the suite runs unchanged"
    libraries: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[type] = NullOptions

    def __init__(
        self, dataset: Dataset, model: str | None = None, precision: str = "", **options: Any
    ) -> None:
        """Check and keep the options.

        Args:
            dataset: Not read.
            model: Not read.
            precision: Not read.
        """
        del dataset, model, precision
        settings = NullOptions(**options)
        least = {"latency_s": 0, "batch_size": 1, "threads": 0, "tokens": 0}
        if wrong := [name for name in least if getattr(settings, name) < least[name]]:
            raise SuiteError(
                f"null engine: latency_s={settings.latency_s!r}, "
                f"batch_size={settings.batch_size!r}, threads={settings.threads!r}, "
                f"tokens={settings.tokens!r}; batch_size must be at least 1, the others at least 0",
                option=wrong,
            )
        # Plain attributes, because they are read for every sample.
        self._latency_s = settings.latency_s
        self._batch_size = settings.batch_size
        self._threads = settings.threads
        self._tokens = settings.tokens
        self._instant = not settings.latency_s and not settings.tokens
        self._queue: WorkQueue | None = None

    def __enter__(self) -> NullEngine:
        if self._threads:
            # A single thread may take the whole queue; several threads share it in batches.
            batch = None if self._threads == 1 else self._batch_size
            self._queue = WorkQueue(self._complete, threads=self._threads, max_batch=batch)
        return self

    def __exit__(self, *_: object) -> None:
        if self._queue is not None:
            self._queue.close()

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        if self._queue is None:
            self._complete(ids, indices, sink)
        else:
            self._queue.put(ids, indices, sink)

    def describe(self) -> Mapping[str, str]:
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
            # This engine measures the overhead around it, so its own cost must be close to zero.
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
    if duration_s >= SPIN_BELOW_S:
        time.sleep(duration_s)
        return
    end = time.perf_counter() + duration_s
    while time.perf_counter() < end:
        pass
