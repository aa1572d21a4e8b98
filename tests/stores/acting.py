"""What processes of the tests do with baselines before they are killed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pytest_mlperf.core.baseline import with_record
from pytest_mlperf.stores import accuracy_baselines, atomic, baselines
from tests.stores import test_accuracy_baselines as accuracy
from tests.stores import test_baselines as performance

OLD = {"rouge1": [1.0, 2.0, 3.0]}
NEW = {"rouge1": [3.0, 2.0, 1.0]}


def update(folder: str, *, prepare: bool = False) -> None:
    path = Path(folder) / "baselines" / "Offline.ort.fp32.json"
    if prepare:
        baselines.save(path, performance.BASELINE)
        return
    record = replace(performance.RECORD, identity={"gpus": 2})
    baselines.update(path, lambda old: with_record(old or performance.EMPTY, record))


def accept(folder: str, *, prepare: bool = False) -> None:
    path = Path(folder) / "baselines" / "torch.fp32.json"
    accuracy.save(path, accuracy.BASELINE, OLD if prepare else NEW)


def report(folder: str, name: str, *, prepare: bool = False) -> None:
    path = Path(folder) / "r.html"
    if not prepare:
        atomic.write_whole(path, "new")
    elif name == "replace":
        atomic.write_whole(path, "old")


def accept_many(folder: str, first: int, count: int) -> None:
    """Accept scores again and again, each time others, and add a line to the history."""
    path = Path(folder) / "torch.fp32.json"
    for number in range(first, first + count):
        entry = replace(accuracy.BASELINE.history[0], reason=str(number))
        accuracy_baselines.replace_scores(
            path,
            lambda old, entry=entry: replace(  # type: ignore[misc]
                accuracy.BASELINE, history=(*(old.history if old else ()), entry)
            ),
            {"rouge1": [float(number), 2.0, 3.0]},
        )
