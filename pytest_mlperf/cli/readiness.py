"""Whether each case of a suite can run here, and which baselines it has on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_mlperf.case_runs import baseline_file, baselines_root, load_checked
from pytest_mlperf.cli.libraries import Failures, lacking
from pytest_mlperf.cli.requirements import require_library
from pytest_mlperf.core.baseline import find
from pytest_mlperf.core.errors import BaselineError, MlperfError, SuiteError
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.registry import Group
from pytest_mlperf.stores import accuracy_baselines
from pytest_mlperf.suite.plan import Planned, plan_suite
from pytest_mlperf.suite.preflight import problems

State = Literal["ready", "absent", "missing", "broken"]


@dataclass(frozen=True, kw_only=True)
class CaseState:
    """One case.

    Attributes:
        case: Its id without the workload.
        state: "ready"; "absent": the accelerator is not here; "missing": model, data or library;
            "broken": a baseline is damaged, or an option is wrong.
        why: Why it is not ready; "" when it is.
        accelerator: Where it runs.
        performance: The baseline: "8 runs", "none", "other machine", "damaged".
        accuracy: Likewise: "yes", "none", "damaged", or "-" where nothing is scored.
    """

    case: str
    state: State
    why: str
    accelerator: str
    performance: str
    accuracy: str


@dataclass(frozen=True, kw_only=True)
class SuiteState:
    """One suite file.

    Attributes:
        path: The file.
        workload: Its workload, "" where it cannot be read.
        profile: Its profile, likewise.
        cases: Its cases.
        error: What is wrong with the file; "" when nothing is.
    """

    path: Path
    workload: str = ""
    profile: str = ""
    cases: tuple[CaseState, ...] = ()
    error: str = ""


def suite_state(
    path: Path, machine: Machine, baselines: Path | None, failures: Failures
) -> SuiteState:
    """Return what of a suite can run on a machine.

    Args:
        path: The suite file.
        machine: This machine.
        baselines: Folder of the baselines; None: the nearest above the suite.
        failures: Libraries that are installed and cannot be imported.
    """
    try:
        planned = plan_suite(path)
    except SuiteError as error:
        return SuiteState(path=path, error=str(error))
    suite = planned[0].suite
    root = baselines_root(baselines, path, suite.division)
    return SuiteState(
        path=path,
        workload=suite.workload.name,
        profile=suite.profile,
        cases=tuple(_case(case, machine, root, failures) for case in planned),
    )


def _case(planned: Planned, machine: Machine, root: Path, failures: Failures) -> CaseState:
    case = planned.case
    performance, damage = _performance(planned, machine, root)
    accuracy, also = _accuracy(planned, root)
    state, why = _readiness(planned, machine, failures)
    if state == "ready" and (damage or also):
        state, why = "broken", damage or also
    return CaseState(
        case=case.id.removeprefix(f"{case.workload}-"),
        state=state,
        why=why,
        accelerator=case.accelerator,
        performance=performance,
        accuracy=accuracy,
    )


def _readiness(planned: Planned, machine: Machine, failures: Failures) -> tuple[State, str]:
    accelerator = planned.case.accelerator
    here = machine.has(accelerator)
    found = [error for _, error in problems(planned, scorer=True)]
    lacks = list(_libraries(planned, failures))
    if here and not found and not lacks:
        try:
            require_library(planned)
        except MlperfError as error:
            found.append(error)
    missing = [*map(str, found), *lacks]
    if any(isinstance(error, SuiteError) for error in found):
        return "broken", "\n".join(missing)
    if not here:
        # Model and data can be made ready before the accelerator is there.
        return "absent", "\n".join([f"{accelerator} is not here", *missing])
    return ("missing", "\n".join(missing)) if missing else ("ready", "")


def _libraries(planned: Planned, failures: Failures) -> Iterator[str]:
    """Yield what engine, data set and scorer lack, with the command that helps."""
    used: tuple[tuple[Group, str], ...] = (
        ("engines", planned.engine.use),
        ("datasets", planned.suite.workload.dataset.use),
        ("scorers", planned.scorer_name),
    )
    for group, name in used:
        if found := lacking(group, name, failures):
            yield f"{group[:-1]} {name} {found[0]}: {found[1]}"


def _performance(planned: Planned, machine: Machine, root: Path) -> tuple[str, str]:
    """Return what performance baseline there is, and how it is damaged."""
    case = planned.case
    try:
        loaded = load_checked(baseline_file(root, case, planned.suite.profile), case)
    except BaselineError as error:
        return "damaged", str(error)
    if loaded is None:
        return "none", ""
    record = find(loaded, machine.identity(case.accelerator))
    return (f"{len(record.runs)} runs" if record else "other machine"), ""


def _accuracy(planned: Planned, root: Path) -> tuple[str, str]:
    """Return whether there is an accuracy baseline, and how it is damaged."""
    if "accuracy" not in planned.kinds:
        return "-", ""
    entry = planned.accuracy_reference
    file = accuracy_baselines.path_for(
        root, workload=planned.case.workload, engine=entry.label, precision=entry.precision
    )
    try:
        return ("yes" if accuracy_baselines.FILE.load(file) else "none"), ""
    except BaselineError as error:
        return "damaged", str(error)
