"""Judge each test of a session: measure until a decision, then record runs if asked to."""

from __future__ import annotations

import contextlib
import datetime as dt
import glob
import os
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from pytest_mlperf.bench import performance
from pytest_mlperf.bench.accuracy import CaseAccuracy
from pytest_mlperf.bench.against import OtherBuild
from pytest_mlperf.bench.case import CaseRuns
from pytest_mlperf.bench.compliance import judge_audit
from pytest_mlperf.bench.confirm import confirm, note_unconfirmed
from pytest_mlperf.bench.pair import judge_pair
from pytest_mlperf.bench.policy import LONE_PHASE, Phase, Policy
from pytest_mlperf.bench.runner import Unjudgeable, unforeseen
from pytest_mlperf.core.baseline import AccuracyBaseline, Record, unknown_facts
from pytest_mlperf.core.case import Case, Kind
from pytest_mlperf.core.control import clock_changes
from pytest_mlperf.core.energy import EnergyReading, Source
from pytest_mlperf.core.errors import (
    BaselineError,
    MlperfError,
    RunError,
    SuiteError,
    UnavailableError,
)
from pytest_mlperf.core.guarantees import Guarantee, guarantee
from pytest_mlperf.core.job import Job, MeasuredCase
from pytest_mlperf.core.measurement import GpuRun, Run
from pytest_mlperf.core.notes import Note, Words
from pytest_mlperf.core.numbers import quantity
from pytest_mlperf.core.reason import Sign, SignKey
from pytest_mlperf.core.results import KnownFailure, expect
from pytest_mlperf.core.rulings.disturbance import cpu_load_notes
from pytest_mlperf.core.rulings.multiplicity import DROP_OUTCOMES
from pytest_mlperf.core.rulings.ruling import Ruling
from pytest_mlperf.core.rulings.screening import value_of
from pytest_mlperf.core.rulings.stragglers import stragglers
from pytest_mlperf.core.server.changes import server_in_words
from pytest_mlperf.core.untrusted_text import some
from pytest_mlperf.core.verdict import BaselineReference, Logs, Outcome, Verdict
from pytest_mlperf.processes import log_tail
from pytest_mlperf.run.child.process import DeliberateError
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.run.project import CHANGED_MARK, files_since
from pytest_mlperf.run.roofline_share import cost_of
from pytest_mlperf.run.worker.model_files import path_texts
from pytest_mlperf.stores.results import require_readable
from pytest_mlperf.suite.pairs import PlannedCase, PlannedPair, Testable


def fails_on(word: str, fail_on: Collection[str], *, usual: bool) -> bool:
    """Return whether a skip, INCONCLUSIVE or NO BASELINE fails a test.

    `word` is "skips", "inconclusive" or "no-baseline". `fail_on` has the words of
    `--mlperf-fail-on`; "no:WORD" lets the outcome pass. `usual` is the default if neither is there.
    """
    return word in fail_on or (usual and f"no:{word}" not in fail_on)


def fails(verdict: Verdict, *, fail_on: Collection[str], pretended: bool) -> bool:
    """Return whether a verdict fails its test; `pretended`: the accelerator is simulated."""
    outcome = verdict.outcome
    if outcome in {Outcome.INCONCLUSIVE, Outcome.SUSPECT, Outcome.PROVISIONAL}:
        return verdict.fails or fails_on("inconclusive", fail_on, usual=False)
    if outcome is Outcome.NO_BASELINE:
        usual = bool(os.environ.get("CI")) and _can_share_baseline(verdict, pretended=pretended)
        return fails_on("no-baseline", fail_on, usual=usual)
    return verdict.fails


def _can_share_baseline(verdict: Verdict, *, pretended: bool) -> bool:
    return verdict.case.accelerator != "cpu" and not pretended


def with_unjudged_note(verdict: Verdict, *, fail_on: Collection[str], pretended: bool) -> Verdict:
    """Add a note to a NO BASELINE that passes in CI: without a real GPU, and not in `fail_on`."""
    shareable = _can_share_baseline(verdict, pretended=pretended)
    usual = not shareable and not {"no-baseline", "no:no-baseline"}.intersection(fail_on)
    if verdict.outcome is not Outcome.NO_BASELINE or not usual or not os.environ.get("CI"):
        return verdict
    note = (
        "nothing was compared, so this test passes. To make it fail without a baseline, set "
        "--mlperf-fail-on=no-baseline (the default with --mlperf-accelerator in CI)"
    )
    return replace(verdict, notes=(*verdict.notes, note))


