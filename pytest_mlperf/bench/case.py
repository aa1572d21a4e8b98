"""Run one case of a session, and hold its baseline record and runs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from pytest_mlperf.bench.accuracy import CaseAccuracy, ScoredPass
from pytest_mlperf.bench.policy import (
    OtherMachineBaseline,
    Policy,
    former_baseline,
    rule_of_baseline,
)
from pytest_mlperf.bench.runner import CaseRunner, SearchState, Unjudgeable, unforeseen
from pytest_mlperf.core import control
from pytest_mlperf.core.baseline import (
    Baseline,
    Property,
    Record,
    find_record,
    has_salt,
    is_drawn,
    unknown_facts,
)
from pytest_mlperf.core.case import Case, Kind, same_file_key
from pytest_mlperf.core.contention import tolerated_load_share
from pytest_mlperf.core.errors import BaselineError, MlperfError, RunError
from pytest_mlperf.core.job import AuditRun, Job
from pytest_mlperf.core.measurement import Accuracy, Run, Scored, Subject
from pytest_mlperf.core.metrics import OUTPUT_TOKENS
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.paths import placeless
from pytest_mlperf.core.reason import Key, Reason
from pytest_mlperf.core.recording import acceptance_text, changes, first_run_change
from pytest_mlperf.core.rulings.ruling import Ruling, miscounted
from pytest_mlperf.core.verdict import Outcome, Unchecked
from pytest_mlperf.run.accuracy import ScoringSchedule, accuracy_key
from pytest_mlperf.run.answers import token_counts
from pytest_mlperf.run.conditions import Conditions, on_server, placed
from pytest_mlperf.run.measure import ProcessResult
from pytest_mlperf.run.project import require_checked_out
from pytest_mlperf.stores import baselines
from pytest_mlperf.stores.accuracy import AccuracyPasses
from pytest_mlperf.suite.pairs import PlannedCase
from pytest_mlperf.suite.plan import Planned


class CaseRuns(CaseRunner):
    """Measure one case in this session, one process at a time.

    Attributes:
        record: Baseline record for this machine, or None.
        formerly: Baseline of the most similar machine if `record` is None; else None.
        noise: Source of the noise that rule R uses; None if the machine is not calibrated.
        notes: Notes reported by the case's processes.
        unscored: Error raised by the scorer, or None.
        judged: Ruling on the accuracy pass; None before it is judged.
        uncounted: Note if token counts could not be checked against scored answers, else "".
        uncompared: Note if the machine's speed could not be compared with the baseline's.
        machine: Result of `compare_machine`: machine speeds compared with the baseline's.
    """

    def __init__(
        self,
        planned: PlannedCase,
        conditions: Conditions,
        policy: Policy,
        show: Callable[[str], None],
    ) -> None:
        case = planned.case
        conditions = on_server(planned, conditions)
        machine = replace(conditions.machine, limit_w=planned.limit_w)
        calibrated = machine.identity(case.accelerator)
        machine = replace(machine, harness=planned.harness)
        conditions = replace(conditions, machine=machine)
        identity = machine.identity(case.accelerator)
        self.policy = policy
        self._root = baselines_root(policy.baselines, planned.path, planned.suite.division)
        self.file = baseline_file(self._root, case, planned.suite.profile)
        self.formerly: OtherMachineBaseline | None = None
        self.record = None if policy.against else self._load(planned, identity)
        rule, self.noise = rule_of_baseline(
            self.file, case.accelerator, calibrated, policy.max_runs
        )
        bound = tolerated_load_share(planned.limits) if conditions.watched else math.inf
        self.rule = replace(rule, tolerated=bound)
        suite_rate = (
            planned.scenario.rate_on(case.accelerator) if isinstance(planned, Planned) else None
        )
        # A search offers no fixed rate, and a baseline's offered rate was not found by a search.
        offered = None if planned.find else self.record
        super().__init__(
            planned,
            conditions,
            show,
            rate=suite_rate or (offered.target_qps if offered else None),
            record=self.record,
        )
        source = "suite" if suite_rate else offered.qps_source if offered else None
        self.rate_source: Literal["suite", "probe"] | None = source
        self.notes: tuple[str, ...] = ()
        self.accuracy: Accuracy | None = None
        self.scored: Scored | None = None
        self.unscored: RunError | None = None
        self.judged: Ruling | None = None
        if planned.scorer_name and not policy.against:
            self.scores.load()
        self.machine: tuple[control.ControlComparison, ...] = ()
        self.uncompared: Note | None = None
        self.uncounted = ""
        self._passes = AccuracyPasses(policy.accuracy)
        self._broken: RunError | Unjudgeable | None = None

    def _load(self, planned: PlannedCase, identity: Mapping[str, Property]) -> Record | None:
        """Return this machine's baseline record; if None, look for one of a similar machine."""
        case = planned.case
        loaded = load_checked(self.file, case)
        if loaded is None:
            require_checked_out(self.file, self._root, planned.path)
        record = find_record(loaded, identity)
        if record is None:
            self.formerly = former_baseline(loaded, identity, self._root, self.file, case)
        if self.policy.update:  # do not measure what cannot be recorded
            folder = next(parent for parent in self.file.parents if parent.exists())
            if not folder.is_dir() or not os.access(folder, os.W_OK):
                raise BaselineError(f"{folder} is not writable; nothing was measured")
        return record

    @cached_property
    def scores(self) -> CaseAccuracy:
        """Accuracy comparison of the case: its scores against its accuracy baseline."""
        whole = self.policy.update is not None or self.policy.against is not None
        return CaseAccuracy(self.of_suite, self._root, whole=whole)

    def first(self, kinds: Collection[Kind]) -> None:
        """Run the case's first process, which measures for all `kinds` of test."""
        missing = self.accuracy is None and self.unscored is None
        accuracy = Kind.ACCURACY in kinds and missing and bool(self.planned.scorer_name)
        together = self.shares_data
        timed = any(kind.compares_runs for kind in kinds) and not self.runs
        if timed:
            self.add_run(ask=self.scores.pass_request if accuracy and together else None)
            if self.record and self.record.skips_first_run and self.policy.update != "replace":
                self.left_out.append(self.runs.pop())
                self.add_run()
        if accuracy and not (timed and together):
            self.process(performance=False, ask=self.scores.pass_request)

    def add_run(self, *, ask: ScoringSchedule | None = None) -> Run:
        """Measure and add a valid run (scored if `ask`); raise Unjudgeable if there is none."""
        try:
            return super().add_run(ask=ask)
        except Unjudgeable as error:
            first = not self._broken and self.invalid_runs == [error.run]
            if first and self.record and error.run.too_slow:
                return self.add_run()  # two such runs may prove a drop
            self._broken = error
            raise

    def find_accuracy(self, *, required: bool) -> Accuracy | None:
        """Return the build's accuracy pass; if it is missing, run it if `required`, else None."""
        if not self.planned.scorer_name:
            return None
        subject = self.subject or self.scored_subject
        assert subject is not None
        if subject.dummy:
            return None
        key = self._accuracy_key
        if self.accuracy is None and key and (stored := self._passes.load(key)):
            self.accuracy, self.scored = stored.accuracy, stored.scored
        partial = self.accuracy is not None and not self.accuracy.full
        if required and self.unscored:
            raise self.unscored
        if required and (self.accuracy is None or partial):
            self.process(performance=False, ask=self.scores.pass_request)
            if self.unscored:
                raise self.unscored
            for run in list(self.runs):  # the answers to check them are new
                if (counted := self._with_count_check(run)).invalid:
                    self.runs.remove(run)
                    self.invalid_runs.append(counted)
                    self._broken = Unjudgeable(counted)
                    raise self._broken
        return self.accuracy

    @property
    def scored_pass(self) -> ScoredPass:
        """Accuracy pass with the score of each sample; it must have been made or loaded."""
        assert self.accuracy is not None
        assert self.scored is not None
        assert self.scored_subject is not None
        return ScoredPass(accuracy=self.accuracy, scored=self.scored, subject=self.scored_subject)

    def judge_accuracy(self) -> Ruling:
        """Judge the accuracy pass by its gate and against the accepted scores."""
        if self.accuracy and (accepted := self.scores.accepted):
            self.accuracy = replace(self.accuracy, baseline_answers=accepted.baseline.answers)
        self.judged = self.scores.judge(self.scored_pass)
        return self.judged

    @property
    def unchecked(self) -> Unchecked | None:
        """Reason why accuracy was not checked for a performance verdict; None if it was."""
        if self.subject is not None and self.subject.dummy:
            return Unchecked.DUMMY
        if self.unscored is not None:
            return Unchecked.SCORER_BROKE
        if not self.planned.scorer_name:
            return None
        # A pass without a reference does not cover accuracy.
        vague = self.judged is None or self.judged.outcome in {Outcome.NO_BASELINE, Outcome.INVALID}
        return Unchecked.NOT_CHECKED if self.accuracy is None or vague else None

    def compare_machine(self) -> control.ControlComparison | None:
        """Rerun the micro-benchmark; return its most significant change, or None without one."""
        baseline = [run.hardware.control for run in self.record.runs] if self.record else []
        if not any(baseline) or not self.conditions.control:
            return None
        accelerator = self.planned.case.accelerator
        if self.conditions.machine.server:  # the check is of the client
            accelerator = "cpu"
        with placed(accelerator, self.conditions, self.show) as lease:
            latest = lease.control(accelerator).values
        speeds = [*(run.hardware.control for run in self.runs), latest]
        self.machine = control.compared(
            speeds, baseline, floor=control.min_relative_sd(accelerator)
        )
        self.uncompared = control.cannot_say(speeds, baseline)
        return control.most_significant(self.machine)

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Reasons why an INVALID run ended the measurement of this case; () if none did."""
        return self._broken.run.invalid if isinstance(self._broken, Unjudgeable) else ()

    @property
    def last_acceptance(self) -> str | None:
        """Date, commit and reason of the baseline's last acceptance; None without a baseline."""
        return acceptance_text(self.record.history) if self.record else None

    def changes(self, subject: Subject) -> tuple[str, ...]:
        """Return texts on what changed since the baseline: build, surroundings, earlier tests."""
        if self.record is None:
            return ()
        around = self.record.surroundings
        return (
            *changes(self.record.fingerprint, subject.fingerprint),
            *(changes(around, subject.surroundings) if around else ()),
            *first_run_change(self.runs, self.record.runs),
        )

    @property
    def _accuracy_key(self) -> str:
        subject = self.scored_subject
        return accuracy_key(self.suite_job, subject.fingerprint) if subject else ""

    @property
    def scoring_job(self) -> Job:
        """Job of this case with the accuracy data set and the scorer."""
        job = self._job(scorer=True).scored
        assert isinstance(job, Job)
        return job

    def audit(self, audit: AuditRun, rate: float) -> Run:
        """Make one run of a compliance test at a rate, queries/s."""
        at = SearchState(rate=rate, conditions=self.conditions, audit=audit)
        subject = self.subject
        run = self.process(performance=True, ask=None, at=at).run
        self.subject = subject or self.subject
        assert run is not None
        return run

    def process(
        self, *, performance: bool, ask: ScoringSchedule | None, at: SearchState | None = None
    ) -> ProcessResult:
        """Run a worker: timed if `performance`, scored if `ask`; raise an earlier error again."""
        # INVALID runs affect neither compliance tests nor accuracy passes.
        timed = performance and not (at and at.audit)
        if self._broken and (timed or not isinstance(self._broken, Unjudgeable)):
            raise self._broken
        try:
            process = super().process(performance=performance, ask=ask, at=at)
        except RunError as error:
            self._broken = error
            raise
        except MlperfError:
            raise
        except Exception as error:
            log = self.conditions.folder / f"{self.planned.case.id}.{self._processes}.log"
            self._broken = unforeseen(error, log)
            raise self._broken from error
        if process.probed and not at:
            self.rate_source = "probe"
        self.unscored = process.unscored or self.unscored
        self.notes = (*self.notes, *process.notes)
        if process.accuracy and process.scored:
            self.accuracy, self.scored = process.accuracy, process.scored
            folder = self.policy.shown(Path(process.accuracy.folder))
            kept = placeless(replace(process.accuracy, folder=folder), home=str(Path.home()))
            self._passes.save(self._accuracy_key, kept, process.scored)
        if process.run and not (at and at.audit):  # a compliance test uses other samples
            return replace(process, run=self._with_count_check(process.run))
        return process

    def _with_count_check(self, run: Run) -> Run:
        """Return the run, INVALID if its token counts differ from those of scored answers."""
        if self.subject is None or not any(n.startswith("tokens_per_sample") for n in run.metrics):
            return run
        facts, sides = self.subject.fingerprint, list[Iterable[tuple[int, float | None]]]()
        if stored := self._passes.load(key := accuracy_key(self.suite_job, facts)):
            tokens = stored.scored.per_sample.get(OUTPUT_TOKENS, ())
            sides.append(zip(stored.scored.indices, tokens, strict=bool(tokens)))
        if self.planned.scorer_name and (accepted := self.scores.accepted):
            old = accepted.baseline.fingerprint
            if accuracy_key(self.suite_job, old) == key and not unknown_facts(old, facts):
                sides.append(enumerate(accepted.scores.get(OUTPUT_TOKENS, ())))
        timed, drawn = token_counts(Path(run.folder)), is_drawn(self.subject) or has_salt(facts)
        counts = [miscounted(timed, dict(answers), drawn=drawn) for answers in sides]
        notes = next((notes for notes in counts if notes is not None), None)
        if notes is None:
            self.uncounted = (
                "the token counts of timed runs were not checked: there is no accuracy pass to "
                "compare them with"
            )
        reasons = [Reason(key=Key.TOKENS_MISCOUNTED, text=note) for note in notes or ()]
        return replace(run, invalid=(*reasons, *run.invalid))


