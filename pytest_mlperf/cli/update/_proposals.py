"""Propose a test's values as new baselines, and write the proposals that are accepted."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_mlperf.bench.baseline import noise_of_sessions
from pytest_mlperf.bench.case import baseline_file, baselines_root, load_checked
from pytest_mlperf.bench.policy import rule_of_baseline
from pytest_mlperf.core import recording
from pytest_mlperf.core.baseline import (
    AccuracyBaseline,
    Baseline,
    Record,
    changed_keys,
    find_record,
    geometric_means,
    with_record,
)
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.errors import BaselineError
from pytest_mlperf.core.guarantees import ACCEPT_OPTIONS, MISSING_OPTION, REPLACE_OPTIONS
from pytest_mlperf.core.noise.calibration import USUAL_BASELINE_RUNS
from pytest_mlperf.core.notes import Words
from pytest_mlperf.core.numbers import plural, points
from pytest_mlperf.core.results import IMPORTED, CaseResult
from pytest_mlperf.core.rulings.sample import countable, unrecordable
from pytest_mlperf.core.rulings.screening import screened
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.judge.inputs import DAYS
from pytest_mlperf.judge.rule_r import GATING_RUNS
from pytest_mlperf.reports.sentences import first_line, sentence
from pytest_mlperf.reports.terminal.advice import is_drop
from pytest_mlperf.reports.terminal.layout import relative
from pytest_mlperf.stores import accuracy_baselines, baselines
from pytest_mlperf.stores.accuracy_baselines import Scores

COPY = "update-"
"""Prefix of the folder for new runs, which holds a copy of the baselines at their path below the
working folder."""

UNFIT_OUTCOMES = frozenset({Outcome.INVALID, Outcome.ERROR, Outcome.GATE_FAIL})
"""Outcomes whose values may never become a baseline."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Hold the user's options for accepting values as baselines.

    Attributes:
        regressions: Ids of cases whose drops may be accepted.
        chosen: Ids of cases to accept; empty for all.
        measure: Whether runs that a baseline still needs may be made now.
    """

    baselines: Path | None
    reason: str
    regressions: frozenset[str]
    chosen: frozenset[str]
    measure: bool


@dataclass(frozen=True, kw_only=True)
class ToMeasure:
    """Hold a test with too few runs for a baseline; `limits` are max_drop shares by metric."""

    result: CaseResult
    root: Path
    reason: str
    limits: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Report that a test's baseline remains unchanged, and why."""

    reason: str


def proposal_for(
    result: CaseResult, terms: Terms, energy: CaseResult | None = None
) -> PerformanceProposal | ToMeasure | Kept:
    """Decide whether to propose a test's values as a baseline, to measure more runs, or neither.

    `energy` is the result of the case's efficiency test. Raises BaselineError for refused values.
    """
    require_fit(result)
    root = root_of(result, terms.baselines)
    if result.verdict.kind == Kind.ACCURACY:
        return _scores(result, root, terms)
    return _speed(result, root, terms, energy)


def require_fit(result: CaseResult) -> None:
    """Raise BaselineError if a result may not become a baseline, e.g. of a failed test."""
    verdict = result.verdict
    measured = verdict.accuracy if verdict.kind == Kind.ACCURACY else verdict.runs
    if result.handicap or result.pretended:
        option = "--mlperf-handicap" if result.handicap else "--mlperf-pretend"
        raise BaselineError(f"measured with {option}")
    if verdict.outcome in UNFIT_OUTCOMES:
        raise BaselineError(first_line(verdict))
    if verdict.subject is None or not measured:
        raise BaselineError("nothing was measured")
    if reason := recording.recording_obstacle(verdict):
        raise BaselineError(sentence(reason))


def root_of(result: CaseResult, folder: Path | None) -> Path:
    """Return a suite's baselines folder; BaselineError if it is not below the working folder."""
    if folder:
        return folder
    if result.suite == IMPORTED:
        raise BaselineError(
            "imported results have no suite; name their baselines folder: --baselines DIR"
        )
    if not in_project(result.suite):
        raise BaselineError(
            f"{result.suite} does not exist; run this in pytest's root folder, or name the "
            "baselines folder: --baselines DIR"
        )
    return baselines_root(None, Path(result.suite), "closed")


