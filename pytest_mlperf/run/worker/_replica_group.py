"""Start, command, compare and stop replica processes, and detect their failures."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from queue import Empty, SimpleQueue
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from pytest_mlperf.core.errors import LoggedError, RunError
from pytest_mlperf.core.extension import REPLICA_NUMBER
from pytest_mlperf.processes import ended, log_tail
from pytest_mlperf.run.child.protocol import ReplicaSpec, WorkerSpec
from pytest_mlperf.run.worker import _pipe as wire
from pytest_mlperf.run.worker._sink import Fail

SLICES = 8
"""Equal parts of a run in which replicas are compared, to tell chance from a slow replica."""

SNAPSHOT_SECONDS = 0.02
"""Minimum time between two snapshots of a tally; it doubles at `MAX_SNAPSHOTS`."""

MAX_SNAPSHOTS = 4096


class ReplicaTotals(NamedTuple):
    """Hold totals of a replica until `time_s`: samples, busy and waiting seconds, sample costs."""

    time_s: float
    done: float
    busy_s: float
    waited_s: float
    work: float


class Tally:
    """Count the samples and busy time of one replica; callers must hold the lock.

    Attributes:
        open, samples: Number of samples in flight, and number of completed samples.
    """

    def __init__(self) -> None:
        self.open = 0
        self.reset()

    def reset(self) -> None:
        self._submitted, self.samples, self._work = 0, 0, 0.0
        self._busy_s = self._waited_s = self._changed_s = self._kept_s = 0.0
        self._apart_s = SNAPSHOT_SECONDS
        self._kept: list[ReplicaTotals] = []

    def count_submitted(self, now_s: float, samples: int, work: float) -> None:
        """Count samples as submitted; `work` is their total work, in any unit."""
        self._change(now_s)
        if not self._kept:
            self._keep(now_s)
        self.open += samples
        self._submitted += samples
        self._work += work

    def take(self, now_s: float, samples: int) -> None:
        self._change(now_s)
        self.open -= samples
        self.samples += samples
        if now_s - self._kept_s >= self._apart_s or not self.open:
            self._keep(now_s)

    def _change(self, now_s: float) -> None:
        if self.open:
            passed_s = now_s - self._changed_s
            self._busy_s += passed_s
            self._waited_s += self.open * passed_s
        self._changed_s = now_s

    def _keep(self, now_s: float) -> None:
        if len(self._kept) >= MAX_SNAPSHOTS:
            self._kept = self._kept[::2]
            self._apart_s *= 2
        # Large samples go first, so completed ones are as large on average as submitted ones.
        work = self._work * self.samples / self._submitted if self._submitted else 0.0
        self._kept.append(ReplicaTotals(now_s, self.samples, self._busy_s, self._waited_s, work))
        self._kept_s = now_s

    @property
    def throughput(self) -> float:
        """Samples/s over the time with samples in flight; 0 if none completed."""
        return self.samples / self._busy_s if self._busy_s else 0.0

    @property
    def latency_s(self) -> float:
        """Mean latency [s]: waiting time of all samples / number of completed ones; 0 if none."""
        return self._waited_s / self.samples if self.samples else 0.0

    def parts(self, edges_s: Sequence[float]) -> list[ReplicaTotals]:
        until = [self._at(time_s) for time_s in edges_s]
        return [
            ReplicaTotals(*(b - a for a, b in zip(before, after, strict=True)))
            for before, after in pairwise(until)
        ]

    def _at(self, time_s: float) -> ReplicaTotals:
        """Interpolate the totals at a time between two snapshots."""
        after = bisect_left(self._kept, (time_s,))
        if after == 0 or after == len(self._kept):
            return self._kept[min(after, len(self._kept) - 1)]
        low, high = self._kept[after - 1], self._kept[after]
        way = (time_s - low.time_s) / (high.time_s - low.time_s)
        return ReplicaTotals(*(a + way * (b - a) for a, b in zip(low, high, strict=True)))

    @property
    def ends_s(self) -> tuple[float, float]:
        """Times of the first and last snapshot of the replica's totals [s]; (0, 0) if none."""
        return (self._kept[0].time_s, self._kept[-1].time_s) if self._kept else (0.0, 0.0)


def relative_speeds(tallies: Sequence[Tally], *, lists: bool) -> list[list[float]]:
    """Return, for each replica, its speed relative to the median in each of `SLICES` run parts.

    Speed is work per busy second in scenarios with many samples per query (`lists`), else the
    inverse of the mean latency.
    """
    begin_s = max(tally.ends_s[0] for tally in tallies)
    end_s = min(tally.ends_s[1] for tally in tallies)
    compared: list[list[float]] = [[] for _ in tallies]
    if end_s <= begin_s:
        return compared
    edges_s = [begin_s + (end_s - begin_s) * n / SLICES for n in range(SLICES + 1)]
    for parts in zip(*(tally.parts(edges_s) for tally in tallies), strict=True):
        speeds = [_speed(part, lists=lists) for part in parts]
        if all(speeds):  # otherwise the part is too short to compare
            for row, speed in zip(compared, speeds, strict=True):
                row.append(speed / median(speeds))
    return compared


