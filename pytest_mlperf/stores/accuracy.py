"""Accuracy passes of earlier sessions, kept beside the runs: one file per fingerprint."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from pytest_mlperf.core.case import path_part
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.measurement import Accuracy, Scored
from pytest_mlperf.core.outputs import ScoredOutputs, outputs_of
from pytest_mlperf.stores import atomic


class AccuracyPasses:
    """A folder of accuracy passes, found again by their fingerprint."""

    def __init__(self, folder: Path) -> None:
        """Keep the folder; it is made at the first save."""
        self._folder = folder

    def save(self, key: str, accuracy: Accuracy, scored: Scored) -> None:
        """Keep a pass with its scores.

        Raises:
            RunError: The folder cannot be written.
        """
        path = self._file(key)
        content = {
            "accuracy": dataclasses.asdict(accuracy),
            "scored": {
                "indices": scored.indices,
                "per_sample": dict(scored.per_sample),
                "outputs": outputs_of(scored),
            },
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic.write_text(path, json.dumps(content) + "\n")
        except OSError as error:
            raise RunError("worker", f"cannot write {path}: {error.strerror}") from None

    def load(self, key: str) -> tuple[Accuracy, Scored] | None:
        """Return a pass, or None where there is none that can be read."""
        try:
            found = json.loads(self._file(key).read_text("utf-8"))
            return _accuracy(found["accuracy"]), _scored(found["scored"])
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None

    def _file(self, key: str) -> Path:
        return self._folder / f"{path_part('fingerprint', key)}.json"


def _scored(kept: dict[str, Any]) -> Scored:
    indices = tuple(kept["indices"])
    per_sample = {name: list(values) for name, values in kept["per_sample"].items()}
    outputs = kept.get("outputs")  # older releases kept none
    if outputs is None:
        return Scored(indices=indices, per_sample=per_sample)
    return ScoredOutputs(indices=indices, per_sample=per_sample, outputs=tuple(outputs))


def _accuracy(kept: dict[str, Any]) -> Accuracy:
    names = {name: tuple(kept.get(name, ())) for name in ("lower", "whole")}
    return Accuracy(**{**kept, **names, "source": "stored"})
