"""Run one replica of an engine in a process with its own GPUs and copy of the model.

A worker starts it with a connected socket, see `pytest_mlperf.run.worker._replica_group`. Its
stdout and stderr are its log.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING

from pytest_mlperf.core.extension import Counts, Dataset, Engine, Outputs, Sink
from pytest_mlperf.run.child.protocol import WorkerSpec
from pytest_mlperf.run.child.reporter import ERROR_EXIT_CODE, described, fail_at_dead_threads, leave
from pytest_mlperf.run.worker import _pipe as wire
from pytest_mlperf.run.worker.clocks import QUANTILES, percentile
from pytest_mlperf.run.worker.provenance import imported_files
from pytest_mlperf.run.worker.samples import as_dataset
from pytest_mlperf.run.worker.worker import SWITCH_INTERVAL_S, build, built_engine, described_by

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


class ReplicaSink:
    """Send the engine's reports to the worker process, with time stamps."""

    def __init__(self, replica: Replica, flags: wire.Flags) -> None:
        self.wants_output, self.times_tokens, self.needs_first_tokens, self.may_fail = flags[:4]
        self.run = flags[4]
        self._replica = replica
        self._put = replica.put

    def first_tokens(self, ids: Sequence[int], tokens: Outputs = None) -> None:
        """Send the ids and the time of first tokens to the worker, if the run times tokens."""
        del tokens
        if self.times_tokens:
            self._put((wire.FIRST, perf_counter(), [*ids]))

    def next_tokens(self, ids: Sequence[int]) -> None:
        """Report one more token of each sample id, if tokens after the first are timed."""
        if self.times_tokens:
            self._put((wire.NEXT, perf_counter(), [*ids]))

    def streamed(
        self, ids: Sequence[int], after_first: Sequence[int | None], hidden: Counts = None
    ) -> None:
        """If tokens are timed, report tokens after the first message and hidden ones, by id."""
        if self.times_tokens:
            counts = [*after_first], None if hidden is None else [*hidden]
            self._put((wire.STREAMED, perf_counter(), [*ids], *counts))

    def ended(
        self, ids: Sequence[int], reasons: Sequence[str], prompt_tokens: Counts = None
    ) -> None:
        """Send finish reasons and prompt lengths [tokens] to the worker."""
        self._put((wire.ENDED, perf_counter(), [*ids], [*map(str, reasons)], prompt_tokens))

    def attach(self, ids: Sequence[int], artefacts: Sequence[Mapping[str, bytes]]) -> None:
        """Send each sample's artefacts (bytes by name) to the worker, if it keeps outputs."""
        if self.wants_output:
            self._put((wire.ATTACHED, perf_counter(), [*ids], [*artefacts]))

    def session(self, sample: int) -> str:
        """Return the worker's id of a sample's conversation; "" if it has none."""
        return self._replica.sessions.pop(sample, "")

    def done(
        self, ids: Sequence[int], outputs: Outputs = None, n_tokens: Sequence[int] | None = None
    ) -> None:
        """Send completions and token counts to the worker, with outputs only if requested."""
        kept = outputs if self.wants_output else None
        self._replica.open -= len(ids)
        done = self._replica.lists.locate(ids) or [*ids]
        self._put((wire.DONE, perf_counter(), done, kept, n_tokens))

    def lost(self, ids: Sequence[int]) -> None:
        """Report failed requests."""
        self._replica.open -= len(ids)
        self._put((wire.LOST, perf_counter(), [*ids]))

    def failed(self, error: BaseException) -> None:
        """End this replica process, and thereby the run."""
        self._replica.fail("engine", error)


