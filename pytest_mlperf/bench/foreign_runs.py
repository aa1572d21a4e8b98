"""Judge runs that another harness measured; store results and baselines."""

from __future__ import annotations

import datetime as dt
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_mlperf import __version__
from pytest_mlperf.bench.case import baseline_file, load_checked
from pytest_mlperf.bench.policy import rule_of_baseline
from pytest_mlperf.bench.runner import Unjudgeable
from pytest_mlperf.core.baseline import Baseline, find_record, with_record
from pytest_mlperf.core.case import Case, Division, Kind, Profile, Scenario
from pytest_mlperf.core.errors import BaselineError, MlperfError
from pytest_mlperf.core.measurement import Run, Subject
from pytest_mlperf.core.metrics import METRICS, gated_metrics
from pytest_mlperf.core.notes import Note, Words
from pytest_mlperf.core.numbers import plural
from pytest_mlperf.core.recording import acceptance_text, baseline_run, empty_baseline, new_record
from pytest_mlperf.core.results import IMPORTED, CaseResult, Results
from pytest_mlperf.core.rulings.ruling import rule_on
from pytest_mlperf.core.rulings.sample import countable
from pytest_mlperf.core.untrusted_text import nearest
from pytest_mlperf.core.verdict import BaselineReference, Outcome, Unchecked, Verdict
from pytest_mlperf.judge.rule_r import RuleR
from pytest_mlperf.run.project import new_id
from pytest_mlperf.stores import baselines as files
from pytest_mlperf.stores.results import as_bytes, from_bytes
from pytest_mlperf.suite.values import checked_accelerator, checked_name

LOOKS = 5
"""Number of analyses that rule R's errors are split over, the default of a session."""


def safe_case(case: Case, where: str = "") -> Case:
    """Check a case's names and scenario and return it; errors (MlperfError) begin with `where`."""
    try:
        for name in (case.workload, case.engine, case.precision):
            checked_name(name)
        checked_accelerator(case.accelerator)
    except ValueError as error:
        raise MlperfError(f"{where}of the case: {error}") from None
    if case.scenario not in tuple(Scenario):
        raise MlperfError(
            f"{where}case.scenario: {case.scenario!r}{nearest(case.scenario, Scenario)}"
        )
    return replace(case, scenario=Scenario(case.scenario))


