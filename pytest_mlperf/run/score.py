"""Score an accuracy pass in its own process: `python -m pytest_mlperf.run.score SPEC`.

A scorer's library may be large, crash or hang; the pytest process does not load it.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast, overload

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Dataset, Scorer, Scores
from pytest_mlperf.core.measurement import digest
from pytest_mlperf.core.metrics import OUTPUT_TOKENS
from pytest_mlperf.registry import imported
from pytest_mlperf.run.answers import AccuracyLog, token_counts
from pytest_mlperf.run.child.protocol import import_as_parent
from pytest_mlperf.run.child.reporter import Reporter, guard_group, leave
from pytest_mlperf.run.worker.samples import as_dataset, groups_of, require_same_length
from pytest_mlperf.stores import atomic
from pytest_mlperf.stores.artefacts import ARTEFACTS, ArtefactArchive

PROGRESS_SECONDS = 0.5

T = TypeVar("T")


class Progress:
    """Report at intervals how many outputs and references were read."""

    def __init__(self, reporter: Reporter, total: int) -> None:
        self._reporter = reporter
        self._total = total
        self._read = 0
        self._due_s = 0.0

    def tell(self) -> None:
        """Report the number of items read so far, at most every `PROGRESS_SECONDS`."""
        if (now_s := time.monotonic()) >= self._due_s:
            self._due_s = now_s + PROGRESS_SECONDS
            unit = "outputs and references read"
            self._reporter.event("progress", done=self._read, total=self._total, what=unit)

    def watched(self, read: Callable[[int], T]) -> Callable[[int], T]:
        """Wrap `read`, which returns an item by index, so that each call counts as progress."""

        def watching(index: int) -> T:
            item = read(index)
            self._read += 1
            self.tell()
            return item

        return watching


class LazySequence(Sequence[T]):
    """Provide a sequence whose items are read on access, as all together may exceed memory."""

    def __init__(self, indices: Sequence[int], read: Callable[[int], T]) -> None:
        self._indices = indices
        self._read = read

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, position: int) -> T: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[T]: ...
    def __getitem__(self, position: int | slice) -> T | Sequence[T]:
        if isinstance(position, slice):
            return LazySequence(self._indices[position], self._read)
        return self._read(self._indices[position])


def hashed(read: Callable[[int], bytes], digests: dict[int, int]) -> Callable[[int], bytes]:
    """Wrap `read` to add the digest of each output to `digests`, by index, on its first read."""

    def reading(index: int) -> bytes:
        output = read(index)
        if index not in digests:
            digests[index] = digest(output)
        return output

    return reading


def build(noun: str, factory: Mapping[str, Any], **arguments: Any) -> Any:
    """Create a data set or scorer from "target" and "options"; `noun` names it in errors."""
    options = factory["options"]
    return imported(noun, factory["target"], options)(**arguments, **options)


def main(file: str) -> NoReturn:
    """Score the task of a spec file; send events to stdout, and the scorer's output to stderr."""
    descriptor = os.dup(1)
    os.dup2(2, 1)
    guard_group()
    reporter = Reporter(descriptor)
    with reporter.blaming("scorer"):
        spec_file = Path(file)
        spec = json.loads(spec_file.read_text("utf-8"))
        import_as_parent(spec["import_path"])
        atomic.write_text(spec_file.with_name("scores.json"), json.dumps(score(spec, reporter)))
        reporter.event("done")
    leave(0)


