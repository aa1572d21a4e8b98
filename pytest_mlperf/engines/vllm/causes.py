"""What vLLM's own processes said before they failed: its exceptions only point to the log."""

from __future__ import annotations

import os
import re
import stat

ERROR_STREAM = 2

CAUSE = re.compile(r"^.*\bERROR\b.*?\] *((?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception): .+)$", re.M)
"""A line of vLLM's log that ends a traceback."""

MOST = 1 << 20
"""Bytes of a log that are searched, from its start."""

SHOWN = 400
"""Characters of a cause that are shown."""


class Log:
    """What is written to this process's error output from now on, where that is a file."""

    def __init__(self) -> None:
        """Note where it begins."""
        self._begin = _size()

    def cause(self) -> str:
        """Return "; its process said: …" with the first error there, "" where there is none."""
        if self._begin is None:
            return ""
        try:
            with open(f"/proc/self/fd/{ERROR_STREAM}", "rb") as file:  # noqa: PTH123
                file.seek(self._begin)
                text = file.read(MOST).decode("utf-8", "replace")
        except OSError:
            return ""
        found = CAUSE.search(text)
        return f"; its process said: {found[1].strip()[:SHOWN]}" if found else ""


def _size() -> int | None:
    """Return the bytes written so far; None for a terminal or a pipe, which cannot be read."""
    try:
        about = os.fstat(ERROR_STREAM)
    except OSError:
        return None
    return about.st_size if stat.S_ISREG(about.st_mode) else None
