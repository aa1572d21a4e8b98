"""Verdicts that no rule gives, and whether a verdict fails its test."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_mlperf.core.baseline import Record
from pytest_mlperf.core.case import Case, Kind
from pytest_mlperf.core.clocks import clocks_moved
from pytest_mlperf.core.errors import BaselineError, RunError, UnavailableError
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.meter import LABEL as METER_LABEL
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.numbers import quantity
from pytest_mlperf.core.power import LABEL, Power
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.run.log_tail import log_tail
from pytest_mlperf.run.protocol import LoadGenSettings
from pytest_mlperf.run.reporter import one_line
from pytest_mlperf.run.supervisor import Designed


def fails(outcome: Outcome, *, inconclusive: str, no_baseline: str, named: bool) -> bool:
    """Return whether an outcome fails its test.

    Args:
        outcome: The word.
        inconclusive: "pass" or "fail".
        no_baseline: "pass", "fail", or "auto": fails under CI where the case is `named`.
        named: The case is on an accelerator that has a name of its own, see `is_named`.
    """
    if outcome is Outcome.INCONCLUSIVE:
        return inconclusive == "fail"
    if outcome is Outcome.NO_BASELINE:
        if no_baseline == "auto":
            return bool(os.environ.get("CI")) and named
        return no_baseline == "fail"
    return outcome.fails


def is_named(accelerator: str, *, pretended: bool) -> bool:
    """Whether an accelerator can have a baseline that others share: no CPU, and not pretended."""
    return accelerator != "cpu" and not pretended


def unjudged_told(verdict: Verdict, *, no_baseline: str, named: bool) -> Verdict:
    """Return a verdict that says why it passes under CI, where nothing was compared."""
    auto = no_baseline == "auto" and not named
    if verdict.outcome is not Outcome.NO_BASELINE or not auto or not os.environ.get("CI"):
        return verdict
    why = (
        "nothing was compared, and it passes: only on a named accelerator that fails under CI; "
        "--mlperf-no-baseline=fail fails it here too"
    )
    return replace(verdict, notes=(*verdict.notes, why))


def require_power_source(case: Case) -> None:
    """Make sure that something may measure the energy of a case without a wall meter.

    Raises:
        UnavailableError: It runs on a CPU.
    """
    if case.accelerator == "cpu":
        why = (
            "no power source but a wall meter: limit samples_per_joule_wall, and name the meter's "
            "file with --mlperf-meter"
        )
        raise UnavailableError(f"{case.accelerator} has {why}")


def broken(
    case: Case, kind: Kind, error: RunError | BaselineError, shown: Callable[[Path], str]
) -> Verdict:
    """Return the verdict of a test whose engine, data, scorer or baseline broke.

    Args:
        case: What was measured.
        kind: Which test asked.
        error: What happened.
        shown: Gives a path as messages show it.
    """
    layer, log = "baseline", None
    if isinstance(error, RunError):
        layer, log = error.layer, error.log
    # What we raise ourselves is a sentence for the user; below it a traceback would only hide it.
    tail = [] if isinstance(error, Designed) else log_tail(log)
    return Verdict(
        case=case,
        kind=kind,
        outcome=Outcome.ERROR,
        headline=str(error) if str(error).startswith(f"{layer} ") else f"{layer}: {error}",
        notes=tuple(f"log: {line}" for line in tail),
        log=shown(Path(log)) if log else None,
        folder=shown(Path(log).parent) if log else None,
    )


def unforeseen(error: Exception, log: Path) -> RunError:
    """Return the error of a test in which Python raised what nobody foresaw; write its traceback.

    Args:
        error: What was raised.
        log: The file for its traceback; where it cannot be written, the error names none.
    """
    what = f"{one_line(error)}: not foreseen, so please report it with this log"
    try:
        trace = "".join(traceback.format_exception(error))
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(trace, "utf-8", errors="backslashreplace")
    except Exception:  # the case must not be missing for that
        return RunError("pytest-mlperf", what)
    return RunError("pytest-mlperf", what, str(log))


def energy_notes(runs: Sequence[Run]) -> list[str]:
    """Return what the runs were seen to do, and what the last one used."""
    if not runs:
        return []
    power, wall, notes = runs[-1].power, runs[-1].wall, of_all_runs([run.notes for run in runs])
    if power is not None and power.joules is not None and power.mean_w is not None:
        peak = "" if power.peak_w is None else f", {power.peak_w:,.0f} W at most"
        notes.append(
            f"{power.joules:,.0f} J ({_uncertain(power.uncertainty_j)}) in {power.window_s:.1f} "
            f"s, {power.mean_w:,.0f} W{peak}{_per_unit(runs[-1])}{_net(power)}: {LABEL}"
        )
        if len(power.by_gpu) > 1:
            each = (f"{uuid} {joules:,.0f} J" for uuid, joules in power.by_gpu.items() if joules)
            notes.append(f"by GPU: {', '.join(each)}")
        notes += power.notes
    notes += of_all_runs(
        [[f"energy is not known: {r.power_unknown}"] if r.power_unknown else [] for r in runs]
    )
    if wall is not None and wall.joules is not None and wall.mean_w is not None:
        notes.append(
            f"{wall.joules:,.0f} J ({_uncertain(wall.uncertainty_j)}) at the wall in "
            f"{wall.window_s:.1f} s, {wall.mean_w:,.0f} W{_per_unit(runs[-1], '_wall')}: "
            f"{METER_LABEL}"
        )
    notes += wall.notes if wall is not None else ()
    return list(dict.fromkeys(notes))


def clock_note(runs: Sequence[Run], record: Record | None, outcome: Outcome) -> str | None:
    """Return how clocks and power cap are other than the baseline's, beside a verdict that stands.

    A drop has it among its likely causes, and what is recorded now is its own baseline.
    """
    if record is None or outcome in {Outcome.PERF_DROP, Outcome.POWER_DROP, Outcome.RECORDED}:
        return None
    moved = clocks_moved([run.state for run in runs], [run.state for run in record.runs])
    return f"beside the baseline: {moved}" if moved else None


def of_all_runs(notes: Sequence[Sequence[str]]) -> list[str]:
    """Return what was noted of runs, each once: in the words of the last one that has it.

    Args:
        notes: Of each run. Two that differ in their figures alone are of one kind.
    """
    kinds: dict[str, dict[int, str]] = {}
    for index, each in enumerate(notes):
        for note in each:
            kinds.setdefault(re.sub(r"\d[\d.,]*", "#", note), {})[index] = note
    runs = len(notes)
    return [
        last if len(of) == runs else f"in {len(of)} of {runs} runs: {last}"
        for of in kinds.values()
        for last in [of[max(of)]]
    ]


def _net(power: Power) -> str:
    """Return what was used above idle: ", 8,888 J above an idle 120 W"."""
    if power.net_joules is None or power.idle_w is None:
        return ""
    return f", {power.net_joules:,.0f} J above an idle {power.idle_w:,.0f} W"


def _uncertain(joules: float | None) -> str:
    """Return by how much an energy may be off: "± 101"."""
    return "uncertainty not known" if joules is None else f"± {joules:,.0f}"


def measured(run: Run, limits: Collection[str]) -> str:
    """Return what a run measured of some metrics: "samples/s 919"."""
    found = (name for name in limits if name in run.metrics)
    return ", ".join(f"{METRICS[n].title} {quantity(n, run.metrics[n])}" for n in found)


def _per_unit(run: Run, suffix: str = "") -> str:
    """Return what a token, else a sample, cost: ", 0.412 J/token"."""
    for of in ("token", "sample"):
        if rate := run.metrics.get(f"{of}s_per_joule{suffix}"):
            return f", {quantity('', 1 / rate)} J/{of}"
    return ""


def against_limits(missed: Sequence[Run], settings: LoadGenSettings) -> str:
    """Return what the runs that missed a latency limit measured, beside the limit."""
    limits = {
        "ttft_p99": settings.ttft_limit_ns,
        "tpot_p99": settings.tpot_limit_ns,
        "latency_p99": None if settings.tokens else settings.latency_limit_ns,
    }
    texts = []
    for name, limit_ns in limits.items():
        if limit_ns is None or all(run.metrics[name] <= limit_ns / 1e9 for run in missed):
            continue
        found = " and ".join(quantity(name, run.metrics[name]) for run in missed)
        texts.append(f"{METRICS[name].title} {found}, limit {quantity(name, limit_ns / 1e9)}")
    return "; ".join(texts) or "too few queries met it (early stopping)"
