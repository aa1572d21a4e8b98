"""Judge samples (tokens) per joule of the runs that performance is judged by."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pytest_mlperf.accuracy import unchecked
from pytest_mlperf.case_runs import CaseRuns
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.errors import UnavailableError
from pytest_mlperf.core.judge.answer import Answer
from pytest_mlperf.core.judge.ruling import rule_on
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.metrics import BY_METER
from pytest_mlperf.core.recording import recorded
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.performance import accuracy_failed, headline_of, unless_off
from pytest_mlperf.phases import ALONE, Phase
from pytest_mlperf.reports.layout import plural


def judge_efficiency(case: CaseRuns, wanted: Collection[Kind], phase: Phase = ALONE) -> Answer:
    """Measure what is missing and judge the energy of the runs by rule R.

    Of the metrics that the suite limits, those are judged whose power source is there and saw
    enough in every run; no other is recorded either.

    Args:
        case: The case.
        wanted: The kinds that the session asks for.
        phase: Whether a run more may be made now, and beside how many pairs this case is judged.

    Raises:
        UnavailableError: No energy is known.
    """
    case.first(wanted)
    if failed := accuracy_failed(case):
        return failed
    limits = case.planned.efficiency_limits
    if not any(name in run.metrics for run in case.runs for name in limits):
        on_cpu = case.planned.case.accelerator == "cpu"
        why = "; ".join(
            dict.fromkeys(_unknown(case.runs[0], name, on_cpu=on_cpu) for name in limits)
        )
        raise UnavailableError(f"{case.planned.case.accelerator}: energy is not known: {why}")
    while gated := _gated(case.runs, limits):
        if case.record and case.record.runs[-1].session == case.runs[-1].session:
            metrics = recorded(case.record, gated, len(case.runs))
            headline = f"{plural(len(case.record.runs), 'run')}, which are those of performance"
            return Answer(outcome=Outcome.RECORDED, headline=headline, metrics=metrics)
        ruling = rule_on(case.runs, case.record, gated, case.rule, Outcome.POWER_DROP, phase.pairs)
        if phase.once or not ruling.more:
            headline = headline_of(case, ruling) + unchecked(case)
            answer = Answer(outcome=ruling.outcome, headline=headline, metrics=ruling.metrics)
            return unless_off(case, answer, phase)
        case.add_run()
    return Answer(outcome=Outcome.NOT_EVALUATED, headline=_why_not(case.runs, limits))


def _gated(runs: Sequence[Run], limits: Mapping[str, float]) -> dict[str, float]:
    """Return the limits of what every run measured well enough to be judged by."""
    return {n: limit for n, limit in limits.items() if all(run.may_judge(n) for run in runs)}


def _why_not(runs: Sequence[Run], limits: Collection[str]) -> str:
    """Return why the energy of these runs may not be judged: what the first such run says."""
    run, name = next((run, n) for run in runs for n in limits if not run.may_judge(n))
    where = f"run {runs.index(run) + 1} of {len(runs)}: " if len(runs) > 1 else ""
    return where + ("; ".join(_notes(run, name)) or "its energy may not be judged")


def _notes(run: Run, name: str) -> tuple[str, ...]:
    source = run.energy_of(name)
    return source.notes if source else ()


def _unknown(run: Run, name: str, *, on_cpu: bool) -> str:
    """Return why a metric of efficiency was not measured."""
    if on_cpu and name not in BY_METER:
        return f"{name} is that of GPUs: limit {name}_wall, which a meter measures"
    if notes := _notes(run, name):
        return "; ".join(notes)
    if name in BY_METER:
        return "no wall meter is read: name its file with --mlperf-meter"
    return run.power_unknown or f"{name} needs what this engine does not count"
