"""Store accepted runs as baselines: one JSON file per baseline, without the result files."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pytest_mlperf import MlperfError, Outcome
from pytest_mlperf.addons.judge.model import ToolPoint, ToolRun
from pytest_mlperf.addons.judge.readers.fields import moment
from pytest_mlperf.addons.judge.report import headline
from pytest_mlperf.addons.judge.rows import FileComparison, session_of
from pytest_mlperf.extension import plural
from pytest_mlperf.judge.inputs import DAYS
from pytest_mlperf.stores.documents import Document

FOLDER = Path("baselines") / "judged"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


@dataclass(frozen=True, kw_only=True, slots=True)
class BaselineUpdate:
    """Describe an update of a baseline to `runs` runs; `verdict`: headline before the update."""

    action: str
    date: str
    reason: str
    runs: int
    verdict: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptedRuns:
    """Hold the content of a baseline file of `pytest-mlperf judge`.

    Attributes:
        conditions: By tool, one point per task or concurrency with what is equal in all its runs:
            facts, definitions of metrics, and the position on a curve.
        runs: Accepted runs; their points hold the measured values, without `conditions`.
    """

    schema: int
    name: str
    history: tuple[BaselineUpdate, ...]
    conditions: Mapping[str, tuple[ToolPoint, ...]]
    runs: tuple[ToolRun, ...]


DOCUMENT = Document(
    AcceptedRuns,
    schema=1,
    title="baseline of judge",
    anew="record anew with pytest-mlperf judge --update missing",
)


def baseline_file(name: str) -> Path:
    """Return the relative path of a baseline's file; raise MlperfError for an invalid name."""
    if not _NAME.fullmatch(name):
        raise MlperfError(
            f"{name!r} is not a valid baseline name: use letters, digits, '.', '_' and '-'"
        )
    return FOLDER / f"{name}.json"


def load(name: str, root: Path = Path()) -> tuple[ToolRun, ...]:
    """Return the runs of a baseline; raise MlperfError if it is missing or damaged."""
    file = root / baseline_file(name)
    baseline = DOCUMENT.load(file)
    if baseline is None:
        raise MlperfError(
            f"{file}: no such baseline; record one with --update missing --reason '...'"
        )
    return _runs(baseline)


def update(
    name: str,
    runs: Sequence[ToolRun],
    verdict: FileComparison | None,
    *,
    action: Literal["missing", "replace"],
    reason: str,
    session_by: str | None,
) -> tuple[str, bool]:
    """Write runs to a baseline; return a sentence on the change, and whether there was one.

    "missing" writes a baseline that does not exist, and adds sessions to one with fewer than four,
    if the runs are comparable and show no drop. "replace" writes the runs in its place.

    Raises:
        MlperfError: The reason is empty, or the file cannot be read or written.
    """
    file, today = baseline_file(name), dt.datetime.now(dt.UTC).date().isoformat()
    if not reason.strip(" ."):
        raise MlperfError("--update needs --reason TEXT, which says why these runs are accepted")
    words, changed = "", False

    def put(there: AcceptedRuns | None) -> AcceptedRuns:
        nonlocal words, changed
        kept = _runs(there) if there and action == "missing" else ()
        words = _refusal(kept, verdict, session_by)
        if there and words:
            return there
        accepted = (*kept, *(_lean(run, today) for run in runs))
        words, changed = f"{plural(len(accepted), 'run')} accepted; commit it", True
        entry = BaselineUpdate(
            action=action if there else "record",
            date=today,
            reason=reason.strip(),
            runs=len(runs),
            verdict=headline(verdict) if verdict else "",
        )
        history = (*(there.history if there else ()), entry)
        return baseline_of(name, accepted, history)

    DOCUMENT.update(file, put)
    return f"{file}: {words}", changed


_REFUSED = {Outcome.PERF_DROP, Outcome.ACC_DROP, Outcome.INVALID, Outcome.SUSPECT}


def _refusal(
    kept: Sequence[ToolRun], verdict: FileComparison | None, session_by: str | None
) -> str:
    if not kept:
        return ""
    drops = verdict is not None and any(row.direction == "drop" for row in verdict.rows)
    if verdict is not None and (drops or verdict.outcome in _REFUSED):
        return f"not changed: {headline(verdict)}; to accept these runs, use --update replace"
    sessions = len({session_of(run, session_by) for run in kept})
    enough = f"not changed: it already has {sessions} sessions; --update replace begins anew"
    return enough if sessions >= DAYS else ""


def _lean(run: ToolRun, today: str) -> ToolRun:
    """Return a run as a baseline stores it: without notes, and with its folder's path hashed."""
    digest = hashlib.sha256(run.folder.encode("utf-8", "backslashreplace")).hexdigest()[:12]
    return replace(run, source=Path(run.source).name, folder=f"{today} {digest}", notes=())


def baseline_of(
    name: str, runs: Sequence[ToolRun], history: tuple[BaselineUpdate, ...]
) -> AcceptedRuns:
    """Build a baseline file's content; facts on a point are those of the first run with it."""
    points = {
        (run.tool, p.name): ToolPoint(
            name=p.name, facts=p.facts, quantities=p.quantities, axis=p.axis
        )
        for run in reversed(runs)
        for p in run.points
    }
    figures = [
        tuple(replace(p, facts={}, quantities={}, axis=None, absent={}) for p in run.points)
        for run in runs
    ]
    return AcceptedRuns(
        schema=1,
        name=name,
        history=history,
        conditions={
            tool: tuple(points[key] for key in sorted(points) if key[0] == tool)
            for tool in sorted({run.tool for run in runs})
        },
        runs=tuple(replace(run, points=of) for run, of in zip(runs, figures, strict=True)),
    )


def _runs(baseline: AcceptedRuns) -> tuple[ToolRun, ...]:
    conditions = {(tool, p.name): p for tool, of in baseline.conditions.items() for p in of}

    def whole(tool: str, point: ToolPoint) -> ToolPoint:
        of = conditions.get((tool, point.name), point)
        metrics = {name: value for name, value in point.metrics.items() if value > 0}
        return replace(
            point, metrics=metrics, facts=of.facts, quantities=of.quantities, axis=of.axis
        )

    return tuple(
        replace(
            run,
            started=moment(run.started),
            points=tuple(whole(run.tool, point) for point in run.points),
        )
        for run in baseline.runs
    )
