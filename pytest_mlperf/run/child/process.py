"""Run a child process that sends events; limit its time and check its events."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

from pytest_mlperf.core.errors import EnvironmentFault, RunError, UnavailableError
from pytest_mlperf.core.job import PythonEnvironment
from pytest_mlperf.core.untrusted_text import broken
from pytest_mlperf.processes import ChildProcess, ended
from pytest_mlperf.run.builds import Build, build_for
from pytest_mlperf.run.child import events
from pytest_mlperf.run.child.protocol import PACKAGE, Command, Event, WorkerSpec, import_path

KILL_GRACE_SECONDS = 2.0
LOG_POLL_SECONDS = 0.5
"""Interval of reading the size of the log, whose growth counts as progress."""

MAX_STOPPED_SECONDS = 30.0
THIS_PYTHON = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Variables of this Python that another one does not inherit."""

PROGRESS: events.Fields = {
    "done": events.is_count,
    "total": events.is_count,
    "what": events.is_text,
}


class DeliberateError(RunError):
    """Report an error that this package raised in a child on purpose; its log explains no more."""


class Waiting(str):
    """Mark a progress line that says that a worker waits for other processes."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Hold the time limits of a child process [s].

    Attributes:
        progress_s: Limit without progress: no phase ended, no sample completed, and nothing printed
            while the engine loads.
        phase_s: Limit of one phase (load, a LoadGen run), even with progress.
    """

    progress_s: float = 900.0
    phase_s: float = 14_400.0


