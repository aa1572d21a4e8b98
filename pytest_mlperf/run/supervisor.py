"""Run a child process and never be hung, misled or outlived by it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import IO, Any, Self

from pytest_mlperf.core.errors import RunError, UnavailableError
from pytest_mlperf.run.builds import Build
from pytest_mlperf.run.endings import ended, hint, there
from pytest_mlperf.run.events import FOLLOWS, OF_WORKER, Events
from pytest_mlperf.run.protocol import Command, Event, WorkerSpec

GRACE_S = 2.0
"""Time between SIGTERM and SIGKILL."""

LEAVING_S = 20.0
"""Time of a worker that was told to stop: its engine may have a server to stop first."""

STACKS_S = 0.3
"""Time for a hanging worker to write its threads' stacks."""

THIS_PYTHON = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Variables that are about this Python; another one does not get them."""

_NOTHING: Mapping[str, str] = MappingProxyType({})


class Designed(RunError):
    """An error of our own that a child raised: its sentence says all, and its log no more."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a child may take.

    Attributes:
        progress_s: Longest time without any progress: no phase ended and no sample completed.
        phase_s: Longest time of one phase (load, a LoadGen run) with progress.
    """

    progress_s: float = 900.0
    phase_s: float = 14_400.0


class Worker:
    """One worker process: started on entry, surely gone on exit.

    Attributes:
        notes: After the exit: what went wrong while the engine left; what it gave stays good.

    Use:
        with Worker(spec, patience, on_event) as worker:
            loaded = worker.wait_for("loaded")
    """

    def __init__(
        self,
        spec: WorkerSpec,
        patience: Patience,
        on_event: Callable[[Event], None],
        *,
        environment: Mapping[str, str] = _NOTHING,
        build: Build | None = None,
    ) -> None:
        """Keep what to run; nothing starts yet.

        Args:
            spec: What the worker does; its folder must exist.
            patience: The limits.
            on_event: Sees every event, progress included.
            environment: Variables that the process gets besides this one's own.
            build: Where it runs; None: in this Python.
        """
        self.spec = spec
        self.folder = Path(spec.folder)
        self.log = self.folder / "engine.log"
        self._patience = patience
        self._on_event = on_event
        self._environment = environment
        self._build = build
        self.python: Event | None = None
        self.notes: tuple[str, ...] = ()
        self._told_to_stop = False
        self._phase = "start"
        self._progress: Event = {}

    def __enter__(self) -> Self:
        """Start the process in a session of its own, so that Ctrl-C reaches only the parent."""
        try:
            (self.folder / "spec.json").write_text(self.spec.to_json(), "utf-8")
            log = self.log.open("wb")
        except OSError as error:
            raise RunError("worker", f"cannot write {self.folder}: {error.strerror}") from None
        self._pipe, events_end = os.pipe()
        self._events = Events(
            self._pipe,
            OF_WORKER,
            layer="worker",
            whose="engine",
            log=str(self.log),
            ended=lambda: self._process.poll() is not None,
            follows=FOLLOWS,
        )
        try:
            with log:
                self._process = self._start(log, events_end)
        except OSError as error:
            os.close(self._pipe)
            raise RunError(
                "worker", f"{error.filename} cannot be started: {error.strerror}"
            ) from None
        finally:
            os.close(events_end)
        return self

    def _start(self, log: IO[bytes], events_end: int) -> subprocess.Popen[bytes]:
        """Start the process; one in another Python sends its events on stdout."""
        spec, build = self.folder / "spec.json", self._build
        command = [sys.executable, "-m", "pytest_mlperf.run.worker"]
        command += [str(spec), "--events", str(events_end)]
        left_out = THIS_PYTHON if build else ()
        environment = {key: value for key, value in os.environ.items() if key not in left_out}
        return subprocess.Popen(
            build.command(spec) if build else command,
            stdin=subprocess.PIPE,
            stdout=events_end if build else log,
            stderr=log,
            pass_fds=[] if build else [events_end],
            start_new_session=True,
            env={**environment, **self._environment, "PYTHONUNBUFFERED": "1"},
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the whole process group, whatever state it is in."""
        process = self._process
        # Before the pipe closes, at which the worker's guard ends what is left of its group.
        if kind is None and self._told_to_stop and (trouble := self._leaving()):
            self.notes = (trouble,)
        with contextlib.suppress(OSError):
            if process.stdin:
                process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            if kind is None:
                process.wait(GRACE_S)
        self._signal_group(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        self._signal_group(signal.SIGKILL)
        process.wait()
        os.close(self._pipe)

    def _leaving(self) -> str | None:
        """Wait for a worker that was told to stop; return what went wrong, in words."""
        process, deadline = self._process, time.monotonic() + LEAVING_S
        who = "the engine, after its last run,"
        while (left := deadline - time.monotonic()) > 0:
            try:
                event = self._events.next(left)
            except EOFError:
                break
            except RunError as error:
                return f"{who} was cut short: {error}"
            match event:
                case {"event": "leaving"}:
                    who = "the engine's __exit__"
                case {"event": "error", "message": message}:
                    return f"{who} raised {message}"
        try:
            code = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._ask_for_stacks()
            stacks = f"its stacks are in {self.log.name}"
            return f"{who} did not end in {LEAVING_S:g} s; killed, {stacks}"
        return f"{who} ended the process: it {ended(code)}" if code else None

    def _ask_for_stacks(self) -> None:
        """Have a worker that hangs write its threads' stacks into its log."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STACKS_S)

    def send(self, command: Command) -> None:
        """Tell the worker something; a worker that is gone shows in the next `wait_for`."""
        assert self._process.stdin is not None
        self._told_to_stop = command["command"] == "stop"
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()

    def wait_for(self, wanted: str) -> Event:
        """Return the next event of this name.

        Raises:
            RunError: The worker reported an error, died, or ran out of time.
            UnavailableError: The worker lacks a model or data file.
        """
        now = time.monotonic()
        phase_start = last_progress = now
        done: Any = None
        while True:
            now = time.monotonic()
            quiet_left = last_progress + self._patience.progress_s - now
            left = min(quiet_left, phase_start + self._patience.phase_s - now)
            if left <= 0:
                raise self._too_slow(quiet=quiet_left <= 0)
            event = self._next_event(left)
            if event is None:
                continue
            self._on_event(event)
            name = event.get("event")
            if name == "python":
                self.python = event
            if name == "error":
                raise self._reported(event)
            self._progress = event if name == "progress" else {}
            if name != "progress":
                self._phase = {"running": str(event.get("phase"))}.get(str(name), str(name))
                phase_start = last_progress = time.monotonic()
            elif event.get("done") != done:
                done, last_progress = event.get("done"), time.monotonic()
            if name == wanted:
                return event

    def _next_event(self, timeout_s: float) -> Event | None:
        """Return the next event, None when none is whole yet.

        Raises:
            RunError: The worker is gone, or what it sent is no event.
        """
        try:
            return self._events.next(timeout_s)
        except EOFError:
            raise self._died() from None
        except RunError as error:
            if self._build and self._phase == "start":
                title, key = self._build.title, self._build.key
                why = f"{title} ({key}) does not start a Python: {error}"
                raise RunError("worker", why, str(self.log)) from None
            raise

    def _reported(self, event: Event) -> RunError | UnavailableError:
        layer, message = str(event.get("layer")), str(event.get("message"))
        if self._build and self._phase in {"started", "loading"}:
            message = f"{message}{there(str(event.get('kind')), self._build)}"
        if event.get("kind") == UnavailableError.__name__:
            return UnavailableError(message)
        kind = Designed if event.get("designed") else RunError
        loading = kind is Designed and self._phase in {"start", "python", "started", "loading"}
        when = "" if loading else f" (during {self._phase_words})"
        return kind(layer, f"{message}{when}", str(self.log))

    def _too_slow(self, *, quiet: bool) -> RunError:
        self._ask_for_stacks()
        limit = self._patience.progress_s if quiet else self._patience.phase_s
        what = "no progress for" if quiet else "took longer than"
        head = f"{what} {limit:.0f} s during {self._phase_words}"
        if fault := self._progress.get("fault"):
            return RunError("engine", f"{head}: {fault}; worker killed", str(self.log))
        if left := self._progress.get("outstanding"):
            head += f", {left:,} samples submitted and not completed"
        advice = (
            "Raise --mlperf-timeout if it was only slow"
            if quiet
            else "No phase may take longer: lower target_qps, min_duration or min_query_count"
        )
        return RunError(
            "worker", f"{head}; worker killed, its stacks are in the log. {advice}", str(self.log)
        )

    def _died(self) -> RunError:
        try:
            code = self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            return RunError("worker", "closed its pipe but did not end", str(self.log))
        return RunError(
            "worker",
            f"the worker {ended(code)} during {self._phase_words}{hint(code, self._phase)}",
            str(self.log),
        )

    @property
    def _phase_words(self) -> str:
        return {
            "start": "start",
            "python": "start",
            "started": "start",
            "loading": "load",
            "loaded": "warm-up",
            "warmed": "the rate probe or set-up",
            "probed": "set-up",
            "performance": "the performance run",
            "accuracy": "the accuracy run",
            "finished": "the end of a run",
        }.get(self._phase, f"the step after {self._phase!r}")

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
