"""Read histories of cases from a store, else from results files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pytest_mlperf import MlperfError
from pytest_mlperf.cli.stored_results import case_named, store_here
from pytest_mlperf.core.history import CaseHistory, histories_of
from pytest_mlperf.extension import Kind, plural
from pytest_mlperf.stores.database import opened
from pytest_mlperf.stores.sessions import Sessions


def histories_here(
    names: Sequence[str], url: str, runs_dir: Path, notes: list[str]
) -> list[CaseHistory]:
    """Return the histories of cases by id or unique part of an id, sorted by last session.

    They are in the store, or in the results files of the runs folder if the default store does not
    exist. Unreadable files are added to `notes`.
    """
    sessions = Sessions(runs_dir)
    if url := store_here(url):
        with opened(url) as store:
            cases = _fitting(names, store.cases())
            histories = [history for case in cases for history in store.histories(case)]
            kept = set(store.sessions())
        files = [file for file in sessions.files if file.parent.name not in kept]
        if files:
            notes.append(
                f"{plural(len(files), 'session')} of {runs_dir}/runs not in the store: "
                f"pytest-mlperf store import {runs_dir}/runs/*/results.json"
            )
    else:
        every = histories_of(results for _, results in sessions)
        notes += sessions.notes
        cases = _fitting(names, list(dict.fromkeys(history.series.case.id for history in every)))
        histories = [history for history in every if history.series.case.id in cases]
    return sorted(histories, key=lambda history: history.points[-1].started)


def _fitting(names: Sequence[str], cases: Sequence[str]) -> list[str]:
    """Return the cases that one of `names` identifies: an id, or a part of one id only."""
    fitting = []
    for name in names:
        with suppress(MlperfError):
            fitting.append(case_named(name, cases))
    return list(dict.fromkeys(fitting))


def of_metric(histories: Sequence[CaseHistory], metric: str | None) -> list[CaseHistory]:
    """Return the histories of a metric; of the first performance metric if it is None."""
    if metric is None:
        kinds = sorted(histories, key=lambda history: history.series.kind != Kind.PERFORMANCE)
        metric = kinds[0].series.metric if kinds else ""
    return [history for history in histories if history.series.metric == metric]
