"""Start and stop inference servers; parse their /metrics, /version and other HTTP responses."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pytest_mlperf.adapters.engines import engine_error, refuse_conflicts
from pytest_mlperf.adapters.engines.serving._launch import KILL_TIMEOUT_SECONDS
from pytest_mlperf.adapters.engines.serving._launch import descendants as descendants
from pytest_mlperf.extension import ChildProcess, broken, check_devices, ended
from pytest_mlperf.extension import parse_json as untrusted_json

MAX_PAGE_BYTES = 1 << 24
MAX_COUNT = 1 << 53
"""Exclusive bound of counts: JSON of other languages has no exact numbers beyond."""


def parse_json(data: bytes) -> Any:
    """Parse a page as JSON; raise ValueError for bad JSON, deep nesting or bad UTF-8."""
    value = untrusted_json(data)
    if b"\\ud" in data.lower():  # the parser accepts escaped lone surrogates
        json.dumps(value, ensure_ascii=False).encode()
    return value


def whole_number(value: object) -> int:
    """Return `value` if it is a whole number from 0 to below 2^53; else raise ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MAX_COUNT:
        raise ValueError("not a whole number from 0 to 2^53")
    return value


def message_text(value: object) -> str:
    """Return a JSON value as text for a message, or a note that it is nested too deep."""
    try:
        return str(value)
    except RecursionError:
        return "(JSON that is nested too deep to be shown)"


LINES = 6

WIDTH = 200

SEARCHED = 1 << 18

ENGINE_LOG = "engine.log"
"""Name of the file with a worker's output, in the folder of its run."""

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
"""Colours, cursor movements and titles of terminals (ECMA-48: CSI and OSC)."""

_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|bad_alloc|Cannot allocate memory|\bMemoryError\b"
    r"|No available memory for the cache blocks|insufficient GPU memory",
    re.IGNORECASE,
)

_PORT = re.compile(
    r"address already in use|EADDRINUSE|port \S+ is (?:already )?in use|port is already allocated",
    re.IGNORECASE,
)


def new_log() -> Path:
    """Truncate server.log next to the engine's log, or create a temporary file; return its path."""
    try:
        stderr = Path("/proc/self/fd/2").readlink()
        if stderr.name == ENGINE_LOG and stderr.is_file():
            log = stderr.with_name("server.log")
            log.write_bytes(b"")
            return log
    except OSError:
        pass  # another system, or a folder that is gone
    descriptor, name = tempfile.mkstemp(prefix="server-", suffix=".log")
    os.close(descriptor)
    return Path(name)


def last_lines(log: Path) -> list[str]:
    """Return the last lines of a log as a terminal shows them; escape control characters."""
    return _lines(log)[-LINES:]


def about_memory(log: Path) -> str | None:
    """Return the log's last line that reports a lack of memory; None if there is none."""
    return next((line for line in reversed(_lines(log)) if _MEMORY.search(line)), None)


def port_was_taken(log: Path) -> bool:
    """Return whether the log reports that the server's port was in use."""
    return any(_PORT.search(line) for line in _lines(log))


