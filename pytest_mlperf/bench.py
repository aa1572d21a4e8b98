"""Answer for each test of a session: measure until the verdict is decided, judge, record."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from pytest_mlperf.accuracy import answer_for, record, records
from pytest_mlperf.case_runs import CaseRuns, Policy
from pytest_mlperf.confirm import confirm
from pytest_mlperf.core.baseline import Record
from pytest_mlperf.core.case import Case, Kind
from pytest_mlperf.core.errors import BaselineError, MlperfError, RunError, SuiteError
from pytest_mlperf.core.expectation import Known, expect
from pytest_mlperf.core.judge.answer import Answer
from pytest_mlperf.core.measurement import Accuracy, Run
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.efficiency import judge_efficiency
from pytest_mlperf.pair import judge_pair
from pytest_mlperf.performance import judge_performance, reported
from pytest_mlperf.phases import ALONE, Phase
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.run.cost import cost_of
from pytest_mlperf.run.tries import Unjudgeable
from pytest_mlperf.stores.results import require_readable
from pytest_mlperf.suite.pairs import PlannedPair, Testable
from pytest_mlperf.suite.plan import Planned
from pytest_mlperf.verdicts import broken, clock_note, energy_notes, measured, unforeseen


class Bench:
    """Measures each case of a session once and answers for each of its tests."""

    def __init__(self, conditions: Conditions, policy: Policy, show: Callable[[str], None]) -> None:
        """Keep the session's settings.

        Args:
            conditions: What all runs share.
            policy: How verdicts are reached and recorded.
            show: Takes a line of progress, many times.
        """
        self._conditions = conditions
        self._policy = policy
        self._show = show
        self._cases: dict[tuple[Path, str], CaseRuns] = {}

    def verdict(
        self, planned: Planned, kind: Kind, wanted: Collection[Kind], phase: Phase = ALONE
    ) -> Verdict:
        """Return the verdict of one test, measuring what is still missing.

        Whatever breaks, there is a verdict: a session's results lack no test that it ran.

        Args:
            planned: The case.
            kind: What is asked.
            wanted: The kinds of this case that the session will ask for in all, so that one
                process serves them together.
            phase: Whether a run more may be made now, and beside how many pairs it is judged.

        Raises:
            UnavailableError: Model or data set is not here.
            SuiteError: Two Python tests give one case different settings.
        """
        verdict = self._answered(
            planned.case, kind, lambda: self._judged(planned, kind, wanted, phase)
        )
        case = self._cases.get((planned.path, planned.case.id))
        if case is None or verdict.outcome is not Outcome.ERROR:
            return verdict
        return replace(verdict, invalid_runs=tuple(case.invalid_runs))

    def pair(self, pair: PlannedPair) -> Verdict:
        """Return the verdict on a claim about two engine entries, from runs of their own.

        Raises:
            UnavailableError: Model or data set is not here.
        """

        def judged() -> Verdict:
            found = judge_pair(pair, self._conditions, self._policy, self._show)
            return _expected(pair, found)

        return self._answered(pair.case, "pair", judged)

    def _answered(self, case: Case, kind: Kind, judged: Callable[[], Verdict]) -> Verdict:
        """Return a verdict, also on what broke, foreseen or not."""
        try:
            verdict = judged()
            require_readable(verdict)  # one that could not be kept would end the session
        except (RunError, BaselineError) as error:
            return broken(case, kind, error, self._policy.shown)
        except MlperfError:
            raise
        except Exception as error:
            log = self._conditions.folder / f"{case.id}.{kind}.log"
            return broken(case, kind, unforeseen(error, log), self._policy.shown)
        return verdict

    def _judged(
        self, planned: Planned, kind: Kind, wanted: Collection[Kind], phase: Phase
    ) -> Verdict:
        case = self._case(planned)
        answers = {"accuracy": self._accuracy, "efficiency": self._efficiency}
        answer = answers.get(kind, self._performance)
        try:
            verdict = self._verdict(case, kind, answer(case, {*wanted, kind}, phase))
        except Unjudgeable as error:
            first, *more = map(str, error.run.invalid)
            more += [f"not judged: {measured(error.run, planned.limits)}"]
            found = Answer(outcome=Outcome.INVALID, headline=first, notes=tuple(more))
            verdict = self._verdict(case, kind, found)
            verdict = self._with_files(verdict, error.run)
        return _expected(planned, verdict)

    def record(self, case: Case) -> Record | None:
        """Return the record that the runs of a case are judged against."""
        return next((own.record for own in self._cases.values() if own.planned.case == case), None)

    def rate(self, planned: Testable) -> tuple[float | None, str | None]:
        """Return the rate a case is offered or sized by, and where it comes from."""
        case = self._cases.get((planned.path, planned.case.id))
        return (case.rate, case.rate_source) if case else (None, None)

    def _case(self, planned: Planned) -> CaseRuns:
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

    # --- answers -------------------------------------------------------------------------

    def _accuracy(self, case: CaseRuns, wanted: Collection[Kind], phase: Phase) -> Answer:
        del phase  # scores are judged alone
        try:
            case.first(wanted)
        except Unjudgeable:
            # The performance runs of the same processes may not be judged; the scores may.
            if case.accuracy is None:
                raise
        if case.accuracy is None and case.unscored:
            raise case.unscored
        if case.accuracy is None:
            headline = "the weights are dummy: speed may be judged, accuracy never"
            return Answer(outcome=Outcome.NOT_EVALUATED, headline=headline)
        answer = answer_for(case, case.accuracy)
        if records(case, self._policy) and answer.outcome is not Outcome.GATE_FAIL:
            answer = record(case, self._policy, answer, commit=self._conditions.commit)
        return answer

    def _performance(self, case: CaseRuns, wanted: Collection[Kind], phase: Phase) -> Answer:
        answer = self._confirmed(case, judge_performance(case, self._policy, wanted, phase))
        return replace(answer, notes=(*answer.notes, *reported(case, answer)))

    def _efficiency(self, case: CaseRuns, wanted: Collection[Kind], phase: Phase) -> Answer:
        return self._confirmed(case, judge_efficiency(case, wanted, phase))

    def _confirmed(self, case: CaseRuns, answer: Answer) -> Answer:
        return confirm(case, answer, self._policy, self._conditions, self._show)

    # --- verdicts ------------------------------------------------------------------------

    def _verdict(self, case: CaseRuns, kind: Kind, answer: Answer) -> Verdict:
        subject, notes = case.subject, answer.notes
        against = case.scores if kind == "accuracy" else case
        if kind == "accuracy":
            notes = (*notes, *case.notes)
        else:
            beside = (clock_note(case.runs, case.record, answer.outcome), case.noise)
            notes = (*notes, *energy_notes(case.runs), *filter(None, beside))
        if kind != "accuracy" and answer.outcome is Outcome.NO_BASELINE and case.formerly:
            notes = (case.formerly.in_words, *notes)
        if self._conditions.handicap:
            slowed = f"work was slowed by --mlperf-handicap {self._conditions.handicap:.0%}"
            notes = (slowed, *notes)
        cost = None
        if subject is not None and kind != "accuracy":
            cost = cost_of(case.planned, case.runs, subject.identity)
        verdict = Verdict(
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
            changed=against.changes(subject) if subject else (),
            notes=notes,
            baseline_file=self._policy.shown(against.file),
            baseline_set=against.set_by,
            cost=cost,
            steady=case.steady if kind != "accuracy" else None,
        )
        return self._with_files(verdict, case.runs[-1] if case.runs else case.accuracy)

    def _with_files(self, verdict: Verdict, last: Run | Accuracy | None) -> Verdict:
        """Return a verdict with where what a run or pass left lies, as messages show it."""
        if last is None:
            return verdict
        folder = self._policy.shown(Path(last.folder))
        picture = last.timeline if isinstance(last, Run) else None
        timeline = self._policy.shown(Path(picture)) if picture else None
        return replace(verdict, folder=folder, timeline=timeline)


def known_failures(planned: Testable) -> tuple[Known, ...]:
    """Return the failures that a suite expects."""
    return tuple(Known(**entry.model_dump()) for entry in planned.suite.expected_failures)


def _expected(planned: Testable, verdict: Verdict) -> Verdict:
    return expect(verdict, known_failures(planned), dt.datetime.now(dt.UTC).date())
