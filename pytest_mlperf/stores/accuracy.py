"""Store accuracy passes between sessions, one file per fingerprint."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from pytest_mlperf.core.case import path_part
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.measurement import Accuracy, Scored, Subject
from pytest_mlperf.judge.inputs import Leverage
from pytest_mlperf.stores import atomic


class AccuracyPasses:
    """Store accuracy passes in a folder by fingerprint; `save` creates the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(
        self, key: str, accuracy: Accuracy, scored: Scored, subject: Subject | None = None
    ) -> None:
        """Write a pass with its scores; raise RunError if the folder cannot be written."""
        path = self._file(key)
        content = {
            "accuracy": dataclasses.asdict(accuracy),
            "scored": {
                "indices": scored.indices,
                "per_sample": dict(scored.per_sample),
                "outputs": scored.outputs,
                "groups": scored.groups,
                "leverage": {name: dataclasses.asdict(of) for name, of in scored.leverage.items()},
            },
            "subject": dataclasses.asdict(subject) if subject else None,
        }
        try:
            atomic.write_text(path, json.dumps(content) + "\n")
        except OSError as error:
            raise RunError("worker", f"cannot write {path}: {error.strerror}") from None

    def load(self, key: str) -> tuple[Accuracy, Scored] | None:
        """Return the pass of a fingerprint, or None if no readable one is stored."""
        stored = self.load_with_subject(key)
        return stored[:2] if stored else None

    def load_with_subject(self, key: str) -> tuple[Accuracy, Scored, Subject | None] | None:
        """Return the pass of a fingerprint with the measured system, if it was saved."""
        try:
            document = json.loads(self._file(key).read_text("utf-8"))
            subject = document.get("subject")
            kept = document["accuracy"]
            names = {name: tuple(kept.get(name, ())) for name in ("lower", "whole")}
            accuracy = Accuracy(**{**kept, **names, "source": "stored"})
            return accuracy, _scored(document["scored"]), Subject(**subject) if subject else None
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None

    def _file(self, key: str) -> Path:
        return self._folder / f"{path_part('fingerprint', key)}.json"


def _scored(kept: dict[str, Any]) -> Scored:
    indices = tuple(kept["indices"])
    per_sample = {name: list(values) for name, values in kept["per_sample"].items()}
    outputs, groups = kept.get("outputs"), kept.get("groups")  # older releases kept none
    return Scored(
        indices=indices,
        per_sample=per_sample,
        groups=None if groups is None else tuple(groups),
        leverage={name: Leverage(**own) for name, own in kept.get("leverage", {}).items()},
        outputs=None if outputs is None else tuple(outputs),
    )
