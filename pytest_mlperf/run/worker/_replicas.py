"""An engine made of replicas: one LoadGen, several processes that each have GPUs of their own."""

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
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, ClassVar, Self

from pytest_mlperf.core.errors import LoggedError, RunError
from pytest_mlperf.core.extension import REPLICA_NUMBER, Dataset, Engine, Sink
from pytest_mlperf.core.job import STREAMS
from pytest_mlperf.processes import ended, log_tail
from pytest_mlperf.run.child.protocol import ReplicaSpec, WorkerSpec
from pytest_mlperf.run.worker import _pipe as wire
from pytest_mlperf.run.worker._sink import Fail, GuardedSink
from pytest_mlperf.run.worker._tally import Tally, shares

BOOT = (
    "import json, sys; spec, descriptor, cpus, sys.path[:] = json.loads(sys.argv[1]); "
    "from pytest_mlperf.run.worker.replica import main; main(spec, descriptor, cpus)"
)
"""What a replica runs: it imports from where its worker does, in whatever Python that is."""

LATENESS = "client_lateness"

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

POLL_SECONDS = 0.25
EXIT_SECONDS = 15.0
"""Time for all replicas to free what they took; the worker's parent waits a little longer."""


@dataclass(kw_only=True)
class ReplicaProcess:
    """One process, as its worker sees it.

    Attributes:
        name: What messages call it: "replica 3 (GPU 5)".
        process: It, the leader of nothing: it is in the worker's process group.
        pipe: The way to it.
        log: What it prints.
        lists: Lists that it was given.
        later: Sends what it need not take at once, from a thread of its own.
        answers: What it said to what it was told; None: it is gone.
        tally: What it was given and has done.
        alive_s: When it last said something, was asked for something after a rest, or, while it
            loads, wrote into its log.
        answer_s: How long a list takes it at least, of late.
        written: Bytes of its log.
    """

    name: str
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
        """Samples that it was given and has not completed."""
        return self.tally.open

    def writes(self) -> bool:
        """Whether its log has grown since this was asked last: it is slow, and does not hang."""
        try:
            size = self.log.stat().st_size
        except OSError:
            return False
        before, self.written = self.written, size
        return size > before

    def error(self, how: str, *, quoted: bool = True) -> LoggedError:
        """Return what ends the run, in one sentence; the rest of its log stands below."""
        last = log_tail(str(self.log), 1) if quoted else []
        ends = f"; {self.log.name} ends: {last[0]}" if last else ""
        return LoggedError("engine", f"{self.name}{how}{ends}", self.log.name)


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


