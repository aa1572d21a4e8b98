"""`pytest-mlperf import`: what another harness recorded, as a session that can be judged."""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import re
import secrets
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from pytest_mlperf import __version__
from pytest_mlperf.cli.output import as_typed, show, width
from pytest_mlperf.cli.stored_results import add_runs_dir
from pytest_mlperf.core.baseline import Property
from pytest_mlperf.core.case import Case
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.foreign_text import shown
from pytest_mlperf.core.job import MLC_ENDPOINTS
from pytest_mlperf.core.judge.rule_r import GATING_RUNS, RuleR
from pytest_mlperf.core.judge.ruling import rule_on
from pytest_mlperf.core.measurement import Run, Subject, moment_of
from pytest_mlperf.core.metrics import METRICS, at_point, gated_metrics
from pytest_mlperf.core.results import IMPORTED, CaseResult, Results
from pytest_mlperf.core.verdict import Outcome, Unchecked, Verdict
from pytest_mlperf.reports.formats import failure_message
from pytest_mlperf.reports.terminal import text
from pytest_mlperf.reports.terminal.layout import plural, relative
from pytest_mlperf.run.curve import CurveLog, curve_figures
from pytest_mlperf.run.project import ignored_in_git
from pytest_mlperf.run.recorded import recorded_window
from pytest_mlperf.stores.endpoints import RecordedPoint, has_result, is_run_folder, read_point
from pytest_mlperf.stores.results import write_results
from pytest_mlperf.suite.values import checked_accelerator, checked_name

HELP = f"""\
results of MLCommons' endpoints client, to be judged

Reads folders that `inference-endpoint benchmark` wrote with load pattern
concurrency. A SESSION is one process of the server: a folder of run folders,
one for each concurrency, or a single run folder. All sessions of a command are
of one build and have the same points; another model, configuration, data set
or client between them is refused. What was not complete, had failed requests
or did not hold its concurrency is INVALID.

Writes a results file that compare, update and report take; a baseline needs
{GATING_RUNS} sessions. The folders stay where they are, and belong in no git.

Exit 1 when a session is INVALID, 2 when a folder cannot be read.

needs: pip install 'pytest-mlperf[endpoints]'; the folders as they were written

examples:
  $ pytest-mlperf import endpoints day1 --precision fp8 --accelerator 8xH100
      one session, to compare; day1/c1, day1/c64 and so on are its points
  $ pytest-mlperf import endpoints day* --precision fp8 --accelerator 8xH100
      several; with five: pytest-mlperf update --baselines baselines --no-runs
"""