def _speed(part: ReplicaTotals, *, lists: bool) -> float:
    """Return a replica's work per busy second if `lists`, else samples per waiting second, or 0."""
    over_s = part.busy_s if lists else part.waited_s
    return (part.work if lists else part.done) / over_s if part.done >= 1 and over_s > 0 else 0.0


BOOT = (
    "import json, sys; spec, descriptor, cpus, sys.path[:] = json.loads(sys.argv[1]); "
    "from pytest_mlperf.run.worker.replica import main; main(spec, descriptor, cpus)"
)
"""Code that a replica runs; it takes its worker's import path, whatever Python this is."""

POLL_SECONDS = 0.25
EXIT_SECONDS = 15.0
"""Time for all replicas to release their resources; the worker's parent waits a little longer."""


@dataclass(kw_only=True)
class ReplicaProcess:
    """Hold a replica's process, and the worker's record of its activity.

    Attributes:
        spec: The replica's GPUs, and its name in messages, "replica 3 (GPU 5)".
        process: Process in the worker's process group.
        log: File with the process's stdout and stderr.
        later: Queue of messages to the replica, sent by a thread, so that callers need not wait.
        lists: Long lists of ids sent to the replica, so that its messages can give positions.
        answers: Answers to the worker's commands; None at the end, when the replica is gone.
        given_s: Time of the last submission of samples [s].
        alive_s: Time of the last activity [s]: a message, a submission after idling, or a line in
            the log while loading.
        answer_s: Shortest recent time from a submission to a completion [s].
        written: Size of the log at the last check [bytes].
    """

    spec: ReplicaSpec
    process: subprocess.Popen[bytes]
    pipe: wire.Pipe
    log: Path
    later: wire.Gathering = field(init=False)
    lists: wire.Lists = field(default_factory=wire.Lists)
    answers: SimpleQueue[wire.Message | None] = field(default_factory=SimpleQueue)
    tally: Tally = field(default_factory=Tally)
    given_s: float = 0.0
    alive_s: float = 0.0
    answer_s: float = math.inf
    written: int = 0

    def writes(self) -> bool:
        """Check whether the replica's log has grown since the last call, a sign of progress."""
        try:
            size = self.log.stat().st_size
        except OSError:
            return False
        grown, self.written = size > self.written, size
        return grown

    def unpacked(self, ids: bytes | list[int | str]) -> Sequence[Any]:
        return self.lists.worker_ids(wire.unpacked(ids))

    def error(self, how: str, *, quoted: bool = True) -> LoggedError:
        last = log_tail(str(self.log), 1) if quoted else []
        ends = f"; {self.log.name} ends: {last[0]}" if last else ""
        return LoggedError("engine", f"{self.spec.name}{how}{ends}", self.log.name)


