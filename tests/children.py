"""Children of tests: none outlives its test. Scripts that this Python runs."""

from __future__ import annotations

import os
import select
import shlex
import sys

LIMIT_S = 60.0
"""Longest wait for what happens at once on a quiet machine."""


PYTHON = shlex.quote(sys.executable)
"""This Python as a word of a shell's script: its path may hold blanks."""


def shebang(options: str = "-IS") -> str:
    """Return the first lines of a script for this Python; a path on a #! line has no blanks."""
    return f"#!/bin/sh\n'''exec' {PYTHON} {options} \"$0\" \"$@\"\n' '''"


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
