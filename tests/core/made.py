"""Runs, records and accuracy baselines of which a test states only the fields that matter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from pytest_mlperf.core.baseline import AccuracyBaseline, BaselineRun, Record
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.notes import Note, Words
from pytest_mlperf.run.figures import run_arguments

T = TypeVar("T")


def present(value: T | None) -> T:
    assert value is not None
    return value


def keys_of(notes: Iterable[Words]) -> list[str]:
    """Return the keys of notes, and texts as they are."""
    return [note.key if isinstance(note, Note) else note for note in notes]


def on_day(number: int) -> str:
    """Return when a session starts, `number` days after the first one of a baseline."""
    return f"2026-11-{16 + number:02}T10:00:00+00:00"


def make_run(**fields: Any) -> Run:
    """Return a run; fields of its groups may be stated at the top level."""
    usual: dict[str, Any] = {
        "metrics": {"throughput": 100.0},
        "within_se": {},
        "samples": 10_000,
        "queries": 10_000,
        "duration_s": 60.0,
        "target_qps": 100.0,
        "session": "now",
        "started": "2026-11-20T10:00:00+00:00",
        "commit": None,
        "folder": "run 0",
    }
    return Run(**run_arguments(**{**usual, **fields}))


def make_baseline_run(**fields: Any) -> BaselineRun:
    usual: dict[str, Any] = {
        "metrics": {"throughput": 100.0},
        "within_se": {},
        "session": "s",
        "started": "2026-11-19T10:00:00+00:00",
        "samples": 10_000,
        "duration_s": 60.0,
        "commit": None,
    }
    return BaselineRun(**{**usual, **fields})


def make_record(*runs: BaselineRun, **fields: Any) -> Record:
    usual: dict[str, Any] = {
        "identity": {},
        "target_qps": None,
        "qps_source": None,
        "fingerprint": {},
        "runs": runs,
        "minimum_detectable_change": {},
        "history": (),
    }
    return Record(**{**usual, **fields})


def make_accuracy_baseline(**fields: Any) -> AccuracyBaseline:
    usual: dict[str, Any] = {
        "round": "v4.1",
        "workload": "w",
        "engine": "e",
        "precision": "fp32",
        "scenario": "Offline",
        "scores": {},
        "steps": {},
        "scores_sha256": "",
        "scorer": "",
        "identity": {},
        "fingerprint": {},
        "history": (),
    }
    return AccuracyBaseline(**{**usual, **fields})