def in_project(suite: str) -> bool:
    """Check whether a suite file is below the working folder."""
    try:
        path = Path(suite).resolve()
        return path.is_file() and path.is_relative_to(Path.cwd().resolve())
    except (OSError, ValueError):  # a name that is too long, or holds a 0 byte
        return False


def recorded(root: Path, result: CaseResult) -> tuple[Path, Record | None]:
    """Return (baseline file of the test's case, its record for the test's machine or None)."""
    case, subject = result.verdict.case, result.verdict.subject
    assert subject is not None
    file = baseline_file(baselines_root(root, Path(), result.division), case, result.profile)
    return file, find_record(load_checked(file, case), subject.identity)


def _speed(
    result: CaseResult, root: Path, terms: Terms, energy: CaseResult | None
) -> PerformanceProposal | ToMeasure | Kept:
    verdict, case = result.verdict, result.verdict.case
    file, old = recorded(root, result)
    fresh = tuple(map(recording.baseline_run, verdict.runs))
    if old and any(run in old.runs for run in fresh):
        return Kept(reason="these runs are already in the baseline")
    if not terms.baselines:
        _same_place(result, file)
    grows = old is not None and _adds_runs(result, old)
    if not grows and _is_unchanged(result, old, energy) and case.id not in terms.chosen:
        return Kept(reason=_stays(result, old))
    limits = {**(energy.limits if energy else {}), **result.limits}
    if grows:
        return performance_proposal(result, file, old, limits, action="append", reason=terms.reason)
    if len(fresh) < GATING_RUNS:
        for judged in filter(None, (result, energy)):
            if is_drop(judged.verdict):
                require_accepted(result, first_line(judged.verdict), terms)
        return _to_measure(result, root, terms, limits)
    if result.scored and verdict.accuracy is None:
        raise BaselineError(
            f'accuracy was not checked; run all tests of the suite: pytest "{result.suite}"'
        )
    if unfit := unrecordable(verdict.runs, result.limits, None):
        raise BaselineError(f"{sentence(unfit)}; run it again, or remove the metric from [limits]")
    action: recording.Action = "replace" if old else "record"
    proposal = performance_proposal(result, file, old, limits, action=action, reason=terms.reason)
    require_accepted(result, "; ".join(proposal.worse), terms)
    return proposal


def _adds_runs(result: CaseResult, old: Record) -> bool:
    """Check whether the session adds runs of an unchanged build to a baseline of < `DAYS` days."""
    verdict = result.verdict
    passed = verdict.replaces_baseline and verdict.outcome is Outcome.OK
    return (
        (passed or verdict.outcome is Outcome.RECORDED)
        and len(verdict.runs) < GATING_RUNS
        and verdict.subject is not None
        and not changed_keys(old.fingerprint, verdict.subject.fingerprint)
        and old.days < DAYS
    )


def _stays(result: CaseResult, old: Record | None) -> str:
    word = result.verdict.outcome
    reason = f"{word}, same build as the baseline; to replace it: --case {result.verdict.case.id}"
    if old is None or old.days >= DAYS:
        return reason
    more = f'pytest "{result.test}" {MISSING_OPTION}'
    return f"{reason}; the baseline has {old.days} of {DAYS} days; to add another day: {more}"


def require_accepted(result: CaseResult, worse: str, terms: Terms) -> None:
    """Raise BaselineError if `worse` names worse values and --accept-regression lacks the case."""
    case = result.verdict.case.id
    if worse and case not in terms.regressions:
        raise BaselineError(f"worse: {worse}; to accept: --accept-regression {shlex.quote(case)}")


def _is_unchanged(result: CaseResult, old: Record | None, energy: CaseResult | None) -> bool:
    """Check whether `old` needs no update: same build, no drop in `result` or `energy`."""
    words = {one.verdict.outcome for one in (result, energy) if one}
    unmoved = {Outcome.OK, Outcome.PROVISIONAL, Outcome.INCONCLUSIVE}
    dropped = any(is_drop(one.verdict) for one in (result, energy) if one)
    subject = result.verdict.subject
    if old is None or subject is None or words - unmoved or dropped:
        return False
    few = len(result.verdict.runs) < GATING_RUNS
    same = not changed_keys(old.fingerprint, subject.fingerprint)
    return same and (few or Outcome.INCONCLUSIVE not in words)


