"""What accepting one test of a session takes: its values, runs to be made, or nothing."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_mlperf.calibrated import rule_beside
from pytest_mlperf.case_runs import baseline_file, baselines_root, load_checked
from pytest_mlperf.cli.update_proposals import PerformanceProposal
from pytest_mlperf.core.acceptance import why_never
from pytest_mlperf.core.baseline import Record, find
from pytest_mlperf.core.errors import BaselineError
from pytest_mlperf.core.judge.rule_r import GATING_RUNS
from pytest_mlperf.core.recording import baseline_run, new_record
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.run_plan import USUAL_RUNS
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.reports.selection import relative
from pytest_mlperf.stores import accuracy_baselines

COPY = "update-"
"""How the folder begins that runs made here record into: a copy of the baselines, at the path that
they have below the working folder."""

UNFIT = frozenset({Outcome.INVALID, Outcome.ERROR, Outcome.GATE_FAIL})
"""Outcomes whose values may never become a baseline."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """On which terms values are accepted.

    Attributes:
        baselines: The folder that the user named; None: the nearest above each suite.
        reason: Why, in the user's words.
        regressions: Ids of cases whose worse values are accepted.
        chosen: Ids of the cases that the user named; empty: all.
        measure: Missing runs may be made; else only what the session has is taken.
    """

    baselines: Path | None
    reason: str
    regressions: frozenset[str]
    chosen: frozenset[str]
    measure: bool


@dataclass(frozen=True, kw_only=True)
class ToMeasure:
    """A test whose values the session has too few of.

    Attributes:
        result: The test.
        root: Folder of its suite's baselines, of both divisions.
        why: What is missing.
        limits: Gated metrics of the case, energy included, with their limits as shares.
    """

    result: CaseResult
    root: Path
    why: str
    limits: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A test whose baseline stands."""

    why: str


def consider(
    result: CaseResult, terms: Terms, energy: CaseResult | None = None
) -> PerformanceProposal | ToMeasure | Kept:
    """Return what accepting the values of a test takes.

    Args:
        result: A test of performance or accuracy.
        terms: On which terms.
        energy: The efficiency test of the same case: its record holds the energy, too.

    Raises:
        BaselineError: They are refused; the message says why.
    """
    if why := unfit(result):
        raise BaselineError(why)
    root = root_of(result, terms.baselines)
    if result.verdict.kind == "accuracy":
        return _scores(result, root, terms)
    return _speed(result, root, terms, energy)


def unfit(result: CaseResult) -> str | None:
    """Return why the values of a test may never become a baseline, or None."""
    verdict = result.verdict
    if result.handicap or result.pretended:
        option = "--mlperf-handicap" if result.handicap else "--mlperf-pretend"
        return f"measured with {option}"
    if verdict.outcome in UNFIT:
        return f"{verdict.outcome} {verdict.headline}"
    measured = verdict.accuracy if verdict.kind == "accuracy" else verdict.runs
    if verdict.subject is None or not measured:
        return "nothing was measured"
    return why_never(verdict)


def root_of(result: CaseResult, given: Path | None) -> Path:
    """Return the folder of baselines of a test's suite.

    A results file may be from elsewhere: a suite that it names chooses no folder outside of the
    project that the command runs in.

    Raises:
        BaselineError: The suite is not here, or was judged against other baselines.
    """
    if given:
        return given
    if not in_project(result.suite):
        raise BaselineError(
            f"{result.suite} is not here: run this in pytest's root folder, which that path begins "
            "in, or name the folder of its baselines with --baselines"
        )
    return baselines_root(None, Path(result.suite), "closed")


def in_project(suite: str) -> bool:
    """Whether a suite is a file of the working folder, or of one below it."""
    try:
        path = Path(suite).resolve()
        return path.is_file() and path.is_relative_to(Path.cwd().resolve())
    except (OSError, ValueError):  # a name that is too long, or holds a 0 byte
        return False


def division_root(root: Path, result: CaseResult) -> Path:
    """Return where the baselines of a result's division lie below a folder of baselines."""
    return baselines_root(root, Path(), result.division)


# --- speed -----------------------------------------------------------------------------------


def _speed(
    result: CaseResult, root: Path, terms: Terms, energy: CaseResult | None
) -> PerformanceProposal | ToMeasure | Kept:
    verdict, case = result.verdict, result.verdict.case
    file = baseline_file(division_root(root, result), case, result.profile)
    assert verdict.subject is not None
    loaded = load_checked(file, case)
    old = find(loaded, verdict.subject.identity) if loaded else None
    fresh = tuple(map(baseline_run, verdict.runs))
    if old and old.runs == fresh:
        return Kept(why="these very runs are the baseline already")
    if not terms.baselines:
        _same_place(result, file)
    if _stands(result, old, energy) and case.id not in terms.chosen:
        return Kept(why="ok, and the build is the baseline's: it stays (--case replaces it)")
    limits = {**(energy.limits if energy else {}), **result.limits}
    if len(fresh) < GATING_RUNS:
        for one in filter(None, (result, energy)):
            if one.verdict.outcome in {Outcome.PERF_DROP, Outcome.POWER_DROP}:
                require_accepted(result, f"{one.verdict.outcome} {one.verdict.headline}", terms)
        return _to_measure(result, root, terms, limits)
    if result.scored and verdict.accuracy is None:
        raise BaselineError(
            f'accuracy was not checked; run pytest "{result.suite}" without selecting tests'
        )
    proposal = PerformanceProposal(
        result=result,
        file=file,
        old=old,
        limits=limits,
        new=new_record(
            fresh,
            old,
            action="replace" if old else "record",
            reason=terms.reason,
            subject=verdict.subject,
            target_qps=result.target_qps,
            qps_source=_source(result),
            limits=result.limits,
            rule=rule_beside(file, case.accelerator, verdict.subject.identity, USUAL_RUNS)[0],
        ),
    )
    require_accepted(result, "; ".join(proposal.worse), terms)
    return proposal


