"""The processes that vLLM starts for itself, and that nothing of them is left."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import time
from collections.abc import Collection
from multiprocessing import resource_tracker
from pathlib import Path

GRACE_S = 10.0
"""Time for processes to end by themselves, once vLLM was shut down."""


def below(root: int) -> set[int]:
    """Return the ids of all processes that descend from one and have not ended."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                # The name, in brackets, may have blanks and brackets of its own.
                rest = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2]
                state, parent = rest.split()[:2]
                if state != "Z":
                    children.setdefault(int(parent), []).append(int(entry.name))
    found: set[int] = set()
    waiting = [root]
    while waiting:
        new = children.get(waiting.pop(), [])
        found.update(new)
        waiting += new
    return found


class Started:
    """Processes that are started below this one from now on."""

    def __init__(self) -> None:
        """Note those that are there already."""
        self._before = below(os.getpid())

    def now(self) -> set[int]:
        """Return the ids of those that run; Python's own helper for shared memory is left out."""
        # It ends by itself with this process, and complains when it is ended before.
        helper = getattr(getattr(resource_tracker, "_resource_tracker", None), "_pid", None)
        return below(os.getpid()) - self._before - {helper}

    def end(self, grace_s: float = GRACE_S) -> Collection[int]:
        """Wait for them to end, and kill those that do not.

        Returns:
            The ids of those that had to be killed.
        """
        left = {pid: handle for pid in self.now() if (handle := _handle(pid)) is not None}
        _wait(left, grace_s)
        killed = set(left)
        for handle in left.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        _wait(left, grace_s)
        for handle in left.values():
            os.close(handle)
        multiprocessing.active_children()  # takes the exit codes of those that it started
        return killed


def _handle(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _wait(left: dict[int, int], limit_s: float) -> None:
    """Take out of `left` (handle by id) what ends within a time."""
    until_s = time.monotonic() + limit_s
    watched = select.poll()
    ids = {handle: pid for pid, handle in left.items()}
    for handle in ids:
        watched.register(handle, select.POLLIN)
    while left and (rest_s := until_s - time.monotonic()) > 0:
        for handle, _ in watched.poll(rest_s * 1000):
            watched.unregister(handle)
            os.close(handle)
            del left[ids[handle]]
