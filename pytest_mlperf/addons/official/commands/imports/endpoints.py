"""Import run folders of MLCommons' endpoints client as a session."""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.official.commands.imports._sessions import (
    name_of,
    next_steps,
    session,
    summary,
    write_session,
)
from pytest_mlperf.addons.official.curve_points import has_result, is_run_folder
from pytest_mlperf.bench.foreign_runs import safe_case
from pytest_mlperf.cli.output import show
from pytest_mlperf.core.measurement import moment_of
from pytest_mlperf.core.untrusted_text import quoted
from pytest_mlperf.extension import (
    MLC_ENDPOINTS,
    Case,
    CaseResult,
    RecordedPoint,
    Run,
    Scenario,
    Subject,
    judge_runs,
    plural,
    read_point,
)
from pytest_mlperf.run.curve import recorded_figures


def run(parsed: argparse.Namespace) -> int:
    """Import the sessions' run folders; return 1 if the result is INVALID."""
    for option in ("precision", "accelerator"):
        if not getattr(parsed, option):
            raise MlperfError(f"the client's files do not contain the {option}: add --{option}")
    if parsed.rows:
        raise MlperfError("--rows is for import mlperf: a curve is not a row of a round's table")
    if parsed.started and len(parsed.started) != len(parsed.sessions):
        raise MlperfError(
            f"{plural(len(parsed.started), '--started option')}, but "
            f"{plural(len(parsed.sessions), 'session')}: give one for each session, in order"
        )
    notes: list[str] = []
    try:
        sessions = [_points(folder, notes) for folder in parsed.sessions]
    except OSError as error:
        raise MlperfError(f"{error.filename}: cannot be read: {error.strerror}") from None
    _require_one_build(sessions)
    case = _case(parsed, sessions[0][0])
    begun = [*map(_moment, parsed.started)] or [*map(_begun, sessions)]
    runs = [
        _run(points, folder, moment, case)
        for points, folder, moment in zip(sessions, parsed.sessions, begun, strict=True)
    ]
    result = _result(parsed, case, sorted(runs, key=lambda run: run.started), sessions[0])
    results = session([result], {"endpoints": sessions[0][0].facts["harness.version"]})
    file = write_session(results, parsed)
    show([*summary(results), *notes, *next_steps(file, results)])
    return int(any(result.failed for result in results.cases))


def _points(folder: Path, notes: list[str]) -> list[RecordedPoint]:
    """Read a session's points by ascending concurrency; name other folders in `notes`."""
    if has_result(folder):
        return [read_point(folder)]
    inside = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    runs = [path for path in inside if is_run_folder(path)]
    below = next((p for p in inside for q in p.glob("*/") if is_run_folder(q)), None)
    if not runs and is_run_folder(folder):
        return [read_point(folder)]  # raises the error about the missing file
    if not runs:
        hint = f"; {below} contains some: name each session's folder" if below else ""
        raise MlperfError(
            f"{folder}: MLCommons' endpoints client did not write this folder or a folder directly "
            f"in it{hint}"
        )
    notes += [f"left out: {path}, which is not a run folder" for path in inside if path not in runs]
    points = sorted((read_point(path) for path in runs), key=lambda point: point.concurrency)
    for a, b in pairwise(points):
        if a.concurrency == b.concurrency:
            raise MlperfError(
                f"{a.folder} and {b.folder} both have concurrency {a.concurrency}, but a session "
                "has each concurrency once; move one of them to the folder of its own session"
            )
        if a.servers != b.servers:
            raise _differs("endpoint_config.endpoints", (a, a.servers), (b, b.servers))
    return points


def _require_one_build(sessions: Sequence[Sequence[RecordedPoint]]) -> None:
    every = [point for points in sessions for point in points]
    first, digests = every[0], dict[str, Path]()
    for point in every:
        if point.digest in digests:
            raise MlperfError(
                f"{point.folder} holds the same result as {digests[point.digest]}: leave out "
                "the copy"
            )
        digests[point.digest] = point.folder
        for key in sorted({*first.facts, *point.facts}):
            expected_value, value = (one.facts.get(key, "absent") for one in (first, point))
            if expected_value != value:
                raise _differs(key, (first, expected_value), (point, value))
    expected = [point.concurrency for point in sessions[0]]
    for points in sessions:
        if [point.concurrency for point in points] != expected:
            raise MlperfError(
                f"{points[0].folder}: its session has the concurrencies "
                f"{', '.join(str(point.concurrency) for point in points)}, but that of "
                f"{first.folder} {', '.join(map(str, expected))}; all sessions must have the same"
            )


def _differs(
    key: str, expected: tuple[RecordedPoint, str], actual: tuple[RecordedPoint, str]
) -> MlperfError:
    (a, theirs), (b, ours) = expected, actual
    return MlperfError(
        f"{key} differs: {quoted(theirs)} in {a.folder}, {quoted(ours)} in {b.folder}; all points "
        "and sessions of one import must have the same build and load"
    )


def _case(parsed: argparse.Namespace, point: RecordedPoint) -> Case:
    model = point.facts.get("model_params.name", "").rstrip("/").rpartition("/")[2]
    case = Case(
        workload=parsed.workload or name_of(model),
        scenario=Scenario.CONCURRENCY,
        engine=parsed.engine or point.facts.get("endpoint_config.api_type", "openai"),
        precision=parsed.precision,
        accelerator=parsed.accelerator,
    )
    return safe_case(case)


def _moment(started: str) -> dt.datetime:
    moment = moment_of(started)
    try:
        if moment:
            return moment.astimezone(dt.UTC)
    except OverflowError:  # in the last hours of year 9999
        pass
    raise MlperfError(f"--started {quoted(started)} is not a time; write 2026-11-21T03:15:00")


def _begun(points: Sequence[RecordedPoint]) -> dt.datetime:
    try:
        return dt.datetime.fromtimestamp(min(p.ended_s - p.duration_s for p in points), dt.UTC)
    except (ValueError, OverflowError, OSError):
        raise MlperfError(
            f"{points[0].folder}: its files have no time; add --started with the time of its start"
        ) from None


def _run(points: Sequence[RecordedPoint], folder: Path, moment: dt.datetime, case: Case) -> Run:
    digest = hashlib.sha256("".join(point.digest for point in points).encode()).hexdigest()
    return Run(
        **recorded_figures(points, case.accelerator),
        duration_s=sum(point.duration_s for point in points),
        target_qps=0.0,
        session=f"{moment:%Y%m%d-%H%M%S}-{digest[:4]}",
        started=moment.isoformat(timespec="seconds"),
        commit=None,
        folder=str(folder),
        invalid=tuple(reason for point in points for reason in point.invalid),
        notes=tuple(note for point in points for note in point.notes),
    )


def _result(
    parsed: argparse.Namespace, case: Case, runs: Sequence[Run], points: Sequence[RecordedPoint]
) -> CaseResult:
    facts = {**points[0].facts, "points": ", ".join(str(point.concurrency) for point in points)}
    # Their client includes ramp-up and ramp-down, and counts tokens itself: not comparable to ours.
    identity = {"harness": MLC_ENDPOINTS, **({"system": parsed.system} if parsed.system else {})}
    return judge_runs(case, runs, subject=Subject(identity=identity, fingerprint=facts))
