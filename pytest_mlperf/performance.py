"""Answer for the performance of a case: measure until it is decided, judge, or record."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from pytest_mlperf.accuracy import answer_for, unchecked
from pytest_mlperf.case_runs import CaseRuns, Policy, Update
from pytest_mlperf.core.baseline import Baseline, Record, find, with_record
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.clocks import locked_clock_moved
from pytest_mlperf.core.errors import BaselineError
from pytest_mlperf.core.judge.answer import Answer
from pytest_mlperf.core.judge.ruling import Ruling, countable, only_reported, outlying, rule_on
from pytest_mlperf.core.judge.together import may_fall
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.numbers import quantity
from pytest_mlperf.core.recording import (
    baseline_run,
    detectable_notes,
    empty_baseline,
    new_record,
    provable,
    recorded,
)
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.phases import ALONE, Phase
from pytest_mlperf.run.searches import condition_differs
from pytest_mlperf.stores import baselines
from pytest_mlperf.verdicts import against_limits

APPEND_RUNS = 2
"""An appended session adds this many runs (a baseline of 8 is 4 sessions x 2)."""

OUTLIER_EXTRA_RUNS = 2
"""Runs added at most when the leave-one-out screen rejects one; all of them are kept."""

RATE_BACK = (
    "latencies at different rates cannot be compared: set target_qps back, "
    'or record anew with --mlperf-update=replace --mlperf-reason "..."'
)

FIND_BACK = (
    "rates found under different conditions cannot be compared: set find back, "
    'or record anew with --mlperf-update=replace --mlperf-reason "..."'
)

CHANGED = {Outcome.PERF_DROP, Outcome.POWER_DROP, Outcome.IMPROVED}
"""What may be the machine's doing as well."""


def judge_performance(
    case: CaseRuns, policy: Policy, wanted: Collection[Kind], phase: Phase = ALONE
) -> Answer:
    """Measure what is missing, then judge the runs by rule R, or record them.

    Args:
        case: The case.
        policy: How verdicts are reached and recorded.
        wanted: The kinds that the session asks for.
        phase: Whether a run more may be made now, and beside how many pairs this case is judged.

    Raises:
        BaselineError: There is nothing to append to, or it cannot be written.
    """
    recording = _recording(case, policy)
    if differs := _other_rate(case, recording):
        return differs
    case.first(wanted)
    if failed := accuracy_failed(case, required=bool(recording)):
        return failed
    if recording:
        return _record(case, policy, recording)
    while True:
        if missed := _limit_missed(case):
            return missed
        ruling = rule_on(case.runs, case.record, case.planned.limits, case.rule, pairs=phase.pairs)
        if phase.once or not ruling.more:
            break
        case.add_run()
    return unless_off(
        case,
        Answer(
            outcome=ruling.outcome,
            headline=headline_of(case, ruling) + unchecked(case),
            metrics=ruling.metrics,
        ),
        phase,
    )


def headline_of(case: CaseRuns, ruling: Ruling) -> str:
    """Return the first line of a verdict by rule R.

    Of a rate that was found it says what was found and under what; without a baseline of this
    machine, which one there is.
    """
    find, deciding = case.planned.scenario.find, ruling.deciding
    if ruling.outcome is Outcome.NO_BASELINE and case.formerly and deciding:
        return f"{METRICS[deciding.metric].title}: {case.formerly.brief}"
    if not find or deciding is None or deciding.metric != "throughput" or deciding.now is None:
        return ruling.headline
    title = METRICS["throughput"].title
    at = f"{quantity('throughput', deciding.now)} {title} at {find.in_words}"
    return at + ruling.headline.removeprefix(title)


def accuracy_failed(case: CaseRuns, *, required: bool = False) -> Answer | None:
    """Return the answer of speed or energy where accuracy is not what it was, else None.

    Args:
        case: The case.
        required: Make the accuracy pass if there is none; the official profile always does.
    """
    official = case.planned.suite.profile == "official"
    accuracy = case.find_accuracy(required=official or required)
    answer = answer_for(case, accuracy) if accuracy else None
    if answer is None or not answer.failed:
        return None
    headline = f"not judged: accuracy failed, {answer.outcome} {answer.headline}"
    return Answer(outcome=Outcome.INVALID, headline=headline)


def unless_off(case: CaseRuns, answer: Answer, phase: Phase) -> Answer:
    """Return an answer, INVALID where the machine itself explains that something changed."""
    changed = answer.outcome in CHANGED or (phase.many and may_fall(answer.metrics))
    found = case.off() if changed else None
    why = found.in_words if found else _locked_clock(case) if changed else None
    if why is None:
        told = [case.uncompared] if changed and case.uncompared else []
        return replace(answer, notes=(*answer.notes, *told))
    notes = (f"not judged: {answer.outcome} {answer.headline}", *answer.notes)
    return Answer(outcome=Outcome.INVALID, headline=why, metrics=answer.metrics, notes=notes)


