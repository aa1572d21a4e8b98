"""Tie the life of a small child process to that of its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""Linux: the signal this process gets when the thread that started it ends."""


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends; end at once if it already has.

    Args:
        parent: Process id of the parent that is meant, as it knows it itself.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
