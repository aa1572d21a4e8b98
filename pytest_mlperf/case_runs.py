"""One case in one session: its baseline record, its runs so far, and how to get one more."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_mlperf.applied import applied_before
from pytest_mlperf.calibrated import rule_beside
from pytest_mlperf.case_accuracy import CaseAccuracy
from pytest_mlperf.core.baseline import Baseline, find
from pytest_mlperf.core.case import Case, Kind
from pytest_mlperf.core.control import FLOOR_CPU, FLOOR_GPU, Slow, cannot_say, slow
from pytest_mlperf.core.errors import BaselineError, MlperfError, RunError
from pytest_mlperf.core.judge.accuracy import AccuracyRuling
from pytest_mlperf.core.judge.answer import Answer
from pytest_mlperf.core.measurement import Accuracy, Run, Scored, Subject
from pytest_mlperf.core.reason import Reason
from pytest_mlperf.core.recording import changes, set_by
from pytest_mlperf.run.accuracy_pass import accuracy_key
from pytest_mlperf.run.conditions import Conditions, held
from pytest_mlperf.run.measure import Process, measure
from pytest_mlperf.run.searches import At, searches
from pytest_mlperf.run.tries import Unjudgeable, valid_run
from pytest_mlperf.stores import baselines
from pytest_mlperf.stores.accuracy import AccuracyPasses
from pytest_mlperf.suite.plan import Planned
from pytest_mlperf.verdicts import unforeseen

Update = Literal["missing", "append", "replace"]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How verdicts are reached and recorded.

    Attributes:
        update: What to record, or None.
        baseline_runs: Runs of a recorded baseline.
        reason: Why it is recorded.
        max_runs: Most runs of a case before INCONCLUSIVE.
        confirm: Measure a drop again in turns with the build of its baseline.
        baselines: Folder of the baselines; None: the nearest `baselines/` above the suite.
        accuracy: Folder of stored accuracy passes.
        root: Folder that shown paths are relative to.
    """

    update: Update | None = None
    baseline_runs: int = 8
    reason: str | None = None
    max_runs: int = 5
    confirm: bool = False
    baselines: Path | None = None
    accuracy: Path
    root: Path

    def shown(self, path: Path) -> str:
        """Return a path as messages show it: relative to the root where it lies below it."""
        resolved, root = path.resolve(), self.root.resolve()
        return str(resolved.relative_to(root)) if resolved.is_relative_to(root) else str(path)


