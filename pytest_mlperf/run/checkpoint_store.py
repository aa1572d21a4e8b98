"""The folder of built checkpoints: whole or absent, whoever looks, whenever a builder was killed.

Below it, <key>/model/ is what engines load, and <key>/provenance.json says what it was made of and
by what; <key>.lock is held and .<key>.<random>.tmp/ is there while it is made.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.run.folders import ignored_in_git
from pytest_mlperf.stores import atomic

SCHEMA = 1
"""Version of provenance.json, and of what decides a key."""

SHARED = "PYTEST_MLPERF_BUILDS"
"""Variable that names a folder of builds which several projects or machines share."""

POLL_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Built:
    """A checkpoint that is there.

    Attributes:
        folder: What engines load.
        provenance: What it was made of.
    """

    folder: Path
    provenance: Mapping[str, Any]


@dataclass(frozen=True)
class CheckpointStore:
    """Built checkpoints by key."""

    folder: Path

    def find(self, key: str) -> Built | None:
        """Return a checkpoint that is complete; None where it was never made, or is damaged."""
        place = self.folder / key
        try:
            provenance = json.loads((place / "provenance.json").read_text("utf-8"))
            sizes: Mapping[str, int] = provenance["files"]
            whole = all((place / "model" / n).stat().st_size == size for n, size in sizes.items())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        if not whole or provenance.get("schema") != SCHEMA:
            return None
        return Built(folder=(place / "model").resolve(), provenance=provenance)

    @contextlib.contextmanager
    def alone(self, key: str, *, limit_s: float, waiting: Callable[[str], None]) -> Iterator[None]:
        """Hold the right to make a checkpoint.

        Args:
            key: Which one.
            limit_s: Longest wait for another process that makes it.
            waiting: Called again and again meanwhile.

        Raises:
            RunError: The wait exceeded the limit, or the folder cannot be written.
        """
        with _writable(self.folder):
            self._make()
            lock = self._lock(key)
        deadline = time.monotonic() + limit_s
        while True:
            try:
                with _writable(self.folder):
                    lock.acquire(timeout=POLL_S, poll_interval=POLL_S / 4)
                break
            except Timeout:
                waiting("waiting for another process that builds the same checkpoint")
                if time.monotonic() > deadline:
                    raise RunError(
                        "build",
                        f"waited {limit_s:.0f} s for another process that builds the same "
                        f"checkpoint ({lock.lock_file}); end that process, or raise "
                        "mlperf_lease_timeout",
                    ) from None
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def making(self, key: str) -> Iterator[Path]:
        """Yield an empty folder to write into; it vanishes unless `publish` took it.

        Call it while `alone`. What killed builders left is removed.

        Raises:
            RunError: The folder cannot be written.
        """
        with _writable(self.folder):
            self._sweep(own=key)
            temporary = self.folder / f".{key}.{secrets.token_hex(4)}.tmp"
            (temporary / "model").mkdir(parents=True)
        try:
            yield temporary / "model"
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def publish(self, key: str, model: Path, provenance: Mapping[str, Any]) -> Built:
        """Put what was made into its place, safely on the disk before it can be seen.

        Args:
            key: Which one.
            model: The folder that `making` gave, filled.
            provenance: What it was made of; the sizes of its files are added.

        Raises:
            RunError: The disk is full, or the folder cannot be written.
        """
        files = sorted(path for path in model.rglob("*") if path.is_file())
        sizes = {str(path.relative_to(model)): path.stat().st_size for path in files}
        whole = {"schema": SCHEMA, "key": key, **provenance, "files": sizes}
        place = self.folder / key
        with _writable(self.folder):
            for path in files:
                _settle(path)
            atomic.write_text(
                model.parent / "provenance.json", json.dumps(whole, indent=1, sort_keys=True)
            )
            for folder in (*filter(Path.is_dir, model.rglob("*")), model, model.parent):
                atomic.sync_folder(folder)
            # Something is there only when it was damaged, which `find` has told.
            shutil.rmtree(place, ignore_errors=True)
            model.parent.rename(place)
            atomic.sync_folder(self.folder)
        return Built(folder=(place / "model").resolve(), provenance=whole)

    def _make(self) -> None:
        if os.environ.get(SHARED):
            self.folder.mkdir(parents=True, exist_ok=True)
        else:
            ignored_in_git(self.folder)

    def _lock(self, key: str) -> FileLock:
        return FileLock(self.folder / f"{key}.lock", mode=0o666)

    def _sweep(self, *, own: str) -> None:
        """Remove what builders left that nobody is working on any more."""
        for left in self.folder.glob(".*.tmp"):
            key = left.name.split(".")[1]
            if key == own:
                shutil.rmtree(left, ignore_errors=True)
                continue
            with contextlib.suppress(Timeout, OSError), self._lock(key).acquire(timeout=0):
                shutil.rmtree(left, ignore_errors=True)


def _settle(path: Path) -> None:
    """Let others read a file, and wait until it is on the disk.

    Libraries write weights for their own user alone, and a folder of builds may be shared.
    """
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def _writable(folder: Path) -> Iterator[None]:
    try:
        yield
    except Timeout:  # which is an OSError, and none of these
        raise
    except NotImplementedError:  # of filelock, where there is no flock
        raise RunError(
            "build",
            f"{folder}: its file system has no locks, and two sessions would build at once; set "
            f"{SHARED} to a folder on another one",
        ) from None
    except OSError as error:
        raise RunError(
            "build", f"{error.filename or folder} cannot be written: {error.strerror}"
        ) from None
