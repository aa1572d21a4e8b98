"""Keep accepted runs as baselines: a JSON file for each name, without the result files."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pytest_mlperf import MlperfError, Outcome
from pytest_mlperf.addons.judge.model import Fact, Quantity, TaskScore, ToolPoint, ToolRun
from pytest_mlperf.addons.judge.report import headline
from pytest_mlperf.addons.judge.rows import FileComparison, session_of
from pytest_mlperf.core.numbers import plural
from pytest_mlperf.judge.inputs import DAYS
from pytest_mlperf.stores.documents import Document

FOLDER = Path("baselines") / "judged"

ANEW = "record anew with pytest-mlperf judge --update missing"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")

Action = Literal["missing", "replace"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BaselineUpdate:
    """Hold an update of a baseline: action, day, reason, number of runs, and the verdict then."""

    action: str
    date: str
    reason: str
    runs: int
    verdict: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptedPoint:
    """Hold the conditions of a point; they are the same in all runs."""

    tool: str
    name: str
    facts: Mapping[str, Fact] = field(default_factory=dict)
    quantities: Mapping[str, Quantity] = field(default_factory=dict)
    axis: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PointFigures:
    """Hold the figures of a point in one run; `ToolPoint` describes the fields."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    scores: Mapping[str, TaskScore] = field(default_factory=dict)
    sent: int | None = None
    failed: int | None = None
    broken: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptedRun:
    """Hold one run, with its figures by point; `ToolRun` describes the other fields."""

    tool: str
    source: str
    digest: str
    folder: str
    points: Mapping[str, PointFigures]
    started: float | None = None
    host: str | None = None
    commit: str | None = None
    version: str | None = None
    details: Mapping[str, str] = field(default_factory=dict)
    duration_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptedRuns:
    """Define the content of a baseline's file."""

    schema: int
    name: str
    history: tuple[BaselineUpdate, ...]
    points: tuple[AcceptedPoint, ...]
    runs: tuple[AcceptedRun, ...]


DOCUMENT = Document(AcceptedRuns, schema=1, title="baseline of judge", anew=ANEW)


def place(name: str) -> Path:
    """Return the file of a baseline; raise MlperfError if its name cannot be a file name."""
    if not _NAME.fullmatch(name):
        raise MlperfError(f"{name!r} is no name of a baseline: use letters, digits, '.', '_', '-'")
    return FOLDER / f"{name}.json"


def load(name: str, root: Path = Path()) -> tuple[ToolRun, ...]:
    """Return the runs of a baseline; raise MlperfError if it is missing or damaged."""
    file = root / place(name)
    baseline = DOCUMENT.load(file)
    if baseline is None:
        raise MlperfError(
            f"{file}: no such baseline; record one with --update missing --reason '...'"
        )
    return _runs(baseline)


def digests(name: str) -> frozenset[str]:
    """Return the digests of a baseline's runs; empty without a baseline."""
    return frozenset(run.digest for run in load(name)) if place(name).exists() else frozenset()


def update(
    name: str,
    runs: Sequence[ToolRun],
    verdict: FileComparison | None,
    *,
    action: Action,
    reason: str,
    session_by: str | None,
) -> str:
    """Write runs to a baseline; return a sentence that describes the change.

    "missing" writes a baseline that does not exist, and adds sessions to one with fewer than four,
    if the runs are comparable and show no drop. "replace" writes the runs in its place.

    Raises:
        MlperfError: The reason is empty, or the file cannot be read or written.
    """
    file, today = place(name), dt.datetime.now(dt.UTC).date().isoformat()
    if not reason.strip(" ."):
        raise MlperfError("--update needs --reason: why these runs are accepted; it is kept")
    words = ""

    def put(there: AcceptedRuns | None) -> AcceptedRuns:
        nonlocal words
        kept = _runs(there) if there and action == "missing" else ()
        words = _refusal(kept, verdict, session_by)
        if there and words:
            return there
        accepted = (*kept, *(_lean(run, today) for run in runs))
        words = f"{plural(len(accepted), 'run')} accepted; commit it"
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
    return f"{file}: {words}"


_REFUSED = {Outcome.PERF_DROP, Outcome.ACC_DROP, Outcome.INVALID, Outcome.SUSPECT}


def _refusal(
    kept: Sequence[ToolRun], verdict: FileComparison | None, session_by: str | None
) -> str:
    if not kept:
        return ""
    drops = verdict is not None and any(row.direction == "drop" for row in verdict.rows)
    if verdict is not None and (drops or verdict.outcome in _REFUSED):
        return f"not changed: {headline(verdict)}; --update replace accepts it"
    sessions = {session_of(run, session_by) for run in kept}
    if len(sessions) >= DAYS:
        return f"not changed: it has {len(sessions)} sessions, which is enough"
    return ""


def _lean(run: ToolRun, today: str) -> ToolRun:
    """Return a run with a digest in place of its folder's path, and without notes."""
    digest = hashlib.sha256(run.folder.encode("utf-8", "backslashreplace")).hexdigest()[:12]
    return replace(run, source=Path(run.source).name, folder=f"{today} {digest}", notes=())


def baseline_of(
    name: str, runs: Sequence[ToolRun], history: tuple[BaselineUpdate, ...]
) -> AcceptedRuns:
    """Return a baseline's content; a point's conditions are those of the first run."""
    points = {(run.tool, point.name): point for run in reversed(runs) for point in run.points}
    return AcceptedRuns(
        schema=1,
        name=name,
        history=history,
        points=tuple(
            AcceptedPoint(
                tool=tool,
                name=point.name,
                facts=point.facts,
                quantities={
                    metric: point.quantities[metric]
                    for metric in point.quantities
                    if metric in point.metrics or metric in point.scores
                },
                axis=point.axis,
            )
            for (tool, _), point in sorted(points.items())
        ),
        runs=tuple(_accepted(run) for run in runs),
    )


_SHARED = (
    *("tool", "source", "digest", "folder", "started", "host", "commit", "version", "details"),
    "duration_s",
)

_POINT_FIELDS = ("metrics", "scores", "sent", "failed", "broken")


def _accepted(run: ToolRun) -> AcceptedRun:
    points = {
        point.name: PointFigures(**{name: getattr(point, name) for name in _POINT_FIELDS})
        for point in run.points
    }
    return AcceptedRun(points=points, **{name: getattr(run, name) for name in _SHARED})


def _runs(baseline: AcceptedRuns) -> tuple[ToolRun, ...]:
    conditions = {(point.tool, point.name): point for point in baseline.points}
    runs = []
    for run in baseline.runs:
        points = []
        for name, figures in run.points.items():
            of = conditions.get((run.tool, name), AcceptedPoint(tool=run.tool, name=name))
            values = {key: getattr(figures, key) for key in _POINT_FIELDS}
            values["metrics"] = {m: v for m, v in figures.metrics.items() if v > 0}
            points.append(
                ToolPoint(
                    name=name, facts=of.facts, quantities=of.quantities, axis=of.axis, **values
                )
            )
        fields = {key: getattr(run, key) for key in _SHARED}
        runs.append(ToolRun(points=tuple(points), **fields))
    return tuple(runs)