@dataclass(eq=False)
class ReplicaGroup:
    """Start an engine's replicas, send commands to all, and end the run when one fails.

    Attributes:
        processes: Replicas in the order of the worker's spec.
    """

    spec: WorkerSpec
    spec_file: Path
    hear: Callable[[ReplicaProcess, wire.Message], None]
    fail: Fail
    processes: list[ReplicaProcess] = field(default_factory=list)
    _leaving: threading.Event = field(default_factory=threading.Event)

    def start(self) -> list[wire.Message]:
        for number, spec in enumerate(self.spec.replicas):
            replica = self._started(number, spec)
            send = functools.partial(self.send, replica)
            replica.later = wire.Gathering(send, f"replica-{number}-sending")
            self.processes.append(replica)
        threading.Thread(target=self._listen, name="replicas-listening", daemon=True).start()
        loaded = list(self._answers(wire.LOADED, "loading its model"))
        threading.Thread(target=self._watch, name="replicas-watching", daemon=True).start()
        return loaded

    def stop(self) -> None:
        """Ask all replicas to exit; kill those that exceed `EXIT_SECONDS`."""
        self._leaving.set()
        for replica in self.processes:
            with contextlib.suppress(OSError):
                replica.pipe.send([(wire.STOP,)])
        until_s = perf_counter() + EXIT_SECONDS
        for replica in self.processes:
            try:
                replica.process.wait(max(0.0, until_s - perf_counter()))
            except subprocess.TimeoutExpired:
                replica.process.kill()
                replica.process.wait()
            replica.pipe.close()

    def send(self, replica: ReplicaProcess, messages: Sequence[wire.Message]) -> None:
        try:
            replica.pipe.send(messages)
        except OSError:
            if not self._leaving.is_set():
                self._gone(replica)

    def tell_all(self, kind: str, content: Sequence[int] | int | None, doing: str) -> None:
        """Send command `kind` with `content` to all replicas; wait; `doing` names it in errors."""
        packed = wire.packed(content) if isinstance(content, Sequence) else content
        self._ask((kind, packed), doing)

    def ask_all(self, name: str, doing: str) -> list[Any]:
        return [answer for _, answer in self._ask((wire.ASK, name), doing)]

    def _ask(self, message: wire.Message, doing: str) -> list[wire.Message]:
        for replica in self.processes:
            replica.later.put(message)
        return list(self._answers(wire.ANSWER, doing))

    def _answers(self, kind: str, doing: str) -> Iterator[wire.Message]:
        """Yield each replica's `kind` message; end the run on another, or none (error: `doing`)."""
        patience_s, asked_s = self.spec.replica_patience_s, perf_counter()
        for replica in self.processes:
            replica.alive_s = asked_s
        for replica in self.processes:
            answer: wire.Message | None = ()
            while answer == ():
                try:
                    answer = replica.answers.get(timeout=POLL_SECONDS)
                except Empty:
                    if kind == wire.LOADED:
                        self._look_at_logs()
                    if perf_counter() - replica.alive_s > patience_s:
                        self._fail_hung_replica(replica, f"not ended {doing}")
                        return
            first, *_ = answer or (None,)
            if answer is None or first != kind:
                self._gone(replica)
                return
            yield answer

    def _look_at_logs(self) -> None:
        now_s = perf_counter()
        writing = [replica for replica in self.processes if replica.writes()]
        for replica in writing:
            replica.alive_s = now_s
        if writing:
            print(".", end="", file=sys.stderr, flush=True)

    def _started(self, number: int, spec: ReplicaSpec) -> ReplicaProcess:
        ours, theirs = socket.socketpair()
        log = Path(self.spec.folder) / f"replica-{number}.log"
        arguments = json.dumps([str(self.spec_file), theirs.fileno(), list(spec.cpus), sys.path])
        try:
            with log.open("wb") as file:
                environment = {**os.environ, **spec.environment, REPLICA_NUMBER: str(number)}
                process = subprocess.Popen(
                    [sys.executable, "-c", BOOT, arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env=environment,
                    pass_fds=[theirs.fileno()],
                )
        except OSError as error:
            raise RunError("engine", f"{spec.name} cannot be started: {error.strerror}") from error
        finally:
            theirs.close()
        return ReplicaProcess(spec=spec, process=process, pipe=wire.Pipe(ours.detach()), log=log)

    def _listen(self) -> None:
        selector = selectors.DefaultSelector()
        for replica in self.processes:
            selector.register(replica.pipe.fileno(), selectors.EVENT_READ, replica)
        try:
            while True:
                for key, _ in selector.select():
                    replica = key.data
                    try:
                        messages = replica.pipe.receive()
                    except (EOFError, OSError):
                        selector.unregister(key.fd)
                        replica.answers.put(None)
                        if self._leaving.is_set():
                            continue
                        self._gone(replica)
                        return
                    except Exception as error:  # unpickling may raise anything
                        how = f" sent its worker an invalid message ({type(error).__name__})"
                        raise replica.error(how) from error
                    replica.alive_s = perf_counter()
                    for message in messages:
                        kind = message[0]
                        if kind in wire.OF_REPLICAS:
                            self._take(replica, message)
                        else:
                            self.hear(replica, message)
        except BaseException as error:
            self.fail(error)

    def _take(self, replica: ReplicaProcess, message: wire.Message) -> None:
        match message:
            case (wire.ERROR, about):
                error: RunError = replica.error(f": {about['message']}", quoted=False)
                if about["designed"]:
                    error = RunError(str(about["layer"]), str(error))
                self.fail(error)
            case _:
                replica.answers.put(message)

    def _gone(self, replica: ReplicaProcess) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            replica.process.wait(POLL_SECONDS)
        code = replica.process.poll()
        how = "closed its pipe to the worker, but did not end" if code is None else ended(code)
        self.fail(replica.error(f" {how}"))

    def _watch(self) -> None:
        """End the run if a replica with open samples is silent for `replica_patience_s` seconds."""
        while not self._leaving.wait(POLL_SECONDS):
            now_s = perf_counter()
            for replica in self.processes:
                if (
                    replica.tally.open > 0
                    and now_s - replica.alive_s > self.spec.replica_patience_s
                ):
                    self._fail_hung_replica(
                        replica, f"{replica.tally.open:,} samples and completed none"
                    )

    def _fail_hung_replica(self, replica: ReplicaProcess, doing: str) -> None:
        """Log a hung replica's thread stacks; end the run with an error on what it was `doing`."""
        with contextlib.suppress(OSError):
            replica.process.send_signal(signal.SIGUSR1)
        self._leaving.wait(POLL_SECONDS)
        patience_s = self.spec.replica_patience_s
        self.fail(replica.error(f" had {doing} for {patience_s:g} s", quoted=False))