class EventProcess(ChildProcess):
    """Run a child that sends events through a pipe; write its other output to a log."""

    def __init__(
        self,
        command: Sequence[str],
        log: IO[bytes],
        kinds: Mapping[str, events.Fields],
        *,
        layer: str,
        whose: str,
        environment: Mapping[str, str | None],
        other_python: bool,
        on_stdout: bool = True,
        follows: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        """Start the child; it sends events to stdout (`on_stdout`) or the descriptor of `--events`.

        `kinds`: fields by event name. `follows`: allowed successors by event name; None allows any
        order. Errors name `layer` and the child, `whose`. `environment`: None unsets a variable.
        """
        left_out = THIS_PYTHON if other_python else ()
        inherited = {key: value for key, value in os.environ.items() if key not in left_out}
        variables = {**inherited, **environment, "PYTHONUNBUFFERED": "1"}
        self._pipe, end = os.pipe()
        try:
            super().__init__(
                command if on_stdout else [*command, "--events", str(end)],
                stdout=end if on_stdout else log,
                stderr=log,
                descriptors=() if on_stdout else (end,),
                environment={k: v for k, v in variables.items() if v is not None},
            )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(end)
        self.next_event = events.ChildEvents(
            self._pipe,
            kinds,
            layer=layer,
            whose=whose,
            log=str(log.name),
            ended=lambda: self.poll() is not None,
            follows=follows,
        ).next

    def stop(self, *, alone_s: float = 0.0) -> None:
        """End the process group, `alone_s` [s] after the child's stdin closes; close the pipe."""
        self.end(alone_s=alone_s, term_s=KILL_GRACE_SECONDS)
        os.close(self._pipe)


@dataclass(frozen=True, kw_only=True)
class Child:
    """Run a child process for one task.

    Attributes:
        title: Name in progress lines, "building torchao int8".
        spec: Task as JSON; its key `task` is the name of the spec file and the log.
        answer: Required fields of the child's last event, "done".
        python: Another Python; None for this one.
        suite: Suite file next to code that the child imports; None if there is none.
        layer: Stage that error messages name as the source of an error: "build".
        whose: Kind of untrusted code that the child runs: "builder".
    """

    title: str
    folder: Path
    script: str
    spec: Mapping[str, Any]
    answer: events.Fields
    patience: Patience
    show: Callable[[str], None]
    python: PythonEnvironment | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    suite: Path | None = None
    layer: str = "build"
    whose: str = "builder"

    @property
    def log(self) -> Path:
        """File with the output of the child and its libraries."""
        return self.folder / f"{self.spec['task']}.log"

    def run(self) -> Event:
        """Run the child until it ends, and return its last event."""
        with contextlib.ExitStack() as stack:
            try:
                command = stack.enter_context(self._command())
                log = stack.enter_context(self.log.open("wb"))
            except OSError as error:
                raise RunError(
                    self.layer, f"cannot write {self.folder}: {error.strerror}"
                ) from None
            try:
                process = EventProcess(
                    command,
                    log,
                    {"progress": PROGRESS, "done": self.answer, "error": events.ERROR},
                    layer=self.layer,
                    whose=self.whose,
                    environment=self.environment,
                    other_python=bool(self.python),
                )
            except OSError as error:
                reason = f"{error.filename} cannot be started: {error.strerror}"
                raise RunError(self.layer, self._named(reason)) from None
            stack.callback(process.stop)
            return self._follow(process)

    @contextlib.contextmanager
    def _command(self) -> Iterator[list[str]]:
        spec = self.folder / f"{self.spec['task']}.json"
        contents = {**self.spec, "import_path": [] if self.python else import_path(self.suite)}
        spec.write_text(json.dumps(contents), "utf-8")
        if self.python is None:
            module = f"{PACKAGE.name}.{self.script.replace('/', '.')}"
            yield [sys.executable, "-m", module, str(spec)]
            return
        with build_for(self.python, self.folder, self.suite) as build:
            script = build.code / PACKAGE.name / f"{self.script}.py"
            yield [*build.python, str(script), str(spec)]

    def _follow(self, process: EventProcess) -> Event:
        started = time.monotonic()
        for event in self._watched_events(process):
            if event.get("event") == "error":
                raise self._reported(event)
            if event.get("event") == "done":
                return event
            took_s = time.monotonic() - started
            self.show(broken(f"{self.title}{_place(event)}, {took_s:.0f} s"))
        if not process.ends_within(KILL_GRACE_SECONDS):
            raise self._error(f"the {self.whose} {CLOSED_PIPE}")
        raise self._error(f"the {self.whose} {ended(process.returncode)}")

    def _watched_events(self, process: EventProcess) -> Iterator[Event]:
        """Yield the child's events, and {} when its log grows; raise RunError at a time limit."""
        started = last = time.monotonic()
        size, at = 0, ""
        while True:
            now_s = time.monotonic()
            if now_s - last > self.patience.progress_s:
                raise self._slow("no progress for", self.patience.progress_s, at)
            if now_s - started > self.patience.phase_s:
                raise self._slow("took longer than", self.patience.phase_s, at)
            try:
                event = process.next_event(LOG_POLL_SECONDS)
            except EOFError:
                return
            if event is None and (grown := self.log.stat().st_size) != size:
                size, event = grown, {}
            if event is not None:
                last, at = now_s, _place(event) or at
                yield event

    def _reported(self, event: Event) -> RunError | UnavailableError:
        message = self._named(str(event["message"]))
        if event["kind"] == UnavailableError.__name__:
            return UnavailableError(message)
        error = DeliberateError if event["designed"] else RunError
        return error(self.layer, message, str(self.log))

    def _slow(self, exceeded: str, limit_s: float, at: str) -> RunError:
        advice = "raise the ini setting mlperf_timeout if it was only slow"
        return self._error(f"{exceeded} {limit_s:.0f} s{at}; killed; {advice}")

    def _error(self, message: str) -> RunError:
        return RunError(self.layer, self._named(message), str(self.log))

    def _named(self, text: str) -> str:
        return f"{self.title}: {text}" if self.layer != self.whose else text


def _place(event: Event) -> str:
    return f", {event['done']:,} of {event['total']:,} {event['what']}" if "done" in event else ""


CLOSED_PIPE = (
    "closed its pipe to pytest-mlperf, but did not end: it may have closed all file descriptors, "
    "as a daemon does"
)

LOADING = frozenset({"start", "python", "started", "loading"})
"""Phases before the engine has loaded, in which its output counts as progress."""

PRINTING = 4.0
"""A loading phase with output may take this many times `progress_s`."""

STOP_SECONDS = 20.0
STACKS_SECONDS = 0.3


@dataclass(eq=False)
class WorkerProcess:
    """Run one worker process; the `with` block starts and ends it.

    Attributes:
        notes: Errors while the engine exited, which do not affect the results.

    Use:
        with WorkerProcess(spec, patience, on_event) as worker:
            loaded = worker.wait_for("loaded")
    """

    spec: WorkerSpec
    patience: Patience
    on_event: Callable[[Event], None]
    environment: Mapping[str, str | None] = field(default_factory=dict, kw_only=True)
    build: Build | None = field(default=None, kw_only=True)
    python: Event | None = field(default=None, init=False)
    notes: tuple[str, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self.folder = Path(self.spec.folder)
        self.log = self.folder / "engine.log"
        self._told_to_stop = False
        self._phase = "start"
        self._progress: Event = {}

    def __enter__(self) -> Self:
        spec, build = self.folder / "spec.json", self.build
        command = [sys.executable, "-m", "pytest_mlperf.run.worker.worker", str(spec)]
        try:
            spec.write_text(self.spec.to_json(), "utf-8")
            log = self.log.open("wb")
        except OSError as error:
            raise RunError("worker", f"cannot write {self.folder}: {error.strerror}") from None
        try:
            with log:
                self._process = EventProcess(
                    build.command(spec) if build else command,
                    log,
                    events.OF_WORKER,
                    layer="worker",
                    whose="engine",
                    environment=self.environment,
                    other_python=build is not None,
                    on_stdout=build is not None,
                    follows=events.NEXT_EVENTS,
                )
        except OSError as error:
            reason = f"{error.filename} cannot be started: {error.strerror}"
            raise RunError("worker", reason) from None
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Must precede closing its stdin, at which the guard kills the rest of its group.
        if kind is None and self._told_to_stop and (trouble := self._leaving()):
            self.notes = (trouble,)
        self._process.stop(alone_s=KILL_GRACE_SECONDS if kind is None else 0.0)

    def _leaving(self) -> str | None:
        process, deadline = self._process, time.monotonic() + STOP_SECONDS
        who = "the engine, after its last run,"
        while (left := deadline - time.monotonic()) > 0:
            try:
                event = process.next_event(left)
            except EOFError:
                break
            except RunError as error:
                return f"{who} was interrupted: {error}"
            match event:
                case {"event": "leaving"}:
                    who = "the engine's __exit__"
                case {"event": "error", "message": message}:
                    return f"{who} raised {message}"
        if not process.ends_within(max(0.0, deadline - time.monotonic())):
            self._ask_for_stacks()
            stacks = f"its thread stacks are in {self.log.name}"
            return f"{who} did not end in {STOP_SECONDS:g} s; killed, {stacks}"
        code = process.returncode
        return f"{who} ended the process: it {ended(code)}" if code else None

    def _ask_for_stacks(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1)
        self._process.ends_within(STACKS_SECONDS)

    def send(self, command: Command) -> None:
        """Send a command; if the worker is gone, the next `wait_for` raises."""
        self._told_to_stop = command["command"] == "stop"
        self._process.tell(json.dumps(command).encode() + b"\n")

    def wait_for(self, awaited: str) -> Event:
        """Wait for the event named `awaited` and return it."""
        phase_start = last_progress = time.monotonic()
        done: Any = None
        size = 0
        while True:
            now_s = time.monotonic()
            quiet_left = last_progress + self.patience.progress_s - now_s
            loading = self._phase in LOADING
            loading_s = PRINTING * self.patience.progress_s if loading else math.inf
            longest_s = min(self.patience.phase_s, loading_s)
            left = min(quiet_left, phase_start + longest_s - now_s)
            if left <= 0:
                quiet = quiet_left <= 0
                raise self._too_slow(self.patience.progress_s if quiet else longest_s, quiet=quiet)
            event = self._next_event(
                min(left, LOG_POLL_SECONDS if loading else MAX_STOPPED_SECONDS)
            )
            if event is None:
                self._require_not_stopped(time.monotonic() - last_progress)
                # Hashing and reading hundreds of gigabytes may exceed progress_s.
                if loading and (grown := self.log.stat().st_size) != size:
                    size, last_progress = grown, time.monotonic()
                continue
            self.on_event(event)
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
            if name == awaited:
                return event

    def _require_not_stopped(self, quiet_s: float) -> None:
        with contextlib.suppress(OSError, IndexError):  # only Linux reports the state
            state = Path(f"/proc/{self._process.pid}/stat").read_bytes().rpartition(b") ")[2]
            if quiet_s >= MAX_STOPPED_SECONDS and state[:1] == b"T":
                raise self._error(
                    f"a signal (SIGSTOP) stopped its process during {self._phase_words} for over "
                    f"{MAX_STOPPED_SECONDS:g} s; killed. Run the test again"
                )

    def _next_event(self, timeout_s: float) -> Event | None:
        try:
            return self._process.next_event(timeout_s)
        except EOFError:
            raise self._died() from None
        except RunError as error:
            if self.build and self._phase == "start":
                title, key = self.build.title, self.build.key
                raise self._error(f"{title} ({key}) does not start a Python: {error}") from None
            raise

    def _reported(self, event: Event) -> RunError | UnavailableError:
        layer, message = str(event.get("layer")), str(event.get("message"))
        if self.build and self._phase in {"started", "loading"}:
            message = f"{message}{_of_build(str(event.get('kind')), self.build)}"
        if event.get("kind") == UnavailableError.__name__:
            return UnavailableError(message)
        kind = DeliberateError if event.get("designed") else RunError
        loading = kind is DeliberateError and self._phase in LOADING
        when = "" if loading else f" (during {self._phase_words})"
        if log := event.get("log"):  # untrusted: use only the file name
            return RunError(layer, f"{message}{when}", str(self.folder / Path(log).name))
        return kind(layer, f"{message}{when}", str(self.log))

    def _too_slow(self, limit_s: float, *, quiet: bool) -> RunError:
        self._ask_for_stacks()
        exceeded = "no progress for" if quiet else "took longer than"
        head = f"{exceeded} {limit_s:.0f} s during {self._phase_words}"
        if fault := self._progress.get("fault"):
            return RunError("engine", f"{head}: {fault}; worker killed", str(self.log))
        if left := self._progress.get("outstanding"):
            head += f", {left:,} samples submitted and not completed"
        advice = (
            "Raise the ini setting mlperf_timeout if it was only slow"
            if quiet or self._phase in LOADING
            else "No phase may take longer: lower target_qps, min_duration or min_query_count"
        )
        return self._error(f"{head}; worker killed, its thread stacks are in the log. {advice}")

    def _died(self) -> RunError:
        if not self._process.ends_within(KILL_GRACE_SECONDS):
            return self._error(f"the worker {CLOSED_PIPE}")
        code = self._process.returncode
        how = ended(code, f" during {self._phase_words}")
        if code == -signal.SIGSEGV and self._phase in {"performance", "accuracy"}:
            how += (
                "; the log shows where. LoadGen crashes when a thread that completed many samples "
                "ends during the run: complete samples in threads that live until the end"
            )
        return self._error(f"the worker {how}")

    def _error(self, message: str) -> RunError:
        return RunError("worker", message, str(self.log))

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


def _of_build(kind: str, build: Build) -> str:
    if kind in {EnvironmentFault.__name__, "ImportError", "ModuleNotFoundError"}:
        return f"; the engine runs in {build.title} ({build.key}): install what is missing there"
    return f" (in {build.title})"
