"""The worker's only way to speak: events as JSON lines, and the one error that ends it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Any, NoReturn

from pytest_mlperf.core.errors import MlperfError, RunError

FAILED = 70
"""Exit code after an error event (EX_SOFTWARE)."""

KEPT_TRACEBACK = 16_000
"""Characters of a traceback that are sent; the end says most."""


class Reporter:
    """Writes events to the parent from any thread."""

    def __init__(self, descriptor: int) -> None:
        """Write to this open file descriptor."""
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._ending = threading.Lock()

    def event(self, name: str, **fields: Any) -> None:
        """Send one event; ends the process when nobody listens any more."""
        line = (json.dumps({"event": name, **fields}) + "\n").encode()
        try:
            with self._lock:
                while line:
                    line = line[os.write(self._descriptor, line) :]
        except OSError:
            leave(FAILED)

    def fail(self, layer: str, error: BaseException) -> NoReturn:
        """Send the error event and end the process; the first error of several wins."""
        # Never released: a second thread that fails waits here for the end of the process.
        self._ending.acquire()
        if isinstance(error, RunError):
            layer = error.layer
        trace = "".join(traceback.format_exception(error))
        with contextlib.suppress(OSError):  # the disk may be full
            print(trace, file=sys.stderr)
        self.event(
            "error",
            layer=layer,
            kind=type(error).__name__,
            message=one_line(error),
            designed=isinstance(error, MlperfError),
            traceback=trace[-KEPT_TRACEBACK:],
        )
        leave(FAILED)

    @contextlib.contextmanager
    def blaming(self, layer: str) -> Iterator[None]:
        """Turn any exception inside into the error event of this layer."""
        try:
            yield
        except BaseException as error:  # an engine may call sys.exit()
            self.fail(layer, error)


def one_line(error: BaseException) -> str:
    """Return an exception as one line: its text, and its type and place where they help.

    Errors of this package are written for the user and stay as they are.
    """
    text = " ".join(str(error).split())
    if isinstance(error, MlperfError):
        return text
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return said
    last = frames[-1]
    return f"{said} (in {last.name}, {last.filename}:{last.lineno})"


def leave(code: int) -> NoReturn:
    """End the process at once: LoadGen's threads abort an orderly interpreter exit."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
