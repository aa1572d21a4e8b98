"""Whether each case of a suite can run here, and which baselines it has on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_mlperf import registry
from pytest_mlperf.case_runs import baseline_file, baselines_root, load_checked
from pytest_mlperf.cli.elsewhere import There, asking
from pytest_mlperf.cli.history import RUNS_DIR
from pytest_mlperf.cli.libraries import Failures, lacking, needs
from pytest_mlperf.cli.requirements import require_library
from pytest_mlperf.core.baseline import find
from pytest_mlperf.core.errors import BaselineError, MlperfError, SuiteError
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.run.checkpoint_about import about_builder
from pytest_mlperf.run.checkpoints import state_of
from pytest_mlperf.stores import accuracy_baselines
from pytest_mlperf.suite.build_step import step_of
from pytest_mlperf.suite.libraries import NOUNS, declared, is_here
from pytest_mlperf.suite.plan import Planned, plan_suite
from pytest_mlperf.suite.preflight import needing, problems

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
        elsewhere: The other Python in which it runs, with its versions; "": this one, or not asked.
        build: Whether its checkpoint is built; "": it builds none, or that is not known.
    """

    case: str
    state: State
    why: str
    accelerator: str
    performance: str
    accuracy: str
    elsewhere: str = ""
    build: str = ""


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


@dataclass(frozen=True, kw_only=True)
class Looks:
    """How to find out what a case lacks.

    Attributes:
        failures: Libraries that are installed here and cannot be imported.
        ask: Asks the other Python that an engine entry names.
        runs_dir: Folder of all that is measured; built checkpoints lie there.
    """

    failures: Failures
    ask: Callable[[Planned], There]
    runs_dir: Path


def suite_state(
    path: Path,
    machine: Machine,
    baselines: Path | None,
    failures: Failures,
    ask: Callable[[Planned], There] | None = None,
    runs_dir: Path = RUNS_DIR,
) -> SuiteState:
    """Return what of a suite can run on a machine.

    Args:
        path: The suite file.
        machine: This machine.
        baselines: Folder of the baselines; None: the nearest above the suite.
        failures: Libraries that are installed and cannot be imported.
        ask: Asks another Python that an engine entry names; default: with runs in `runs_dir`.
        runs_dir: Folder of all that is measured.
    """
    try:
        planned = plan_suite(path)
    except SuiteError as error:
        return SuiteState(path=path, error=str(error))
    suite = planned[0].suite
    root = baselines_root(baselines, path, suite.division)
    looks = Looks(failures=failures, ask=ask or asking(runs_dir), runs_dir=runs_dir)
    return SuiteState(
        path=path,
        workload=suite.workload.name,
        profile=suite.profile,
        cases=tuple(_case(case, machine, root, looks) for case in planned),
    )


def _case(planned: Planned, machine: Machine, root: Path, looks: Looks) -> CaseState:
    case = planned.case
    performance, damage = _performance(planned, machine, root)
    accuracy, also = _accuracy(planned, root)
    state, why, there = _readiness(planned, machine, looks)
    if state == "ready" and (damage or also):
        state, why = "broken", damage or also
    return CaseState(
        case=case.id.removeprefix(f"{case.workload}-"),
        state=state,
        why=why,
        accelerator=case.accelerator,
        performance=performance,
        accuracy=accuracy,
        elsewhere=there,
        build="" if state == "broken" else state_of(planned, looks.runs_dir),
    )


def _readiness(planned: Planned, machine: Machine, looks: Looks) -> tuple[State, str, str]:
    """Return whether a case can run, why not, and in which other Python."""
    accelerator = planned.case.accelerator
    here = machine.has(accelerator)
    found = [error for _, error in problems(planned, scorer=True)]
    lacks = list(_libraries(planned, looks.failures))
    there = ""
    if not found and (lack := _builder(planned)):
        lacks.append(lack)
    if here and not found and not lacks:
        try:
            if planned.elsewhere:
                answer = looks.ask(planned)
                there, found = answer.about, list(answer.trouble)
            else:
                require_library(planned)
        except MlperfError as error:
            found.append(error)
    missing = [*map(str, found), *lacks]
    if any(isinstance(error, SuiteError) for error in found):
        return "broken", "\n".join(missing), there
    if not here:
        # Model and data can be made ready before the accelerator is there.
        return "absent", "\n".join([f"{accelerator} is not here", *missing]), there
    return ("missing", "\n".join(missing), there) if missing else ("ready", "", there)


def _libraries(planned: Planned, failures: Failures) -> Iterator[str]:
    """Yield what breaks when it is imported, and what of those that declare nothing is absent."""
    for _, group, use in needing(planned, scorer=True):
        if declared(group, use) and not all(map(is_here, needs(group, use))):
            continue  # said already
        if found := lacking(group, use, failures):
            yield f"{NOUNS[group]} {use} {found[0]}: {found[1]}"


def _builder(planned: Planned) -> str:
    """Return what the Python of a case's builder lacks; "" where there is no such Python."""
    step = planned.engine.build
    if step is None or step.python is None or step.use not in registry.registered("builders"):
        return ""
    try:
        found = step_of(planned)
        assert found is not None
        about_builder(found)
    except MlperfError as error:
        return str(error)
    return ""


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