def _lines(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - SEARCHED))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    # A progress bar rewrites its line: only the last state is kept.
    raw = (line.rstrip().rpartition("\r")[2] for line in text.split("\n"))
    cleaned = (broken(_ESCAPES.sub("", line)).strip() for line in raw)
    return [line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…" for line in cleaned if line]


COMMAND_PLACEHOLDERS = ("model", "host", "port")

_PLACEHOLDER = re.compile(r"(?<![{$])\{([A-Za-z_]\w*)\}")
"""Matches {port}, but not {"json": 1}, ${VARIABLE} or {{a template}}."""


def conflicts(
    command: Sequence[str], model: str | None, health: str, start_timeout_s: float
) -> Iterator[Sequence[Any]]:
    """Yield checks of a server's options: (whether it is violated, error message, option)."""
    example = 'serve = ["vllm", "serve", "{model}", "--port", "{port}"]'
    yield not command, f"serve is empty; write a list of words, e.g. {example}", "serve"
    fault = "the first word of serve is empty; it must be a program"
    yield not command[0].strip(), fault, "serve"
    placeholders = [name for word in command for name in _PLACEHOLDER.findall(word)]
    choices = ", ".join(f"{{{name}}}" for name in COMMAND_PLACEHOLDERS)
    for name in placeholders:
        fault = f"serve has {{{name}}}; known placeholders are {choices}"
        yield name not in COMMAND_PLACEHOLDERS, fault, "serve"
    fault = "serve does not give the server its port, which differs in every run; add e.g. "
    yield "port" not in placeholders, fault + '"--port", "{port}"', "serve"
    fault = "serve has {model}, but the suite names no model; set workload.model"
    yield "model" in placeholders and model is None, fault, "serve"
    fault = f'health = {health!r} is not a path of a URL, such as "/health"'
    yield not re.fullmatch(r"/[!-~]*", health), fault, "health"
    fault = f"start_timeout = {start_timeout_s!r} is not above 0"
    yield not start_timeout_s > 0, fault, "start_timeout"


def fill_in(command: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Return the words of a command with {name} replaced by its value."""
    return [_PLACEHOLDER.sub(lambda match: values[match[1]], word) for word in command]


def find_program(word: str) -> str:
    """Return the path of a program.

    A bare name is searched in the folder of this Python, then on PATH. Other words are paths, in
    which `~` is expanded. Symbolic links are not resolved, because the target of a link to a Python
    belongs to another environment.
    """
    if "/" in word:
        tree = os.environ.get("PYTEST_MLPERF_TREE", "")
        path = (Path(tree) / Path(word).expanduser()).absolute()
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
        advice = "correct the path in serve"
        if (path / "bin/python").exists():
            advice = f"did you mean {word}/bin/python?"
        raise engine_error(f"serve: {word} is not a program here (looked at {path}); {advice}")
    folders = os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    )
    program = shutil.which(word, path=folders)
    if program is None:
        raise engine_error(
            f"serve: {word} is not a program here (looked in the folder of {sys.executable} and "
            "on PATH); install it, or give its whole path",
        )
    return str(Path(program).absolute())


def _libraries(command: Sequence[str]) -> list[str]:
    modules = [word for flag, word in itertools.pairwise(command) if flag == "-m"]
    return [Path(command[0]).name, *(module.partition(".")[0] for module in modules)]


LAUNCHER = Path(__file__).with_name("_launch.py")

KILL_GRACE_SECONDS = 5.0

LAUNCHER_MARGIN_SECONDS = 5.0
MAX_LAUNCHER_EVENT_BYTES = 1 << 16
UNKNOWN_END = "gone"


class ServerProcess:
    """Start a server by a launcher process, which ends the server when this process ends."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        *,
        title: str = "serve",
    ) -> None:
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._end: int | str | None = None
        with log.open("ab") as output:
            python = [sys.executable, "-I", "-S", str(LAUNCHER)]
            self._launcher = ChildProcess(
                [*python, str(KILL_GRACE_SECONDS), str(os.getpid()), *command],
                stdout=subprocess.PIPE,
                stderr=output,
                environment=environment,
            )
        first = self._event(time.monotonic() + LAUNCHER_MARGIN_SECONDS + KILL_GRACE_SECONDS) or {}
        if "pid" in first:
            self._pid = int(first["pid"])
            return
        self.stop()
        reason = first.get("failed", "the launcher process did not answer")
        raise engine_error(f"{title}: {command[0]} cannot be started: {reason}")

    def ended(self, within_s: float = 0.0) -> int | str | None:
        """Return how the server ended, or None if it still runs after `within_s`; thread-safe.

        The result is the exit code, the signal as a negative number, or UNKNOWN_END.
        """
        with self._lock:
            deadline = time.monotonic() + within_s
            if self._end is None and (event := self._event(deadline)):
                self._end = event.get("ended", UNKNOWN_END)
            return self._end

    def stop(self) -> None:
        """End the server and its descendants, and wait until none is left."""
        self._launcher.end(
            alone_s=KILL_GRACE_SECONDS + KILL_TIMEOUT_SECONDS + LAUNCHER_MARGIN_SECONDS
        )
        if self._launcher.returncode and self._pid is not None:
            with contextlib.suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)
        with self._lock:
            self._launcher.close()
            self._end = UNKNOWN_END if self._end is None else self._end

    def _event(self, deadline: float) -> Mapping[str, Any] | None:
        """Return the launcher's next event; None if none comes before the deadline."""
        try:
            line = self._launcher.line(deadline, MAX_LAUNCHER_EVENT_BYTES)
        except EOFError:
            return {"ended": UNKNOWN_END}
        return None if line is None else json.loads(line)


CONNECT_TIMEOUT_SECONDS = 5.0


def is_host(name: str) -> bool:
    """Return whether a text can be the name or the address of a host."""
    try:
        return bool(name.encode("idna")) and not re.search(r"[\s\\]", name)
    except UnicodeError:  # a part is empty or too long
        return False


def require_listening(engine: str, host: str, port: int) -> None:
    """Raise RunError if no server listens; a host that starts with "/" is a Unix socket's path."""
    try:
        if host.startswith("/"):
            with socket.socket(socket.AF_UNIX) as local:
                local.settimeout(CONNECT_TIMEOUT_SECONDS)
                local.connect(host)
        else:
            socket.create_connection((host, port), CONNECT_TIMEOUT_SECONDS).close()
    except OSError as error:
        place = host if host.startswith("/") else f"{host}:{port}"
        raise engine_error(
            f"engine {engine}: no server listens at {place} ({error.strerror or error}); "
            "start it, correct url, or let serve start one",
        ) from error