class Replica:
    """Load one engine, and serve it through a pipe.

    Attributes:
        open: Number of samples in flight; threads change it without a lock.
        lists: Long lists of sample ids that the worker sent; messages give positions in them.
        sessions: Conversation by sample, until the engine calls `Sink.session`.
    """

    def __init__(self, spec: WorkerSpec, pipe: wire.Pipe) -> None:
        self.open = 0
        self.lists = wire.Lists()
        self.sessions: dict[int, str] = {}
        self._spec = spec
        self._pipe = pipe
        self._engine: Engine
        self._null = contextlib.ExitStack()
        self._late_s = array("d")
        self._dataset: Dataset
        self._sinks: dict[wire.Flags, Sink] = {}
        self._thread = threading.get_ident()
        self._loop: AbstractEventLoop | None = None
        self._heard: SimpleQueue[wire.Message] = SimpleQueue()
        self._inline: list[wire.Message] = []
        self._sent_s = 0.0
        self._gathering = wire.Gathering(self._send_joined, "gathering")

    def put(self, message: wire.Message) -> None:
        """Queue a message; it is sent at the end of a `submit` or of an event-loop pass."""
        if threading.get_ident() != self._thread:
            self._gathering.put(message)
            return
        self._inline.append(message)
        if self._loop is not None:
            if len(self._inline) == 1:  # send in the next pass what completes in this one
                self._loop.call_soon(self._loop.call_soon, self._flush)
            return
        # Completions of lists may wait longer.
        moment_s = wire.BURST_GATHER_SECONDS if type(message[2]) is tuple else wire.GATHER_SECONDS
        if message[1] - self._sent_s > moment_s:
            self._flush()

    def fail(self, layer: str, error: BaseException) -> None:
        """Report the error to the worker, and end this process."""
        with contextlib.suppress(OSError):
            self._send([(wire.ERROR, described(layer, error))])
        os._exit(ERROR_EXIT_CODE)

    def serve(self) -> None:
        """Load the engine, then execute the worker's commands until a stop or the pipe's end."""
        try:
            self._load()
            self._receive_in(self._engine.event_loop())
            while True:
                messages = self._pipe.receive() if self._loop is None else [self._heard.get()]
                self._sent_s = perf_counter()
                for message in messages:
                    kind, *_ = message
                    if kind == wire.STOP:
                        self._receive_in(None)
                        self._engine.__exit__(None, None, None)
                        self._send([(wire.ANSWER, None)])
                        return
                    self._obey(message)
                if self._loop is None:
                    self._flush()
        except (EOFError, OSError):  # the peer is gone
            return

    def _receive_in(self, loop: AbstractEventLoop | None) -> None:
        """Receive samples in an event loop's thread, or in the main thread if `loop` is None."""
        previous_loop, self._loop = self._loop, loop
        pipe = self._pipe.fileno()

        def begin() -> None:
            if loop is not None:
                self._thread = threading.get_ident()
                loop.add_reader(pipe, self._read)
                os.set_blocking(pipe, True)  # uvloop changes it

        def change() -> None:
            assert previous_loop is not None
            previous_loop.remove_reader(pipe)
            if loop is not None:
                loop.call_soon_threadsafe(begin)

        if previous_loop is not None:
            previous_loop.call_soon_threadsafe(change)
        elif loop is not None:
            loop.call_soon_threadsafe(begin)

    def _read(self) -> None:
        try:
            messages = self._pipe.receive()
        except (EOFError, OSError):  # the peer is gone
            leave(0)
        for command in messages:
            if command[0] == wire.SUBMIT:
                self._obey(command)
            else:
                self._heard.put(command)

    def _load(self) -> None:
        spec = self._spec
        try:
            self._dataset = as_dataset(build("dataset", spec.dataset))
        except BaseException as error:
            self.fail("dataset", error)
        try:
            self._engine = self._asked = built_engine(spec, self._dataset)
            self._engine.__enter__()
            facts = described_by(self._engine)
            pages = self._engine.metrics_pages()
        except BaseException as error:
            self.fail("engine", error)
        self._send([(wire.LOADED, facts, pages, imported_files())])

    def _obey(self, message: wire.Message) -> None:
        try:
            match message:
                case (wire.SUBMIT, number, ids, indices, issued_s, sessions, flags):
                    long = isinstance(ids, int)
                    samples = wire.numbered(number, ids) if long else wire.unpacked(ids)
                    self.lists.add(number, samples.copy())  # the engine may change the list it gets
                    self.open += len(samples)
                    self.sessions.update(sessions)
                    if self._asked is self._engine:
                        self._late_s.append(perf_counter() - issued_s)
                    self._asked.submit(samples, wire.unpacked(indices), self._sink(flags))
                case (wire.LOAD, indices):
                    self.lists = wire.Lists()
                    self._engine.load_samples(wire.unpacked(indices))
                    self._send([(wire.ANSWER, None)])
                case (wire.ASK, name):
                    ask = self._lateness if name == wire.LATENESS else getattr(self._engine, name)
                    self._send([(wire.ANSWER, ask())])
                case (wire.NULL, tokens):
                    self._use_null(tokens)
                    self._send([(wire.ANSWER, None)])
                case (wire.UNLOAD, indices):
                    self._engine.unload_samples(wire.unpacked(indices))
                    self._send([(wire.ANSWER, None)])
        except BaseException as error:  # an engine may call sys.exit()
            self.fail("engine", error)

    def _lateness(self) -> Mapping[str, float]:
        """Return the engine's delays by name, plus those of samples in the worker's pipe [s]."""
        late_s, self._late_s = sorted(self._late_s) or [0.0], array("d")
        way = {f"issue_{label}": percentile(late_s, share) for label, share in QUANTILES.items()}
        late = self._engine.client_lateness()
        return {name: seconds + way.get(name, 0.0) for name, seconds in late.items()}

    def _use_null(self, tokens: int | None) -> None:
        """Use a null server that answers with `tokens` tokens; None to use the engine again."""
        self._receive_in(self._engine.event_loop())
        self._null.close()
        self._asked = self._engine
        if tokens is not None and (client := self._engine.null_client(tokens)):
            self._asked = self._null.enter_context(client)
            self._receive_in(self._asked.event_loop())

    def _sink(self, flags: wire.Flags) -> Sink:
        if flags not in self._sinks:
            self._sinks[flags] = ReplicaSink(self, flags)
        return self._sinks[flags]

    def _flush(self) -> None:
        if self._inline:
            messages, self._inline = self._inline, []
            self._send_joined(messages)
        self._sent_s = perf_counter()

    def _send_joined(self, messages: list[wire.Message]) -> None:
        self._send(wire.merge_messages(messages))

    def _send(self, messages: Sequence[wire.Message]) -> None:
        try:
            self._pipe.send(messages)
        except OSError:  # the peer is gone
            leave(ERROR_EXIT_CODE)


def main(spec: str, descriptor: int, cpus: Sequence[int]) -> None:
    """Run a replica on `cpus`: serve the engine of file `spec` through the pipe at `descriptor`."""
    if cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    replica = Replica(WorkerSpec.from_json(Path(spec).read_text("utf-8")), wire.Pipe(descriptor))
    fail_at_dead_threads(replica.fail, lambda: replica.open)
    replica.serve()
    leave(0)
