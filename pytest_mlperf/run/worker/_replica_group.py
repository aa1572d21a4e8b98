"""Start replica processes, send them commands, detect failures, and stop them."""

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any

from pytest_mlperf.core.errors import LoggedError, RunError
from pytest_mlperf.core.extension import REPLICA_NUMBER
from pytest_mlperf.processes import ended, log_tail
from pytest_mlperf.run.child.protocol import ReplicaSpec, WorkerSpec
from pytest_mlperf.run.worker import _pipe as wire
from pytest_mlperf.run.worker._sink import Fail
from pytest_mlperf.run.worker._tally import Tally

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
    """A replica process as its worker sees it.

    Attributes:
        spec: Its GPUs, and its name in messages, "replica 3 (GPU 5)".
        process: Process in the worker's process group.
        log: File with its stdout and stderr.
        later: Queue of messages that a thread sends, so that the caller need not wait.
        lists: Long lists of ids that the replica received.
        answers: Answers to commands; None once the replica is gone.
        given_s: Time of the last submission [s].
        alive_s: Time of the last sign of life [s]: a message, a submission after idling, or a line
            in the log while loading.
        answer_s: Shortest recent time to complete samples [s].
        written: Size of the log [bytes].
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

    @property
    def open(self) -> int:
        return self.tally.open

    def writes(self) -> bool:
        """Check whether the log has grown since the last call; if so, it does not hang."""
        try:
            size = self.log.stat().st_size
        except OSError:
            return False
        grown, self.written = size > self.written, size
        return grown

    def unpacked(self, ids: bytes | list[int | str]) -> Sequence[Any]:
        return self.lists.real(wire.unpacked(ids))

    def error(self, how: str, *, quoted: bool = True) -> LoggedError:
        last = log_tail(str(self.log), 1) if quoted else []
        ends = f"; {self.log.name} ends: {last[0]}" if last else ""
        return LoggedError("engine", f"{self.spec.name}{how}{ends}", self.log.name)


class ReplicaGroup:
    """Start an engine's replicas, send commands to all, and end the run when one fails.

    Attributes:
        processes: Replicas in the order of the worker's spec.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        spec_file: Path,
        hear: Callable[[ReplicaProcess, wire.Message], None],
        fail: Fail,
    ) -> None:
        self.processes: list[ReplicaProcess] = []
        self._spec, self._spec_file = spec, spec_file
        self._hear, self._fail = hear, fail
        self._leaving = threading.Event()

    def start(self) -> list[wire.Message]:
        for number, spec in enumerate(self._spec.replicas):
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
        """Send a command to every replica, and wait until all have finished it."""
        packed = wire.packed(content) if isinstance(content, Sequence) else content
        self._ask((kind, packed), doing)

    def ask_all(self, name: str, doing: str) -> list[Any]:
        return [answer for _, answer in self._ask((wire.ASK, name), doing)]

    def _ask(self, message: wire.Message, doing: str) -> list[wire.Message]:
        for replica in self.processes:
            replica.later.put(message)
        return list(self._answers(wire.ANSWER, doing))

    def _answers(self, kind: str, doing: str) -> Iterator[wire.Message]:
        """Yield each replica's answer; end the run if one is late."""
        patience_s, asked_s = self._spec.replica_patience_s, perf_counter()
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
                        self._silent(replica, f"not ended {doing}")
                        return
            first, *_ = answer or (None,)
            if answer is None or first != kind:
                self._gone(replica)
                return
            yield answer

    def _look_at_logs(self) -> None:
        """Count log output as a sign of life, and report it to the worker's parent."""
        now_s = perf_counter()
        writing = [replica for replica in self.processes if replica.writes()]
        for replica in writing:
            replica.alive_s = now_s
        if writing:
            print(".", end="", file=sys.stderr, flush=True)

    def _started(self, number: int, spec: ReplicaSpec) -> ReplicaProcess:
        ours, theirs = socket.socketpair()
        log = Path(self._spec.folder) / f"replica-{number}.log"
        arguments = json.dumps([str(self._spec_file), theirs.fileno(), list(spec.cpus), sys.path])
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
                        how = f" wrote what is no message to its worker ({type(error).__name__})"
                        raise replica.error(how) from error
                    replica.alive_s = perf_counter()
                    for message in messages:
                        kind = message[0]
                        if kind in wire.OF_REPLICAS:
                            self._take(replica, message)
                        else:
                            self._hear(replica, message)
        except BaseException as error:
            self._fail(error)

    def _take(self, replica: ReplicaProcess, message: wire.Message) -> None:
        match message:
            case (wire.ERROR, about):
                error: RunError = replica.error(f": {about['message']}", quoted=False)
                if about["designed"]:
                    error = RunError(str(about["layer"]), str(error))
                self._fail(error)
            case _:
                replica.answers.put(message)

    def _gone(self, replica: ReplicaProcess) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            replica.process.wait(POLL_SECONDS)
        code = replica.process.poll()
        how = "hung up" if code is None else ended(code)
        self._fail(replica.error(f" {how}"))

    def _watch(self) -> None:
        """End the run when a replica with open samples is silent for too long."""
        while not self._leaving.wait(POLL_SECONDS):
            now_s = perf_counter()
            for replica in self.processes:
                if replica.open > 0 and now_s - replica.alive_s > self._spec.replica_patience_s:
                    self._silent(replica, f"{replica.open:,} samples and completed none")

    def _silent(self, replica: ReplicaProcess, doing: str) -> None:
        """End the run because a replica hangs, and dump its thread stacks into its log."""
        with contextlib.suppress(OSError):
            replica.process.send_signal(signal.SIGUSR1)
        self._leaving.wait(POLL_SECONDS)
        patience_s = self._spec.replica_patience_s
        self._fail(replica.error(f" had {doing} for {patience_s:g} s", quoted=False))