LONGEST_NAME = 60
"""Characters that a model's name gives to its workload."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("harness", choices=["endpoints"], help="who wrote the folders")
    parser.add_argument(
        "sessions", nargs="+", type=Path, metavar="SESSION", help="folder of one server process"
    )
    for name, meaning in (
        ("precision", "of its weights, e.g. fp8"),
        ("accelerator", "class and count: H200, 8xH100, cpu"),
    ):
        parser.add_argument(f"--{name}", required=True, metavar="NAME", help=meaning)
    parser.add_argument("--engine", metavar="NAME", help="what answered (default: the API's kind)")
    parser.add_argument("--workload", metavar="NAME", help="default: the end of the model's name")
    parser.add_argument(
        "--system",
        default="",
        metavar="NAME",
        help="which machines served: results of different ones are never compared",
    )
    parser.add_argument(
        "--started",
        action="append",
        default=[],
        metavar="TIME",
        help="when a session began, ISO 8601, once for each (default: by the files' times)",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="results file (default: in the runs dir)"
    )
    add_runs_dir(parser)


def run(parsed: argparse.Namespace) -> int:
    """Read the sessions and write them as results; return 1 where one may not be judged."""
    if parsed.started and len(parsed.started) != len(parsed.sessions):
        raise MlperfError(
            f"--started is there {plural(len(parsed.started), 'time')} for "
            f"{plural(len(parsed.sessions), 'session')}: name one for each, in their order"
        )
    notes: list[str] = []
    try:
        sessions = [_points(folder, notes) for folder in parsed.sessions]
    except OSError as error:
        raise MlperfError(f"{error.filename}: cannot be read: {error.strerror}") from None
    _require_one_build(sessions)
    case = _case(parsed, sessions[0][0])
    begun = [_moment(one) for one in parsed.started] or [_begun(one) for one in sessions]
    runs = [
        _run(points, folder, moment, case)
        for points, folder, moment in zip(sessions, parsed.sessions, begun, strict=True)
    ]
    results = _results(parsed, case, sorted(runs, key=lambda one: one.started), sessions[0])
    file = parsed.output or _kept(parsed.runs_dir) / "runs" / results.run / "results.json"
    write_results(file, results)
    show([*_lines(results), *notes, *_next(file, results)])
    return int(any(result.failed for result in results.cases))


def _kept(runs_dir: Path) -> Path:
    try:
        return ignored_in_git(runs_dir)
    except OSError as error:
        raise MlperfError(
            f"{runs_dir} cannot be written: {error.strerror}; name a file with -o"
        ) from None


def _lines(results: Results) -> list[str]:
    message = failure_message(results, width())
    failed = [line for r in results.cases if r.failed for line in (*message(r).splitlines(), "")]
    return [*failed, *text.summary(results, width(), colour=False)]


def _next(file: Path, results: Results) -> list[str]:
    name, sessions = relative(file), len(results.cases[0].verdict.runs)
    if results.cases[0].failed:
        return [f"wrote {name}"]
    compare = as_typed("compare", ["git:HEAD", name], {})
    more = f" (a baseline needs {GATING_RUNS} sessions)" if sessions < GATING_RUNS else ""
    update = as_typed("update", [name], {"--baselines": "baselines", "--no-runs": True})
    return [f"wrote {name}", f"judge it: {compare}", f"as a baseline{more}: {update}"]


# --- folders -------------------------------------------------------------------------------


def _points(folder: Path, notes: list[str]) -> list[RecordedPoint]:
    """Return the points of a session in ascending order; what is no run folder is noted."""
    if has_result(folder):
        return [read_point(folder)]
    inside = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    runs = [path for path in inside if is_run_folder(path)]
    below = next((p for p in inside for q in p.glob("*/") if is_run_folder(q)), None)
    if not runs and is_run_folder(folder):
        return [read_point(folder)]  # which says what it lacks
    if not runs:
        hint = f"; {below} holds some: name each session's folder" if below else ""
        raise MlperfError(
            f"{folder}: no folder that MLCommons' endpoints client wrote, nor one of such{hint}"
        )
    notes += [f"left out: {path}, which is no run folder" for path in inside if path not in runs]
    points = sorted((read_point(path) for path in runs), key=lambda point: point.concurrency)
    for one, other in pairwise(points):
        if one.concurrency == other.concurrency:
            raise MlperfError(
                f"{one.folder} and {other.folder} are both of concurrency {one.concurrency}: a "
                "session has each point once; is one of another session?"
            )
        if one.servers != other.servers:
            raise _differs("endpoint_config.endpoints", (one, one.servers), (other, other.servers))
    return points


def _require_one_build(sessions: Sequence[Sequence[RecordedPoint]]) -> None:
    """Refuse what was measured otherwise, other points, and what is there twice."""
    every = [point for points in sessions for point in points]
    first, digests = every[0], dict[str, Path]()
    for point in every:
        if point.digest in digests:
            raise MlperfError(
                f"{point.folder} holds the same result as {digests[point.digest]}: a copy is no "
                "further session"
            )
        digests[point.digest] = point.folder
        for key in sorted({*first.facts, *point.facts}):
            before, now = (one.facts.get(key, "absent") for one in (first, point))
            if before != now:
                raise _differs(key, (first, before), (point, now))
    expected = [point.concurrency for point in sessions[0]]
    for points in sessions:
        if [point.concurrency for point in points] != expected:
            raise MlperfError(
                f"{points[0].folder}: its session has the points "
                f"{[point.concurrency for point in points]}, that of {first.folder} {expected}: "
                "sessions of one curve have the same"
            )


def _differs(
    key: str, before: tuple[RecordedPoint, str], now: tuple[RecordedPoint, str]
) -> MlperfError:
    (one, theirs), (other, ours) = before, now
    return MlperfError(
        f"{key} differs: {shown(theirs)} in {one.folder}, {shown(ours)} in {other.folder}; points "
        "and sessions of one import are of one build and load"
    )


# --- results -------------------------------------------------------------------------------


def _case(parsed: argparse.Namespace, point: RecordedPoint) -> Case:
    """Return the case, whose names become parts of a test id and of paths."""
    model = point.facts.get("model_params.name", "").rstrip("/").rpartition("/")[2].lower()
    case = Case(
        workload=parsed.workload or re.sub(r"[^a-z0-9._+]+", "-", model)[:LONGEST_NAME].strip("-."),
        scenario="Concurrency",
        engine=parsed.engine or point.facts.get("endpoint_config.api_type", "openai"),
        precision=parsed.precision,
        accelerator=parsed.accelerator,
    )
    try:
        for name in (case.workload, case.engine, case.precision):
            checked_name(name)
        checked_accelerator(case.accelerator)
    except ValueError as error:
        raise MlperfError(f"of the case: {error}") from None
    return case


def _moment(started: str) -> dt.datetime:
    moment = moment_of(started)
    try:
        if moment:
            return moment.astimezone(dt.UTC)
    except OverflowError:  # in the last hours of year 9999
        pass
    raise MlperfError(f"--started {shown(started)} is no time; write 2026-11-21T03:15:00")


def _begun(points: Sequence[RecordedPoint]) -> dt.datetime:
    """Return when the first request of a session began, by the times of its files."""
    try:
        return dt.datetime.fromtimestamp(min(p.ended_s - p.duration_s for p in points), dt.UTC)
    except (ValueError, OverflowError, OSError):
        raise MlperfError(
            f"{points[0].folder}: its files have no time; say with --started when it began"
        ) from None


def _run(points: Sequence[RecordedPoint], folder: Path, moment: dt.datetime, case: Case) -> Run:
    windows = tuple(
        recorded_window(point, point.ended_s - point.duration_s, point.ended_s) for point in points
    )
    samples = sum(point.requests for point in points)
    figures = curve_figures(CurveLog(path="", samples=samples, points=windows), case.accelerator)
    digest = hashlib.sha256("".join(point.digest for point in points).encode()).hexdigest()
    return Run(
        metrics=figures.metrics,
        within_se={},
        samples=samples,
        queries=samples,
        duration_s=sum(point.duration_s for point in points),
        target_qps=0.0,
        session=f"{moment:%Y%m%d-%H%M%S}-{digest[:4]}",
        started=moment.isoformat(timespec="seconds"),
        commit=None,
        folder=str(folder),
        invalid=tuple(reason for point in points for reason in point.invalid),
        notes=tuple(note for point in points for note in point.notes),
    )


def _results(
    parsed: argparse.Namespace, case: Case, runs: Sequence[Run], points: Sequence[RecordedPoint]
) -> Results:
    now = dt.datetime.now(dt.UTC)
    facts = {**points[0].facts, "points": ", ".join(str(point.concurrency) for point in points)}
    valid = tuple(run for run in runs if not run.invalid)
    invalid = tuple(run for run in runs if run.invalid)
    rated = all("tokens_per_second" in run.metrics for run in valid)
    judged = gated_metrics(case.scenario, tokens=rated)
    names = (*judged, *(at_point(name, p.concurrency) for name in judged for p in points))
    limits = {name: METRICS[name].limit for name in names}
    headline = f"imported: {plural(len(valid), 'session')}; compare judges it"
    if invalid:
        headline = f"{len(invalid)} of {plural(len(runs), 'session')}, {_why_invalid(invalid[0])}"
    verdict = Verdict(
        case=case,
        kind="performance",
        outcome=Outcome.INVALID if invalid else Outcome.NOT_EVALUATED,
        headline=headline,
        metrics=rule_on(valid, None, limits, RuleR()).metrics if valid else (),
        runs=valid,
        # Further ones would be told as if they had been measured again.
        invalid_runs=invalid[:1],
        reasons=tuple(reason for run in invalid for reason in run.invalid),
        subject=Subject(identity=_identity(parsed.system), fingerprint=facts),
        notes=(*map(_why_invalid, invalid[1:]), *(note for run in runs for note in run.notes)),
        unchecked=Unchecked.NOT_CHECKED,
    )
    result = CaseResult(
        test=f"{IMPORTED}::test_performance[{case.id}]",
        suite=IMPORTED,
        line=1,
        round=IMPORTED,
        profile="quick",
        verdict=verdict,
        failed=bool(invalid),
        limits=limits,
        scored=False,
        handicap=0.0,
        pretended=False,
        target_qps=None,
        qps_source=None,
    )
    return Results(
        run=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        started=now.isoformat(timespec="seconds"),
        seconds=0.0,
        commit=None,
        versions={"pytest-mlperf": __version__, "endpoints": facts["harness.version"]},
        deselected={},
        cases=(result,),
    )


def _why_invalid(run: Run) -> str:
    return f"{run.folder}: {'; '.join(map(str, run.invalid))}"


def _identity(system: str) -> dict[str, Property]:
    """Return what must be equal for two results to be compared: who measured it, and on what.

    Their client counts the beginning and the end of a load, and its own tokens: its figures are
    those of no other.
    """
    return {"harness": MLC_ENDPOINTS, **({"system": system} if system else {})}