def require_power_source(case: Case) -> None:
    """Raise UnavailableError for CPU cases, whose energy only a wall meter can measure."""
    if case.accelerator == "cpu":
        raise UnavailableError(
            f"only a wall meter measures the energy of {case.accelerator}: set a limit for "
            "samples_per_joule_wall and name the meter's log with --mlperf-meter; for a "
            "server's GPUs use samples_per_joule_dcgm and --mlperf-dcgm"
        )


def broken(
    case: Case, kind: Kind, error: RunError | BaselineError, relative: Callable[[Path], str]
) -> Verdict:
    """Return the verdict ERROR for a test that raised an exception; add the log's last lines."""
    layer, log = "baseline", None
    if isinstance(error, RunError):
        layer, log = error.layer, error.log
    # Our own errors are sentences for the user, which a traceback would hide.
    tail = [] if isinstance(error, DeliberateError) else log_tail(log)
    return Verdict(
        case=case,
        kind=kind,
        outcome=Outcome.ERROR,
        headline=str(error) if str(error).startswith(f"{layer} ") else f"{layer}: {error}",
        logs=Logs(
            tail=tuple(tail),
            file=relative(Path(log)) if log else None,
            folder=relative(Path(log).parent) if log else None,
        ),
    )


def energy_notes(runs: Sequence[Run]) -> list[Words]:
    """Return notes on the runs' energy; values, power source and GPUs are those of the last run."""
    if not runs:
        return []
    last, notes = runs[-1], notes_of_runs(runs)
    if power := last.energy.get(Source.NVML):
        by_gpu = ", ".join(map(_of_gpu, last.hardware.gpus))
        if used := _used(last, power):
            notes += [*used, *([f"by GPU: {by_gpu}"] if by_gpu else []), *power.notes]
    notes += merge_notes([_unknown_energy(run) for run in runs])
    for source in (Source.HOST, Source.METER, Source.EXPORTER):
        if seen := last.energy.get(source):
            of_host = [Note.of("host_energy", note=note) for note in seen.notes]
            notes += [*_used(last, seen), *(of_host if source is Source.HOST else seen.notes)]
    return list(dict.fromkeys(notes))


def _used(run: Run, energy: EnergyReading) -> list[str]:
    if energy.joules is None or energy.mean_w is None:
        return []
    off = "uncertainty not known"
    if energy.uncertainty_j is not None:
        off = f"± {energy.uncertainty_j:,.0f}"
    places = {Source.METER: " at the wall", Source.EXPORTER: f" of {energy.devices}"}
    where = places.get(energy.source, "")
    used = f"{energy.joules:,.0f} J ({off}){where} in {energy.window_s:.1f} s"
    whose = " of one GPU" if run.hardware.gpus else ""
    peak = "" if energy.peak_w is None else f", {energy.peak_w:,.0f} W at most{whose}"
    interval = "" if energy.interval_s is None else f", read every {energy.interval_s:.2g} s"
    behind = f"{peak}{_per_unit(run, energy.source)}{_net(energy)}: {energy.source.label}{interval}"
    return [f"{used}, {energy.mean_w:,.0f} W{behind}"]


def _of_gpu(gpu: GpuRun) -> str:
    energy = "not known" if gpu.joules is None else f"{gpu.joules:,.0f} J"
    off = "" if gpu.uncertainty_j is None else f" (± {gpu.uncertainty_j:,.0f})"
    return f"{gpu.name or gpu.uuid} {energy}{off}"


def clock_note(runs: Sequence[Run], record: Record | None, outcome: Outcome) -> Note | None:
    """Return a note if clocks or power cap changed since the baseline; None if not or for drops."""
    if record is None or outcome in {Outcome.PERF_DROP, Outcome.POWER_DROP, Outcome.RECORDED}:
        return None
    if not any(run.hardware.state for run in runs):
        return None
    moved = clock_changes(
        [run.hardware.state for run in runs], [run.hardware.state for run in record.runs]
    )
    return Note.of("beside_record", note=moved) if moved else None


