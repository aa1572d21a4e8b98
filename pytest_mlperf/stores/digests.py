"""Compute digests of files, and cache those of large files per user."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pytest_mlperf.stores import atomic

WORTH_BYTES = 1 << 30
"""Size from which a digest is cached: reading it takes a second or more."""


SETTLED_SECONDS = 2.0
"""A file that changed more recently may change again with the same time stamp."""


HASHED: set[Path] = set()
"""Files that `sha256` read in this process: engines report these digests themselves."""


LOG_PERIOD_SECONDS = 10.0


def cache_folder() -> Path:
    """Return this package's folder in the user's cache; it may not exist."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(configured) if Path(configured).is_absolute() else Path("~/.cache").expanduser()
    return base / "pytest-mlperf"


def sha256(files: Sequence[Path]) -> str:
    """Return the hex SHA-256 of the concatenated files.

    Digests of large files are cached by path, device, inode, size and times, to save minutes in
    each run's process. Recently changed files are not cached, because a further change may leave
    their size and times the same.
    """
    HASHED.update(path.resolve() for path in files)
    looks = _looks(files)
    if sum(look[3] for look in looks) < WORTH_BYTES:
        return _hashed(files)
    try:
        folder = cache_folder()
    except RuntimeError:  # a user without a home, as in some containers
        return _hashed(files)
    cache_file = folder / "sha256" / hashlib.sha256(repr(looks).encode()).hexdigest()
    with contextlib.suppress(OSError, ValueError):
        stored = cache_file.read_text("ascii").strip()
        if re.fullmatch("[0-9a-f]{64}", stored):
            return stored
    began_s = time.time()
    digest = _hashed(files)
    settled = began_s - max(look[-1] for look in looks) / 1e9 > SETTLED_SECONDS
    if settled and _looks(files) == looks:
        with contextlib.suppress(OSError):
            atomic.write_text(cache_file, f"{digest}\n")
    return digest


def _hashed(files: Sequence[Path]) -> str:
    digest, logged_s, done = hashlib.sha256(), time.monotonic(), 0
    for path in files:
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
                done += len(block)
                # A growing log shows that the process does not hang.
                if time.monotonic() - logged_s > LOG_PERIOD_SECONDS:
                    logged_s = time.monotonic()
                    print(f"weights: {done / 1e9:,.0f} GB hashed", file=sys.stderr, flush=True)
    return digest.hexdigest()


def _looks(files: Sequence[Path]) -> list[tuple[str, int, int, int, int, int]]:
    states = [(path.resolve(), path.stat()) for path in files]
    return [
        (str(place), s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns)
        for place, s in states
    ]