def _same_place(result: CaseResult, file: Path) -> None:
    used = Path(result.verdict.baseline.file or file)
    copied = next((n for n, part in enumerate(used.parts) if part.startswith(COPY)), None)
    used = used if copied is None else Path(*used.parts[copied + 1 :])
    try:
        same = used.resolve() == file.resolve()
    except (OSError, ValueError):
        same = False
    if not same:
        raise BaselineError(
            f"the session was judged against {used}, not {relative(file)}; name the folder of its "
            "baselines: --baselines DIR"
        )


def _scores(result: CaseResult, root: Path, terms: Terms) -> ToMeasure | Kept:
    verdict, case = result.verdict, result.verdict.case
    assert verdict.subject is not None
    file = scores_file(root, result)
    if verdict.baseline.file and Path(verdict.baseline.file).name != file.name:
        return Kept(reason=f"judged against a reference ({verdict.baseline.file}), not a baseline")
    if not terms.baselines:
        _same_place(result, file)
    old = accuracy_baselines.ACCURACY_DOCUMENT.load(file)
    if verdict.outcome is Outcome.ACC_DROP:
        require_accepted(result, first_line(verdict), terms)
    elif old and not (
        changed_keys(old.fingerprint, verdict.subject.fingerprint) or case.id in terms.chosen
    ):
        return Kept(reason="ok, same build as the baseline")
    return _to_measure(result, root, terms, {})


def scores_file(root: Path, result: CaseResult) -> Path:
    """Return the path of an engine entry's accuracy baseline."""
    case, used = result.verdict.case, Path(result.verdict.baseline.file or "")
    return accuracy_baselines.path_for(
        baselines_root(root, Path(), result.division),
        workload=case.workload,
        engine=case.engine,
        precision=case.precision,
        data=case.scenario if used.name.endswith(f".{case.scenario}.json") else "",
    )


def _to_measure(
    result: CaseResult, root: Path, terms: Terms, limits: Mapping[str, float]
) -> ToMeasure:
    runs = len(result.verdict.runs)
    few = f"{plural(runs, 'run')}; a baseline needs {GATING_RUNS}"
    reason = few if result.verdict.kind == Kind.PERFORMANCE else "scores need the whole data set"
    if result.suite == IMPORTED:
        raise BaselineError(f"{reason}; import more sessions together")
    if not terms.measure:
        raise BaselineError(f"{reason}; record them: {record_command(result)}")
    if not in_project(result.suite):
        raise BaselineError(
            f"{reason}; {result.suite} does not exist; run this in pytest's root folder"
        )
    return ToMeasure(result=result, root=root, reason=reason, limits=limits)


def record_command(result: CaseResult) -> str:
    """Return the pytest command that measures and records a test."""
    options = ACCEPT_OPTIONS if is_drop(result.verdict) else REPLACE_OPTIONS
    if result.verdict.outcome is Outcome.NO_BASELINE:
        options = MISSING_OPTION
    return f'pytest "{result.test}" {options}'


CHANGED_NOTE = "the baseline changed during the measurement; check it, then run the command again"


