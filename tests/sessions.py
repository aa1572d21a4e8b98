"""Baselines as if they had been recorded over some days."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

from pytest_mlperf.core.baseline import Record
from pytest_mlperf.judge.inputs import DAYS, SessionNoise
from pytest_mlperf.stores import baselines

SEEN = SessionNoise(ratio=1 / 3, df=12.0)
"""Sessions were seen to differ by what is expected of them, often enough for a drop to be final."""


def over_days(record: Record, noise: SessionNoise | None = SEEN) -> Record:
    """Return a record as if its runs were of four sessions, one a day, the last one yesterday.

    Args:
        record: With at least as many runs.
        noise: Known variance between sessions; None if only these runs are known.
    """
    present_day, count = dt.datetime.now(dt.UTC), len(record.runs)
    runs = []
    for i, run in enumerate(record.runs):
        session_number = i * DAYS // count
        day = present_day - dt.timedelta(days=DAYS - session_number)
        runs.append(
            replace(run, session=f"session-{session_number}", started=day.isoformat("T", "seconds"))
        )
    metrics = record.runs[0].metrics if noise else ()
    return replace(record, runs=tuple(runs), session_noise={m: noise for m in metrics if noise})


def a_day_earlier(file: Path) -> None:
    """Rewrite a baseline file as if all its runs had been made a day earlier."""
    loaded, day = baselines.load(file), dt.timedelta(days=1)
    assert loaded is not None
    records = [
        replace(
            record,
            runs=tuple(
                replace(run, started=(dt.datetime.fromisoformat(run.started) - day).isoformat())
                for run in record.runs
            ),
        )
        for record in loaded.records
    ]
    baselines.save(file, replace(loaded, records=tuple(records)))


def spread(file: Path, noise: SessionNoise | None = SEEN) -> None:
    """Rewrite a baseline file that one session has recorded so, see `over_days`."""
    loaded = baselines.load(file)
    assert loaded is not None
    records = tuple(over_days(record, noise) for record in loaded.records)
    baselines.save(file, replace(loaded, records=records))
