"""`pytest-mlperf compare`: two sessions, commits or engine versions, judged by rule R."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_mlperf.calibrated import rule_for
from pytest_mlperf.cli.history import add_runs_dir
from pytest_mlperf.cli.interleave import INTERLEAVE_EXAMPLES, add_interleave, run_interleaved
from pytest_mlperf.cli.measured import Measured
from pytest_mlperf.cli.output import add_parser, show, width
from pytest_mlperf.cli.sides import only_in, side
from pytest_mlperf.cli.suites import find_suites, read_suites
from pytest_mlperf.cli.trend import HISTORY_EXAMPLES, add_history, show_history
from pytest_mlperf.core.baseline import Record, differences
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.judge.rule_r import GATING_RUNS
from pytest_mlperf.core.judge.ruling import rule_on
from pytest_mlperf.core.metrics import FOUND, METRICS, gated_metrics
from pytest_mlperf.core.recording import baseline_run, changes
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.reports.comparison import Compared, comparison

LOOKS = 5
"""Looks of rule R at least; more where B has more runs."""

Limits = Mapping[str, float]


def add_command(commands: Any) -> None:
    """Register the subcommand."""
    parser = add_parser(
        commands,
        "compare",
        summary="two sessions, commits or versions: what dropped",
        description=(
            "Judges the runs of B against those of A, by the rule and limits of the tests.\n"
            "A and B are each one of\n"
            "  results    r.json, .mlperf/runs/20261121-031500-ab12, or 20261121-0315\n"
            "  version    onnxruntime==1.31.1, all its runs in the runs folder pooled\n"
            "  git ref    git:v1.2, or main: the baselines that are committed there\n"
            "\n"
            "Other hardware, another offered rate or profile is INVALID, with the reason.\n"
            f"With fewer than {GATING_RUNS} runs in A a drop is advice: INCONCLUSIVE.\n"
            "\n"
            "Exit 1 when a drop is proven, 2 when nothing could be judged.\n"
            "\n"
            "With --interleave A and B are suites; their cases are measured now, in turns:\n"
            "  FILE             its only engine entry\n"
            "  FILE::LABEL      an engine entry: torch, torch-fp32 or torch-fp32-H200\n"
            "  ...@baseline     the build that the entry's baseline_engine names\n"
            "\n"
            "With --history A (and B) are cases: what each accepted baseline in git gained."
        ),
        needs="two measurements of the same cases; git for refs",
        examples=[
            (
                "compare onnxruntime==1.30.0 onnxruntime==1.31.1",
                "did the upgrade make anything slower? From every session of both",
            ),
            ("compare git:HEAD .mlperf/runs/20261121-031500-ab12", "a session against baselines"),
            ("compare v1.0 HEAD", "how baselines moved between two commits"),
            *INTERLEAVE_EXAMPLES,
            *HISTORY_EXAMPLES,
        ],
    )
    parser.add_argument("a", metavar="A", help="the old side")
    parser.add_argument("b", metavar="B", nargs="?", help="the new side")
    parser.add_argument(
        "--baselines",
        type=Path,
        metavar="DIR",
        help="for git refs: this folder only (default: every folder called baselines)",
    )
    add_interleave(parser)
    add_history(parser)
    add_runs_dir(parser)
    parser.set_defaults(run=run, refuse=parser.error)


def run(parsed: argparse.Namespace) -> int:
    """Compare two sides.

    Returns:
        1 when a drop is proven, 2 when nothing could be judged, else 0.

    Raises:
        MlperfError: A side names nothing that can be read.
    """
    if parsed.history:
        return show_history(parsed)
    if parsed.b is None:
        parsed.refuse("the following arguments are required: B; with --history one is enough")
    if parsed.interleave:
        return run_interleaved(parsed)
    a, b = (side(text, parsed.runs_dir, parsed.baselines) for text in (parsed.a, parsed.b))
    limits = _limits_of(_suite_limits())
    compared = [
        compare_case(*pair(a.cases[case], b.cases[case]), limits)
        for case in a.cases
        if case in b.cases
    ]
    alone = {"A": only_in(a.cases, b.cases), "B": only_in(b.cases, a.cases)}
    show(comparison(compared, (a.name, b.name), alone, [*a.notes, *b.notes], width()))
    if any(one.outcome in {Outcome.PERF_DROP, Outcome.POWER_DROP} for one in compared):
        return 1
    if all(one.reason for one in compared):
        show(["nothing could be judged"])
        return 2
    return 0


def pair(old: Sequence[Measured], new: Sequence[Measured]) -> tuple[Measured, Measured]:
    """Return the measurements that fit best: under equal conditions, then of the nearest builds."""

    def distance(two: tuple[Measured, Measured]) -> tuple[bool, int, int]:
        a, b = two
        hardware = differences(a.identity, b.identity)
        return bool(why_not(a, b)), len(hardware), len(differences(a.fingerprint, b.fingerprint))

    return min(((a, b) for a in old for b in new), key=distance)


def compare_case(
    a: Measured, b: Measured, limits: Callable[[Measured, Measured], Limits]
) -> Compared:
    """Judge the runs of one case against those of the other side.

    Args:
        a: The old side, in the place of a baseline.
        b: The new side.
        limits: Gives the limits that hold for two measurements.
    """
    case = b.case.id
    notes = tuple(f"{label}: {one.why}" for label, one in (("A", a), ("B", b)) if one.why)
    if reason := why_not(a, b):
        return Compared(case=case, outcome=Outcome.INVALID, reason=reason)
    rule = rule_for(b.case.accelerator, max(LOOKS, len(b.runs)))
    try:
        ruling = rule_on(b.runs, _as_baseline(a), limits(a, b), rule)
    except ValueError as error:  # a file from elsewhere may hold what no run can measure
        return Compared(case=case, outcome=Outcome.INVALID, reason=str(error))
    if len(a.runs) < GATING_RUNS:
        notes = (*notes, f"advisory: A has {len(a.runs)} of {GATING_RUNS} runs")
    return Compared(
        case=case,
        outcome=ruling.outcome,
        metrics=ruling.metrics,
        changed=_changes(a, b),
        notes=notes,
    )


def why_not(a: Measured, b: Measured) -> str:
    """Return why two measurements of a case may not be judged together; "" where they may."""
    for label, one in (("A", a), ("B", b)):
        if not one.runs:
            return f"{label} has no run: {one.why}"
    if a.profile != b.profile:
        return f"another profile: {a.profile} → {b.profile}"
    if a.division != b.division:
        return f"another division: {a.division} → {b.division}"
    if found := differences(a.identity, b.identity):
        shown = ", ".join(f"{d.name} {d.theirs} → {d.ours}" for d in found)
        return f"other hardware: {shown}"
    if a.find != b.find:
        return f"the condition of the rate differs: {a.find or 'offered'} → {b.find or 'offered'}"
    same = a.rate == b.rate
    return "" if same else f"offered rate differs: {_rate(a.rate)} → {_rate(b.rate)}"


def _changes(a: Measured, b: Measured) -> tuple[str, ...]:
    """Return what differs of engine and data, and of the machines where both are known."""
    beside = changes(a.surroundings, b.surroundings) if a.surroundings and b.surroundings else ()
    return (*changes(a.fingerprint, b.fingerprint), *beside)


def _rate(rate: float | None) -> str:
    return "unknown" if rate is None else f"{rate:g}/s"


def _as_baseline(a: Measured) -> Record:
    return Record(
        identity=dict(a.identity),
        target_qps=a.rate,
        qps_source=None,
        fingerprint=dict(a.fingerprint),
        runs=tuple(map(baseline_run, a.runs)),
        minimum_detectable_change={},
        history=(),
    )


# --- limits ----------------------------------------------------------------------------------


def _suite_limits() -> dict[tuple[str, str], Limits]:
    """Return the limits in the suites here, by case and profile; {} where there are none."""
    try:
        planned = read_suites(find_suites([]))
    except MlperfError:
        return {}
    return {(one.case.id, one.suite.profile): one.limits for one in planned}


def _limits_of(
    suites: Mapping[tuple[str, str], Limits],
) -> Callable[[Measured, Measured], Limits]:
    """Return what gives the limits of a case: the results', else the suite's, else the table's."""

    def limits(a: Measured, b: Measured) -> Limits:
        known = b.limits or a.limits or suites.get((b.case.id, b.profile))
        if known is None:
            names = FOUND if b.find else gated_metrics(b.case.scenario)
            known = {name: METRICS[name].limit for name in names}
        gated = [one.gated for one in (a, b) if one.gated is not None]
        return {name: bound for name, bound in known.items() if all(name in g for g in gated)}

    return limits
