"""Send the worker's events as JSON lines, and the error that ends the worker."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from pytest_mlperf.core.errors import LoggedError, MlperfError, RunError, text_of

POLL_MS = 500
"""Interval of checks for the worker's end without pidfd."""

MAX_DESCRIPTORS = 2**20
"""Maximum number of descriptors to close, as a platform may report no limit."""

EXIT_GRACE_SECONDS = 2.0
"""Time for a worker to end by itself after its parent is gone."""


def guard_group() -> int:
    """Fork a guard process; move stdin to a new descriptor and return the descriptor.

    Call it before any thread starts. The guard waits until the worker's stdin closes or the worker
    ends, then kills the rest of the process group, since a worker that hangs or was killed cannot
    stop its engine's servers. Stdin becomes empty, so that no engine reads the parent's commands.
    """
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    worker = os.getpid()
    if os.fork() == 0:
        try:
            _guard(worker)
        finally:
            os._exit(1)
    commands = os.dup(0)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    return commands


def _guard(worker: int) -> None:
    # An open copy of the events pipe or of a log would hide the worker's end from the parent.
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.closerange(3, min(os.sysconf("SC_OPEN_MAX"), MAX_DESCRIPTORS))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A terminal or service manager may terminate the group; the guard must go last.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hang_up, worker_end = select.poll(), select.poll()
    hang_up.register(0, 0)  # without events, poll reports only the hang-up
    look_ms: int | None = POLL_MS
    with contextlib.suppress(OSError, AttributeError):
        descriptor = os.pidfd_open(worker)
        hang_up.register(descriptor, select.POLLIN)
        worker_end.register(descriptor, select.POLLIN)
        look_ms = None
    while os.getppid() == worker and not hang_up.poll(look_ms):
        pass
    if os.getppid() == worker:
        # An engine's __exit__ may have to stop processes outside this group.
        worker_end.poll(EXIT_GRACE_SECONDS * 1000)
    os.killpg(0, signal.SIGKILL)


ERROR_EXIT_CODE = 70
KEPT_TRACEBACK = 16_000
"""Characters of a traceback that are sent, from its end."""

KEPT_MESSAGE = 4_000
"""Characters of a message that are sent."""

KEPT_NAME = 200
"""Characters of an exception's class name that are sent."""

DESCRIBING_S = 5.0
"""Time limit of describing an error, as this calls foreign code."""

EXTRA_RECURSION = 500
"""Additional recursion depth for reporting an error of a recursion."""


class Reporter:
    """Send events to the parent from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._ending = threading.Lock()

    def event(self, name: str, **fields: Any) -> None:
        """Send one event; end the process if the parent has ended."""
        line = (json.dumps({"event": name, **fields}) + "\n").encode()
        try:
            with self._lock:
                while line:
                    line = line[os.write(self._descriptor, line) :]
        except OSError:
            leave(ERROR_EXIT_CODE)

    def fail(self, layer: str, error: BaseException) -> NoReturn:
        """Send one error event, with its `layer` such as "engine", and end this process."""
        sys.setrecursionlimit(sys.getrecursionlimit() + EXTRA_RECURSION)
        # Never released, so that a second failing thread waits here for the end.
        self._ending.acquire()
        try:
            try:
                self.event("error", **described(layer, error))
            except BaseException:  # no memory left, or Python's own modules are changed
                os.write(self._descriptor, _SPARE)
        finally:
            os._exit(ERROR_EXIT_CODE)

    @contextlib.contextmanager
    def blaming(self, layer: str) -> Iterator[None]:
        """Run the `with` block; report its exception as a fault of `layer` ("engine"), and exit."""
        try:
            yield
        except BaseException as error:  # an engine may call sys.exit()
            self.fail(layer, error)


_SPARE = (
    b'{"event": "error", "layer": "worker", "kind": "MemoryError", "message": "the run broke, and '
    b"it could not be said how: no memory was left, or the engine or a library has changed "
    b'functions of Python itself", "designed": false, "log": null, "traceback": ""}\n'
)
"""Event for the case that no other can be made."""


def described(layer: str, error: BaseException) -> dict[str, Any]:
    """Print the traceback of an error; return the fields of its event; never raise."""
    chain: list[dict[str, Any]] = []

    def describe() -> None:
        with contextlib.suppress(BaseException):
            if isinstance(error, MemoryError):
                traceback.clear_frames(error.__traceback__)  # they may hold the memory
            chain.append(_description(layer, error))
            print(chain[0]["traceback"], file=sys.stderr, flush=True)  # the disk may be full

    # In a separate thread, because a foreign `__str__` may never return.
    thread = threading.Thread(target=describe, name="describing", daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError):  # no room for a thread
        describe()
    else:
        thread.join(DESCRIBING_S)
    if chain:
        return chain[0]
    kind = type(error).__name__
    reason = f"describing the error failed or took over {DESCRIBING_S:g} s"
    message = f"{kind}: no details, because {reason}{_place(error)}"
    return _fields(layer, kind, message, designed=False, trace="")


def _description(layer: str, error: BaseException) -> dict[str, Any]:
    kind, designed = type(error).__name__, isinstance(error, MlperfError)
    log = str(error.log) if isinstance(error, LoggedError) else None
    if isinstance(error, RunError):
        layer = str(getattr(error, "layer", layer))
    try:
        trace = "".join(traceback.format_exception(error))
    except BaseException as broken:  # foreign code runs here
        trace = f"{kind}, whose traceback could not be formatted: {type(broken).__name__}"
    return _fields(layer, kind, one_line(error), designed=designed, trace=trace, log=log)


def _fields(
    layer: str, kind: str, message: str, *, designed: bool, trace: str, log: str | None = None
) -> dict[str, Any]:
    return {
        "layer": layer[:KEPT_NAME],
        "kind": kind[:KEPT_NAME],
        "message": message if len(message) <= KEPT_MESSAGE else message[:KEPT_MESSAGE] + "…",
        "designed": designed,
        "log": log,
        "traceback": trace[-KEPT_TRACEBACK:],
    }


def fail_at_dead_threads(
    fail: Callable[[str, BaseException], object], open_samples: Callable[[], int]
) -> None:
    """Call `fail` when a thread dies while samples are open, as they would never complete."""

    def hook(died: threading.ExceptHookArgs) -> None:
        if open_samples() > 0:
            ending = RunError("engine", f"a thread ended with {died.exc_type.__name__}")
            fail("engine", died.exc_value or ending)
        threading.__excepthook__(died)

    threading.excepthook = hook


def one_line(error: BaseException) -> str:
    """Return an exception as one line, with class and location unless it is an MlperfError."""
    text = text_of(error)
    if isinstance(error, MlperfError):
        return text
    kind = type(error).__name__
    return (f"{kind}: {text}" if text else kind) + _place(error)


def _place(error: BaseException) -> str:
    try:
        frames = traceback.extract_tb(error.__traceback__)
        return f" (in {frames[-1].name}, {frames[-1].filename}:{frames[-1].lineno})"
    except BaseException:  # no traceback, or foreign code changed it
        return ""


def leave(code: int) -> NoReturn:
    """End the process at once, because LoadGen's threads would abort a normal exit of Python."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
