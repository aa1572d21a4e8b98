"""Judge samples (tokens) per joule of the runs that performance is judged by."""

from __future__ import annotations

from collections.abc import Collection

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
    enough.

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
    run, limits = case.runs[0], case.planned.efficiency_limits
    known = [name for name in limits if name in run.metrics]
    if not known:
        on_cpu = case.planned.case.accelerator == "cpu"
        why = "; ".join(dict.fromkeys(_unknown(run, name, on_cpu=on_cpu) for name in limits))
        raise UnavailableError(f"{case.planned.case.accelerator}: energy is not known: {why}")
    if case.record and case.record.runs[-1].session == case.runs[-1].session:
        metrics = recorded(case.record, {name: limits[name] for name in known}, len(case.runs))
        headline = f"{plural(len(case.record.runs), 'run')}, which are those of performance"
        return Answer(outcome=Outcome.RECORDED, headline=headline, metrics=metrics)
    gated = {name: limit for name, limit in limits.items() if name in known and _gated(run, name)}
    if not gated:
        notes = [note for name in known for note in _notes(run, name)]
        headline = "; ".join(dict.fromkeys(notes)) or "the energy may not be judged"
        return Answer(outcome=Outcome.NOT_EVALUATED, headline=headline)
    while True:
        ruling = rule_on(case.runs, case.record, gated, case.rule, Outcome.POWER_DROP, phase.pairs)
        if phase.once or not ruling.more:
            break
        case.add_run()
    headline = headline_of(case, ruling) + unchecked(case)
    answer = Answer(outcome=ruling.outcome, headline=headline, metrics=ruling.metrics)
    return unless_off(case, answer, phase)


def _gated(run: Run, name: str) -> bool:
    source = run.wall if name in BY_METER else run.power
    return source is not None and source.gated


def _notes(run: Run, name: str) -> tuple[str, ...]:
    source = run.wall if name in BY_METER else run.power
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
