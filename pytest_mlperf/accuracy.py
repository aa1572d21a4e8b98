"""Answer for the accuracy of a case: gate and accepted scores together, and how to accept them."""

from __future__ import annotations

from dataclasses import replace

from pytest_mlperf.case_runs import CaseRuns, Policy
from pytest_mlperf.core.judge.answer import Answer, combine
from pytest_mlperf.core.judge.bounds import Pass
from pytest_mlperf.core.judge.gate import OWN, gate
from pytest_mlperf.core.measurement import Accuracy
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.run.accuracy_pass import fixed_order
from pytest_mlperf.suite.scores import gate_samples


def answer_for(case: CaseRuns, accuracy: Accuracy) -> Answer:
    """Judge an accuracy pass by the gate and against the accepted scores.

    Raises:
        RunError: The scorer gave no metric that the gate needs.
    """
    assert case.scored is not None
    planned, suite = case.planned, case.planned.suite
    total = max(gate_samples(suite, planned.round_scenario) or 0, accuracy.total)
    measured = Pass(
        accuracy=accuracy,
        scored=case.scored,
        order=[] if accuracy.samples >= total else fixed_order(accuracy.total),
        total=total,
    )
    gated = gate(
        measured,
        planned.bounds(accuracy.lower),
        whose="MLPerf's" if suite.is_mlperf else OWN,
        complete=suite.profile == "official",
        rerun_sd=_rerun_sd(case, accuracy),
    )
    case.judged = combine(gated, case.accuracy_ruling(), case.scores.missing)
    return case.judged


def records(case: CaseRuns, policy: Policy) -> bool:
    """Whether this session is to accept the scores of this case, or to keep them as a repeat."""
    wanted = {"replace", "append" if case.scores.found else "missing"}
    return policy.update in wanted and case.scores.may_record


def record(case: CaseRuns, policy: Policy, answer: Answer, *, commit: str | None) -> Answer:
    """Accept the scores of a whole data set and return the answer that says so.

    Raises:
        BaselineError: They cannot be written.
    """
    assert case.accuracy is not None
    assert case.scored is not None
    assert case.subject is not None
    if policy.update == "append":
        return _repeated(case, policy, answer)
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


def _repeated(case: CaseRuns, policy: Policy, answer: Answer) -> Answer:
    """Keep how far a pass of the baseline's build is from the accepted one, if it is such a pass.

    Raises:
        BaselineError: It cannot be written.
    """
    assert case.accuracy is not None
    assert case.scored is not None
    assert case.subject is not None
    if answer.outcome not in {Outcome.OK, Outcome.INCONCLUSIVE}:
        return answer
    found = case.scores.repeat(case.accuracy, case.scored, case.subject)
    if not found:
        why = "not kept as a repeat: it is no pass of the baseline's own build on its machine"
        return replace(answer, notes=(*answer.notes, why))
    passes = max(own.passes for own in found.values())
    headline = f"pass {passes + 1} of one build in {policy.shown(case.scores.file)}"
    spread = ", ".join(
        f"{name} {own.sd:.2g}"
        + (f" (r = {own.correlation:.4f})" if own.correlation is not None else "")
        for name, own in found.items()
    )
    note = f"{headline}; re-run standard deviation, points: {spread}; commit it"
    return replace(answer, outcome=Outcome.RECORDED, headline=headline, notes=(*answer.notes, note))


def _rerun_sd(case: CaseRuns, accuracy: Accuracy) -> dict[str, float]:
    if case.scored is None or case.subject is None:
        return {}
    return case.scores.rerun_sd(accuracy, case.scored, case.subject)


def unchecked(case: CaseRuns) -> str:
    """Return what a verdict on performance must add when accuracy was not looked at."""
    if case.subject is not None and case.subject.dummy:
        return ", accuracy not evaluated (dummy weights)"
    if case.unscored is not None:
        return ", accuracy not checked: the scorer broke"
    if not case.planned.scorer:
        return ""
    # A pass that neither its gate nor accepted scores could be held against vouches for nothing.
    vague = case.judged is None or case.judged.outcome in {Outcome.NO_BASELINE, Outcome.INVALID}
    return ", accuracy not checked" if case.accuracy is None or vague else ""