@dataclass(frozen=True, kw_only=True)
class PerformanceProposal:
    """Propose a baseline record of a case's runs, which replaces or extends the old record."""

    result: CaseResult
    file: Path
    old: Record | None
    new: Record
    limits: Mapping[str, float]
    notes: tuple[Words, ...] = ()

    @property
    def folder(self) -> Path:
        """Root folder of the baselines, above ACCELERATOR/PROFILE/WORKLOAD/FILE."""
        return self.file.parents[3]

    @property
    def worse(self) -> list[str]:
        """The gated metrics that get worse or are lost, each with its old and new value."""
        old_runs = self.old.runs if self.old else ()
        return [*map(sentence, recording.worsened(old_runs, self.new.runs, self.limits))]

    def lines(self) -> Iterator[str]:
        """Yield a line per metric with old and new score, and a line with sample count and file."""
        old = geometric_means(self.old.runs) if self.old else {}
        new = geometric_means(self.new.runs)
        for metric in filter(new.__contains__, self.limits):
            step = recording.value_change(metric, old.get(metric), new[metric])
            yield f"  {sentence(step)}"
        yield from (f"  {note}" for note in map(sentence, self.notes))
        yield f"  {len(self.new.runs)} runs -> {relative(self.file)}"

    def write(self) -> None:
        """Write the proposed record to the baseline file."""
        baselines.update(self.file, self._put)

    def _put(self, current: Baseline | None) -> Baseline:
        if find_record(current, self.new.identity) != self.old:
            raise BaselineError(f"{self.file}: {CHANGED_NOTE}")
        case, result = self.result.verdict.case, self.result
        empty = recording.empty_baseline(case, round_name=result.round, profile=result.profile)
        return with_record(current or empty, self.new)


@dataclass(frozen=True, kw_only=True)
class AccuracyProposal:
    """Propose the scores of a pass over a whole data set as an accuracy baseline."""

    result: CaseResult
    file: Path
    old: AccuracyBaseline | None
    new: AccuracyBaseline
    scores: Scores
    outputs: Sequence[int] | None

    @property
    def folder(self) -> Path:
        """Root folder of the baselines, above accuracy/WORKLOAD/FILE."""
        return self.file.parents[2]

    def lines(self) -> Iterator[str]:
        """Yield a line per metric with old and new score, and a line with sample count and file."""
        for metric, new in self.new.scores.items():
            old = self.old.scores.get(metric) if self.old else None
            if old is None:
                yield f"  {metric} new {new:.3f}"
            else:
                yield f"  {metric} {old:.3f} -> {new:.3f} ({points(new - old)} points)"
        yield f"  {self.new.samples:,} samples -> {relative(self.file)}"

    def write(self) -> None:
        """Write the file of sample scores and the accuracy baseline."""
        accuracy_baselines.replace_scores(self.file, self._put, self.scores, self.outputs)

    def _put(self, current: AccuracyBaseline | None) -> AccuracyBaseline:
        if current != self.old:
            raise BaselineError(f"{self.file}: {CHANGED_NOTE}")
        return self.new


Proposal = PerformanceProposal | AccuracyProposal


def performance_proposal(
    result: CaseResult,
    file: Path,
    old: Record | None,
    limits: Mapping[str, float],
    *,
    action: recording.Action,
    reason: str,
) -> PerformanceProposal:
    """Create the proposal to accept a performance test's runs as its baseline."""
    verdict, case = result.verdict, result.verdict.case
    assert verdict.subject is not None
    rule = rule_of_baseline(file, case.accelerator, verdict.subject.identity, USUAL_BASELINE_RUNS)[
        0
    ]
    extended = old if action == "append" else None
    fresh = screened(verdict.runs, result.limits, rule, extended)
    if extended is None and len(fresh.runs) < GATING_RUNS:
        few = (
            f"without outliers, only {len(fresh.runs)} of {len(verdict.runs)} runs are left; a "
            f"baseline needs {GATING_RUNS}"
        )
        raise BaselineError(f"{few}; run it again")
    # A session that was judged has left out its own first run already.
    skipped = old is not None and old.skips_first_run and verdict.outcome is not Outcome.RECORDED
    source: Literal["suite", "probe"] | None = None
    if result.target_qps is not None:  # a rate that was found is none that was offered
        source = "probe" if result.qps_source == "probe" else "suite"
    new = recording.new_record(
        tuple(map(recording.baseline_run, fresh.runs)),
        old,
        action=action,
        reason=reason,
        subject=verdict.subject,
        target_qps=result.target_qps,
        qps_source=source,
        limits=countable(fresh.runs, result.limits, extended),
        rule=rule,
        skips_first_run=fresh.skips_first_run or skipped,
    )
    noise = noise_of_sessions(
        new, old, file, case=case, profile=result.profile, metrics=limits, rule=rule
    )
    new = dataclasses.replace(new, session_noise=noise)
    return PerformanceProposal(
        result=result, file=file, old=old, limits=limits, new=new, notes=fresh.notes
    )
