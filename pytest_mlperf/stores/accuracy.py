"""Store accuracy passes between sessions, one file per fingerprint."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from pytest_mlperf.core.case import path_part
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.measurement import Accuracy, Scored, Subject
from pytest_mlperf.stores import atomic


@dataclass(frozen=True, kw_only=True)
class StoredPass:
    """Hold an accuracy pass with its scores, and the measured system (None if not stored)."""

    accuracy: Accuracy
    scored: Scored
    subject: Subject | None = None


_PASS = TypeAdapter(StoredPass)


class AccuracyPasses:
    """Store accuracy passes in a folder by fingerprint; `save` creates the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(
        self, key: str, accuracy: Accuracy, scored: Scored, subject: Subject | None = None
    ) -> None:
        """Store an accuracy pass under its cache `key`; raise RunError if it cannot be written."""
        path = self._file(key)
        stored = StoredPass(accuracy=accuracy, scored=scored, subject=subject)
        try:
            atomic.write_text(path, _PASS.dump_json(stored).decode() + "\n")
        except OSError as error:
            raise RunError("worker", f"cannot write {path}: {error.strerror}") from None

    def load(self, key: str) -> StoredPass | None:
        """Return the pass of a fingerprint, or None if no readable one is stored."""
        try:
            stored = _PASS.validate_json(self._file(key).read_bytes())
        except (OSError, ValueError):
            return None
        return replace(stored, accuracy=replace(stored.accuracy, source="stored"))

    def _file(self, key: str) -> Path:
        return self._folder / f"{path_part('fingerprint', key)}.json"
