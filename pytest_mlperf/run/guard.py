"""A second process that ends the worker's process group when the worker or its parent is gone."""

from __future__ import annotations

import contextlib
import os
import select
import signal

GRACE_S = 2.0
"""Time for a worker to end in order once its parent has let go of it."""


def guard_group() -> int:
    """Fork the guard, and take stdin away from whatever else runs here.

    Call this before any thread is started.

    It is a process of its own because a worker that hangs in a library, or was killed, cannot
    clean up the servers that its engine started. The guard sleeps until the writing end of the
    worker's stdin closes (the parent let go, or is gone) or the worker ends, then kills what is
    left of the group. An engine, or a process that it starts, that read stdin would wait for the
    parent's next command, or take it: it reads the end of a file instead.

    Returns:
        The descriptor of what was stdin: the parent's commands, and its end when it lets go.
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
    # An open copy of the events pipe or of a log would hide from the parent that the worker ended.
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A terminal or a service manager may end the group politely: the guard goes last.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hang_up, worker_end = select.poll(), select.poll()
    hang_up.register(0, 0)  # no events asked for: what is left is the hang-up
    with contextlib.suppress(OSError):  # without pidfd the parent's closing of the pipe must do
        descriptor = os.pidfd_open(worker)
        hang_up.register(descriptor, select.POLLIN)
        worker_end.register(descriptor, select.POLLIN)
    if os.getppid() == worker:
        hang_up.poll()
        # An engine may need its __exit__ to stop what does not belong to this process group.
        worker_end.poll(GRACE_S * 1000)
    os.killpg(0, signal.SIGKILL)
