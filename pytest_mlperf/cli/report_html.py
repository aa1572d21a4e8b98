"""What an HTML report shows beside its results: baselines, LoadGen's logs, the sampler's files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import ParamSpec, TypeVar

from pytest_mlperf.case_runs import load_checked
from pytest_mlperf.cli.judged_against import judged_against
from pytest_mlperf.cli.report_logs import (
    folder_below,
    moments_of,
    percentiles_of,
    power_of,
    spent_of,
)
from pytest_mlperf.cli.trend import points_of
from pytest_mlperf.core.baseline import Baseline, Record, differences, find
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.merging import Absent
from pytest_mlperf.core.recording import set_by
from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.core.trend import versions
from pytest_mlperf.reports.html import render
from pytest_mlperf.reports.html.model import Beside

ASKED = 40
"""Cases whose baselines git is asked for."""

TOLD = 10
"""Notes on what could not be read."""

Found = TypeVar("Found")
Given = ParamSpec("Given")


def html(results: Results, file: Path, absent: Sequence[Absent] = ()) -> str:
    """Return the page of a session.

    Args:
        results: What was found.
        file: The results file; runs are looked for below its folder, and nowhere else.
        absent: Planned tests without a result.

    Raises:
        EnvironmentFault: A library that makes it is missing.
    """
    return render(results, _Search(file.resolve().parent).beside(results), absent)


class _Search:
    """Looks beside a results file, and keeps what could not be read."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._notes: dict[str, None] = {}
        self._loaded: dict[Path, Baseline | None] = {}

    def beside(self, results: Results) -> Beside:
        """Return all that lies beside the results of a session."""
        records = {
            result.test: record
            for result in results.cases
            if (record := self._try(self._record, result))
        }
        found = {result.test: self._folders(result) for result in results.cases}
        last = {test: pairs[-1][1] for test, pairs in found.items() if pairs}
        speed = [r for r in results.cases if r.verdict.kind == "performance" and r.test in last]
        return Beside(
            records=records,
            versions=self._versions(results, records),
            percentiles={
                one.test: logged
                for one in speed
                if (logged := self._try(percentiles_of, last[one.test], one.verdict.case.scenario))
            },
            moments={
                one.test: rows for one in speed if (rows := self._try(moments_of, last[one.test]))
            },
            power={test: t for test, at in last.items() if (t := self._try(power_of, at))},
            spent={
                test: [told for run, at in pairs if (told := self._try(spent_of, at, run))]
                for test, pairs in found.items()
            },
            folder=bool(last),
            notes=self._told(),
        )

    def _folders(self, result: CaseResult) -> list[tuple[Run, Path]]:
        """Return the runs of a test whose folders are here, oldest first."""
        runs = result.verdict.runs
        return [(run, at) for run in runs if (at := folder_below(self._root, run.folder))]

    def _versions(
        self, results: Results, records: Mapping[str, Record]
    ) -> dict[str, list[tuple[str, str]]]:
        """Return when each engine version was accepted, by git; of the cases that failed first.

        What git says of a file takes several of its commands.
        """
        asked = [result for result in results.cases if result.test in records]
        first = sorted(asked, key=lambda one: not one.failed)[:ASKED]
        return {one.test: self._accepted(one, records[one.test]) for one in first}

    def _accepted(self, result: CaseResult, record: Record) -> list[tuple[str, str]]:
        file = self._baseline(result)
        told = (self._try(points_of, file, []) if file else None) or []
        points = [
            point
            for point in told
            if point.fingerprint and not differences(point.identity, record.identity)
        ]
        named = versions(points) if points else []
        marks = [(point.date, name) for point, name in zip(points, named, strict=True)]
        return [after for before, after in pairwise([("", ""), *marks]) if before[1] != after[1]]

    def _told(self) -> list[str]:
        notes = list(self._notes)
        more = [f"and {len(notes) - TOLD} more that could not be read"] if len(notes) > TOLD else []
        return [*notes[:TOLD], *more]

    def _try(
        self, read: Callable[Given, Found], *given: Given.args, **named: Given.kwargs
    ) -> Found | None:
        """Return what is read; a file that is damaged costs its part of the page, and is told."""
        try:
            return read(*given, **named)
        except (MlperfError, OSError) as error:
            self._notes[f"not read: {error}"] = None
            return None

    def _record(self, result: CaseResult) -> Record | None:
        """Return the baseline's record of a test's machine, where its file is here."""
        verdict = result.verdict
        file = self._baseline(result)
        if file is None or verdict.subject is None:
            return None
        if file not in self._loaded:
            self._loaded[file] = None
            self._loaded[file] = load_checked(file, verdict.case)
        loaded = self._loaded[file]
        record = find(loaded, verdict.subject.identity) if loaded else None
        if record and verdict.baseline_set and set_by(record.history) != verdict.baseline_set:
            # Beside a verdict on another one its runs would say something false.
            self._notes[f"{file}: another baseline was accepted since; it is not shown"] = None
            return None
        return record

    def _baseline(self, result: CaseResult) -> Path | None:
        return judged_against(result, (Path(), self._root, *self._root.parents))