def judge_runs(
    case: Case,
    runs: Sequence[Run],
    *,
    subject: Subject,
    limits: Mapping[str, float] | None = None,
    baselines: Path | str | None = None,
    round_: str = IMPORTED,
    profile: Profile = "quick",
    division: Division = "closed",
    target_qps: float | None = None,
) -> CaseResult:
    """Judge runs that another tool measured, oldest first; return the result of the case.

    Args:
        subject: Machine, engine and data of the runs.
        limits: Tolerated worsening by gated metric, as a share; None for the scenario's limits.
        target_qps: Rate that the tool offered [1/s]; None if it set none.
        baselines: Folder of the baselines to judge against; None for no judgement.

    Raises:
        MlperfError: A name, metric or value is invalid, or the baseline cannot be read.
    """
    case = safe_case(case)
    limits = usual_limits(case, runs) if limits is None else limits
    for metric, limit in limits.items():
        if metric.partition("@")[0] not in METRICS:
            raise MlperfError(f"{case.id}: no metric {metric!r}{nearest(metric, METRICS)}")
        share: object = limit
        if not isinstance(share, int | float) or not 0 < share < math.inf:
            raise MlperfError(
                f"{case.id}: the limit of {metric} is {limit!r}; must be a share above 0, e.g. 0.05"
            )
    result = CaseResult(
        test=f"{IMPORTED}::test_performance[{case.id}]",
        suite=IMPORTED,
        line=1,
        round=round_,
        profile=profile,
        verdict=_unjudged(case, runs, subject),
        failed=False,
        limits=limits,
        scored=False,
        handicap=0.0,
        pretended=False,
        target_qps=target_qps,
        qps_source=None,
        division=division,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from_bytes reports wrong types
        content = as_bytes(session_of([result], {}))
    from_bytes(case.id, content, "measured session", "pass judge_runs a valid value")
    verdict = result.verdict
    if verdict.runs:
        verdict = replace(verdict, metrics=rule_on(verdict.runs, None, limits, RuleR()).metrics)
    if baselines:
        file = baseline_file(Path(baselines), case, profile)
        verdict = _against(file, verdict, subject, limits)
    return replace(result, verdict=verdict, failed=verdict.fails)


def usual_limits(case: Case, runs: Sequence[Run]) -> dict[str, float]:
    """Return the default limits of a scenario's gated metrics, at each point of a curve."""
    measured = [run.metrics for run in runs if not run.invalid] or [run.metrics for run in runs]
    rated = all("tokens_per_second" in metrics for metrics in measured)
    gated = gated_metrics(case.scenario, tokens=rated)
    points = (name for metrics in measured for name in metrics if name.partition("@")[0] in gated)
    return {name: METRICS[name].limit for name in (*gated, *points)}


def _unjudged(case: Case, runs: Sequence[Run], subject: Subject) -> Verdict:
    valid = tuple(run for run in runs if not run.invalid)
    invalid = tuple(run for run in runs if run.invalid)
    headline: Words = f"imported {plural(len(valid), 'session')}: judge with pytest-mlperf compare"
    if invalid:
        note = _why_invalid(invalid[0])
        headline = Note.of("sessions_invalid", count=len(invalid), of=len(runs), note=note)
    elif not valid:
        headline = "there is no run"
    return Verdict(
        case=case,
        kind=Kind.PERFORMANCE,
        outcome=Outcome.INVALID if invalid or not valid else Outcome.NOT_EVALUATED,
        headline=headline,
        runs=valid,
        # Reports describe further ones as repeats.
        invalid_runs=invalid[:1],
        reasons=tuple(reason for run in invalid for reason in run.invalid),
        subject=subject,
        notes=(*map(_why_invalid, invalid[1:]), *(note for run in runs for note in run.notes)),
        unchecked=Unchecked.NOT_CHECKED,
    )


def _against(
    file: Path, verdict: Verdict, subject: Subject, limits: Mapping[str, float]
) -> Verdict:
    loaded = load_checked(file, verdict.case)
    record = find_record(loaded, subject.identity)
    compared = replace(
        verdict,
        baseline=BaselineReference(
            file=str(file),
            source=acceptance_text(record.history) if record else None,
            id=record.id if record else "",
        ),
    )
    if verdict.outcome is Outcome.INVALID:
        return compared
    rule = rule_of_baseline(file, verdict.case.accelerator, subject.identity, LOOKS)[0]
    ruling = rule_on(verdict.runs, record, limits, rule)
    return replace(
        compared, outcome=ruling.outcome, headline=ruling.headline, metrics=ruling.metrics
    )


def accept_runs(
    result: CaseResult, *, baselines: Path | str, reason: str, drop: bool = False
) -> Path:
    """Store the runs in a result of `judge_runs` as a baseline; return the file to commit.

    The runs replace the baseline of the same machine and continue its history.

    Args:
        drop: Whether a drop may be accepted.

    Raises:
        BaselineError: The result is INVALID, has no runs or is a drop, the reason is empty, or the
            file cannot be written.
    """
    verdict, case = result.verdict, result.verdict.case
    if verdict.outcome is Outcome.INVALID or not verdict.runs or verdict.subject is None:
        raise BaselineError(f"{case.id}: nothing to accept: the runs are {verdict.outcome}")
    if verdict.fails and not drop:
        raise BaselineError(f"{case.id}: {verdict.outcome}; to accept it, pass drop=True")
    if not reason.strip(" ."):
        raise BaselineError(f"{case.id}: the reason is empty; say why the value is accepted")
    subject, file = verdict.subject, baseline_file(Path(baselines), case, result.profile)
    rule = rule_of_baseline(file, case.accelerator, subject.identity, LOOKS)[0]

    def put(there: Baseline | None) -> Baseline:
        baseline = there or empty_baseline(case, round_name=result.round, profile=result.profile)
        old = find_record(baseline, subject.identity)
        record = new_record(
            tuple(map(baseline_run, verdict.runs)),
            old,
            action="replace" if old else "record",
            reason=reason,
            subject=subject,
            target_qps=result.target_qps,
            qps_source=None if result.target_qps is None else "suite",
            limits=countable(verdict.runs, result.limits, None),
            rule=rule,
        )
        return with_record(baseline, record)

    files.update(file, put)
    return file


def session_of(cases: Sequence[CaseResult], versions: Mapping[str, str]) -> Results:
    """Create a session's results; `versions` are those of the measuring tools, by name."""
    return Results(
        run=new_id(),
        started=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        seconds=0.0,
        commit=None,
        versions={"pytest-mlperf": __version__, **versions},
        deselected={},
        cases=tuple(cases),
    )


def _why_invalid(run: Run) -> Note:
    return Note.of("of_case", case=run.folder, note=Unjudgeable(run).note)
