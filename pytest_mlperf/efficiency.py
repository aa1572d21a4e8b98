"""Judge samples (tokens) per joule of the runs that performance is judged by."""

from __future__ import annotations

from collections.abc import Collection

from pytest_mlperf.accuracy import answer_for, unchecked
from pytest_mlperf.case_runs import CaseRuns
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.errors import UnavailableError
from pytest_mlperf.core.judge.ruling import rule_on
from pytest_mlperf.core.verdict import MetricVerdict, Outcome

Answer = tuple[Outcome, str, tuple[MetricVerdict, ...]]
"""The word, what follows it on the first line, and each metric."""


def judge_efficiency(case: CaseRuns, wanted: Collection[Kind]) -> Answer:
    """Measure what is missing and judge the energy of the runs by rule R.

    Args:
        case: The case.
        wanted: The kinds that the session asks for.

    Raises:
        UnavailableError: The energy is not known.
    """
    case.first(wanted)
    accuracy = case.find_accuracy(required=case.planned.suite.profile == "official")
    answer = answer_for(case, accuracy) if accuracy else None
    if answer and answer.failed:
        headline = f"not judged: accuracy failed, {answer.outcome} {answer.headline}"
        return Outcome.INVALID, headline, ()
    run = case.runs[0]
    if run.power is None or run.power.joules is None:
        why = run.power_unknown or "; ".join(run.power.notes if run.power else ())
        raise UnavailableError(f"{case.planned.case.accelerator}: energy is not known: {why}")
    if not run.power.gated:
        headline = "; ".join(run.power.notes) or "the energy may not be judged"
        return Outcome.NOT_EVALUATED, headline, ()
    limits = case.planned.efficiency_limit
    while True:
        ruling = rule_on(case.runs, case.record, limits, case.rule, Outcome.POWER_DROP)
        if not ruling.more:
            return ruling.outcome, ruling.headline + unchecked(case), ruling.metrics
        case.add_run()
