"""Score an accuracy pass in a process of its own: `python -m pytest_mlperf.run.score SPEC PARENT`.

A scorer's library may be large or crash; neither reaches the pytest process.
"""

from __future__ import annotations

import json
import math
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

from pytest_mlperf.core.errors import MlperfError, RunError
from pytest_mlperf.core.extension import Dataset, Scorer, Scores
from pytest_mlperf.registry import resolve
from pytest_mlperf.run.accuracy_log import AccuracyLog
from pytest_mlperf.run.lifeline import die_with_parent
from pytest_mlperf.run.samples import as_dataset
from pytest_mlperf.stores import atomic

T = TypeVar("T")

DESIGNED = 65
"""Exit code after an error of our own, which is a sentence for the user (EX_DATAERR)."""

TROUBLE = "score-error.txt"
"""Beside the spec: what the parent says about a scorer that failed."""


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


def main(spec_file: Path) -> None:
    """Read the blocks' logs, score them together, write scores.json beside the spec.

    Raises:
        RunError: A sample was answered twice or not at all, or is none of those that were asked.
    """
    spec = json.loads(spec_file.read_text("utf-8"))
    sys.path += [entry for entry in spec["import_path"] if entry not in sys.path]
    dataset: Dataset = as_dataset(build(spec["dataset"]))
    scorer: Scorer = build(spec["scorer"], model=spec["model"])
    outputs = answers(spec["blocks"])
    indices = sorted(outputs)
    scores = scorer.score(
        Lazy(indices, lambda index: outputs[index][0][outputs[index][1]]),
        Lazy(indices, dataset.reference),
    )
    check(scores, indices)
    found = {
        "aggregate": dict(scores.aggregate),
        "indices": indices,
        "lower": sorted(scores.lower),
        "whole": sorted(scores.whole),
        "per_sample": {name: list(values) for name, values in scores.per_sample.items()},
    }
    atomic.write_text(spec_file.with_name("scores.json"), json.dumps(found))


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
        ValueError: Names the metric and the sample.
    """
    for name, values in scores.per_sample.items():
        if len(values) != len(indices):
            raise ValueError(f"the scorer gave {len(values)} of {name} for {len(indices)} samples")
        for index, value in zip(indices, values, strict=True):
            if value is not None and not math.isfinite(value):
                raise ValueError(f"the scorer gave {value!r} as {name} of sample {index}")
    for name, value in scores.aggregate.items():
        if not math.isfinite(value):
            raise ValueError(f"the scorer gave {value!r} as {name} of the data set")


if __name__ == "__main__":
    die_with_parent(int(sys.argv[2]))
    try:
        main(Path(sys.argv[1]))
    except Exception as error:
        # An error for users is its own sentence; any other needs its kind to be understood.
        ours = isinstance(error, MlperfError)
        told = str(error) if ours else f"{type(error).__name__}: {error}"
        atomic.write_text(Path(sys.argv[1]).with_name(TROUBLE), told)
        if ours:
            traceback.print_exc()
            sys.exit(DESIGNED)
        raise
