"""Children of tests: none outlives its test."""

from __future__ import annotations

import os
import select

LIMIT_S = 60.0
"""Longest wait for what happens at once on a quiet machine."""


def is_gone(process: int) -> bool:
    """Wait until a process has ended."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], LIMIT_S)[0])
    finally:
        os.close(descriptor)
