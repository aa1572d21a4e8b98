"""Queue work for long-lived threads, for engines that must not work inside `submit`."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from pytest_mlperf.core.extension import Sink

Work = Callable[[Sequence[int], Sequence[int], Sink], None]
"""Processes and completes samples: ids, indices, sink, as in `Engine.submit`."""

Piece = tuple[Sequence[int], Sequence[int], Sink]


class WorkQueue:
    """Run work in a fixed pool of threads, in batches.

    LoadGen can crash if a thread that completed samples ends during a run, so the threads live
    until `close`. A free thread joins all waiting samples into one batch.
    """

    def __init__(self, work: Work, *, threads: int = 1, max_batch: int | None = None) -> None:
        """Start `threads` that call `work` with at most `max_batch` samples (None: no limit)."""
        if threads < 1 or (max_batch is not None and max_batch < 1):
            raise ValueError(
                f"threads={threads!r}, max_batch={max_batch!r}; threads must be at least 1, and "
                "max_batch at least 1 or None"
            )
        self._work = work
        self._max_batch = max_batch
        self._pieces: SimpleQueue[Piece | None] = SimpleQueue()
        self._pool = [
            threading.Thread(target=self._serve, name=f"work-queue-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._pool:
            thread.start()

    def put(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Queue samples, in parts of at most `max_batch`."""
        size = self._max_batch or len(ids)
        if len(ids) <= size:
            self._pieces.put((ids, indices, sink))
            return
        for start in range(0, len(ids), size):
            part = slice(start, start + size)
            self._pieces.put((ids[part], indices[part], sink))

    def close(self) -> None:
        """Finish the queued work, and end the threads."""
        for _ in self._pool:
            self._pieces.put(None)
        for thread in self._pool:
            thread.join()

    def _serve(self) -> None:
        while (piece := self._pieces.get()) is not None:
            ids, indices, sink = self._drain(piece) if self._pieces.qsize() else piece
            try:
                self._work(ids, indices, sink)
            except BaseException as error:  # a dead thread would hang the run
                sink.failed(error)

    def _drain(self, piece: Piece) -> Piece:
        """Add the next queued pieces to `piece` while they fit its batch and have the same sink."""
        ids, indices, sink = list(piece[0]), list(piece[1]), piece[2]
        most = self._max_batch or math.inf
        while len(ids) < most:
            try:
                behind = self._pieces.get_nowait()
            except Empty:
                break
            if behind is None or behind[2] is not sink or len(ids) + len(behind[0]) > most:
                self._pieces.put(behind)
                break
            ids += behind[0]
            indices += behind[1]
        return ids, indices, sink
