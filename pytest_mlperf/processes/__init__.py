"""Run child processes in sessions of their own, and end each with all its descendants.

All supervised children use this: workers, builders, scorers, samplers, the micro-benchmark, the
NVML query, and the processes that start servers.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO

from pytest_mlperf.core.untrusted_text import broken

LOG_TAIL_LINES = 16

PIPE_READ_BYTES = 1 << 16


def end_on_next_interrupt() -> Callable[[], object]:
    """Let the next Ctrl-C end this process without a traceback; return the undo function."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)
    previous_handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    return partial(signal.signal, signal.SIGINT, previous_handler or signal.SIG_DFL)


class ChildProcess(subprocess.Popen[bytes]):
    """Run a child process in its own session, so that Ctrl-C reaches only the parent.

    Its stdin is a pipe from the parent. The pipe closes even if the parent is killed, and then the
    child exits.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdout: int | IO[bytes],
        stderr: int | IO[bytes],
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
        stdin: Path | None = None,
    ) -> None:
        """Start the process.

        Args:
            stdin: File that the child reads in place of the pipe.
            stdout: A descriptor, a file or `subprocess.PIPE`; the same holds for `stderr`.
            environment: All environment variables; None inherits those of this process.
            descriptors: Additional file descriptors that the child inherits.

        Raises:
            OSError: The process cannot be started.
        """
        self._commands: int | None = None
        if stdin:
            read_end = os.open(stdin, os.O_RDONLY | os.O_CLOEXEC)
        else:
            read_end, self._commands = os.pipe()
        self._buffer = b""
        try:
            super().__init__(
                command,
                # Not `subprocess.PIPE`, which `communicate` would close at once.
                stdin=read_end,
                stdout=stdout,
                stderr=stderr,
                env=environment,
                pass_fds=descriptors,
                start_new_session=True,
            )
        except BaseException:
            self.close_stdin()
            raise
        finally:
            os.close(read_end)

    def tell(self, message: bytes) -> None:
        """Write to the child's stdin; ignore a child that has ended."""
        rest = memoryview(message)
        with contextlib.suppress(OSError):
            while rest and self._commands is not None:
                rest = rest[os.write(self._commands, rest) :]

    def line(self, deadline_s: float, longest: int) -> bytes | None:
        """Return the next line of stdout, including its end; None if the deadline passes first.

        Args:
            deadline_s: Deadline on the monotonic clock [s].
            longest: Maximum length [bytes]; a longer line is returned in several pieces.

        Raises:
            EOFError: Stdout has ended.
        """
        assert self.stdout is not None
        out = select.poll()
        out.register(self.stdout, select.POLLIN)
        while b"\n" not in self._buffer and len(self._buffer) <= longest:
            if not out.poll(max(0.0, deadline_s - time.monotonic()) * 1000):
                return None
            chunk = os.read(self.stdout.fileno(), PIPE_READ_BYTES)
            if not chunk:
                raise EOFError
            self._buffer += chunk
        line, end, self._buffer = self._buffer.partition(b"\n")
        return line + end

    @property
    def rest(self) -> bytes:
        """Output after the last complete line."""
        return self._buffer

    def ends_within(self, limit_s: float | None) -> bool:
        """Wait for the end of the process; return False after `limit_s` (None: no limit)."""
        try:
            self.wait(limit_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the process group; ignore a group that has ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def close_stdin(self) -> None:
        """Close the child's stdin, which makes the child exit."""
        if self._commands is not None:
            os.close(self._commands)
            self._commands = None

    def end(
        self, *, alone_s: float = 0.0, term_s: float = 0.0, killed_s: float | None = None
    ) -> bool:
        """End the whole process group; return whether the child exited by itself.

        Args:
            alone_s: Time for the child to exit after its stdin is closed [s].
            term_s: Time between SIGTERM and SIGKILL [s]; 0 sends only SIGKILL.
            killed_s: Maximum wait after SIGKILL [s]; None waits until the child is gone, which may
                be never if it hangs in a driver.
        """
        self.close_stdin()
        exited = self.ends_within(alone_s)
        if term_s:
            self.signal_group(signal.SIGTERM)
            self.ends_within(term_s)
        self.signal_group(signal.SIGKILL)
        self.ends_within(killed_s)
        return exited

    def close(self) -> None:
        """Close the pipes of stdout and stderr, if any."""
        for pipe in (self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()


def answer_of(
    command: Sequence[str],
    *,
    limit_s: float,
    killed_s: float,
    environment: Mapping[str, str] | None = None,
) -> tuple[int, bytes, bytes] | None:
    """Run a command to its end; return exit code, stdout and stderr, or None if it was killed.

    Args:
        limit_s: Maximum run time [s]; then the process group is killed.
        killed_s: Maximum wait after SIGKILL [s].
        environment: All environment variables; None inherits those of this process.

    Raises:
        OSError: The process cannot be started.
    """
    pipe = subprocess.PIPE
    child = ChildProcess(command, stdout=pipe, stderr=pipe, environment=environment)
    try:
        out, errors = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        child.end(killed_s=killed_s)
        child.close()
    return child.returncode, out, errors


OUT_OF_MEMORY = "if nobody killed it, the machine ran out of memory (see dmesg)"
"""Probable cause of an exit by SIGKILL."""


def ended(code: int, when: str = "") -> str:
    """Describe how a process ended, with the probable cause if SIGKILL ended it.

    Args:
        code: Exit code as `subprocess` gives it: -N for signal N.
        when: Text to append, such as " during the accuracy run".
    """
    ending = f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}"
    with contextlib.suppress(ValueError):
        ending = ending if code >= 0 else f"was killed by {signal.Signals(-code).name}"
    # Shells and containers report SIGKILL as exit code 137.
    return ending + when + f"; {OUT_OF_MEMORY}" * (code in {-9, 128 + 9})


def last_line(text: bytes) -> str:
    """Return the last non-blank line, stripped; "" if there is none."""
    lines = text.decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def log_tail(path: str | None, lines: int = LOG_TAIL_LINES) -> list[str]:
    """Return the last non-blank lines of a child's log; [] if the log cannot be read.

    Control characters are escaped and lines are cut, so that no line can imitate our own output.
    """
    if path is None:
        return []
    try:
        with Path(path).open("rb") as file:
            file.seek(max(0, Path(path).stat().st_size - 8192))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    filled_lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return [broken(line)[:200] for line in filled_lines[-lines:]]