def score(spec: Mapping[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Score the accuracy logs of all blocks together; return the content of the result event."""
    dataset: Dataset = as_dataset(build("dataset", spec["dataset"]))
    require_same_length(dataset, spec["samples"])
    scorer: Scorer = build("scorer", spec["scorer"], model=spec["model"])
    places = answers(spec["blocks"])
    indices = sorted(places)
    needed = tuple(getattr(scorer, "artefacts", ()))
    attached = artefacts(spec["blocks"], indices, needed)
    progress = Progress(reporter, (2 + bool(needed)) * len(indices))

    def output(index: int) -> bytes:
        log, position = places[index]
        return log[position]

    progress.tell()
    by_index = dict[int, int]()
    read = hashed(progress.watched(output), by_index)
    outputs = LazySequence(indices, read)
    artefact_lists = [LazySequence(indices, progress.watched(attached))] if needed else []
    references = LazySequence(indices, progress.watched(dataset.reference))
    scores = cast("Any", scorer).score(outputs, references, *artefact_lists)
    check(scores, indices)
    for index in (index for index in indices if index not in by_index):
        read(index)  # the scorer did not read it
    digests = [by_index[index] for index in indices]
    if needed:  # the score depends on artefacts too
        digests = [
            digest(b"%d" % own + b"".join(attached(index)[name] for name in needed))
            for own, index in zip(digests, indices, strict=True)
        ]
    per_sample, counts = dict(scores.per_sample), dict[int, list[int]]()
    for block in spec["blocks"]:
        counts |= token_counts(Path(str(block["log"])).parent)
    if counts:  # the first answer to a sample counts
        per_sample[OUTPUT_TOKENS] = [counts.get(index, [None])[0] for index in indices]
    return {
        "aggregate": {name: float(value) for name, value in scores.aggregate.items()},
        "chance": {name: float(value) for name, value in scores.chance.items()},
        "groups": groups_of(dataset, indices),
        "indices": indices,
        "leverage": {name: asdict(own) for name, own in scores.leverage.items()},
        "lower": sorted(scores.lower),
        "outputs": digests,
        "whole": sorted(scores.whole),
        "per_sample": {
            name: [None if value is None else float(value) for value in values]
            for name, values in per_sample.items()
        },
    }


def answers(blocks: Sequence[Mapping[str, Any]]) -> dict[int, tuple[AccuracyLog, int]]:
    """Return each sample's log and LoadGen index, by data set index.

    Each block has the path of its `log`, and in `indices` the data set index of each LoadGen index.
    """
    places: dict[int, tuple[AccuracyLog, int]] = {}
    expected_indices: set[int] = set()
    for block in blocks:
        indices, path = block["indices"], str(block["log"])
        expected_indices.update(indices)
        log = AccuracyLog(Path(path))
        for position in log:
            if position >= len(indices):
                count = f"{len(indices):,} samples (0 to {len(indices) - 1:,})"
                damage = f"{path} is damaged: it answers sample {position:,}, the run had {count}"
                raise RunError("loadgen", damage, path)
            index = indices[position]
            if index in places:
                raise RunError("loadgen", f"{path}: sample {index:,} was answered twice", path)
            places[index] = log, position
    if missing := sorted(expected_indices - places.keys()):
        first = ", ".join(map(str, missing[:5]))
        raise RunError("loadgen", f"{len(missing):,} samples were not answered, first: {first}")
    return places


def artefacts(
    blocks: Sequence[Mapping[str, Any]], indices: Sequence[int], needed: Sequence[str]
) -> Callable[[int], dict[str, bytes]]:
    """Return a function from index to artefacts by name; RunError if one of `needed` is missing."""
    archive_of: dict[int, ArtefactArchive] = {}
    for block in blocks if needed else ():
        archive = ArtefactArchive(Path(str(block["log"])).with_name(ARTEFACTS))
        archive_of.update(dict.fromkeys(block["indices"], archive))
    for index in indices if needed else ():
        if missing := sorted({*needed} - {*archive_of[index].names.get(index, ())}):
            raise RunError(
                "scorer",
                f"sample {index:,} has no artefact {', '.join(missing)}, which this scorer "
                "reads: the engine must pass it to sink.attach() (see docs/own-engine.md), "
                "or use another engine or scorer",
            )
    return lambda index: archive_of[index].read(index)


def check(scores: Scores, indices: Sequence[int]) -> None:
    """Raise RunError unless there is one score per sample, and all scores are finite or None."""
    for name, values in scores.per_sample.items():
        if len(values) != len(indices):
            count = f"{len(values)} scores of {name} for {len(indices)} samples"
            raise RunError("scorer", f"the scorer gave {count}")
        for index, value in zip(indices, values, strict=True):
            if value is not None and not math.isfinite(value):
                raise RunError(
                    "scorer",
                    f"the scorer gave {value!r} as {name} of sample {index}; it must be finite, or "
                    "None",
                )
    for name, value in scores.aggregate.items():
        if not math.isfinite(value):
            raise RunError(
                "scorer", f"the scorer gave {value!r} as {name} of the data set; it must be finite"
            )


if __name__ == "__main__":
    main(sys.argv[1])
