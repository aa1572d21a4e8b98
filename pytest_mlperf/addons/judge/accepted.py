"""Keep accepted runs as baselines: one JSON file a name, with figures and digests only."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Literal

from pytest_mlperf import MlperfError, Outcome
from pytest_mlperf.addons.judge.judging import Comparison, session_of
from pytest_mlperf.addons.judge.model import Fact, Point, Quantity, Run, Score
from pytest_mlperf.addons.judge.report import headline
from pytest_mlperf.core.untrusted_text import json_text
from pytest_mlperf.judge.inputs import DAYS, Direction
from pytest_mlperf.stores.atomic import write_whole
from pytest_mlperf.stores.foreign import read_foreign

SCHEMA = 1

FOLDER = Path("baselines") / "judged"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")

Action = Literal["missing", "replace"]


def place(name: str) -> Path:
    """Return the file of a baseline; raise MlperfError if the name is no file name."""
    if not _NAME.fullmatch(name):
        raise MlperfError(f"{name!r} is no name of a baseline: use letters, digits, '.', '_', '-'")
    return FOLDER / f"{name}.json"


def load(name: str) -> tuple[Run, ...]:
    """Return the accepted runs; raise MlperfError if there are none, or the file is damaged."""
    file = place(name)
    if not file.exists():
        raise MlperfError(
            f"{file}: no such baseline; record one with --update missing --reason '...'"
        )
    return tuple(_run(one, file) for one in _content(file)["runs"])


def update(
    name: str,
    runs: Sequence[Run],
    verdict: Comparison | None,
    *,
    action: Action,
    reason: str,
    session_by: str | None,
) -> str:
    """Write runs into a baseline; return in words what was done.

    "missing" writes a baseline that is not there, and adds sessions to one with fewer than four, if
    the runs are no drop and comparable. "replace" writes the runs in its place.

    Raises:
        MlperfError: The reason is empty, or the file cannot be read or written.
    """
    file = place(name)
    if not reason.strip(" ."):
        raise MlperfError("--update needs --reason: why these runs are accepted; it is kept")
    exists = file.exists()
    content = _content(file) if exists else {"history": [], "runs": []}
    kept: list[Run] = []
    if exists and action == "missing":
        kept = [_run(one, file) for one in content["runs"]]
        if verdict is not None and verdict.outcome in _REFUSED:
            return f"{file} not changed: {headline(verdict)}; --update replace accepts it"
        sessions = {session_of(run, session_by) for run in kept}
        if len(sessions) >= DAYS:
            return f"{file} not changed: it has {len(sessions)} sessions, which is enough"
    kept += [_lean(run) for run in runs]
    entry = {
        "action": action if exists else "record",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "reason": reason.strip(),
        "runs": len(runs),
        "verdict": headline(verdict) if verdict else "",
    }
    written = {
        "schema": SCHEMA,
        "name": name,
        "history": [*content["history"], entry],
        "runs": [_plain(run) for run in kept],
    }
    write_whole(file, json_text(written) + "\n")
    return f"{file}: {len(kept)} runs accepted; commit it"


_REFUSED = {Outcome.PERF_DROP, Outcome.ACC_DROP, Outcome.INVALID, Outcome.SUSPECT}


def _lean(run: Run) -> Run:
    """Return a run without what a repository should not hold: paths of the machine."""
    return replace(run, source=Path(run.source).name, folder=run.digest[:12] if run.folder else "")


def _plain(run: Run) -> dict[str, Any]:
    content = asdict(run)
    content.pop("notes")
    for point in content["points"]:
        for empty in [name for name, value in point.items() if value in ({}, "", None)]:
            del point[empty]
    return content


def _content(file: Path) -> dict[str, Any]:
    content = read_foreign(file, "baseline of judge")
    if not isinstance(content, dict) or not isinstance(content.get("runs"), list):
        raise MlperfError(f"{file}: not a baseline of judge; restore it from git")
    if content.get("schema") != SCHEMA:
        raise MlperfError(f"{file}: schema {content.get('schema')!r} is unknown: upgrade")
    return content


def _run(raw: Mapping[str, Any], file: Path) -> Run:
    try:
        points = tuple(_point(point) for point in raw["points"])
        known = {field.name for field in fields(Run)} - {"notes"}
        return Run(**{**_only(raw, known), "points": points})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MlperfError(f"{file}: damaged ({error}); restore it from git") from None


def _point(raw: Mapping[str, Any]) -> Point:
    parts = dict(raw)
    parts["facts"] = {
        name: Fact(**{**fact, "bases": tuple(fact["bases"])})
        for name, fact in raw.get("facts", {}).items()
    }
    parts["quantities"] = {
        name: Quantity(**{**quantity, "direction": Direction(quantity["direction"])})
        for name, quantity in raw.get("quantities", {}).items()
    }
    parts["scores"] = {name: Score(**score) for name, score in raw.get("scores", {}).items()}
    for value in raw.get("metrics", {}).values():
        if not 0 < value < 1e30:
            raise ValueError(f"a metric is {value!r}")
    return Point(**parts)


def _only(raw: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: raw[name] for name in names if name in raw}


def dumped(run: Run) -> str:
    """Return a run as the JSON text that a baseline holds."""
    return json.dumps(_plain(run))
