"""Make the measuring side of a session from its options."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import cast

import pytest

from pytest_mlperf.bench import Bench, known_failures
from pytest_mlperf.case_runs import Policy, Update
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.foreign_text import encodable
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.verdict import Verdict
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.options import Options
from pytest_mlperf.phases import gated_pairs
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.run.supervisor import Patience
from pytest_mlperf.run.wall import Meter
from pytest_mlperf.stores.manifest import read_manifest
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


def pairs_of(planned: Testable, kind: Kind, options: Options) -> int:
    """Return how many pairs of case and metric one test adds to those of the session."""
    if options.plan or options.update in {"replace", "append"}:
        return 0  # nothing is judged against a baseline
    return gated_pairs(planned, kind, power=options.power != "off", meter=bool(options.meter))


def planned_pairs(manifest: Path, tests: Collection[str], own: int) -> int:
    """Return the gated pairs of the whole plan that a session is a part of.

    Args:
        manifest: File of the plan.
        tests: The session's tests.
        own: Their gated pairs.

    Raises:
        pytest.UsageError: The manifest cannot be read, or does not plan a test.
    """
    try:
        plan = read_manifest(manifest)
    except MlperfError as error:
        raise pytest.UsageError(f"--mlperf-manifest: {error}") from None
    planned = {one.test for one in plan.tests}
    if unplanned := [test for test in tests if test not in planned]:
        more = f" and {len(unplanned) - 1} more" if len(unplanned) > 1 else ""
        raise pytest.UsageError(
            f"--mlperf-manifest: {manifest} does not plan {unplanned[0]}{more}; make it anew for "
            "these suites: pytest-mlperf plan SUITES --format json"
        )
    return max(own, plan.pairs)


def result_of(
    planned: Testable,
    verdict: Verdict,
    *,
    test: str,
    root: Path,
    options: Options,
    arguments: tuple[str, ...],
    rate: tuple[float | None, str | None],
    pairs: int,
    failed: bool,
) -> CaseResult:
    """Return a verdict as one test of a session.

    Args:
        planned: What was tested.
        verdict: What was found.
        test: Pytest's node id.
        root: Pytest's root folder.
        options: The session's.
        arguments: Those that a reproduction needs.
        rate: The offered or expected rate, and where it comes from.
        pairs: Gated pairs that it is judged with; 0: alone.
        failed: The test failed.
    """
    path = planned.path.resolve()
    found = CaseResult(
        test=test,
        suite=str(path.relative_to(root) if path.is_relative_to(root) else path),
        line=planned.line,
        round=planned.suite.round,
        profile=planned.suite.profile,
        verdict=below(root, verdict),
        failed=failed,
        limits=limits_of(planned, verdict.kind),
        scored="accuracy" in planned.kinds,
        handicap=options.handicap,
        max_runs=options.max_runs,
        arguments=arguments,
        pretended=options.pretend in planned.accelerators,
        target_qps=rate[0],
        qps_source=rate[1],
        division=planned.suite.division,
        techniques=planned.techniques,
        pairs=pairs,
        elsewhere=planned.elsewhere,
        expected_failures=known_failures(planned),
    )
    # Here what others wrote becomes part of a result, which every file must be able to hold.
    return encodable(found)


def below(root: Path, verdict: Verdict) -> Verdict:
    """Return a verdict that names folders and files from the root on, where they lie below it.

    Results are read on other machines, and what is above the root is nobody's business there.
    """
    top = root.resolve()

    def near(path: str) -> str:
        given = Path(path)
        return str(given.relative_to(top)) if given.is_relative_to(top) else path

    def maybe(path: str | None) -> str | None:
        return path and near(path)

    def placed(run: Run) -> Run:
        search = run.search and dataclasses.replace(
            run.search,
            tried=tuple(
                dataclasses.replace(one, folder=near(one.folder)) for one in run.search.tried
            ),
        )
        return dataclasses.replace(
            run, folder=near(run.folder), timeline=maybe(run.timeline), search=search
        )

    accuracy = verdict.accuracy
    return dataclasses.replace(
        verdict,
        runs=tuple(map(placed, verdict.runs)),
        invalid_runs=tuple(map(placed, verdict.invalid_runs)),
        accuracy=accuracy and dataclasses.replace(accuracy, folder=near(accuracy.folder)),
        folder=maybe(verdict.folder),
        timeline=maybe(verdict.timeline),
        log=maybe(verdict.log),
        baseline_file=maybe(verdict.baseline_file),
    )