def notes_of_runs(runs: Sequence[Run]) -> list[Words]:
    """Return the notes of all runs, each note once, with the values of the last run."""
    return merge_notes([_noted(run) for run in runs])


def _noted(run: Run) -> dict[Hashable, Words]:
    """Return a run's warnings and notes by comparison key; equal warnings of GPUs are one entry."""
    alike: dict[Hashable, list[Sign]] = {}
    for sign in run.signs:
        alike.setdefault(sign.kind[1:], []).append(sign)
    noted: dict[Hashable, Words] = {}
    for kind, signs in alike.items():
        notes = tuple(sign.note for sign in signs)
        noted[kind] = Note.of("signs", signs=notes, gpus=len(run.hardware.gpus))
    return {**noted, **{note: note for note in run.notes}}


def _unknown_energy(run: Run) -> dict[Hashable, Words]:
    if not run.energy_unknown:
        return {}
    broke = next((sign.kind for sign in run.signs if sign.key is SignKey.NOT_WATCHED), None)
    return {broke or run.energy_unknown: f"energy unknown: {run.energy_unknown}"}


def merge_notes(notes_by_run: Sequence[Mapping[Hashable, Words]]) -> list[Words]:
    """Merge notes of runs: one per key, with the last run's text and the number of runs with it."""
    lines = []
    for kind in dict.fromkeys(kind for by_kind in notes_by_run for kind in by_kind):
        *others, last = [by_kind[kind] for by_kind in notes_by_run if kind in by_kind]
        count, of = len(others) + 1, len(notes_by_run)
        lines.append(last if count == of else Note.of("in_runs", count=count, of=of, note=last))
    return lines


def _net(power: EnergyReading) -> str:
    if power.net_joules is None or power.idle_w is None:
        return ""
    return f", {power.net_joules:,.0f} J above idle ({power.idle_w:,.0f} W)"


def _per_unit(run: Run, source: Source) -> str:
    for of in () if source is Source.HOST else ("token", "sample"):
        if rate := run.metrics.get(f"{of}s_per_joule{source.suffix}"):
            return f", {quantity('', 1 / rate)} J/{of}"
    return ""


