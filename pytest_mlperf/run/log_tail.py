"""Show what a child printed, so that none of it can pose as ours."""

from __future__ import annotations

from pathlib import Path

from pytest_mlperf.core.foreign_text import broken

LOG_TAIL_LINES = 16


def log_tail(path: str | None, lines: int = LOG_TAIL_LINES) -> list[str]:
    """Return the last non-empty lines of a log, control characters escaped; [] when unreadable."""
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