class ReplicatedEngine(Engine):
    """Hands samples to replicas by least outstanding work, and their completions to LoadGen.

    Attributes:
        called: What the number of processes is called in a fingerprint.
        files: What they imported, see `imported_files`.
    """

    called: ClassVar[str] = "replicas"

    def __init__(self, spec: WorkerSpec, spec_file: Path, dataset: Dataset, fail: Fail) -> None:
        """Start nothing yet."""
        self._spec, self._spec_file = spec, spec_file
        self._dataset, self._fail = dataset, fail
        self._replicas: list[ReplicaProcess] = []
        self._lock = threading.Lock()
        self._waiting: _Waiting | None = None
        self._sink: Sink | None = None
        self._flags: wire.Flags = (False, False, False, 0.0, "")
        self._stamp_s = 0.0
        self._next = 0
        self._submitted_s = self._apart_s = 0.0
        self._numbers = count()
        self._cost: dict[int, float] = {}
        self._facts: dict[str, str] = {}
        self.files: list[str] = []
        self._pages: tuple[str, ...] | None = None
        self._leaving = threading.Event()
        self._gathering = wire.Gathering(self._submit_gathered, "replicas-gathering")
        self._whole = spec.settings.scenario in STREAMS
        self._batch = 1

    @property
    def replicas(self) -> int:
        """How many there are."""
        return len(self._spec.replicas)

    def __enter__(self) -> Self:
        """Start all replicas at once, and wait until each has loaded."""
        for number, one in enumerate(self._spec.replicas):
            replica = self._start(number, one)
            send = functools.partial(self._send_now, replica)
            replica.later = wire.Gathering(send, f"replica-{number}-sending")
            self._replicas.append(replica)
        threading.Thread(target=self._listen, name="replicas-listening", daemon=True).start()
        loaded = list(self._answers(wire.LOADED, "loading its model"))
        self._facts = self._agreed([dict(facts) for _, facts, *_ in loaded])
        asked = [pages for _, _, pages, _ in loaded if pages is not None]
        self.files = list(chain.from_iterable(files for *_, files in loaded))
        self._pages = tuple(dict.fromkeys(chain(*asked))) if asked else None
        batch = self._facts.get("work.batch") or self._facts.get("batch_size") or "1"
        self._batch = self._batch_of(max(1, int(batch)) if batch.isdigit() else 1)
        threading.Thread(target=self._watch, name="replicas-watching", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Let all replicas free what they took; what does not end in time is killed."""
        self._leaving.set()
        for replica in self._replicas:
            with contextlib.suppress(OSError):
                replica.pipe.send([(wire.STOP,)])
        until_s = perf_counter() + EXIT_SECONDS
        for replica in self._replicas:
            try:
                replica.process.wait(max(0.0, until_s - perf_counter()))
            except subprocess.TimeoutExpired:
                replica.process.kill()
                replica.process.wait()
            replica.pipe.close()

    def load_samples(self, indices: Sequence[int]) -> None:
        """Have every replica load all of them: any may be given any."""
        self._cost = self._costs(indices)
        for replica in self._replicas:
            replica.lists = wire.Lists()
        self._tell_all(wire.LOAD, indices, "loading samples")

    def unload_samples(self, indices: Sequence[int]) -> None:
        """Have every replica forget them."""
        self._tell_all(wire.UNLOAD, indices, "unloading samples")

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Hand samples out: a query whole, at once or with what follows fast; a list in parts."""
        if sink is not self._sink:
            self._use(sink)
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

    def accepted_drafts(self) -> int | None:
        """Return the sum of what replicas accepted; None where one does not say."""
        counts = self._ask_all("accepted_drafts", "counting drafts")
        return None if None in counts else sum(counts)

    def answer_counts(self) -> Mapping[str, int]:
        """Return the sums of what replicas counted."""
        return sum(map(Counter, self._ask_all("answer_counts", "counting answers")), Counter[str]())

    def metrics_pages(self) -> Sequence[str] | None:
        """Return the pages of all replicas' servers, each once."""
        return self._pages

    def describe(self) -> Mapping[str, str]:
        """Return what all replicas say of themselves, and how many there are."""
        return self._facts

    def each(self) -> list[dict[str, Any]]:
        """Return what each replica did with the last sink, as a `ReplicaRun` has it."""
        with self._lock:
            lists = self._spec.settings.scenario == "Offline"
            speeds = shares([one.tally for one in self._replicas], lists=lists)
            return [
                {
                    "name": replica.name,
                    "gpus": list(spec.gpus),
                    "samples": replica.tally.samples,
                    "throughput": replica.tally.throughput,
                    "latency_s": replica.tally.latency_s,
                    "shares": [] if self._whole else speed,
                }
                for replica, spec, speed in zip(
                    self._replicas, self._spec.replicas, speeds, strict=True
                )
            ]

    def _batch_of(self, batch: int) -> int:
        """Return what one process works on at once, of what they say that it is."""
        return batch

    # --- handing out -------------------------------------------------------------------------

    def _use(self, sink: Sink) -> None:
        """Report to a new sink from now on; tokens get the times at which replicas saw them."""
        self._sink = sink
        with self._lock:
            for replica in self._replicas:
                replica.tally.reset()
        may_fail = getattr(sink, "may_fail", 0.0)
        times, first = sink.times_tokens, sink.needs_first_tokens
        self._flags = (sink.wants_output, times, first, may_fail, getattr(sink, "run", ""))
        if isinstance(sink, GuardedSink):
            sink.use_clock(lambda: self._stamp_s)

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
        if self._cost:
            order = sorted(range(len(ids)), key=lambda n: -self._cost.get(indices[n], 0.0))
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
        if not self._cost and isinstance(self._sink, GuardedSink):
            self._sink.cut(waiting.taken)
        if not waiting.lists:
            self._waiting = None
        work = sum(map(self._cost.__getitem__, indices)) if self._cost else len(ids)
        self._take(replica, len(ids), work)
        return replica, ids, indices

    def _full(self, samples: int) -> int:
        """Return so many samples, or as many more as fill the engine's last batch."""
        return max(1, math.ceil(samples / self._batch)) * self._batch

    def _send(self, replica: ReplicaProcess, ids: Sequence[int], indices: Sequence[int]) -> None:
        """Send samples, at once where the pipe surely takes them: nobody may wait for a replica."""
        number = next(self._numbers)
        replica.lists.add(number, ids)
        some = len(ids) if len(ids) >= wire.MIN_REMEMBERED_LENGTH else wire.packed(ids)
        about = perf_counter(), self._sessions(ids)
        message = (wire.SUBMIT, number, some, wire.packed(indices), *about, self._flags)
        if replica.open <= MAX_PIPED_SAMPLES:
            self._send_now(replica, [message])
        else:
            replica.later.put(message)

    def _sessions(self, ids: Sequence[int]) -> Mapping[int, str]:  # noqa: ARG002
        """Return the conversations that samples belong to: nobody asks replicas for any."""
        return {}

    def _send_now(self, replica: ReplicaProcess, messages: Sequence[wire.Message]) -> None:
        try:
            replica.pipe.send(messages)
        except OSError:
            if not self._leaving.is_set():
                self._gone(replica)

    # --- hearing -----------------------------------------------------------------------------

    def _listen(self) -> None:
        selector = selectors.DefaultSelector()
        for replica in self._replicas:
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
                    except Exception as error:  # whatever bytes unpickling comes upon
                        how = f" wrote what is no message to its worker ({type(error).__name__})"
                        raise replica.error(how) from error
                    replica.alive_s = perf_counter()
                    for message in messages:
                        self._hear(replica, message)
        except BaseException as error:
            self._fail(error)

    def _hear(self, replica: ReplicaProcess, message: wire.Message) -> None:
        sink = self._sink
        match message:
            case (wire.DONE, stamp_s, ids, outputs, n_tokens) if sink:
                samples = self._over(replica, ids)
                self._stamp_s = stamp_s
                sink.done(samples, outputs, n_tokens)
                self._check(replica, sink)
            case (wire.LOST, stamp_s, ids) if isinstance(sink, GuardedSink):
                samples = self._over(replica, ids)
                self._stamp_s = stamp_s
                sink.lost(samples)
                self._check(replica, sink)
            case (wire.FIRST, stamp_s, ids) if sink:
                self._stamp_s = stamp_s
                sink.first_tokens(self._unpacked(replica, ids))
                self._check(replica, sink)
            case (wire.NEXT, stamp_s, ids) if sink:
                self._stamp_s = stamp_s
                sink.next_tokens(self._unpacked(replica, ids))
                self._check(replica, sink)
            case (wire.STREAMED, _, ids, after_first, hidden) if sink:
                sink.streamed(self._unpacked(replica, ids), after_first, hidden)
            case (wire.ENDED, _, ids, reasons, prompt_tokens) if sink:
                sink.ended(self._unpacked(replica, ids), reasons, prompt_tokens)
            case (wire.ATTACHED, _, ids, artefacts) if sink:
                sink.attach(self._unpacked(replica, ids), artefacts)
                self._check(replica, sink)
            case (wire.ERROR, about):
                self._broke(replica, about)
            case (wire.LOADED | wire.ANSWER, *_):
                replica.answers.put(message)

    def _over(self, replica: ReplicaProcess, ids: Any) -> Sequence[Any]:
        """Return the samples that a replica has done with, and hand it what waits for that."""
        samples = replica.lists.ids(ids) if isinstance(ids, tuple) else self._unpacked(replica, ids)
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

    def _unpacked(self, replica: ReplicaProcess, ids: bytes | list[int | str]) -> Sequence[Any]:
        return replica.lists.real(wire.unpacked(ids))

    def _check(self, replica: ReplicaProcess, sink: Sink) -> None:
        if isinstance(sink, GuardedSink) and sink.faults.count:
            self._fail(RunError("engine", f"{replica.name}: {sink.faults.texts[0]}"))

    def _broke(self, replica: ReplicaProcess, about: Mapping[str, Any]) -> None:
        error: RunError = replica.error(f": {about['message']}", quoted=False)
        if about["designed"]:
            error = RunError(str(about["layer"]), str(error))
        self._fail(error)

    def _gone(self, replica: ReplicaProcess) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            replica.process.wait(POLL_SECONDS)
        code = replica.process.poll()
        how = "hung up" if code is None else ended(code)
        self._fail(replica.error(f" {how}"))

    def _watch(self) -> None:
        """End the run when a replica with work says nothing for too long."""
        while not self._leaving.wait(POLL_SECONDS):
            now_s = perf_counter()
            for replica in self._replicas:
                if replica.open > 0 and now_s - replica.alive_s > self._spec.replica_patience_s:
                    self._silent(replica, f"{replica.open:,} samples and completed none")

    def _silent(self, replica: ReplicaProcess, doing: str) -> None:
        """End the run with a replica that hangs; its log gets the stacks of its threads."""
        with contextlib.suppress(OSError):
            replica.process.send_signal(signal.SIGUSR1)
        self._leaving.wait(POLL_SECONDS)
        patience_s = self._spec.replica_patience_s
        self._fail(replica.error(f" had {doing} for {patience_s:g} s", quoted=False))

    # --- telling all -------------------------------------------------------------------------

    def _tell_all(self, kind: str, content: Sequence[int] | int | None, doing: str) -> None:
        packed = wire.packed(content) if isinstance(content, Sequence) else content
        for replica in self._replicas:
            replica.later.put((kind, packed))
        list(self._answers(wire.ANSWER, doing))

    def _ask_all(self, name: str, doing: str) -> list[Any]:
        """Return what this method of its engine returned in every replica."""
        for replica in self._replicas:
            replica.later.put((wire.ASK, name))
        return [answer for _, answer in self._answers(wire.ANSWER, doing)]

    def _answers(self, kind: str, doing: str) -> Iterator[wire.Message]:
        """Yield each replica's answer; one that does not come ends the run."""
        patience_s, asked_s = self._spec.replica_patience_s, perf_counter()
        for replica in self._replicas:
            replica.alive_s = asked_s
        for replica in self._replicas:
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
        """Take what a replica prints for progress, and tell the worker's parent of it likewise."""
        now_s = perf_counter()
        writing = [replica for replica in self._replicas if replica.writes()]
        for replica in writing:
            replica.alive_s = now_s
        if writing:
            print(".", end="", file=sys.stderr, flush=True)

    # --- starting ----------------------------------------------------------------------------

    def _start(self, number: int, one: ReplicaSpec) -> ReplicaProcess:
        ours, theirs = socket.socketpair()
        log = Path(self._spec.folder) / f"replica-{number}.log"
        arguments = json.dumps([str(self._spec_file), theirs.fileno(), list(one.cpus), sys.path])
        try:
            with log.open("wb") as file:
                environment = {**os.environ, **one.environment, REPLICA_NUMBER: str(number)}
                process = subprocess.Popen(
                    [sys.executable, "-c", BOOT, arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env=environment,
                    pass_fds=[theirs.fileno()],
                )
        except OSError as error:
            raise RunError("engine", f"{one.name} cannot be started: {error.strerror}") from error
        finally:
            theirs.close()
        return ReplicaProcess(
            name=one.name, process=process, pipe=wire.Pipe(ours.detach()), log=log
        )

    def _agreed(self, facts: Sequence[Mapping[str, str]]) -> dict[str, str]:
        """Return the facts of all replicas; refuse replicas whose facts differ."""
        for replica, other in zip(self._replicas[1:], facts[1:], strict=True):
            for name in sorted({*facts[0], *other}):
                if facts[0].get(name) != other.get(name):
                    raise RunError(
                        "engine",
                        f"{self._replicas[0].name} and {replica.name} differ in {name}: "
                        f"{facts[0].get(name)} and {other.get(name)}",
                    )
        gpus = Counter(len(one.gpus) for one in self._spec.replicas)
        (each,) = gpus or {0: 0}
        share = {"work.replica_gpus": str(each)} if each else {}
        return {**share, **facts[0], self.called: str(self.replicas)}

    def _costs(self, indices: Sequence[int]) -> dict[int, float]:
        """Return how much work each sample is, where the data set tells; {}: nobody knows."""
        sizes = getattr(self._dataset, "sizes", None)
        if not callable(sizes) or self._spec.settings.scenario != "Offline":
            return {}
        cost = {index: sum(sizes([index]).values()) for index in dict.fromkeys(indices)}
        return cost if len(set(cost.values())) > 1 else {}
