"""Send requests to a server from several client processes."""

from __future__ import annotations

import contextlib
import math
import time
from array import array
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any, ClassVar, Self

from pytest_mlperf.core.extension import Engine, Sink
from pytest_mlperf.run.worker import _pipe as wire
from pytest_mlperf.run.worker._replica_group import ReplicaProcess
from pytest_mlperf.run.worker._replicas import ReplicatedEngine
from pytest_mlperf.run.worker.clocks import QUANTILES, percentile
from pytest_mlperf.run.worker.closed_loop import SlotSink


class ClientProcesses(ReplicatedEngine):
    """Send each request to the client process with the fewest in flight; use its time stamps."""

    called: ClassVar[str] = "clients"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._back_s = array("d")

    def client_lateness(self) -> Mapping[str, float]:
        """Return the worst delay of all client processes [s], by name of delay and quantile."""
        lateness = self._group.ask_all(wire.LATENESS, "reporting how late it was")
        back_s, self._back_s = sorted(self._back_s) or [0.0], array("d")
        way = {f"loop_{label}": percentile(back_s, share) for label, share in QUANTILES.items()}
        names = {name for late in lateness for name in late}
        return {
            name: max(late.get(name, 0.0) for late in lateness) + way.get(name, 0.0)
            for name in names
        }

    def null_client(self, tokens: int) -> AbstractContextManager[Engine] | None:
        return None if self._spec.handicap else self._on_null(tokens)

    def counted_again(self) -> Mapping[int, tuple[int, int]] | None:
        counts: dict[int, tuple[int, int]] = {}
        for client_counts in self._group.ask_all("counted_again", "counting tokens"):
            if client_counts is None:
                return None
            counts.update(client_counts)
        return counts

    def replica_runs(self) -> list[dict[str, Any]]:
        """Return [], because differences between clients say nothing about the server."""
        return []

    @contextlib.contextmanager
    def _on_null(self, tokens: int) -> Iterator[Self]:
        self._group.tell_all(wire.NULL, tokens, "starting a server that computes nothing")
        back_s, self._back_s = self._back_s, array("d")
        try:
            yield self
        finally:
            self._group.tell_all(wire.NULL, None, "ending it")
            self._back_s = back_s  # lateness at the maximum rate is not the measured run's

    def _use(self, sink: Sink) -> None:
        super()._use(sink)
        self._dispatcher.session_of = getattr(sink, "session", None)
        if isinstance(sink, SlotSink):
            sink.cpu_clock = self._cpu_s

    def _cpu_s(self) -> float:
        clocks = (~replica.process.pid << 3 | 2 for replica in self._group.processes)
        return time.process_time() + sum(map(time.clock_gettime, clocks))

    def _batch_of(self, batch: int) -> int:
        return math.ceil(batch / self.replicas)

    def _hear(self, replica: ReplicaProcess, message: wire.Message) -> None:
        match message:
            case (wire.DONE, stamp_s, *_):
                self._back_s.append(perf_counter() - stamp_s)
        super()._hear(replica, message)