class CaseRuns:
    """What is known of one case in this session; grows by one process at a time.

    Attributes:
        planned: The case.
        file: Its baseline file.
        record: The accepted measurement of this machine, or None.
        formerly: Without a record: the nearest one, and what changed since; None: there is none.
        rule: Settings of rule R.
        noise: Where its noise comes from; None: nobody calibrated this machine.
        runs: Performance runs that may be judged, oldest first.
        invalid_runs: Those that may not, and were measured again as often as is allowed.
        notes: What is to be said of its processes that made no performance run.
        accuracy: The accuracy pass, measured or stored.
        scored: Its scores sample by sample.
        unscored: Why there are none, when the scorer broke.
        judged: What gate and accepted scores say of them; None before anyone asked.
        scores: What they are compared with.
        subject: Machine, engine and data, known after the first process.
        rate: Offered or expected rate, known after the first process at the latest.
        rate_source: Where the rate comes from.
        uncompared: What of the machine's speed could not be compared, in words.
        steady: Whether the machine's own speed is that of the baseline, where `off` could tell.
    """

    def __init__(
        self,
        planned: Planned,
        conditions: Conditions,
        policy: Policy,
        show: Callable[[str], None],
    ) -> None:
        """Load the baseline: a defect in it must not cost a measurement.

        Raises:
            BaselineError: The baseline file is damaged, or cannot be written and should be.
        """
        case = planned.case
        self.planned = planned
        self._conditions = conditions
        self._show = show
        self._passes = AccuracyPasses(policy.accuracy)
        root = baselines_root(policy.baselines, planned.path, planned.suite.division)
        self.file = baseline_file(root, case, planned.suite.profile)
        loaded = load_checked(self.file, case)
        identity = conditions.machine.identity(case.accelerator)
        self.record = find(loaded, identity) if loaded else None
        self.formerly = (
            None if self.record else applied_before(loaded, identity, root, self.file, case)
        )
        if policy.update:
            _require_writable(self.file)
        self.rule, self.noise = rule_beside(self.file, case.accelerator, identity, policy.max_runs)
        self.runs: list[Run] = []
        self.notes: tuple[str, ...] = ()
        self.invalid_runs: list[Run] = []
        self.accuracy: Accuracy | None = None
        self.scored: Scored | None = None
        self.unscored: RunError | None = None
        self.judged: Answer | None = None
        self.scores = CaseAccuracy(planned, root, whole=policy.update is not None)
        self.subject: Subject | None = None
        suite_rate = planned.scenario.rate_on(case.accelerator)
        # A search offers no rate of its own, and one that a baseline was offered is none it found.
        offered = None if planned.scenario.find else self.record
        self.rate = suite_rate or (offered.target_qps if offered else None)
        self.rate_source: Literal["suite", "probe"] | None = (
            "suite" if suite_rate else offered.qps_source if offered else None
        )
        self.steady: bool | None = None
        self.uncompared: str | None = None
        self._searches = searches(planned, conditions, self.record)
        self._processes = 0
        self._broken: RunError | Unjudgeable | None = None

    def first(self, wanted: Collection[Kind]) -> None:
        """Do the case's first process: everything that the session wants of it at once."""
        missing = self.accuracy is None and self.unscored is None
        accuracy = "accuracy" in wanted and missing and bool(self.planned.scorer)
        if {"performance", "efficiency"} & set(wanted) and not self.runs:
            self.add_run(accuracy=accuracy)
        elif accuracy:
            self._process(performance=False, accuracy=True)

    def add_run(self, *, accuracy: bool = False) -> None:
        """Add one performance run that may be judged, from a fresh process, or one search.

        Args:
            accuracy: Also do the accuracy pass in that process.

        Raises:
            Unjudgeable: No try was valid.
            RunError: A process broke.
        """
        wanted = iter([accuracy])  # by the first try alone: its scores are good all the same

        def attempt(at: At | None = None) -> Run:
            run = self._process(performance=True, accuracy=next(wanted, False), at=at).run
            assert run is not None
            return run

        try:
            found = self._searches.run(self, attempt) if self._searches else None
            self.runs.append(found or valid_run(self, attempt))
        except Unjudgeable as error:
            self._broken = error
            raise

    def find_accuracy(self, *, required: bool) -> Accuracy | None:
        """Return an accuracy pass of the same fingerprint; measure it where it is required."""
        if not self.planned.scorer:
            return None
        assert self.subject is not None
        if self.subject.dummy:
            return None
        if self.accuracy is None and (stored := self._passes.load(self._accuracy_key)):
            self.accuracy, self.scored = stored
        partial = self.accuracy is not None and not self.accuracy.full
        if required and self.unscored:
            raise self.unscored
        if required and (self.accuracy is None or partial):
            self._process(performance=False, accuracy=True)
            if self.unscored:
                raise self.unscored
        return self.accuracy

    def accuracy_ruling(self) -> AccuracyRuling | None:
        """Judge the scores against the accepted ones; None where there are none of either."""
        if self.accuracy is None or self.scored is None or self.subject is None:
            return None
        return self.scores.ruling(self.accuracy, self.scored, self.subject)

    def off(self) -> Slow | None:
        """Look once more at the machine, and say how it differs from the baseline's, if it does."""
        baseline = [run.control for run in self.record.runs] if self.record else []
        if not any(baseline) or not self._conditions.control:
            return None
        with held(self.planned.case.accelerator, self._conditions, self._show, look=True) as after:
            now = [*(run.control for run in self.runs), after[0]]
        on_cpu = self.planned.case.accelerator == "cpu"
        found = slow(now, baseline, floor=FLOOR_CPU if on_cpu else FLOOR_GPU)
        self.steady, self.uncompared = found is None, cannot_say(now, baseline)
        return found

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Why the last run may not be judged, where no further one was made."""
        return self._broken.run.invalid if isinstance(self._broken, Unjudgeable) else ()

    @property
    def set_by(self) -> str | None:
        """Where the performance baseline comes from."""
        return set_by(self.record.history) if self.record else None

    def changes(self, subject: Subject) -> tuple[str, ...]:
        """Return what differs from what the performance baseline was recorded with, and where."""
        if self.record is None:
            return ()
        beside = self.record.surroundings
        return (
            *changes(self.record.fingerprint, subject.fingerprint),
            *(changes(beside, subject.surroundings) if beside else ()),
        )

    @property
    def _accuracy_key(self) -> str:
        assert self.subject is not None
        return accuracy_key(self.planned, self.subject.fingerprint)

    def _process(self, *, performance: bool, accuracy: bool, at: At | None = None) -> Process:
        """Run one fresh process and keep what it gave; a case that broke stays broken."""
        if self._broken:
            raise self._broken
        self._processes += 1
        try:
            process = measure(
                self.planned,
                at.conditions if at else self._conditions,
                self._show,
                target_qps=at.rate if at else self.rate,
                performance=performance,
                ask=self.scores.ask if accuracy else None,
                number=self._processes,
            )
        except RunError as error:
            self._broken = error
            raise
        except MlperfError:
            raise
        except Exception as error:
            log = self._conditions.folder / f"{self.planned.case.id}.{self._processes}.log"
            self._broken = unforeseen(error, log)
            raise self._broken from error
        self.subject = process.subject
        if process.probed and not at:
            self.rate, self.rate_source = process.target_qps, "probe"
        self.unscored = process.unscored or self.unscored
        self.notes = (*self.notes, *process.notes)
        if process.accuracy and process.scored:
            self.accuracy, self.scored = process.accuracy, process.scored
            self._passes.save(self._accuracy_key, process.accuracy, process.scored)
        return process


def load_checked(file: Path, case: Case) -> Baseline | None:
    """Load a baseline file and make sure that it is this case's.

    Raises:
        BaselineError: It is damaged, or belongs to another case (a copied file, or two names that
            give one file name).
    """
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


def baselines_root(given: Path | None, suite: Path, division: str) -> Path:
    """Return where the baselines of a suite lie; the open division has its own.

    Args:
        given: The folder that the user named, or None for the nearest above the suite.
        suite: The suite file.
        division: "closed" or "open".
    """
    root = given or nearest_baselines(suite)
    return root / "open" if division == "open" else root


def nearest_baselines(suite: Path) -> Path:
    """Return the nearest `baselines/` above a suite file, else the place for one beside it."""
    for folder in suite.resolve().parents:
        if (folder / "baselines").is_dir():
            return folder / "baselines"
    return suite.resolve().parent / "baselines"


def baseline_file(root: Path, case: Case, profile: str) -> Path:
    """Return where the baseline of a case is kept."""
    return baselines.path_for(
        root,
        accelerator=case.accelerator,
        profile=profile,
        workload=case.workload,
        scenario=case.scenario,
        engine=case.engine,
        precision=case.precision,
    )


def _require_writable(file: Path) -> None:
    """Refuse before measuring what could not be written afterwards."""
    folder = next(parent for parent in file.parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise BaselineError(f"{folder} cannot be written; nothing was measured")
