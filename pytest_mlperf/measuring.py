"""Make the measuring side of a session from its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from pytest_mlperf.bench import Bench
from pytest_mlperf.case_runs import Policy, Update
from pytest_mlperf.core.case import Kind
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.options import Options
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.run.supervisor import Patience
from pytest_mlperf.run.wall import Meter
from pytest_mlperf.suite.pairs import PlannedPair, Testable


def bench_for(
    options: Options,
    folder: Path,
    *,
    commit: str | None,
    machine: Machine,
    root: Path,
    show: Callable[[str], None],
) -> Bench:
    """Return the measuring side of a session.

    Args:
        options: The session's.
        folder: Of the session's runs, named by its id.
        commit: Of the tested project.
        machine: This one.
        root: What shown paths are relative to.
        show: Takes a line of progress, many times.
    """
    conditions = Conditions(
        folder=folder,
        session=folder.name,
        commit=commit,
        handicap=options.handicap,
        patience=Patience(progress_s=options.timeout),
        lease_limit_s=options.lease_timeout,
        machine=machine,
        power=options.power != "off",
        meter=Meter.at(options.meter, options.meter_offset),
        control=options.control != "off",
    )
    policy = Policy(
        update=cast("Update | None", options.update),
        baseline_runs=options.baseline_runs,
        reason=options.reason,
        max_runs=options.max_runs,
        confirm=options.confirm,
        baselines=options.baselines,
        accuracy=options.runs_dir / "accuracy",
        root=root,
    )
    return Bench(conditions, policy, show)


def limits_of(planned: Testable, kind: Kind) -> Mapping[str, float]:
    """Return the metrics that one test gates, with their limits as shares."""
    if kind == "efficiency" and not isinstance(planned, PlannedPair):
        return planned.efficiency_limits
    return planned.limits


def gated_pairs(planned: Testable, kind: Kind, options: Options) -> int:
    """Return how many pairs of case and metric one test adds to those of the session."""
    if isinstance(planned, PlannedPair) or options.plan or options.update in {"replace", "append"}:
        return 0  # nothing is judged against a baseline
    if kind == "performance":
        return len(planned.limits)
    on_cpu = planned.case.accelerator == "cpu"
    source = options.meter or (options.power != "off" and not on_cpu)
    return len(planned.efficiency_limits) if kind == "efficiency" and source else 0
