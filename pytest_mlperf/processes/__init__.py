"""A child process: started in a group of its own, heard, and surely ended with all that it started.

Every child that this package supervises is one of these: worker, builder, scorer, sampler,
micro-benchmark, the question to NVML, and the process that starts a server.
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
    """Let the next Ctrl-C end this process at once, without a traceback; return how to undo it."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    return partial(signal.signal, signal.SIGINT, before or signal.SIG_DFL)


class ChildProcess(subprocess.Popen[bytes]):
    """A child in a session of its own, so that Ctrl-C reaches its parent alone.

    Its stdin is a pipe of the parent's: that it ends tells the child that nobody wants it any more,
    also where the parent was killed.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdout: int | IO[bytes],
        stderr: int | IO[bytes],
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        """Start it.

        Args:
            command: Program and arguments.
            stdout: Where that goes: a descriptor, a file or `subprocess.PIPE`.
            stderr: Likewise.
            environment: All its variables; None: this process's own.
            descriptors: What else it inherits.

        Raises:
            OSError: It cannot be started.
        """
        theirs, ours = os.pipe()
        self._commands: int | None = ours
        self._buffer = b""
        try:
            super().__init__(
                command,
                # Not a pipe of Popen's, which `communicate` would close at once.
                stdin=theirs,
                stdout=stdout,
                stderr=stderr,
                env=environment,
                pass_fds=descriptors,
                start_new_session=True,
            )
        except BaseException:
            self.let_go()
            raise
        finally:
            os.close(theirs)

    def tell(self, message: bytes) -> None:
        """Write to its stdin; whether it has ended shows elsewhere."""
        rest = memoryview(message)
        with contextlib.suppress(OSError):
            while rest and self._commands is not None:
                rest = rest[os.write(self._commands, rest) :]

    def line(self, deadline_s: float, longest: int) -> bytes | None:
        """Return the next line of its stdout, with its end; None: none is whole by then.

        Args:
            deadline_s: By the monotonic clock.
            longest: So many bytes without an end are returned as they are.

        Raises:
            EOFError: No more comes.
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

    def ends_within(self, limit_s: float | None) -> bool:
        """Whether it ends in that time; None: wait for as long as it takes."""
        try:
            self.wait(limit_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to all that is left of its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def let_go(self) -> None:
        """Let its stdin end."""
        if self._commands is not None:
            os.close(self._commands)
            self._commands = None

    def end(
        self, *, alone_s: float = 0.0, term_s: float = 0.0, killed_s: float | None = None
    ) -> bool:
        """End the whole group, whatever state it is in.

        Args:
            alone_s: Time for the child to end by itself once its stdin has ended.
            term_s: Time between SIGTERM and SIGKILL; 0: nothing but SIGKILL is sent.
            killed_s: How long to wait for what was killed; None: until it is gone. One that hangs
                in a driver may never be.

        Returns:
            Whether it ended by itself.
        """
        self.let_go()
        alone = self.ends_within(alone_s)
        if term_s:
            self.signal_group(signal.SIGTERM)
            self.ends_within(term_s)
        self.signal_group(signal.SIGKILL)
        self.ends_within(killed_s)
        return alone

    def close(self) -> None:
        """Let go of its stdout and stderr, where they are pipes."""
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
    """Run a child to its end; return exit code, stdout and stderr, None where it was killed.

    Args:
        command: Program and arguments.
        limit_s: It is killed after that long.
        killed_s: How long to wait for what was killed.
        environment: All its variables; None: this process's own.

    Raises:
        OSError: It cannot be started.
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
"""What to think of a process that SIGKILL ended."""


def ended(code: int, when: str = "") -> str:
    """Return how a process ended, when, and what to think of that.

    Args:
        code: Its exit code as `subprocess` gives it.
        when: What follows how it ended.
    """
    how = f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}"
    with contextlib.suppress(ValueError):
        how = how if code >= 0 else f"was killed by {signal.Signals(-code).name}"
    # By a shell's or a container's account 137.
    return how + when + f"; {OUT_OF_MEMORY}" * (code in {-9, 128 + 9})


def last_line(text: bytes) -> str:
    """Return the last line that is not empty, without blanks around it; "" where there is none."""
    lines = text.decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def log_tail(path: str | None, lines: int = LOG_TAIL_LINES) -> list[str]:
    """Return the last non-empty lines of a child's log, so that none can pose as ours.

    Control characters are escaped; [] where it cannot be read.
    """
    if path is None:
        return []
    try:
        with Path(path).open("rb") as file:
            file.seek(max(0, Path(path).stat().st_size - 8192))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    kept = [line.rstrip() for line in text.splitlines() if line.strip()]
    return [broken(line)[:200] for line in kept[-lines:]]
