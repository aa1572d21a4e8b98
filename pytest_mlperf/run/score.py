"""Score an accuracy pass in a process of its own: `python -m pytest_mlperf.run.score SPEC`.

A scorer's library may be large, crash or hang; nothing of it reaches the pytest process.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar, overload

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Dataset, Scorer, Scores
from pytest_mlperf.registry import resolve
from pytest_mlperf.run.accuracy_log import AccuracyLog
from pytest_mlperf.run.guard import guard_group
from pytest_mlperf.run.reporter import Reporter, leave
from pytest_mlperf.run.samples import as_dataset, require_same
from pytest_mlperf.stores import atomic

PROGRESS_S = 0.5
"""Shortest time between two events of progress."""

T = TypeVar("T")


class Progress:
    """Tells the parent that outputs and references are being read, not too often."""

    def __init__(self, reporter: Reporter, total: int) -> None:
        """Begin with nothing read of so many."""
        self._reporter = reporter
        self._total = total
        self._read = 0
        self._due_s = 0.0

    def tell(self) -> None:
        """Tell how far it is, unless that was told a moment ago."""
        if (now_s := time.monotonic()) >= self._due_s:
            self._due_s = now_s + PROGRESS_S
            what = "outputs and references read"
            self._reporter.event("progress", done=self._read, total=self._total, what=what)

    def watched(self, read: Callable[[int], T]) -> Callable[[int], T]:
        """Return what reads an item and tells it."""

        def watching(index: int) -> T:
            item = read(index)
            self._read += 1
            self.tell()
            return item

        return watching


class Lazy(Sequence[T]):
    """Outputs or references, read when they are asked for: volumes and images fill no memory."""

    def __init__(self, indices: Sequence[int], read: Callable[[int], T]) -> None:
        """Keep the data set indices and what gives the item of one."""
        self._indices = indices
        self._read = read

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._indices)

    @overload
    def __getitem__(self, position: int) -> T: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[T]: ...
    def __getitem__(self, position: int | slice) -> T | Sequence[T]:
        """Read one item, or return a part of the sequence."""
        if isinstance(position, slice):
            return Lazy(self._indices[position], self._read)
        return self._read(self._indices[position])


def build(factory: Mapping[str, Any], **given: Any) -> Any:
    """Call the factory that a spec names."""
    return resolve(str(factory["target"]))(**given, **factory["options"])


def main(file: str) -> NoReturn:
    """Score what a spec asks for; events leave on stdout, and what scorers print goes to stderr."""
    descriptor = os.dup(1)
    os.dup2(2, 1)
    guard_group()
    reporter = Reporter(descriptor)
    with reporter.blaming("scorer"):
        spec_file = Path(file)
        spec = json.loads(spec_file.read_text("utf-8"))
        sys.path += [entry for entry in spec["import_path"] if entry not in sys.path]
        atomic.write_text(spec_file.with_name("scores.json"), json.dumps(score(spec, reporter)))
        reporter.event("done")
    leave(0)


def score(spec: Mapping[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Read the blocks' logs and score them together.

    Raises:
        RunError: A sample was answered twice or not at all, or is none of those that were asked;
            or the data set has another length here.
    """
    dataset: Dataset = as_dataset(build(spec["dataset"]))
    require_same(dataset, spec["samples"])
    scorer: Scorer = build(spec["scorer"], model=spec["model"])
    outputs = answers(spec["blocks"])
    indices = sorted(outputs)
    progress = Progress(reporter, 2 * len(indices))

    def output(index: int) -> bytes:
        log, position = outputs[index]
        return log[position]

    progress.tell()
    scores = scorer.score(
        Lazy(indices, progress.watched(output)),
        Lazy(indices, progress.watched(dataset.reference)),
    )
    check(scores, indices)
    return {
        "aggregate": {name: float(value) for name, value in scores.aggregate.items()},
        "indices": indices,
        "lower": sorted(scores.lower),
        "whole": sorted(scores.whole),
        "per_sample": {
            name: [None if value is None else float(value) for value in values]
            for name, values in scores.per_sample.items()
        },
    }


def answers(
    blocks: Sequence[Mapping[str, Any]],
) -> dict[int, tuple[AccuracyLog, int]]:
    """Return where the answer of each sample is: by data set index the log and LoadGen's index.

    Args:
        blocks: Each with its `log`, and with `indices`: data set indices by LoadGen's index.

    Raises:
        RunError: A sample was answered twice or not at all, or is none of those that were asked.
    """
    found: dict[int, tuple[AccuracyLog, int]] = {}
    asked: set[int] = set()
    for block in blocks:
        indices, path = block["indices"], str(block["log"])
        asked.update(indices)
        log = AccuracyLog(Path(path))
        for position in log:
            if position >= len(indices):
                count = f"{len(indices):,} samples, 0 to {len(indices) - 1:,}"
                what = f"{path} is damaged: it answers sample {position:,} of a run of {count}"
                raise RunError("loadgen", what, path)
            index = indices[position]
            if index in found:
                raise RunError("loadgen", f"{path}: sample {index:,} was answered twice", path)
            found[index] = log, position
    if missing := sorted(asked - found.keys()):
        first = ", ".join(map(str, missing[:5]))
        raise RunError("loadgen", f"{len(missing):,} samples were not answered, first: {first}")
    return found


def check(scores: Scores, indices: Sequence[int]) -> None:
    """Refuse scores that are no numbers, or not one for each sample.

    Raises:
        RunError: Names the metric and the sample.
    """
    for name, values in scores.per_sample.items():
        if len(values) != len(indices):
            given = f"{len(values)} of {name} for {len(indices)} samples"
            raise RunError("scorer", f"the scorer gave {given}")
        for index, value in zip(indices, values, strict=True):
            if value is not None and not math.isfinite(value):
                raise RunError("scorer", f"the scorer gave {value!r} as {name} of sample {index}")
    for name, value in scores.aggregate.items():
        if not math.isfinite(value):
            raise RunError("scorer", f"the scorer gave {value!r} as {name} of the data set")


if __name__ == "__main__":
    main(sys.argv[1])
