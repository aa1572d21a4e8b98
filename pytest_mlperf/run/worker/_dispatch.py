"""Hand samples to replicas by least outstanding work: queries at once, lists part by part."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from time import perf_counter
from typing import Any

from pytest_mlperf.core.extension import Sink
from pytest_mlperf.core.job import STREAMS
from pytest_mlperf.run.worker import _pipe as wire
from pytest_mlperf.run.worker._replica_group import ReplicaProcess
from pytest_mlperf.run.worker._sink import GuardedSink
from pytest_mlperf.run.worker._tally import shares

REPLICA_PARTS = 4
"""A list is first handed out in so many parts for each replica, and what is left in smaller ones:
large parts keep an engine's batches full, small ones at the end let all replicas end together."""

MAX_PART_SAMPLES = 1 << 16
"""Samples of a part at most: a replica starts with the first while the next is on its way."""

BUSY_GAP_SECONDS = 200e-6
"""Queries that are less apart of late are gathered; a lone one goes out at once."""

MAX_PIPED_SAMPLES = 256
"""Samples open with a replica up to which the pipe to it has room for more."""

SHORT_ANSWER_SECONDS = 2e-3
"""Replicas that answer within this time get what was gathered in one piece."""

FORGETTING_FACTOR = 1.05
"""Factor by which the shortest answer is forgotten with each: a busy machine's are no engine's."""


@dataclass(kw_only=True)
class _Waiting:
    """Lists that are handed out part by part.

    Attributes:
        lists: Ids and indices, of which nothing was taken but the first `taken` of the first.
        taken: How many these are.
        part: Samples of a part, at first.
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
    """Hands samples to the replica with the least outstanding work, and counts completed ones.

    Attributes:
        batch: Samples that a replica works on at once.
        costs: Work of each sample by its index; empty if all are alike or nobody knows.
        session_of: Returns the conversation of a sample, "" for none; None if no sink has any.
    """

    def __init__(
        self,
        replicas: Sequence[ReplicaProcess],
        send: Callable[[ReplicaProcess, Sequence[wire.Message]], None],
        scenario: str,
    ) -> None:
        """Hand samples to `replicas`, which may start later; `send` sends one of them messages."""
        self.batch = 1
        self.costs: Mapping[int, float] = {}
        self.session_of: Callable[[int], str] | None = None
        self._replicas, self._send_now = replicas, send
        self._scenario, self._whole = scenario, scenario in STREAMS
        self._lock = threading.Lock()
        self._sink: Sink | None = None
        self._flags: wire.Flags = (False, False, False, 0.0, "")
        self._waiting: _Waiting | None = None
        self._next = 0
        self._submitted_s = self._apart_s = 0.0
        self._numbers = count()
        self._gathering = wire.Gathering(self._submit_gathered, "replicas-gathering")

    def use(self, sink: Sink) -> None:
        """Count anew, for a sink that samples are reported to from now on."""
        self._sink = sink
        with self._lock:
            for replica in self._replicas:
                replica.tally.reset()
        may_fail = getattr(sink, "may_fail", 0.0)
        times, first = sink.times_tokens, sink.needs_first_tokens
        self._flags = (sink.wants_output, times, first, may_fail, getattr(sink, "run", ""))

    def submit(self, ids: Sequence[int], indices: Sequence[int]) -> None:
        """Hand samples out: a query whole, at once or with what follows fast; a list in parts."""
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
                self._take(replica, len(ids), len(ids))
            self._send(replica, ids, indices)

    def completed(self, replica: ReplicaProcess, ids: Any) -> Sequence[Any]:
        """Return the samples that a replica has done with, and hand it what waits for that."""
        samples = replica.lists.ids(ids) if isinstance(ids, tuple) else replica.unpacked(ids)
        more = None
        with self._lock:
            replica.tally.take(replica.alive_s, len(samples))
            replica.answer_s = min(
                replica.alive_s - replica.given_s, FORGETTING_FACTOR * replica.answer_s
            )
            if self._waiting and replica.open < self._waiting.part:
                more = self._next_part(replica)
        if more:  # before the sink, so that the replica does not wait for it
            self._send(*more)
        return samples

    def runs(self) -> list[dict[str, Any]]:
        """Return what each replica did with the last sink, as a `ReplicaRun` has it."""
        with self._lock:
            speeds = shares([r.tally for r in self._replicas], lists=self._scenario == "Offline")
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
        """Return the number of the replica with the least open work; of several the next one."""
        count, replicas = len(self._replicas), self._replicas
        first = 0 if self._whole else self._next
        number = min(chain(range(first, count), range(first)), key=lambda n: replicas[n].tally.open)
        self._next = (number + 1) % count
        return number

    def _take(self, replica: ReplicaProcess, samples: int, work: float) -> None:
        """Count samples, which are so much work, as given to a replica; the lock is held."""
        replica.given_s = perf_counter()
        if not replica.open:
            replica.alive_s = replica.given_s
        replica.tally.give(replica.given_s, samples, work)

    def _submit_gathered(self, queries: list[tuple[int, int]]) -> None:
        """Hand out single queries that came within a moment.

        Replicas that answer at once get them in one piece, which costs least; others one by one,
        each to the replica that has least to do.
        """
        parts: dict[int, list[tuple[int, int]]] = {}
        with self._lock:
            whole = len(queries) > 1 and all(
                r.answer_s < SHORT_ANSWER_SECONDS for r in self._replicas
            )
            for group in [queries] if whole else [[query] for query in queries]:
                number = self._least()
                self._take(self._replicas[number], len(group), len(group))
                parts.setdefault(number, []).extend(group)
        for number, group in parts.items():
            ids, indices = zip(*group, strict=True)
            self._send(self._replicas[number], ids, indices)

    def _hand_out(self, ids: Sequence[int], indices: Sequence[int]) -> None:
        """Hand out a list part by part, the largest samples first."""
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
            for _ in range(2):  # the second part is there before the first one has ended
                in_turn = sorted(self._replicas, key=lambda replica: replica.open)
                parts += [taken for replica in in_turn if (taken := self._next_part(replica))]
        for replica, some, places in parts:
            self._send(replica, some, places)

    def _next_part(
        self, replica: ReplicaProcess
    ) -> tuple[ReplicaProcess, Sequence[int], Sequence[int]] | None:
        """Take the next part of what waits for a replica; the lock is held."""
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
        self._take(replica, len(ids), work)
        return replica, ids, indices

    def _full(self, samples: int) -> int:
        """Return so many samples, or as many more as fill the engine's last batch."""
        return max(1, math.ceil(samples / self.batch)) * self.batch

    def _send(self, replica: ReplicaProcess, ids: Sequence[int], indices: Sequence[int]) -> None:
        """Send samples, at once where the pipe surely takes them: nobody may wait for a replica."""
        number = next(self._numbers)
        replica.lists.add(number, ids)
        some = len(ids) if len(ids) >= wire.MIN_REMEMBERED_LENGTH else wire.packed(ids)
        sessions: Mapping[int, str] = {}
        if (session_of := self.session_of) is not None:
            sessions = {sample: name for sample in ids if (name := session_of(sample))}
        about = perf_counter(), sessions, self._flags
        message = (wire.SUBMIT, number, some, wire.packed(indices), *about)
        if replica.open <= MAX_PIPED_SAMPLES:
            self._send_now(replica, [message])
        else:
            replica.later.put(message)
