"""Answer for the accuracy of a case: gate and accepted scores together, and how to accept them."""

from __future__ import annotations

from dataclasses import replace

from pytest_mlperf.case_runs import CaseRuns, Policy
from pytest_mlperf.core.judge.answer import Answer, combine
from pytest_mlperf.core.judge.gate import gate
from pytest_mlperf.core.measurement import Accuracy
from pytest_mlperf.core.verdict import Outcome


def answer_for(case: CaseRuns, accuracy: Accuracy) -> Answer:
    """Judge an accuracy pass by the gate and against the accepted scores.

    Raises:
        RunError: The scorer gave no metric that the gate needs.
    """
    planned = case.planned
    gated = gate(
        accuracy,
        planned.bounds(accuracy.lower),
        whose="MLPerf's" if planned.suite.is_mlperf else "this suite's own",
        profile=planned.suite.profile,
    )
    return combine(gated, case.accuracy_ruling(), case.scores.missing)


def records(case: CaseRuns, policy: Policy) -> bool:
    """Whether this session is to accept the scores of this case."""
    wanted = policy.update == "replace" or (
        policy.update == "missing" and case.scores.found is None
    )
    return wanted and case.scores.may_record


def record(case: CaseRuns, policy: Policy, answer: Answer, *, commit: str | None) -> Answer:
    """Accept the scores of a whole data set and return the answer that says so.

    Raises:
        BaselineError: They cannot be written.
    """
    assert case.accuracy is not None
    assert case.scored is not None
    assert case.subject is not None
    case.scores.accept(
        case.accuracy,
        case.scored,
        case.subject,
        reason=policy.reason or "first baseline",
        commit=commit,
    )
    headline = f"{case.accuracy.samples:,} samples in {policy.shown(case.scores.file)}"
    return replace(
        answer,
        outcome=Outcome.RECORDED,
        headline=headline,
        notes=(f"{headline}; commit it with its .scores.npz",),
    )


def unchecked(case: CaseRuns) -> str:
    """Return what a verdict on performance must add when accuracy was not looked at."""
    if case.subject is not None and case.subject.dummy:
        return ", accuracy not evaluated (dummy weights)"
    if case.unscored is not None:
        return ", accuracy not checked: the scorer broke"
    return "" if case.accuracy or not case.planned.scorer else ", accuracy not checked"
