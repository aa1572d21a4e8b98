"""Answer for each test of a session: measure until the verdict is decided, judge, record."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from pytest_mlperf.accuracy import answer_for, record, records, unchecked
from pytest_mlperf.case_runs import CaseRuns, Policy, Unjudgeable, Update
from pytest_mlperf.core.baseline import Baseline, Record, with_record
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.errors import BaselineError, RunError, SuiteError
from pytest_mlperf.core.expectation import expect
from pytest_mlperf.core.judge.ruling import countable, only_reported, rule_on
from pytest_mlperf.core.recording import (
    baseline_run,
    detectable_notes,
    empty_baseline,
    new_record,
    provable,
    recorded,
)
from pytest_mlperf.core.verdict import MetricVerdict, Outcome, PairedVerdict, Verdict
from pytest_mlperf.efficiency import judge_efficiency
from pytest_mlperf.pair import judge_pair
from pytest_mlperf.run.cost import cost_of
from pytest_mlperf.run.measure import Conditions
from pytest_mlperf.stores import baselines
from pytest_mlperf.suite.pairs import PlannedPair, Testable
from pytest_mlperf.suite.plan import Planned
from pytest_mlperf.verdicts import against_limits, broken, energy_notes

APPEND_RUNS = 2
"""An appended session adds this many runs (a baseline of 8 is 4 sessions x 2)."""

OUTLIER_EXTRA_RUNS = 2
"""Runs added at most when the leave-one-out screen rejects one; all of them are kept."""


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

    def verdict(self, planned: Planned, kind: Kind, wanted: Collection[Kind]) -> Verdict:
        """Return the verdict of one test, measuring what is still missing.

        Args:
            planned: The case.
            kind: What is asked.
            wanted: The kinds of this case that the session will ask for in all, so that one
                process serves them together.

        Raises:
            UnavailableError: Model or data set is not here.
            SuiteError: Two Python tests give one case different settings.
        """
        try:
            case = self._case(planned)
        except BaselineError as error:
            return broken(planned.case, kind, error, self._policy.shown)
        answers = {"accuracy": self._accuracy, "efficiency": self._efficiency}
        answer = answers.get(kind, self._performance)
        try:
            verdict = answer(case, {*wanted, kind})
        except Unjudgeable as error:
            run = error.run
            verdict = self._verdict(
                case, kind, Outcome.INVALID, run.invalid[0], notes=run.invalid[1:]
            )
            verdict = replace(verdict, folder=self._policy.shown(Path(run.folder)))
        except (RunError, BaselineError) as error:
            return broken(planned.case, kind, error, self._policy.shown)
        known = [entry.model_dump() for entry in planned.suite.expected_failures]
        return expect(verdict, known, dt.datetime.now(dt.UTC).date())

    def pair(self, pair: PlannedPair) -> Verdict:
        """Return the verdict on a claim about two engine entries, from runs of their own.

        Raises:
            UnavailableError: Model or data set is not here.
        """
        try:
            return judge_pair(pair, self._conditions, self._policy, self._show)
        except (RunError, BaselineError) as error:
            return broken(pair.case, "pair", error, self._policy.shown)

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

    # --- accuracy ------------------------------------------------------------------------

    def _accuracy(self, case: CaseRuns, wanted: Collection[Kind]) -> Verdict:
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
            return self._verdict(case, "accuracy", Outcome.NOT_EVALUATED, headline)
        answer = answer_for(case, case.accuracy)
        if records(case, self._policy) and answer.outcome is not Outcome.GATE_FAIL:
            answer = record(case, self._policy, answer, commit=self._conditions.commit)
        return self._verdict(
            case,
            "accuracy",
            answer.outcome,
            answer.headline,
            answer.metrics,
            answer.notes,
            answer.paired,
        )

    # --- performance ---------------------------------------------------------------------

    def _performance(self, case: CaseRuns, wanted: Collection[Kind]) -> Verdict:
        recording = self._recording(case)
        if differs := self._rate_differs(case, recording):
            return differs
        case.first(wanted)
        official = case.planned.suite.profile == "official"
        accuracy = case.find_accuracy(required=official or bool(recording))
        if accuracy:
            answer = answer_for(case, accuracy)
            if answer.failed:
                headline = f"not judged: accuracy failed, {answer.outcome} {answer.headline}"
                return self._verdict(case, "performance", Outcome.INVALID, headline)
        if recording:
            return self._record(case, recording)
        return self._judge(case, unchecked(case))

    # --- efficiency ----------------------------------------------------------------------

    def _efficiency(self, case: CaseRuns, wanted: Collection[Kind]) -> Verdict:
        outcome, headline, metrics = judge_efficiency(case, wanted)
        return self._verdict(case, "efficiency", outcome, headline, metrics)

    # --- more of performance -------------------------------------------------------------

    def _judge(self, case: CaseRuns, unchecked: str) -> Verdict:
        while True:
            if missed := self._limit_missed(case):
                return missed
            ruling = rule_on(case.runs, case.record, case.planned.limits, case.rule)
            if not ruling.more:
                break
            case.add_run()
        headline = ruling.headline + unchecked
        return self._verdict(case, "performance", ruling.outcome, headline, ruling.metrics)

    def _recording(self, case: CaseRuns) -> Update | None:
        update = self._policy.update
        if update == "missing" and case.record:
            return None
        if update == "append" and not case.record:
            raise BaselineError(
                f"{self._policy.shown(case.file)}: there is no baseline of this machine to append "
                "to; record one with --mlperf-update=missing"
            )
        return update

    def _rate_differs(self, case: CaseRuns, recording: Update | None) -> Verdict | None:
        record, scenario = case.record, case.planned.case.scenario
        if scenario not in {"Server", "Interactive"} or not record or recording == "replace":
            return None
        if case.rate == record.target_qps:
            return None
        return self._verdict(
            case,
            "performance",
            Outcome.INVALID,
            f"offered rate differs: suite {case.rate:g}/s, baseline {record.target_qps:g}/s",
            notes=(
                "latencies at different rates cannot be compared: set target_qps back, "
                'or record anew with --mlperf-update=replace --mlperf-reason "..."',
            ),
        )

    def _limit_missed(self, case: CaseRuns) -> Verdict | None:
        """Return the verdict of a latency limit missed twice; measure again after the first."""
        missed = [run for run in case.runs if run.limit_missed]
        if missed and len(case.runs) == 1:
            case.add_run()
            missed = [run for run in case.runs if run.limit_missed]
        if len(missed) < 2:
            return None
        ruling = rule_on(case.runs, case.record, case.planned.limits, case.rule)
        shown = against_limits(missed, case.planned.settings(target_qps=case.rate))
        if case.record:
            outcome, headline = Outcome.PERF_DROP, "limit missed at the rate the baseline held"
        else:
            outcome, headline = (
                Outcome.GATE_FAIL,
                f"latency limit missed twice at {case.rate:.4g}/s",
            )
        return self._verdict(case, "performance", outcome, f"{headline}: {shown}", ruling.metrics)

    # --- recording -----------------------------------------------------------------------

    def _record(self, case: CaseRuns, action: Update) -> Verdict:
        wanted = APPEND_RUNS if action == "append" else self._policy.baseline_runs
        while len(case.runs) < wanted:
            case.add_run()
        if missed := self._limit_missed(case):
            return missed
        for _ in range(OUTLIER_EXTRA_RUNS):
            if case.outlier() is None:
                break
            case.add_run()
        if found := case.outlier():
            return self._verdict(
                case,
                "performance",
                Outcome.INVALID,
                f"nothing recorded: {found}",
                notes=("the machine was disturbed during one run; record again when it is quiet",),
            )
        record = self._new_record(case, action)
        suite = case.planned.suite
        empty = empty_baseline(case.planned.case, round_name=suite.round, profile=suite.profile)

        def put(old: Baseline | None) -> Baseline:
            return with_record(old or empty, record)

        baselines.update(case.file, put)
        case.record = record
        metrics = recorded(record, countable(case.runs, case.planned.limits), len(case.runs))
        headline = f"{len(record.runs)} runs in {self._policy.shown(case.file)}"
        notes = (f"{headline}; {provable(record)}; commit it", *detectable_notes(metrics))
        return self._verdict(case, "performance", Outcome.RECORDED, headline, metrics, notes)

    def _new_record(self, case: CaseRuns, action: Update) -> Record:
        assert case.subject is not None
        fresh = tuple(map(baseline_run, case.runs))
        old = case.record
        return new_record(
            fresh,
            old,
            action="append" if action == "append" else "replace" if old else "record",
            reason=self._policy.reason or "first baseline",
            subject=case.subject,
            target_qps=case.rate,
            qps_source=case.rate_source,
            limits=countable(case.runs, case.planned.limits),
            rule=case.rule,
        )

    # --- verdicts ------------------------------------------------------------------------

    def _verdict(
        self,
        case: CaseRuns,
        kind: Kind,
        outcome: Outcome,
        headline: str,
        metrics: tuple[MetricVerdict, ...] = (),
        notes: tuple[str, ...] = (),
        paired: tuple[PairedVerdict, ...] = (),
    ) -> Verdict:
        subject = case.subject
        against = case.scores if kind == "accuracy" else case
        if kind == "performance" and case.runs and outcome is not Outcome.INCONCLUSIVE:
            notes = (*notes, *only_reported(case.runs, case.planned.limits))
        if kind != "accuracy":
            notes = (*notes, *energy_notes(case.runs))
        if outcome is Outcome.NO_BASELINE and case.distance:
            notes = (*notes, "nearest baseline differs in " + "; ".join(case.distance))
        if self._conditions.handicap:
            slowed = f"work was slowed by --mlperf-handicap {self._conditions.handicap:.0%}"
            notes = (slowed, *notes)
        cost = (
            None
            if kind == "accuracy" or not subject
            else cost_of(case.planned, case.runs, subject.identity)
        )
        folders = [run.folder for run in case.runs]
        last = folders[-1] if folders else case.accuracy.folder if case.accuracy else None
        return Verdict(
            case=case.planned.case,
            kind=kind,
            outcome=outcome,
            headline=headline,
            metrics=metrics,
            paired=paired,
            runs=tuple(case.runs),
            accuracy=case.accuracy,
            subject=subject,
            changed=against.changes(subject) if subject else (),
            notes=notes,
            baseline_file=self._policy.shown(against.file),
            baseline_set=against.set_by,
            cost=cost,
            folder=self._policy.shown(Path(last)) if last else None,
        )
