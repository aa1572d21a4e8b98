"""An engine with one server and a queue, whose latency follows from the rate it is offered."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType

from pytest_mlperf.core.extension import Dataset, Engine, Sink

TOKEN_SECONDS = 1e-3
"""Time from the first token to the last one; the next sample is served meanwhile."""


class QueueEngine(Engine):
    """Serve one sample after the other, each for a fixed time: at most 1 / service_s a second.

    When a sample is due follows from the arrivals alone: a wait that takes too long delays that
    sample only.
    """

    def __init__(
        self,
        dataset: Dataset,
        model: str | None = None,
        precision: str = "",
        *,
        service_s: float = 0.001,
        tokens: int = 0,
    ) -> None:
        """Keep the time that a sample takes, and how many tokens it has."""
        del dataset, model, precision
        self._service_s, self._tokens = service_s, tokens
        self._free_s = 0.0
        self._due: deque[tuple[float, int, int, Sink]] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> QueueEngine:
        """Start the server."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop it."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Queue samples behind those that wait."""
        with self._changed:
            time_s = time.perf_counter()
            for sample, index in zip(ids, indices, strict=True):
                self._free_s = max(time_s, self._free_s) + self._service_s
                self._due.append((self._free_s, sample, index, sink))
            self._changed.notify()

    def describe(self) -> Mapping[str, str]:
        """Return what decides how long work takes."""
        return {"engine": "queue", "service_s": repr(self._service_s)}

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._due or self._ended)
                if self._ended:
                    return
                due_s, sample, index, sink = self._due.popleft()
            left = due_s - time.perf_counter()
            if left > 0:
                time.sleep(left)
            if self._tokens:
                sink.first_tokens([sample])
                time.sleep(TOKEN_SECONDS)
            outputs = [index.to_bytes(8, "little")] if sink.wants_output else None
            sink.done([sample], outputs, [self._tokens] if self._tokens else None)
