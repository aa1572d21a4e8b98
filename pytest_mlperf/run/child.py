"""Run a child process with one task, and never be hung, misled or outlived by it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import RunError, UnavailableError
from pytest_mlperf.core.foreign_text import broken
from pytest_mlperf.run.builds import PACKAGE, import_path
from pytest_mlperf.run.endings import ended
from pytest_mlperf.run.events import ERROR, Events, Fields, is_count, is_text
from pytest_mlperf.run.protocol import Event
from pytest_mlperf.run.supervisor import GRACE_S, THIS_PYTHON, Designed, Patience

TICK_S = 0.5
"""Time between two looks at the log, which counts as progress when it grows."""

PROGRESS: Fields = {"done": is_count, "total": is_count, "what": is_text}
"""What a child says meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Child:
    """A child process with one task.

    Attributes:
        title: What progress calls it: "building torchao int8".
        folder: Existing folder of its own.
        script: Module of this package that is run.
        spec: What it is told; its `task` names its files.
        answer: The fields of its last event, "done".
        patience: How long it may take.
        show: Takes a line of progress, many times.
        python: What starts another Python; None: this one.
        environment: Variables that it gets besides this process's own.
        layer: Whose error it is when it breaks.
        whose: What runs there besides this package, in words.
    """

    title: str
    folder: Path
    script: str
    spec: Mapping[str, Any]
    answer: Fields
    patience: Patience
    show: Callable[[str], None]
    python: Sequence[str] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    layer: str = "build"
    whose: str = "builder"

    @property
    def log(self) -> Path:
        """What it and its libraries print."""
        return self.folder / f"{self.spec['task']}.log"

    def run(self) -> Event:
        """Run it to its end and return its last event.

        Raises:
            RunError: It reported an error, died, or ran out of time.
            UnavailableError: It reported that a file is not there.
        """
        with contextlib.ExitStack() as stack:
            try:
                command = stack.enter_context(self._command())
                log = stack.enter_context(self.log.open("wb"))
                events, end = os.pipe()
                stack.callback(os.close, events)
            except OSError as error:
                raise RunError(
                    self.layer, f"cannot write {self.folder}: {error.strerror}"
                ) from None
            try:
                process = self._start(command, log, end)
            except OSError as error:
                what = f"{error.filename} cannot be started: {error.strerror}"
                raise RunError(self.layer, self._named(what)) from None
            finally:
                os.close(end)
            stack.callback(_end, process)
            return self._follow(process, events)

    @contextlib.contextmanager
    def _command(self) -> Iterator[list[str]]:
        """Yield the command line; another Python gets a copy of this package, and no more."""
        spec, name = self.folder / f"{self.spec['task']}.json", f"{self.script}.py"
        own = {**self.spec, "import_path": [] if self.python else import_path()}
        spec.write_text(json.dumps(own), "utf-8")
        if self.python is None:
            module = f"{PACKAGE.name}.{self.script.replace('/', '.')}"
            yield [sys.executable, "-m", module, str(spec)]
            return
        code = self.folder / "code"
        try:
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(PACKAGE, code / PACKAGE.name, ignore=ignore)
            yield [*self.python, str(code / PACKAGE.name / name), str(spec)]
        finally:
            shutil.rmtree(code, ignore_errors=True)

    def _start(self, command: Sequence[str], log: Any, end: int) -> subprocess.Popen[bytes]:
        left_out = THIS_PYTHON if self.python else ()
        environment = {key: value for key, value in os.environ.items() if key not in left_out}
        return subprocess.Popen(
            command,
            # Its other end is held here and never written: the child's guard sees it close.
            stdin=subprocess.PIPE,
            stdout=end,
            stderr=log,
            start_new_session=True,
            env={**environment, **self.environment, "PYTHONUNBUFFERED": "1"},
        )

    def _follow(self, process: subprocess.Popen[bytes], events: int) -> Event:
        """Return the last event; show the others."""
        started = time.monotonic()
        for event in self._heard(process, events):
            if event.get("event") == "error":
                raise self._reported(event)
            if event.get("event") == "done":
                return event
            took_s = time.monotonic() - started
            self.show(broken(f"{self.title}{_place(event)}, {took_s:.0f} s"))
        raise self._died(process)

    def _heard(self, process: subprocess.Popen[bytes], pipe: int) -> Iterator[Event]:
        """Yield each event, and {} when only the log has grown; end when the child has.

        Raises:
            RunError: It ran out of time, or what it sent is no event.
        """
        kinds = {"progress": PROGRESS, "done": self.answer, "error": ERROR}
        events = Events(
            pipe,
            kinds,
            layer=self.layer,
            whose=self.whose,
            log=str(self.log),
            ended=lambda: process.poll() is not None,
        )
        started = last = time.monotonic()
        size, at = 0, ""
        while True:
            now = time.monotonic()
            if now - last > self.patience.progress_s:
                raise self._slow("no progress for", self.patience.progress_s, at)
            if now - started > self.patience.phase_s:
                raise self._slow("took longer than", self.patience.phase_s, at)
            try:
                event = events.next(TICK_S)
            except EOFError:
                return
            if event is None and (grown := self.log.stat().st_size) != size:
                size, event = grown, {}
            if event is not None:
                last, at = now, _place(event) or at
                yield event

    def _reported(self, event: Event) -> RunError | UnavailableError:
        message = self._named(str(event["message"]))
        if event["kind"] == UnavailableError.__name__:
            return UnavailableError(message)
        error = Designed if event["designed"] else RunError
        return error(self.layer, message, str(self.log))

    def _slow(self, what: str, limit_s: float, at: str) -> RunError:
        advice = "raise --mlperf-timeout if it was only slow"
        message = self._named(f"{what} {limit_s:.0f} s{at}; killed; {advice}")
        return RunError(self.layer, message, str(self.log))

    def _died(self, process: subprocess.Popen[bytes]) -> RunError:
        try:
            code = process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            return RunError(self.layer, self._named("closed its pipe, did not end"), str(self.log))
        how = ended(code)
        if code == -signal.SIGKILL:
            how += "; if nobody killed it, the machine ran out of memory (see dmesg)"
        return RunError(self.layer, self._named(f"the {self.whose} {how}"), str(self.log))

    def _named(self, text: str) -> str:
        """Return a message that says which child it is about."""
        return f"{self.title}: {text}" if self.layer != self.whose else text


def _place(event: Event) -> str:
    """Return how far a child is: ", 3 of 8 layers"; "" where an event does not tell."""
    return f", {event['done']:,} of {event['total']:,} {event['what']}" if "done" in event else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a child's whole process group, whatever state it is in."""
    with contextlib.suppress(OSError):
        if process.stdin:
            process.stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    process.wait()
