"""Start a server, report its end, and end all its descendants.

Run as a script: `python -I -S _launch.py GRACE_S PARENT COMMAND...`. This launcher is a process
between worker and server, because a killed worker cannot clean up. It stops the server when its own
stdin is closed or the process PARENT ends. It writes JSON lines to stdout: {"pid": N}, then
{"ended": EXIT CODE, or the signal as a negative number}, or {"failed": REASON} if the start fails.
Its stderr is the server's log.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
"""Linux: signal that a process gets when its parent ends."""

PR_SET_CHILD_SUBREAPER = 36
"""Linux: orphaned descendants become children of this process, so that none is lost."""

KILL_TIMEOUT_SECONDS = 10.0
"""A process that survives SIGKILL for this time hangs in the kernel."""

POLL_SECONDS = 0.05


class Keeper:
    """Watch a server; end it and all its descendants on request."""

    def __init__(self, pid: int, woken: int, parent: int) -> None:
        self._pid = pid
        self._woken = woken
        self._ended = False
        self._childless = False
        self._released = False
        self._poll = select.poll()
        self._poll.register(woken, select.POLLIN)
        self._poll.register(0, select.POLLIN)
        with contextlib.suppress(OSError, AttributeError):  # without pidfd, stdin's end suffices
            self._poll.register(os.pidfd_open(parent), select.POLLIN)

    def watch(self) -> None:
        while not (self._ended or self._released or self._childless):
            self._wait(None)

    def end(self, grace_s: float) -> None:
        """End the server and its descendants: by SIGTERM, after `grace_s` by SIGKILL."""
        deadline = time.monotonic() + grace_s
        self._signal(signal.SIGTERM)
        while not self._childless and (left := deadline - time.monotonic()) > 0:
            self._wait(left)
        deadline = time.monotonic() + KILL_TIMEOUT_SECONDS
        while not self._childless and time.monotonic() < deadline:
            self._signal(signal.SIGKILL)
            self._wait(POLL_SECONDS)

    def _wait(self, timeout_s: float | None) -> None:
        self._reap()
        if self._childless:
            return
        for descriptor, _ in self._poll.poll(None if timeout_s is None else timeout_s * 1000):
            if descriptor == self._woken:
                # A service manager may send SIGTERM to every process.
                self._released |= signal.SIGTERM in os.read(descriptor, 4096)
            else:
                self._released = True
                self._poll.unregister(descriptor)
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                return
            if pid == 0:
                return
            if pid == self._pid:
                self._ended = True
                tell(ended=os.waitstatus_to_exitcode(status))

    def _signal(self, number: signal.Signals) -> None:
        for pid in descendants(self._pid):
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        if not self._ended:
            with contextlib.suppress(OSError):
                os.killpg(self._pid, number)


def descendants(session: int | None = None) -> list[int]:
    """List ids of this process's descendants and a POSIX session's processes; [] without /proc."""
    parents: dict[int, int] = {}
    members = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in brackets may itself have brackets and spaces.
            fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
            if fields[0] == b"Z":
                continue
            pid = int(folder.name)
            parents[pid] = int(fields[1])
            if int(fields[3]) == session:
                members.add(pid)
    family = {os.getpid()}
    while new := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= new
    return sorted((members | family) - {os.getpid()})


def start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start the server; keep the returned Popen, or a short-lived server's exit code is lost."""
    control = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
    if control:
        control(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a worker ignores it
        if control:
            control(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=2,
        stderr=2,
        cwd=os.environ.get("PYTEST_MLPERF_TREE"),  # the checkout, for a build of another commit
        start_new_session=True,
        preexec_fn=prepare,  # noqa: PLW1509 - this process has one thread
    )


def tell(**event: object) -> None:
    """Write an event to stdout; ignore a closed pipe, because the end of stdin is detected too."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(event).encode() + b"\n")


def wake_on_signals() -> int:
    """Return a descriptor from which the numbers of SIGCHLD and SIGTERM can be read."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return woken


def main(grace_s: float, parent: int, command: Sequence[str]) -> None:
    woken = wake_on_signals()
    try:
        server = start(command)
    except OSError as error:
        tell(failed=error.strerror)
        return
    tell(pid=server.pid)
    keeper = Keeper(server.pid, woken, parent)
    keeper.watch()
    keeper.end(grace_s)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
    os._exit(0)