def _locked_clock(case: CaseRuns) -> str | None:
    """Return how a clock moved that is locked, if one did."""
    if case.record is None or case.subject is None:
        return None
    before = [run.state for run in case.record.runs]
    clocks = case.subject.identity.get("clocks")
    return locked_clock_moved([run.state for run in case.runs], before, clocks)


def reported(case: CaseRuns, answer: Answer) -> tuple[str, ...]:
    """Return which limits these runs have too few queries for."""
    if not case.runs or answer.outcome is Outcome.INCONCLUSIVE:
        return ()
    return only_reported(case.runs, case.planned.limits)


def _other_rate(case: CaseRuns, recording: Update | None) -> Answer | None:
    """Return the answer of a baseline at another rate, or found under other conditions, or None."""
    record, planned = case.record, case.planned
    if record is None or recording == "replace":
        return None
    if found := condition_differs(planned, record):
        return Answer(outcome=Outcome.INVALID, headline=found, notes=(FIND_BACK,))
    loaded = planned.case.scenario in {"Server", "Interactive"} and not planned.scenario.find
    if not loaded or case.rate == record.target_qps:
        return None
    found = f"offered rate differs: suite {case.rate:g}/s, baseline {record.target_qps:g}/s"
    return Answer(outcome=Outcome.INVALID, headline=found, notes=(RATE_BACK,))


def _limit_missed(case: CaseRuns) -> Answer | None:
    """Return the answer of a latency limit missed twice; measure again after the first."""
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
        outcome, headline = Outcome.GATE_FAIL, f"latency limit missed twice at {case.rate:.4g}/s"
    return Answer(outcome=outcome, headline=f"{headline}: {shown}", metrics=ruling.metrics)


# --- recording -------------------------------------------------------------------------------


def _recording(case: CaseRuns, policy: Policy) -> Update | None:
    update = policy.update
    if update == "missing" and case.record:
        return None
    if update == "append" and not case.record:
        raise BaselineError(
            f"{policy.shown(case.file)}: there is no baseline of this machine to append "
            "to; record one with --mlperf-update=missing"
        )
    return update


def _record(case: CaseRuns, policy: Policy, action: Update) -> Answer:
    wanted = APPEND_RUNS if action == "append" else policy.baseline_runs
    while len(case.runs) < wanted:
        case.add_run()
    if missed := _limit_missed(case):
        return missed
    for _ in range(OUTLIER_EXTRA_RUNS):
        if outlying(case.runs, case.planned.limits, case.rule) is None:
            break
        case.add_run()
    if found := outlying(case.runs, case.planned.limits, case.rule):
        return Answer(
            outcome=Outcome.INVALID,
            headline=f"nothing recorded: {found}",
            notes=("the machine was disturbed during one run; record again when it is quiet",),
        )
    case.record = record = _written(case, policy, action)
    metrics = recorded(record, countable(case.runs, case.planned.limits), len(case.runs))
    headline = f"{len(record.runs)} runs in {policy.shown(case.file)}"
    beside = [f"recorded beside another: {case.formerly.in_words}"] if case.formerly else []
    notes = (f"{headline}; {provable(record)}; commit it", *beside, *detectable_notes(metrics))
    return Answer(outcome=Outcome.RECORDED, headline=headline, metrics=metrics, notes=notes)


def _written(case: CaseRuns, policy: Policy, action: Update) -> Record:
    """Write the runs behind what the file holds now, and return the record.

    Another session may have recorded since this one began: its runs and its history stay.
    """
    assert case.subject is not None
    identity, suite = case.subject.identity, case.planned.suite
    empty = empty_baseline(case.planned.case, round_name=suite.round, profile=suite.profile)
    began_with = case.record

    def put(there: Baseline | None) -> Baseline:
        baseline = there or empty
        now = find(baseline, identity)
        if (now is None) != (began_with is None):
            what = "recorded it" if now else "removed it"
            raise BaselineError(
                f"{policy.shown(case.file)}: another session {what} while this one measured; "
                "nothing was written: run again to compare with what is there now"
            )
        return with_record(baseline, _new_record(case, policy, action, now))

    record = find(baselines.update(case.file, put), identity)
    assert record is not None
    return record


def _new_record(case: CaseRuns, policy: Policy, action: Update, old: Record | None) -> Record:
    assert case.subject is not None
    return new_record(
        tuple(map(baseline_run, case.runs)),
        old,
        action="append" if action == "append" else "replace" if old else "record",
        reason=policy.reason or "first baseline",
        subject=case.subject,
        target_qps=case.rate,
        qps_source=case.rate_source,
        limits=countable(case.runs, case.planned.limits),
        rule=case.rule,
    )
