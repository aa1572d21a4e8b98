"""What a checkpoint is built from: the content of a model's folder, and a memory of it.

Weights may take minutes to read. Their digest is remembered beside the files' sizes and times, as
git remembers what it has hashed: a file of the same place, size and times has the same content.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.stores import atomic

SUFFIXES = frozenset({".safetensors", ".json", ".model", ".txt", ".jinja", ".tiktoken"})
"""Files of a model's folder that a builder may read, and that may be loaded beside its result."""

WEIGHTS = ".safetensors"

BLOCK = 1 << 22

SETTLED_S = 2.0
"""A file that changed this short a time ago may change again without another time stamp."""

MOST = 10_000
"""Files of calibration data that are looked at; what has more is read anew each time."""


def model_files(folder: Path) -> list[Path]:
    """Return the files of a model, by name.

    Raises:
        RunError: There are no weights that a builder takes.
    """
    files = sorted(p for p in folder.glob("*") if p.suffix in SUFFIXES and p.is_file())
    if not any(path.suffix == WEIGHTS for path in files):
        raise RunError(
            "build",
            f"{folder}: has no safetensors files to quantise; files that can carry code (.bin) are "
            "not read",
        )
    return files


def digests(files: Sequence[Path], show: Callable[[str], None]) -> dict[str, str]:
    """Return the hex SHA-256 of each file by its name.

    Args:
        files: What to read.
        show: Takes a line of progress, many times.

    Raises:
        RunError: A file cannot be read.
    """
    total, done, told = sum(path.stat().st_size for path in files), 0, time.monotonic()
    found: dict[str, str] = {}
    for path in files:
        digest = hashlib.sha256()
        try:
            with path.open("rb") as file:
                while block := file.read(BLOCK):
                    digest.update(block)
                    done += len(block)
                    if time.monotonic() - told > 1:
                        told = time.monotonic()
                        show(f"reading the model, {done / 1e9:.1f} of {total / 1e9:.1f} GB")
        except OSError as error:
            raise RunError("build", f"{path} cannot be read: {error.strerror}") from None
        found[path.name] = digest.hexdigest()
    return found


def hash_of(value: Any) -> str:
    """Return the hex SHA-256 of a JSON value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


# --- memory ----------------------------------------------------------------------------------


class Memory:
    """Which build an unchanged set of files had, kept in the folder of builds."""

    def __init__(
        self, builds: Path | None, about: Mapping[str, Any], files: Sequence[Path]
    ) -> None:
        """Look at the files; they are not read.

        Args:
            builds: The folder of builds; None: nothing is remembered.
            about: All that decides a build beside the content of files.
            files: The model's, and files and folders of calibration data.
        """
        self._file: Path | None = None
        looked = list(_looks(files))
        newest = max((look[-1] for look in looked), default=0)
        self._settled = time.time() - newest / 1e9 > SETTLED_S
        if builds is not None and len(looked) <= MOST:
            self._file = builds / ".known" / hash_of([about, looked])

    def recall(self) -> str | None:
        """Return the key of the build, or None."""
        if self._file is None:
            return None
        try:
            return self._file.read_text("utf-8").strip() or None
        except OSError:
            return None

    def keep(self, key: str) -> None:
        """Remember the key of the build."""
        if self._file is not None and self._settled:
            with contextlib.suppress(OSError):
                atomic.write_text(self._file, f"{key}\n")


def _looks(files: Sequence[Path]) -> Iterator[tuple[str, int, int, int, int, int]]:
    """Yield place, device, number, size and times of every file, also of those in folders."""
    for path in files:
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in inside[: MOST + 1]:
            with contextlib.suppress(OSError):
                s = file.stat()
                yield str(file), s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns
