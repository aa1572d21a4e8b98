"""Store the artefacts of answers for the scorer, in an archive next to the accuracy log."""

from __future__ import annotations

import re
import threading
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_mlperf.core.errors import RunError

ARTEFACTS = "artefacts.zip"

NAME_PATTERN = re.compile("[a-z0-9][a-z0-9_.-]{0,63}")
"""Names of artefacts: lower case, so that they are distinct on every file system; no paths."""

MAX_SAMPLE_ARTEFACTS = 16
MAX_ARTEFACT_BYTES = 1 << 28
MAX_TOTAL_BYTES = 1 << 35


def artefact_fault(ids: Sequence[int], artefacts: Sequence[Mapping[str, bytes]]) -> str:
    """Return what is wrong with artefacts that an engine attaches to samples; "" if nothing."""
    if len(artefacts) != len(ids):
        return f"attach() was given {len(ids)} ids but {len(artefacts)} tables of artefacts"
    for sample, by_name in zip(ids, artefacts, strict=True):
        if problem := _fault_of(by_name):
            return f"attach() was given id {sample!r} with {problem}"
    return ""


def _fault_of(artefacts: object) -> str:
    if not isinstance(artefacts, Mapping):
        return f"a {type(artefacts).__name__}; it takes a dict of bytes by name"
    if len(artefacts) > MAX_SAMPLE_ARTEFACTS:
        return (
            f"{len(artefacts):,} artefacts; at most {MAX_SAMPLE_ARTEFACTS} are allowed: "
            "combine some into one"
        )
    for name, content in artefacts.items():
        if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
            return (
                f"an artefact named {name!r:.80}; a name is lower-case letters, digits, '_', '-' "
                "and '.', 64 at most, and begins with a letter or digit"
            )
        if type(content) is not bytes:
            return f"{name!r} with a {type(content).__name__!r} as content; it must be bytes"
        if len(content) > MAX_ARTEFACT_BYTES:
            return f"{name!r} of {len(content):,} bytes; {MAX_ARTEFACT_BYTES:,} at most are kept"
    return ""


class ArtefactWriter:
    """Write artefacts of samples to one zip archive, thread-safely; without any, create no file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._archive: zipfile.ZipFile | None = None
        self._written: set[int] = set()
        self._size = 0

    def add(self, index: int, artefacts: Mapping[str, bytes]) -> None:
        """Write a sample's artefacts once; RunError if they are too large or the disk is full."""
        with self._lock:
            if index in self._written:
                return
            self._written.add(index)
            self._size += sum(map(len, artefacts.values()))
            if self._size > MAX_TOTAL_BYTES:
                raise RunError(
                    "engine",
                    f"artefacts of this run have more than {MAX_TOTAL_BYTES:,} bytes at sample "
                    f"{index:,}: attach only what the scorer reads, or compress it",
                )
            try:
                if self._archive is None:
                    self._archive = zipfile.ZipFile(self._path, "w")
                for name, content in artefacts.items():
                    # Entries without a time stamp make archives of equal artefacts equal.
                    self._archive.writestr(zipfile.ZipInfo(f"{index}/{name}"), content)
            except OSError as error:
                raise _unwritten(self._path, error) from error

    def close(self) -> None:
        """Complete the archive."""
        with self._lock:
            if self._archive is not None:
                try:
                    self._archive.close()
                except OSError as error:
                    raise _unwritten(self._path, error) from error


def _unwritten(path: Path, error: OSError) -> RunError:
    return RunError("worker", f"cannot write artefacts to {path}: {error.strerror}")


class ArtefactArchive:
    """Read the artefacts of one run by data set index."""

    def __init__(self, path: Path) -> None:
        """Read the archive's index; a missing file counts as an archive without artefacts."""
        self._path = path
        self._archive: zipfile.ZipFile | None = None
        self.names: dict[int, tuple[str, ...]] = {}
        try:
            if path.exists():
                self._archive = zipfile.ZipFile(path)
                for entry in self._archive.infolist():
                    index, _, name = entry.filename.partition("/")
                    self.names[int(index)] = (*self.names.get(int(index), ()), name)
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise self._damaged(error) from error

    def read(self, index: int) -> dict[str, bytes]:
        """Return the artefacts of a sample by name."""
        if self._archive is None:
            return {}
        names = self.names.get(index, ())
        try:
            return {name: self._archive.read(f"{index}/{name}") for name in names}
        except (OSError, RuntimeError, zipfile.BadZipFile) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> RunError:
        return RunError("worker", f"{self._path} is damaged: {error}", str(self._path))
