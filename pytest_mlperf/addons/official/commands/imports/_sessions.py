"""What every import ends in: a session that can be judged, its file, and what to do with it."""

from __future__ import annotations

import argparse
import datetime as dt
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_mlperf import __version__
from pytest_mlperf.cli.output import as_typed, width
from pytest_mlperf.core.case import Case, Division, Profile
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.measurement import Run, Subject
from pytest_mlperf.core.numbers import plural
from pytest_mlperf.core.results import IMPORTED, CaseResult, Results
from pytest_mlperf.core.rulings.ruling import rule_on
from pytest_mlperf.core.verdict import Outcome, Unchecked, Verdict
from pytest_mlperf.judge.rule_r import GATING_RUNS, RuleR
from pytest_mlperf.reports.terminal import text
from pytest_mlperf.reports.terminal.layout import relative
from pytest_mlperf.run.project import ignored_in_git
from pytest_mlperf.stores.results import write_results
from pytest_mlperf.suite.values import checked_accelerator, checked_name


def checked(case: Case, where: str = "") -> Case:
    """Return a case whose names are safe in test ids and paths, else raise MlperfError."""
    try:
        for name in (case.workload, case.engine, case.precision):
            checked_name(name)
        checked_accelerator(case.accelerator)
    except ValueError as error:
        raise MlperfError(f"{where}of the case: {error}") from None
    return case


def imported(
    case: Case,
    runs: Sequence[Run],
    *,
    subject: Subject,
    limits: Mapping[str, float],
    round_: str = IMPORTED,
    profile: Profile = "quick",
    division: Division = "closed",
    target_qps: float | None = None,
) -> CaseResult:
    """Return what was recorded of a case, oldest run first, to be judged by others."""
    valid = tuple(run for run in runs if not run.invalid)
    invalid = tuple(run for run in runs if run.invalid)
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
        subject=subject,
        notes=(*map(_why_invalid, invalid[1:]), *(note for run in runs for note in run.notes)),
        unchecked=Unchecked.NOT_CHECKED,
    )
    return CaseResult(
        test=f"{IMPORTED}::test_performance[{case.id}]",
        suite=IMPORTED,
        line=1,
        round=round_,
        profile=profile,
        verdict=verdict,
        failed=bool(invalid),
        limits=limits,
        scored=False,
        handicap=0.0,
        pretended=False,
        target_qps=target_qps,
        qps_source=None,
        division=division,
    )


def session_of(cases: Sequence[CaseResult], versions: Mapping[str, str]) -> Results:
    """Return the session that an import makes, with the versions of what was read."""
    now = dt.datetime.now(dt.UTC)
    return Results(
        run=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        started=now.isoformat(timespec="seconds"),
        seconds=0.0,
        commit=None,
        versions={"pytest-mlperf": __version__, **versions},
        deselected={},
        cases=tuple(cases),
    )


def written(results: Results, parsed: argparse.Namespace) -> Path:
    """Write a session where the command line says, else in the runs folder; return its file."""
    file: Path = parsed.output or _kept(parsed.runs_dir) / "runs" / results.run / "results.json"
    write_results(file, results)
    return file


def _kept(runs_dir: Path) -> Path:
    try:
        return ignored_in_git(runs_dir)
    except OSError as error:
        raise MlperfError(
            f"{runs_dir} cannot be written: {error.strerror}; name a file with -o"
        ) from None


def summary(results: Results) -> list[str]:
    """Return what a session says, what failed first."""
    message = text.failure_message(results, width())
    failed = [line for r in results.cases if r.failed for line in (*message(r).splitlines(), "")]
    return [*failed, *text.summary(results, width(), colour=False)]


def next_steps(file: Path, results: Results) -> list[str]:
    """Return where a session lies and what takes it."""
    name, sessions = relative(file), len(results.cases[0].verdict.runs)
    if results.cases[0].failed:
        return [f"wrote {name}"]
    compare = as_typed("compare", ["git:HEAD", name], {})
    more = f" (a baseline needs {GATING_RUNS} sessions)" if sessions < GATING_RUNS else ""
    update = as_typed("update", [name], {"--baselines": "baselines", "--no-runs": True})
    return [f"wrote {name}", f"judge it: {compare}", f"as a baseline{more}: {update}"]


def _why_invalid(run: Run) -> str:
    return f"{run.folder}: {'; '.join(map(str, run.invalid))}"