HOST = "127.0.0.1"

STARTS = 3
"""Maximum number of starts: other processes may take a free port before the server does."""

PROBE_TIMEOUT_SECONDS = 5.0
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.02, 0.5


class Server:
    """Start a server on entering the context; end it with all its descendants on exit."""

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
        mask: Callable[[str], str] = str,
    ) -> None:
        """Check the command, in which {model}, {host} and {port} are placeholders.

        GET `health` returns 200 when the server is ready. `environment` is added to this process's
        environment. `mask` hides secrets in quoted log lines, and in the log file when the server
        ends.
        """
        refuse_conflicts(engine, conflicts(command, model, health, start_timeout_s))
        self._command = list(command)
        self._model = model
        self._health, self._mask = health, mask
        self._start_timeout_s = start_timeout_s
        # A killed server would lose buffered output, which its log needs.
        self._environment = {"PYTHONUNBUFFERED": "1", **os.environ, **environment}
        self._process: ServerProcess | None = None

    def require(self) -> None:
        find_program(self._command[0])

    def __enter__(self) -> Self:
        program = find_program(self._command[0])
        check_devices(_libraries(self._command), self._environment)
        self.log = new_log()
        try:
            for last in (False,) * (STARTS - 1) + (True,):
                if self._start(program, last=last):
                    break
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop()
        # A log of another name is a temporary file.
        if exc_info[0] is None and self.log.name != "server.log":
            with contextlib.suppress(OSError):
                self.log.unlink()

    def check(self, within_s: float = 0.0) -> None:
        """Raise RunError with the log's end if the server ended, or ends within `within_s` [s]."""
        process = self._process
        if process is None:
            raise engine_error("the server was stopped")
        if (end := process.ended(within_s)) is not None:
            raise engine_error(f"{self._how(end)}{self.log_tail()}", str(self.log))

    def log_tail(self) -> str:
        """Return the end of the log, to append to an error message."""
        memory, lines = about_memory(self.log), [self._mask(n) for n in last_lines(self.log)]
        if not lines:
            return f"; its log {self.log} is empty"
        memory = self._mask(memory or "")
        cause = f' has "{memory}" and' if memory and memory not in lines else ""
        return f"; its log {self.log}{cause} ends: {' | '.join(lines)}"

    def _start(self, program: str, *, last: bool) -> bool:
        """Start the server and wait for it; return False if its port was taken (`last`: raise)."""
        port = free_port()
        self.url = f"http://{HOST}:{port}"
        values = {"model": self._model or "", "host": HOST, "port": str(port)}
        command = [program, *fill_in(self._command[1:], values)]
        self._process = ServerProcess(command, self._environment, self.log)
        end = self._wait_for_health(port)
        if end is None:
            return True
        self._stop()
        taken = port_was_taken(self.log)
        if taken and not last:
            self.log.write_bytes(b"")
            return False
        when = f" before GET {self._health} answered 200"
        retries = f"; its port was in use in each of {STARTS} tries, on different ports" * taken
        raise engine_error(f"{self._how(end, when)}{retries}{self.log_tail()}", str(self.log))

    def _wait_for_health(self, port: int) -> int | str | None:
        """Wait until the server is healthy; return None, or its exit code if it ended first."""
        assert self._process is not None
        deadline = time.monotonic() + self._start_timeout_s
        pause_s, answer = MIN_PAUSE_SECONDS, "nothing"
        while (left_s := deadline - time.monotonic()) > 0:
            end = self._process.ended(min(pause_s, left_s))
            if end is not None:
                return end
            answer = ask(
                port, self._health, min(PROBE_TIMEOUT_SECONDS, max(left_s, MIN_PAUSE_SECONDS))
            )
            if answer == "200":
                # If the server has ended, another process may have answered.
                return self._process.ended()
            pause_s = min(1.5 * pause_s, MAX_PAUSE_SECONDS)
        raise engine_error(
            f"the server was not healthy within start_timeout = {self._start_timeout_s:g} s: "
            f"GET {self._health} last gave {answer}; raise start_timeout if it is only slow, "
            f"and check that health is a path of the server{self.log_tail()}",
            str(self.log),
        )

    def _how(self, end: int | str, when: str = "") -> str:
        if end == UNKNOWN_END:
            return f"the process that supervised the server was killed{when}"
        hint = "; serve must run the server in the foreground" if when and not int(end) else ""
        return f"the server {ended(int(end), when)}{hint}"

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.stop()
            with contextlib.suppress(OSError):
                text = self.log.read_text("utf-8", "surrogateescape")
                if (masked := self._mask(text)) != text:
                    self.log.write_text(masked, "utf-8", "surrogateescape")


def ask(port: int, path: str, timeout_s: float) -> str:
    """Send a GET to a local server; return the status code as text, or the reason for a failure."""
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
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port
