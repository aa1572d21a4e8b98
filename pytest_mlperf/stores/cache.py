"""Cache texts that are slow to compute and never change, per user."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from pytest_mlperf.stores import atomic


def cache_folder() -> Path:
    """Return this package's folder in the user's cache, which may not exist."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(configured) if Path(configured).is_absolute() else Path("~/.cache").expanduser()
    return base / "pytest-mlperf"


def kept_text(name: str, make: Callable[[], str]) -> str:
    """Return a cached text; compute it with `make` if it is not cached."""
    try:
        path = cache_folder() / name
        if text := path.read_text("utf-8"):
            return text
    except (OSError, RuntimeError, ValueError):  # not there, no home, no text
        pass
    text = make()
    with contextlib.suppress(OSError, RuntimeError):
        atomic.write_text(cache_folder() / name, text)
    return text
