"""Distribute samples by least outstanding work: small queries whole, long lists in parts."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from time import perf_counter
from typing import Any

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.extension import Sink
from pytest_mlperf.run.worker import _pipe as wire
from pytest_mlperf.run.worker._replica_group import ReplicaProcess, relative_speeds
from pytest_mlperf.run.worker._sink import GuardedSink

REPLICA_PARTS = 4
"""First parts of a list per replica; later parts shrink, so that all replicas end together."""

MAX_PART_SAMPLES = 1 << 16
"""Maximum samples of a part: a replica starts while the next part is on its way."""

BUSY_GAP_SECONDS = 200e-6
"""Queries are gathered if their recent mean distance is shorter."""

MAX_PIPED_SAMPLES = 256
"""Open samples of a replica up to which its pipe surely has room for more."""

SHORT_ANSWER_SECONDS = 2e-3
"""Replicas that answer faster get gathered queries in one piece."""

FORGETTING_FACTOR = 1.05
"""Factor by which the shortest answer time grows per answer, so that old minima fade."""


@dataclass(kw_only=True)
class _Waiting:
    """Hold lists of samples that wait to be distributed in parts.

    Attributes:
        lists: Pairs of (ids, data set indices).
        taken: Number of samples already taken from the first list.
        part: Initial size of a part, in samples.
    """

    lists: deque[tuple[Sequence[int], Sequence[int]]]
    part: int
    taken: int = 0

    def __len__(self) -> int:
        return sum(len(ids) for ids, _ in self.lists) - self.taken

    def take(self, samples: int) -> tuple[Sequence[int], Sequence[int]]:
        ids, indices = self.lists[0]
        chosen = slice(self.taken, self.taken + samples)
        self.taken += samples
        if self.taken >= len(ids):
            self.lists.popleft()
            self.taken = 0
        return ids[chosen], indices[chosen]


class Dispatcher:
    """Submit samples to the replica with the least outstanding work; count completions.

    Attributes:
        batch: Batch size of the engine [samples].
        costs: Work of each sample by index; empty if all are equal or it is unknown.
        session_of: Function that returns the conversation of a sample id, or ""; None without any.
    """

    def __init__(
        self,
        replicas: Sequence[ReplicaProcess],
        send: Callable[[ReplicaProcess, Sequence[wire.Message]], None],
        scenario: Scenario,
    ) -> None:
        self.batch = 1
        self.costs: Mapping[int, float] = {}
        self.session_of: Callable[[int], str] | None = None
        self._replicas, self._send_now = replicas, send
        self._scenario, self._whole = scenario, scenario.answers_one_at_a_time
        self._lock = threading.Lock()
        self._sink: Sink | None = None
        self._flags: wire.Flags = (False, False, False, 0.0, "")
        self._waiting: _Waiting | None = None
        self._next = 0
        self._submitted_s = self._apart_s = 0.0
        self._numbers = count()
        self._gathering = wire.Gathering(self._submit_gathered, "replicas-gathering")

    def use(self, sink: Sink) -> None:
        self._sink = sink
        with self._lock:
            for replica in self._replicas:
                replica.tally.reset()
        may_fail = getattr(sink, "may_fail", 0.0)
        times, first = sink.times_tokens, sink.needs_first_tokens
        self._flags = (sink.wants_output, times, first, may_fail, getattr(sink, "run", ""))

    def submit(self, ids: Sequence[int], indices: Sequence[int]) -> None:
        """Send one sample to a replica, batched at high rates; divide several among replicas."""
        if len(ids) > 1 and not self._whole:
            self._hand_out(ids, indices)
            return
        now_s = perf_counter()
        self._apart_s += (now_s - self._submitted_s - self._apart_s) / 8
        self._submitted_s = now_s
        if self._apart_s < BUSY_GAP_SECONDS and not self._whole:
            self._gathering.put((ids[0], indices[0]))
        else:
            with self._lock:
                replica = self._replicas[self._least()]
                self._count_submitted(replica, len(ids), len(ids))
            self._send(replica, ids, indices)

    def completed(self, replica: ReplicaProcess, ids: Any) -> Sequence[Any]:
        """Count samples that a replica completed, return their ids, and send it waiting samples."""
        samples = replica.lists.ids(ids) if isinstance(ids, tuple) else replica.unpacked(ids)
        more = None
        with self._lock:
            replica.tally.take(replica.alive_s, len(samples))
            replica.answer_s = min(
                replica.alive_s - replica.given_s, FORGETTING_FACTOR * replica.answer_s
            )
            if self._waiting and replica.tally.open < self._waiting.part:
                more = self._next_part(replica)
        if more:  # before the sink, so that the replica need not wait for it
            self._send(*more)
        return samples

    def runs(self) -> list[dict[str, Any]]:
        """Return the current run's results for each replica, as fields of `ReplicaRun`."""
        with self._lock:
            speeds = relative_speeds(
                [r.tally for r in self._replicas], lists=self._scenario == Scenario.OFFLINE
            )
            return [
                {
                    "name": replica.spec.name,
                    "gpus": list(replica.spec.gpus),
                    "samples": replica.tally.samples,
                    "throughput": replica.tally.throughput,
                    "latency_s": replica.tally.latency_s,
                    "shares": [] if self._whole else speed,
                }
                for replica, speed in zip(self._replicas, speeds, strict=True)
            ]

    def _least(self) -> int:
        """Return the index of the replica with the least work in flight; alternate if equal."""
        count, replicas = len(self._replicas), self._replicas
        first = 0 if self._whole else self._next
        number = min(chain(range(first, count), range(first)), key=lambda n: replicas[n].tally.open)
        self._next = (number + 1) % count
        return number

    def _count_submitted(self, replica: ReplicaProcess, samples: int, work: float) -> None:
        """Count samples, and their `work`, as submitted to a replica; requires holding the lock."""
        replica.given_s = perf_counter()
        if not replica.tally.open:
            replica.alive_s = replica.given_s
        replica.tally.count_submitted(replica.given_s, samples, work)

    def _submit_gathered(self, queries: list[tuple[int, int]]) -> None:
        """Send all queries to one replica if replicas answer fast, else each to the least busy."""
        parts: dict[int, list[tuple[int, int]]] = {}
        with self._lock:
            whole = len(queries) > 1 and all(
                r.answer_s < SHORT_ANSWER_SECONDS for r in self._replicas
            )
            for group in [queries] if whole else [[query] for query in queries]:
                number = self._least()
                self._count_submitted(self._replicas[number], len(group), len(group))
                parts.setdefault(number, []).extend(group)
        for number, group in parts.items():
            ids, indices = zip(*group, strict=True)
            self._send(self._replicas[number], ids, indices)

    def _hand_out(self, ids: Sequence[int], indices: Sequence[int]) -> None:
        if self.costs:
            order = sorted(range(len(ids)), key=lambda n: -self.costs.get(indices[n], 0.0))
            ids, indices = [ids[n] for n in order], [indices[n] for n in order]
        part = self._full(
            min(MAX_PART_SAMPLES, math.ceil(len(ids) / (REPLICA_PARTS * len(self._replicas))))
        )
        parts = []
        with self._lock:
            if self._waiting is None:
                self._waiting = _Waiting(lists=deque(), part=part)
            self._waiting.lists.append((ids, indices))
            for _ in range(2):  # the second part must arrive before the first one ends
                in_turn = sorted(self._replicas, key=lambda replica: replica.tally.open)
                parts += [taken for replica in in_turn if (taken := self._next_part(replica))]
        for replica, some, places in parts:
            self._send(replica, some, places)

    def _next_part(
        self, replica: ReplicaProcess
    ) -> tuple[ReplicaProcess, Sequence[int], Sequence[int]] | None:
        """Return what to submit next, (replica, ids, indices), or None; the lock must be held."""
        waiting = self._waiting
        if waiting is None:
            return None
        fair = self._full(math.ceil(len(waiting) / (2 * len(self._replicas))))
        ids, indices = waiting.take(min(waiting.part, fair))
        if not self.costs and isinstance(self._sink, GuardedSink):
            self._sink.cut(waiting.taken)
        if not waiting.lists:
            self._waiting = None
        work = sum(map(self.costs.__getitem__, indices)) if self.costs else len(ids)
        self._count_submitted(replica, len(ids), work)
        return replica, ids, indices

    def _full(self, samples: int) -> int:
        return max(1, math.ceil(samples / self.batch)) * self.batch

    def _send(self, replica: ReplicaProcess, ids: Sequence[int], indices: Sequence[int]) -> None:
        """Send samples to a replica; use another thread if the pipe to it may be full."""
        number = next(self._numbers)
        replica.lists.add(number, ids)
        some = len(ids) if len(ids) >= wire.MIN_REMEMBERED_LENGTH else wire.packed(ids)
        sessions: Mapping[int, str] = {}
        if (session_of := self.session_of) is not None:
            sessions = {sample: name for sample in ids if (name := session_of(sample))}
        about = perf_counter(), sessions, self._flags
        message = (wire.SUBMIT, number, some, wire.packed(indices), *about)
        if replica.tally.open <= MAX_PIPED_SAMPLES:
            self._send_now(replica, [message])
        else:
            replica.later.put(message)