class Bench:
    """Measure each case of a session once, and return the verdicts of its tests."""

    def __init__(self, conditions: Conditions, policy: Policy, show: Callable[[str], None]) -> None:
        self._conditions = conditions
        self._policy = policy
        self._show = show
        self._cases: dict[tuple[Path, str], CaseRuns] = {}
        self._other = OtherBuild(policy) if policy.against else None

    def close(self) -> None:
        """Remove the temporary files of the session."""
        if self._other:
            self._other.close()

    def verdict(
        self, planned: PlannedCase, kind: Kind, kinds: Collection[Kind], phase: Phase = LONE_PHASE
    ) -> Verdict:
        """Make the missing runs of one test and return its verdict.

        Errors other than those below become the verdict ERROR, so that the results list every test.
        `kinds` are the kinds of all selected tests of the case; these tests share a process.

        Raises:
            UnavailableError: Model or data set is missing.
            SuiteError: Two Python tests give one case different settings.
        """
        verdict = self._answered(
            planned.case, kind, lambda: self._judged(planned, kind, kinds, phase)
        )
        case = self._cases.get((planned.path, planned.case.id))
        if case is None or verdict.outcome is not Outcome.ERROR:
            return verdict
        return replace(verdict, invalid_runs=tuple(case.invalid_runs))

    def pair(self, pair: PlannedPair) -> Verdict:
        """Compare two engine entries by interleaved runs; return the verdict on the claim."""

        def judged() -> Verdict:
            verdict = judge_pair(pair, self._conditions, self._policy, self._show)
            return _expected(pair, verdict)

        return self._answered(pair.case, Kind.PAIR, judged)

    def _answered(self, case: Case, kind: Kind, judged: Callable[[], Verdict]) -> Verdict:
        try:
            verdict = judged()
            require_readable(verdict)  # an unreadable one would end the session
        except (RunError, BaselineError) as error:
            return broken(case, kind, error, self._policy.shown)
        except MlperfError:
            raise
        except Exception as error:
            log = self._conditions.folder / f"{case.id}.{kind}.log"
            return broken(case, kind, unforeseen(error, log), self._policy.shown)
        return verdict

    def _judged(
        self, planned: PlannedCase, kind: Kind, kinds: Collection[Kind], phase: Phase
    ) -> Verdict:
        case = self._case(planned)
        answers = {Kind.ACCURACY: self._accuracy, Kind.EFFICIENCY: self._efficiency}
        answer = answers.get(kind, self._performance)
        try:
            if kind.is_audit:
                return self._audited(case, kind)
            ruling = answer(case, {*kinds, kind}, phase)
            if self._other:
                ruling = replace(ruling, interleaved=self._other.interleaved(case, ruling))
            verdict = self._verdict(case, kind, ruling)
        except Unjudgeable as error:
            verdict = self._verdict(
                case, kind, performance.invalid_run_ruling(case, error.run), error.run
            )
        return _expected(planned, verdict)

    def record(self, case: Case) -> Record | None:
        """Return the baseline record that a case is judged against, or None."""
        return next((own.record for own in self._cases.values() if own.planned.case == case), None)

    def rate(self, planned: Testable) -> tuple[float | None, str | None]:
        """Return (offered or expected rate [1/s], its source); (None, None) if not measured."""
        case = self._cases.get((planned.path, planned.case.id))
        return (case.rate, case.rate_source) if case else (None, None)

    def _case(self, planned: PlannedCase) -> CaseRuns:
        key = (planned.path, planned.case.id)
        if key not in self._cases:
            self._cases[key] = CaseRuns(planned, self._conditions, self._policy, self._show)
        case = self._cases[key]
        if case.planned.suite != planned.suite:
            raise SuiteError(
                f"{planned.path}:{planned.line}: case {planned.case.id} is measured by the test in "
                f'line {case.planned.line} with other settings; tell them apart by engine="..." '
                "in the marker"
            )
        return case

    # --- rulings -------------------------------------------------------------------------

    def _accuracy(self, case: CaseRuns, kinds: Collection[Kind], phase: Phase) -> Ruling:
        del phase  # scores are never judged jointly
        try:
            (self._other.first(case, kinds) if self._other else case.first(kinds))
        except Unjudgeable:
            # Scores of INVALID performance runs are valid.
            if case.accuracy is None:
                raise
        if case.accuracy is None and case.unscored:
            raise case.unscored
        if case.accuracy is None:
            headline = "dummy weights: only speed is judged, not accuracy"
            return Ruling(outcome=Outcome.NOT_EVALUATED, headline=headline)
        answer, scores, policy = case.judge_accuracy(), case.scores, case.policy
        if scores.records(policy) and answer.outcome is not Outcome.GATE_FAIL:
            commit = self._conditions.commit
            return scores.record(case.scored_pass, policy, answer, commit=commit)
        return scores.with_unfit_note(case.scored_pass, answer)

    def _audited(self, case: CaseRuns, test: Kind) -> Verdict:
        ruling, folder = judge_audit(case, test)
        return Verdict(
            case=case.planned.case,
            kind=test,
            outcome=ruling.outcome,
            headline=ruling.headline,
            runs=tuple(case.runs),
            subject=case.subject,
            notes=ruling.notes,
            logs=Logs(folder=self._policy.shown(folder)),
            handicap=self._conditions.handicap,
        )

    def _performance(self, case: CaseRuns, kinds: Collection[Kind], phase: Phase) -> Ruling:
        if self._other:
            answer = self._other.judge(case, kinds, Kind.PERFORMANCE)
        else:
            ruling = performance.judge_performance(case, kinds, phase)
            answer = self._confirmed(case, ruling, Outcome.PERF_DROP)
        return replace(answer, notes=(*answer.notes, *performance.unjudged_notes(case, answer)))

    def _efficiency(self, case: CaseRuns, kinds: Collection[Kind], phase: Phase) -> Ruling:
        if self._other:
            return self._other.judge(case, kinds, Kind.EFFICIENCY)
        return self._confirmed(
            case, performance.judge_efficiency(case, kinds, phase), Outcome.POWER_DROP
        )

    def _confirmed(self, case: CaseRuns, answer: Ruling, failing: Outcome) -> Ruling:
        if self._policy.update == "replace":  # it is recorded, or said to be worse
            return answer
        return confirm(case, answer, failing=failing)

    def confirm_last(self, planned: PlannedCase, verdict: Verdict) -> Verdict:
        """Check a drop that the joint test found, by interleaved runs; return the new verdict."""

        def confirmed() -> Verdict:
            case = self._case(planned)
            ruling_so_far = Ruling(
                outcome=verdict.outcome,
                headline=verdict.headline,
                metrics=verdict.metrics,
                paired=verdict.paired,
                notes=verdict.notes,
                unchecked=verdict.unchecked,
            )
            ruling = self._confirmed(case, ruling_so_far, DROP_OUTCOMES[verdict.kind])
            return replace(
                verdict,
                outcome=ruling.outcome,
                headline=ruling.headline,
                metrics=ruling.metrics,
                notes=ruling.notes,
                interleaved=ruling.interleaved or verdict.interleaved,
            )

        return self._answered(verdict.case, verdict.kind, confirmed)

    def unconfirmed(self, verdict: Verdict) -> Verdict:
        """Add a note to the verdict if the session ended before its drop was confirmed."""
        return note_unconfirmed(verdict, self._policy)

    # --- verdicts ------------------------------------------------------------------------

    def _verdict(
        self, case: CaseRuns, kind: Kind, answer: Ruling, invalid_run: Run | None = None
    ) -> Verdict:
        scores = kind == Kind.ACCURACY
        last = invalid_run or (case.runs[-1] if case.runs else case.accuracy)
        subject = case.scored_subject if scores else case.subject
        against = case.scores if scores or answer.by_scores else case
        changed, unknown = self._since_baseline(case, against)
        stored = self._other is None
        notes = answer.notes + (
            case.notes if kind == Kind.ACCURACY else _notes(case, answer.outcome)
        )
        if kind != Kind.ACCURACY and answer.outcome is Outcome.NO_BASELINE and case.formerly:
            notes = (case.formerly.in_words, *notes)
        if self._conditions.handicap:
            slowed = f"work was slowed by --mlperf-handicap {self._conditions.handicap:.0%}"
            notes = (slowed, *notes)
        guarantee = guarantee_of_ruling(case, answer) if stored and not scores else None
        cost = None
        if kind != Kind.ACCURACY and subject is not None and case.job.price:
            cost = cost_of(case.suite_job, case.runs, subject.identity)
        return Verdict(
            case=case.planned.case,
            kind=kind,
            outcome=answer.outcome,
            headline=answer.headline,
            metrics=answer.metrics,
            paired=answer.paired,
            runs=tuple(case.runs),
            invalid_runs=tuple(case.invalid_runs),
            reasons=case.reasons,
            accuracy=case.accuracy,
            gate=case.judged.gate if case.judged else None,
            subject=subject,
            baseline=BaselineReference(
                changed=changed,
                unknown=unknown,
                file=None if self._other else self._policy.shown(against.file),
                source=self._other.title(case) if self._other else against.last_acceptance,
                id=case.record.id if stored and case.record and kind in DROP_OUTCOMES else "",
                guarantee=guarantee,
            ),
            notes=notes,
            cost=cost,
            logs=Logs(folder=self._policy.shown(Path(last.folder)) if last else None),
            machine=case.machine if kind != Kind.ACCURACY else (),
            interleaved=answer.interleaved,
            unchecked=answer.unchecked,
            handicap=self._conditions.handicap,
        )

    def _since_baseline(
        self, case: CaseRuns, against: CaseRuns | CaseAccuracy
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        timed = against is case
        kept: Record | AccuracyBaseline | None = case.record
        if not timed:
            kept = case.scores.accepted.baseline if case.scores.accepted else None
        subject = case.subject if timed else case.scored_subject
        if kept is None or subject is None:
            return (), ()
        commit = kept.history[-1].commit if kept.history else None
        job, files = (case.job, case.files) if timed else (case.scoring_job, case.scored_files)
        lines, unknown = tree_changes(self._policy, commit, job, case.planned.path, files)
        changed = (*lines, *against.changes(subject))
        return changed, (*unknown_facts(kept.fingerprint, subject.fingerprint), *unknown)


def _notes(case: CaseRuns, outcome: Outcome) -> tuple[Words, ...]:
    kept = case.record.runs if case.record else ()
    load = cpu_load_notes(case.runs, kept, case.rule.tolerated)
    remarks = (clock_note(case.runs, case.record, outcome), *load, case.noise)
    behind = stragglers([(run.replicas, run.hardware.gpus) for run in case.runs])
    seen = case.runs[-1].serving.server if case.runs else {}
    server = case.conditions.machine.server
    skipped = [
        Note.of("first_run_skipped", value=value_of(run, case.planned.limits))
        for run in case.left_out
    ]
    lines: tuple[Words | None, ...] = (
        *case.planned.suite.gaps,
        *skipped,
        *(server.remarks if server else ()),
        case.uncounted,
        f"{case.clients} client processes sent the requests" if case.clients > 1 else "",
        *behind,
        *energy_notes(case.runs),
    )
    return tuple(filter(None, (*lines, server_in_words(seen), *remarks)))


def guarantee_of_ruling(case: CaseRuns, ruling: Ruling) -> Guarantee | None:
    """Return the error guarantee of a ruling; None if nothing was compared with a baseline."""
    judged = next((m.metric for m in ruling.metrics if m.baseline.runs and m.outcome), None)
    if case.record is None or judged is None:
        return None
    today = dt.datetime.now(dt.UTC)
    return guarantee(
        case.record, case.rule, metric=judged, calibrated=case.noise is not None, now=today
    )


def known_failures(planned: Testable) -> tuple[KnownFailure, ...]:
    """Return the failures that a suite declares as expected."""
    return tuple(KnownFailure(**entry.model_dump()) for entry in planned.suite.expected_failures)


def _expected(planned: Testable, verdict: Verdict) -> Verdict:
    if not planned.suite.expected_failures:
        return verdict
    return expect(verdict, known_failures(planned), dt.datetime.now(dt.UTC).date())


def tree_changes(
    policy: Policy, commit: str | None, job: MeasuredCase, suite: Path, imported: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return lines on files changed since a baseline's commit, and reasons why some are unknown."""
    if commit is None:
        return [], []
    loaded = {
        os.path.realpath(path) for path in (*imported, str(suite), *_setting_paths(job, suite))
    }
    recorded = [policy.baselines] if policy.baselines else []
    files = files_since(policy.root, commit.removesuffix(CHANGED_MARK), loaded, recorded)
    if files is None:
        return [], [f"files: not compared, this clone lacks commit {commit}"]
    if commit != commit.removesuffix(CHANGED_MARK):
        return [], [
            f"files: not compared, the baseline was recorded with uncommitted changes ({commit})"
        ]
    changed, new = files
    groups: dict[str, list[Path]] = {"files.loaded": [], "files.other": []}
    for file in changed:
        places = map(str, (file.resolve(), *file.resolve().parents))
        groups["files.other" if loaded.isdisjoint(places) else "files.loaded"].append(file)
    lines = [
        f"{key} {len(group)} in git since {commit}: {some([*map(policy.shown, group)])}"
        for key, group in groups.items()
        if group
    ]
    if new is None:
        return lines, ["files: not compared, git cannot list them"]
    unknown = f"files that are not in git and may have changed: {some([*map(policy.shown, new)])}"
    return lines, [unknown] if new else []


def _setting_paths(job: MeasuredCase, suite: Path) -> Iterator[str]:
    """Yield the existing paths in a case's settings, and the source files of its adapters."""
    if not isinstance(job, Job):
        return
    factories = [job.engine, job.dataset, *filter(None, [job.scoring.scorer])]
    for text in path_texts([job.model, *(factory.options for factory in factories)]):
        with contextlib.suppress(OSError, ValueError):  # most texts are no path
            path = (suite.parent / text).resolve(strict=True)
            if not suite.resolve().is_relative_to(path):
                yield str(path)
            if path.is_file():  # such as model.onnx.data of model.onnx
                yield from map(str, path.parent.glob(f"{glob.escape(path.name)}[._]*"))
    for factory in factories:
        with contextlib.suppress(Exception, SystemExit):  # importing a package runs its code
            spec = find_spec(factory.target.partition(":")[0])
            yield from filter(None, [spec and spec.origin])
