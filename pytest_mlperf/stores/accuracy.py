"""Accuracy passes of earlier sessions, kept beside the runs: one file per fingerprint."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.measurement import Accuracy
from pytest_mlperf.stores import atomic


class AccuracyPasses:
    """A folder of accuracy passes, found again by their fingerprint."""

    def __init__(self, folder: Path) -> None:
        """Keep the folder; it is made at the first save."""
        self._folder = folder

    def save(self, key: str, accuracy: Accuracy) -> None:
        """Keep a pass.

        Raises:
            RunError: The folder cannot be written.
        """
        path = self._folder / f"{key}.json"
        content = dataclasses.asdict(accuracy)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic.write_text(path, json.dumps(content, indent=1) + "\n")
        except OSError as error:
            raise RunError("worker", f"cannot write {path}: {error.strerror}") from None

    def load(self, key: str) -> Accuracy | None:
        """Return a pass, or None where there is none that can be read."""
        try:
            found = json.loads((self._folder / f"{key}.json").read_text("utf-8"))
            return Accuracy(**{**found, "source": "stored"})
        except (OSError, ValueError, TypeError):
            return None
