"""A server of our own: on a free port, healthy before anyone asks it, gone afterwards."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from pytest_mlperf.core.errors import RunError, SuiteError
from pytest_mlperf.engines.serving.command import check_command, fill_in, find_program
from pytest_mlperf.engines.serving.log import (
    about_memory,
    is_temporary,
    last_lines,
    new_log,
    port_was_taken,
)
from pytest_mlperf.engines.serving.process import GONE, Process

HOST = "127.0.0.1"

STARTS = 3
"""Between our look for a free port and the server's use of it, others may take it."""

PROBE_S = 5.0
"""A server that takes longer to say whether it is healthy is not."""

SHORTEST_S, LONGEST_S = 0.02, 0.5
"""Time between two questions whether it is healthy."""

KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""How a process ends that SIGKILL ended; the second way by a shell's or a container's account."""


class Server:
    """Starts a server on entry, and leaves nothing of it on exit.

    Attributes:
        url: Where it answers, known once it is entered.
        log: File with all that it printed, likewise.
    """

    url: str
    log: Path

    def __init__(
        self,
        command: Sequence[str],
        *,
        engine: str,
        model: str | None,
        health: str,
        start_timeout_s: float,
        environment: Mapping[str, str],
    ) -> None:
        """Keep what to start.

        Args:
            command: Program and arguments; {model}, {host} and {port} are replaced in each.
            engine: What suites call the engine that wants it, for messages.
            model: The model's folder or name.
            health: Path that answers 200 once the server is ready.
            start_timeout_s: Time for that.
            environment: Variables that it gets besides this process's own.

        Raises:
            SuiteError: A value means nothing here.
        """
        try:
            check_command(command, model)
            _check_waiting(health, start_timeout_s)
        except SuiteError as error:
            raise SuiteError(f"engine {engine}: {error}") from error
        self._command = list(command)
        self._model = model
        self._health = health
        self._start_timeout_s = start_timeout_s
        # What waits in a buffer when the server is killed would be missing in its log.
        self._environment = {"PYTHONUNBUFFERED": "1", **os.environ, **environment}
        self._process: Process | None = None

    def require(self) -> None:
        """Look for the program; nothing is started.

        Raises:
            RunError: It is not here.
        """
        find_program(self._command[0])

    def __enter__(self) -> Self:
        """Start the server and wait until it is healthy.

        Raises:
            RunError: It cannot be started, ended, or was not healthy in time.
        """
        program = find_program(self._command[0])
        self.log = new_log()
        try:
            for last in (False,) * (STARTS - 1) + (True,):
                if self._start(program, last=last):
                    break
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the server with all that it started."""
        self._stop()
        if kind is None and is_temporary(self.log):
            with contextlib.suppress(OSError):
                self.log.unlink()

    def check(self, within_s: float = 0.0) -> None:
        """Do nothing while the server runs.

        Args:
            within_s: How long to wait for its end: its connections break a moment before that.

        Raises:
            RunError: It ended; says how, and what it said last.
        """
        process = self._process
        if process is None:
            raise RunError("engine", "the server was stopped")
        if (end := process.ended(within_s)) is not None:
            raise RunError("engine", f"{self._how(end)}{self.said()}", str(self.log))

    def said(self) -> str:
        """Return how its log ends, to be appended to any message about what went wrong."""
        memory, lines = about_memory(self.log), last_lines(self.log)
        if not lines:
            return f"; its log {self.log} is empty"
        cause = f' has "{memory}" and' if memory and memory not in lines else ""
        return f"; its log {self.log}{cause} ends: {' | '.join(lines)}"

    def _start(self, program: str, *, last: bool) -> bool:
        """Start the server and wait for it; False where another port is to be tried."""
        port = free_port()
        self.url = f"http://{HOST}:{port}"
        values = {"model": self._model or "", "host": HOST, "port": str(port)}
        command = [program, *fill_in(self._command[1:], values)]
        self._process = Process(command, self._environment, self.log)
        end = self._wait_for_health(port)
        if end is None:
            return True
        self._stop()
        taken = port_was_taken(self.log)
        if taken and not last:
            self.log.write_bytes(b"")
            return False
        when = f" before GET {self._health} answered 200"
        what = f"; its port was taken, {STARTS} times with another one" if taken else ""
        raise RunError("engine", f"{self._how(end, when)}{what}{self.said()}", str(self.log))

    def _wait_for_health(self, port: int) -> int | str | None:
        """Return None when the server is healthy, or how it ended before that.

        Raises:
            RunError: It runs, but was not healthy in time.
        """
        assert self._process is not None
        deadline = time.monotonic() + self._start_timeout_s
        pause_s, answer = SHORTEST_S, "nothing"
        while (left_s := deadline - time.monotonic()) > 0:
            end = self._process.ended(min(pause_s, left_s))
            if end is not None:
                return end
            answer = ask(port, self._health, min(PROBE_S, max(left_s, SHORTEST_S)))
            if answer == "200":
                # Another process's answer must not pass for that of a server that ended.
                return self._process.ended()
            pause_s = min(1.5 * pause_s, LONGEST_S)
        raise RunError(
            "engine",
            f"the server was not healthy within start_timeout = {self._start_timeout_s:g} s: "
            f"GET {self._health} last gave {answer}; raise start_timeout if it is only slow, and "
            f"see that health is a path which it knows{self.said()}",
            str(self.log),
        )

    def _how(self, end: int | str, when: str = "") -> str:
        """Return how the server ended, and what that may mean."""
        if end == GONE:
            return f"the process that watches over the server was killed{when}"
        code = int(end)
        hint = ""
        if code in KILLED:
            hint = "; if nobody killed it, the machine ran out of memory (see dmesg)"
        elif code == 0 and when:
            hint = "; serve must keep it in the foreground"
        if code >= 0:
            return f"the server ended with exit code {code}{when}{hint}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"the server was killed by {name}{when}{hint}"

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.stop()


def _check_waiting(health: str, start_timeout_s: float) -> None:
    if not re.fullmatch(r"/[!-~]*", health):
        raise SuiteError(f'health = {health!r} is no path of a URL, such as "/health"')
    if not start_timeout_s > 0:
        raise SuiteError(f"start_timeout = {start_timeout_s!r} is not above 0")


def ask(port: int, path: str, timeout_s: float) -> str:
    """Return the status code that a server here answers a GET with, or what came instead."""
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        return str(connection.getresponse().status)
    except TimeoutError:
        return f"no answer in {timeout_s:.1f} s"
    except (OSError, http.client.HTTPException) as error:
        return getattr(error, "strerror", None) or type(error).__name__
    finally:
        connection.close()


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        port: int = found.getsockname()[1]
        return port