def load_checked(file: Path, case: Case) -> Baseline | None:
    """Load a baseline file, None if missing; raise BaselineError if it is of another case."""
    loaded = baselines.load(file)
    if loaded is None:
        return None
    names = ("workload", "scenario", "engine", "precision", "accelerator")
    ours, theirs = ([getattr(one, name) for name in names] for one in (case, loaded))
    if ours != theirs:
        raise BaselineError(
            f"{file}: this is the baseline of {'-'.join(theirs)}, not of {case.id}; "
            "move it away, or rename the engine entry"
        )
    return loaded


def baselines_root(folder: Path | None, suite: Path, division: str) -> Path:
    """Return a suite's baselines folder; for the open division, its subfolder "open"."""
    root = folder or nearest_baselines(suite)
    return root / "open" if division == "open" else root


def clashes(
    planned: Sequence[Planned], claimed: dict[str, tuple[Path, str]], folder: Path | None
) -> Iterator[str]:
    """Yield errors for baseline files that two cases share; `claimed`: (suite, case id) by file."""
    first = planned[0]
    root = baselines_root(folder, first.path, first.suite.division)
    for plan in planned:
        key = same_file_key(f"{root}/{plan.suite.profile}/{plan.case.id}")
        other, name = claimed.setdefault(key, (plan.path, plan.case.id))
        if name != plan.case.id:
            yield (
                f"{plan.path}:{plan.line}: {plan.case.id} and {name} of {other} differ only in "
                "upper and lower case, and would share one baseline file on macOS and Windows: "
                "rename one of them"
            )
        elif other != plan.path:
            yield (
                f"{plan.path}:{plan.line}: {plan.case.id} is also in {other}, and both would "
                "share one baseline: rename the workload or the engine entry in one of them"
            )


def nearest_baselines(suite: Path) -> Path:
    """Return the nearest `baselines/` folder above a suite; by default the one next to it."""
    for folder in suite.resolve().parents:
        if (folder / "baselines").is_dir():
            return folder / "baselines"
    return suite.resolve().parent / "baselines"


baseline_file = baselines.path_for