def require_accepted(result: CaseResult, worse: str, terms: Terms) -> None:
    """Refuse values that got worse, unless the user accepts that of this case.

    Raises:
        BaselineError: They did, and nobody does.
    """
    case = result.verdict.case.id
    if worse and case not in terms.regressions:
        raise BaselineError(
            f"gets worse ({worse}); to accept it: --accept-regression {shlex.quote(case)}"
        )


def _stands(result: CaseResult, old: Record | None, energy: CaseResult | None) -> bool:
    """Whether nothing calls for another baseline: the same build, as fast and as frugal."""
    words = {one.verdict.outcome for one in (result, energy) if one}
    subject = result.verdict.subject
    if old is None or subject is None or words - {Outcome.OK, Outcome.INCONCLUSIVE}:
        return False
    few = len(result.verdict.runs) < GATING_RUNS
    same = old.fingerprint == subject.fingerprint
    return same and (few or Outcome.INCONCLUSIVE not in words)


def _source(result: CaseResult) -> Literal["suite", "probe"] | None:
    """Return where the rate comes from; a rate that was found is none that was offered."""
    if result.target_qps is None:
        return None
    return "probe" if result.qps_source == "probe" else "suite"


def _same_place(result: CaseResult, file: Path) -> None:
    """Refuse where the session was judged against another file of baselines.

    Raises:
        BaselineError: It was.
    """
    used = Path(result.verdict.baseline_file or file)
    copied = next((n for n, part in enumerate(used.parts) if part.startswith(COPY)), None)
    used = used if copied is None else Path(*used.parts[copied + 1 :])
    try:
        same = used.resolve() == file.resolve()
    except (OSError, ValueError):
        same = False
    if not same:
        raise BaselineError(
            f"it was judged against {used}, not {relative(file)}; name that folder of baselines "
            "with --baselines"
        )


# --- scores ----------------------------------------------------------------------------------


def _scores(result: CaseResult, root: Path, terms: Terms) -> ToMeasure | Kept:
    verdict, case = result.verdict, result.verdict.case
    assert verdict.subject is not None
    file = scores_file(root, result)
    if verdict.baseline_file and Path(verdict.baseline_file).name != file.name:
        return Kept(why=f"held against the scores of a reference, {verdict.baseline_file}")
    if not terms.baselines:
        _same_place(result, file)
    old = accuracy_baselines.FILE.load(file)
    if verdict.outcome is Outcome.ACC_DROP:
        require_accepted(result, f"{verdict.outcome} {verdict.headline}", terms)
    elif old and old.fingerprint == verdict.subject.fingerprint and case.id not in terms.chosen:
        return Kept(why="ok, and the build is the baseline's: its scores stay")
    return _to_measure(result, root, terms, {})


def scores_file(root: Path, result: CaseResult) -> Path:
    """Return where the scores of a test's engine entry are kept.

    Raises:
        BaselineError: A name would lead elsewhere.
    """
    case = result.verdict.case
    return accuracy_baselines.path_for(
        division_root(root, result),
        workload=case.workload,
        engine=case.engine,
        precision=case.precision,
    )


# --- missing ---------------------------------------------------------------------------------


def _to_measure(
    result: CaseResult, root: Path, terms: Terms, limits: Mapping[str, float]
) -> ToMeasure:
    runs = len(result.verdict.runs)
    few = f"{runs} run{'' if runs == 1 else 's'}, a baseline needs {GATING_RUNS}"
    why = few if result.verdict.kind == "performance" else "scores are kept of a whole data set"
    if not terms.measure:
        raise BaselineError(f"{why}; record them with: {recording(result)}")
    if not in_project(result.suite):
        raise BaselineError(
            f"{why}, and {result.suite} is not here: run this in pytest's root folder, which that "
            "path begins in"
        )
    return ToMeasure(result=result, root=root, why=why, limits=limits)


def recording(result: CaseResult) -> str:
    """Return the command that measures and records a test, where it was measured."""
    action = "missing" if result.verdict.outcome is Outcome.NO_BASELINE else "replace"
    more = "" if action == "missing" else ' --mlperf-reason "..."'
    return f'pytest "{result.test}" --mlperf-update={action}{more}'
