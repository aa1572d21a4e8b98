"""`pytest-mlperf doctor`: check which cases can run on this machine."""

from __future__ import annotations

import argparse
import datetime as dt
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from pytest_mlperf.bench.accuracy import file_of
from pytest_mlperf.bench.case import baseline_file, baselines_root, load_checked
from pytest_mlperf.bench.policy import Policy, rule_of_baseline
from pytest_mlperf.cli.arguments import RUNS_DIR, add
from pytest_mlperf.cli.doctor import requirements
from pytest_mlperf.cli.doctor._machine import Check, run_checks
from pytest_mlperf.cli.machine import in_words, server_machine
from pytest_mlperf.cli.output import show, width
from pytest_mlperf.cli.suites import DEFAULT, find_suites, require_accelerators
from pytest_mlperf.core.baseline import find_record
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.errors import BaselineError, MlperfError, SuiteError
from pytest_mlperf.core.guarantees import Guarantee, guarantee
from pytest_mlperf.core.job import Job
from pytest_mlperf.core.numbers import plural
from pytest_mlperf.core.untrusted_text import json_text
from pytest_mlperf.hardware.machine import Machine, detect
from pytest_mlperf.judge.inputs import DAYS
from pytest_mlperf.reports.promises import guarantee_text, short_guarantee
from pytest_mlperf.reports.terminal.layout import fold, relative, table
from pytest_mlperf.run.checkpoints.build import about_builder, state_of
from pytest_mlperf.stores import accuracy_baselines
from pytest_mlperf.suite.libraries import NOUNS, declared_libraries, is_here
from pytest_mlperf.suite.plan import Planned, plan_suite, url_of
from pytest_mlperf.suite.resolve import Problems, loaded_extensions, resolve
from pytest_mlperf.suite.values import KeyPath

State = Literal["ready", "absent", "missing", "broken"]


@dataclass(frozen=True, kw_only=True)
class CaseState:
    """Hold whether one case can run; texts are "" if not applicable.

    Attributes:
        case: Id of the case without the workload.
        state: "ready"; "absent": no such accelerator; "missing": no model, data or library;
            "broken": damaged baseline or wrong option.
        performance: Performance baseline: "8 runs on 4 days", "none", "other machine" or "damaged".
        accuracy: Accuracy baseline: "yes", "none" or "damaged"; "-" if nothing is scored.
        elsewhere: Other Python that runs the case, with versions.
        build: State of the checkpoint that the case builds.
        promise: Guaranteed error probabilities of the performance baseline; None without one.
        server: Address and hardware of the server, and the source of this information.
    """

    case: str
    state: State
    reason: str
    accelerator: str
    performance: str
    accuracy: str
    elsewhere: str = ""
    build: str = ""
    promise: Guarantee | None = None
    server: str = ""


@dataclass(frozen=True, kw_only=True)
class SuiteState:
    """Hold the states of the cases in a suite file, or the error in the file."""

    path: Path
    workload: str = ""
    profile: str = ""
    cases: tuple[CaseState, ...] = ()
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckCache:
    """Cache library import errors, and the answers of other Pythons by engine entry."""

    failures: requirements.Failures
    runs_dir: Path
    answers: dict[KeyPath, requirements.OtherPython] = field(default_factory=dict)

    def other_python(self, planned: Planned, job: Job) -> requirements.OtherPython:
        """Return (versions, errors) of the Python of a case's engine; cached by engine entry."""
        key = (*planned.engine_key, planned.case.accelerator if planned.engine.on else "")
        if key not in self.answers:
            self.answers[key] = requirements.inspect_python(planned, job, self.runs_dir)
        return self.answers[key]


def suite_state(
    path: Path,
    machine: Machine,
    baselines: Path | None,
    failures: requirements.Failures,
    runs_dir: Path = RUNS_DIR,
) -> SuiteState:
    """Return which cases of a suite can run here; `failures`: why libraries cannot be imported."""
    try:
        planned = plan_suite(path)
    except SuiteError as error:
        return SuiteState(path=path, error=str(error))
    suite = planned[0].suite
    root = baselines_root(baselines, path, suite.division)
    looks = CheckCache(failures=failures, runs_dir=runs_dir)
    return SuiteState(
        path=path,
        workload=suite.workload.name,
        profile=suite.profile,
        cases=tuple(_case(case, machine, root, looks) for case in planned),
    )


def _case(planned: Planned, machine: Machine, root: Path, looks: CheckCache) -> CaseState:
    case, lack, server = planned.case, "", ""
    if url_of(planned):
        try:
            machine = server_machine(planned, machine)
            server = in_words(planned, machine)
        except MlperfError as error:
            lack = str(error)
    held, performance, damage = _performance(planned, machine, root)
    accuracy, also = _accuracy(planned, root)
    resolved = resolve(planned, scorer=True)
    state, reason, there = _readiness(planned, resolved, machine, looks)
    if lack and state != "broken":
        state, reason = "missing", lack
    if state == "ready" and (damage or also):
        state, reason = "broken", damage or also
    return CaseState(
        case=case.id.removeprefix(f"{case.workload}-"),
        state=state,
        reason=reason,
        accelerator=case.accelerator,
        performance=performance,
        accuracy=accuracy,
        elsewhere=there,
        build="" if state == "broken" else state_of(resolved.build, looks.runs_dir),
        promise=held,
        server=server,
    )


def _readiness(
    planned: Planned, resolved: Job | Problems, machine: Machine, looks: CheckCache
) -> tuple[State, str, str]:
    accelerator = planned.case.accelerator
    here = machine.has(accelerator) or bool(url_of(planned))
    job = None if isinstance(resolved, Problems) else resolved
    problems = resolved.problems if isinstance(resolved, Problems) else resolved.scoring.problems
    errors = [problem.error for problem in problems]
    lacks = list(_libraries(planned, looks.failures))
    there = ""
    if job and not errors:
        errors += requirements.import_errors(planned, job)
    if job and not errors and (lack := _builder(job)):
        lacks.append(lack)
    if job and here and not errors and not lacks:
        try:
            if planned.elsewhere:
                there, errors = looks.other_python(planned, job)
            else:
                requirements.require_library(planned, job)
        except MlperfError as error:
            errors.append(error)
    missing = [*map(str, errors), *lacks]
    if any(isinstance(error, SuiteError) for error in errors):
        return "broken", "\n".join(missing), there
    if not here:
        # Model and data can be made ready before the accelerator is there.
        return "absent", "\n".join([f"{accelerator} is not on this machine", *missing]), there
    return ("missing", "\n".join(missing), there) if missing else ("ready", "", there)


def _libraries(planned: Planned, failures: requirements.Failures) -> Iterator[str]:
    for _, group, use, _ in loaded_extensions(planned, scorer=True):
        if not all(map(is_here, declared_libraries(group, use))):
            continue  # `problems` names it
        if lack := requirements.missing_library(group, use, failures):
            yield f"{NOUNS[group]} {use} {lack[0]}: {lack[1]}"


def _builder(job: Job) -> str:
    try:
        if job.build and (job.build.python or not job.build.registered):
            about_builder(job.build)
    except MlperfError as error:
        return str(error)
    return ""


def _performance(
    planned: Planned, machine: Machine, root: Path
) -> tuple[Guarantee | None, str, str]:
    case = planned.case
    file = baseline_file(root, case, planned.suite.profile)
    machine = replace(machine, limit_w=planned.limit_w)
    calibrated = machine.identity(case.accelerator)
    machine = replace(machine, harness=planned.harness)
    identity = machine.identity(case.accelerator)
    try:
        loaded = load_checked(file, case)
        rule, learnt = rule_of_baseline(file, case.accelerator, calibrated, Policy.max_runs)
    except BaselineError as error:
        return None, "damaged", str(error)
    if loaded is None:
        return None, "none", ""
    shared_identity = replace(machine, shared=True).identity(case.accelerator)
    record = find_record(loaded, identity) or find_record(loaded, shared_identity)
    if record is None:
        return None, "other machine", ""
    held = guarantee(record, rule, calibrated=learnt is not None, now=dt.datetime.now(dt.UTC))
    return held, short_guarantee(held), ""


def _accuracy(planned: Planned, root: Path) -> tuple[str, str]:
    if Kind.ACCURACY not in planned.kinds:
        return "-", ""
    file = file_of(planned, root)
    try:
        return ("yes" if accuracy_baselines.ACCURACY_DOCUMENT.load(file) else "none"), ""
    except BaselineError as error:
        return "damaged", str(error)


FINE_EXIT_CODE, DEFECT_EXIT_CODE, UNABLE_EXIT_CODE = 0, 2, 3

JSON_VERSION = 1
STATE_WORDS = {
    "absent": "accelerator not here",
    "missing": "model, data or library missing",
    "broken": "broken",
}

HELP = """\
Checks Python, pytest, the plugin, LoadGen (by a short run), accelerators, disk
space, device locks and libraries, and shows for every case whether it can run
on this machine and which baselines it has.
For each case it checks options, files, the model (neither empty nor a Git LFS
pointer), libraries, CUDA devices, and the server at url; engines with python or
command are checked in that Python or container. It loads no model and reads no
data file. Without --all it shows at most 25 lines on the needs of these suites.
States: ok; note: works, but read it; optional: missing and not needed;
broken: nothing can be measured.

Exit 2 if a suite or a baseline is defective, 3 if LoadGen or the plugin is
broken or no case can run on this machine.

needs: nothing

examples:
  $ pytest-mlperf doctor
      this machine and every suite below suites/
  $ pytest-mlperf doctor suites/datacenter
      what these suites miss: variables, data, GPUs
  $ pytest-mlperf doctor --all
      all cases, engines and optional libraries
  $ pytest-mlperf doctor --json
      the same as JSON, e.g. before a CI job
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    add(parser, "suites", "--accelerator", "--json", "--baselines", "--runs-dir")
    parser.add_argument(
        "--all", action="store_true", help="show all checks, including unused engines and libraries"
    )


def run(parsed: argparse.Namespace) -> int:
    """Check the machine and the suites; print which cases can run."""
    try:
        files = find_suites(parsed.suites)
    except MlperfError:  # none is no error where none was named
        if parsed.suites:
            raise
        files = []
    machine = detect(gpus=True)
    checks, failures = run_checks(machine, parsed.runs_dir)
    states = [
        suite_state(file, machine, parsed.baselines, failures, parsed.runs_dir) for file in files
    ]
    suites = limit_to_accelerators(states, parsed.accelerator)
    code = exit_code(checks, suites)
    if parsed.json:
        content = {
            "schema": JSON_VERSION,
            "checks": [asdict(check) for check in checks],
            "suites": [_suite_document(suite) for suite in suites],
            "exit_code": code,
        }
        print(json_text(content))
    else:
        text = list(lines(checks if parsed.all else brief(checks), suites, parsed.suites, code))
        show(text if parsed.all else shorten_page(text))
    return code


def limit_to_accelerators(
    suites: Sequence[SuiteState], accelerators: Sequence[str]
) -> list[SuiteState]:
    """Keep only cases on the given accelerators; keep all if none are given."""
    if not accelerators:
        return list(suites)
    require_accelerators(accelerators, (case.accelerator for case in _cases(suites)))
    parts = [
        replace(suite, cases=tuple(one for one in suite.cases if one.accelerator in accelerators))
        for suite in suites
    ]
    return [part for part in parts if part.cases or part.error]


def exit_code(checks: Sequence[Check], suites: Sequence[SuiteState]) -> int:
    """Return 2 if a suite or baseline has an error, 3 if no case can run, else 0."""
    states = [case.state for suite in suites for case in suite.cases]
    damaged = any(check.state == "defective" for check in checks)
    if any(suite.error for suite in suites) or "broken" in states or damaged:
        return DEFECT_EXIT_CODE
    if any(check.state == "broken" for check in checks) or (states and "ready" not in states):
        return UNABLE_EXIT_CODE
    return FINE_EXIT_CODE


def _suite_document(suite: SuiteState) -> dict[str, Any]:
    content = asdict(suite)
    cases = [
        {"why" if key == "reason" else key: value for key, value in case.items()}
        for case in content["cases"]
    ]
    return {**content, "path": relative(suite.path.absolute()), "cases": cases}


MAX_LINES = 25
"""Maximum lines without --all."""

CONTINUED = " " * 6
"""Indentation of a line that continues the text above it."""


def brief(checks: Sequence[Check]) -> list[Check]:
    """Return one check that names all that passed, then GPUs, other states, and file checks.

    Checks of engines, libraries and missing tools are left out: suites that need them report them.
    """
    here = [c for c in checks if c.group in {"tools", "machine"} and c.state != "missing"]
    fine = [check.name for check in here if check.state == "ok" and check.name != "GPUs"]
    others = [replace(check, group="machine") for check in here if check.name not in fine]
    files = [check for check in checks if check.group == "files"]
    return [Check("machine", "checked", "ok", ", ".join(fine)), *others, *files]


def shorten_page(text: Sequence[str]) -> list[str]:
    """Cut a page's middle to fit `MAX_LINES` lines; keep the last block, which has the verdict."""
    if len(text) <= MAX_LINES:
        return list(text)
    end = len(text) - text[::-1].index("") - 1
    first = MAX_LINES - (len(text) - end) - 1
    while text[first].startswith(CONTINUED):
        first -= 1
    return [
        *text[:first],
        f"  ... {end - first} more lines: pytest-mlperf doctor --all",
        *text[end:],
    ]


def lines(
    checks: Sequence[Check], suites: Sequence[SuiteState], named: Sequence[Path], code: int
) -> Iterator[str]:
    """Yield the report; suites `named` by the user and exit `code` decide which command is next."""
    for group, inside in groupby(checks, key=lambda check: check.group):
        yield group
        rows = list(inside)
        wide = max(len(check.name) for check in rows)
        for check in rows:
            state = "optional" if check.state == "missing" else check.state
            head = f"  {state:<8}  {check.name:<{wide}}  "
            yield from fold(check.text, width(), first=head, rest=" " * len(head))
            yield from fold(check.do, width(), first=" " * len(head), rest=" " * len(head))
    if suites:
        yield "suites, and their baselines for this machine"
    for suite in suites:
        yield from _suite(suite)
    for held in dict.fromkeys(_held(suites)):
        yield from fold(held, width())
    yield ""
    yield from fold(_verdict(checks, suites), width())
    yield f"next: {_next(checks, suites, named, code)}"


def _suite(suite: SuiteState) -> Iterator[str]:
    name = relative(suite.path.absolute())
    if suite.error:
        yield f"  {name}: defective"
        yield from (f"    {line}" for line in suite.error.splitlines())
        return
    yield f"  {name}: {suite.workload}, {suite.profile}"
    columns = ["state", "case", "performance", "accuracy"]
    rows = [{name: getattr(case, name) for name in columns} for case in suite.cases]
    yield from table(rows, width(), left=columns, indent="    ")
    notes = [f"runs in {case.elsewhere}" for case in suite.cases if case.elsewhere]
    notes += [case.server for case in suite.cases if case.server]
    notes += [case.build for case in suite.cases if case.build]
    notes += [line for case in suite.cases for line in case.reason.splitlines()]
    for text in dict.fromkeys(notes):
        yield from fold(text, width(), first="    - ", rest="      ")


def _held(suites: Sequence[SuiteState]) -> Iterator[str]:
    for lacks in ("few sessions", "old", None):
        open_ = [
            case.promise for case in _cases(suites) if case.promise and case.promise.lacks == lacks
        ]
        if open_:
            worst = min(open_, key=lambda one: (one.final_until or "", one.days))
            yield f"{plural(len(open_), 'baseline')}: {guarantee_text(worst)}"


def _cases(suites: Sequence[SuiteState]) -> list[CaseState]:
    return [case for suite in suites for case in suite.cases]


def _verdict(checks: Sequence[Check], suites: Sequence[SuiteState]) -> str:
    broken = [check.name for check in checks if check.state == "broken"]
    if broken:
        return f"nothing can be measured: {', '.join(broken)} broken"
    defective = sum(bool(suite.error) for suite in suites)
    cases = _cases(suites)
    if not suites:
        return "this machine can measure; no suites found"
    counts = Counter(case.state for case in cases)
    reasons = [f"{words} {counts[state]}" for state, words in STATE_WORDS.items() if counts[state]]  # type: ignore[index]
    if defective:
        reasons.append(plural(defective, "suite") + " defective")
    rest = f": {', '.join(reasons)}" if reasons else ""
    return f"{counts['ready']} of {plural(len(cases), 'case')} can run here{rest}"


def _next(
    checks: Sequence[Check], suites: Sequence[SuiteState], named: Sequence[Path], code: int
) -> str:
    broken = next((check for check in checks if check.state == "broken"), None)
    if broken:
        return broken.do or "fix the broken check above"
    if code == DEFECT_EXIT_CODE:
        return "fix the lines named above, then run: pytest-mlperf doctor"
    if not suites:
        return "pytest-mlperf init"
    if code == UNABLE_EXIT_CODE:
        return "provide what is missing above, or name other suites"
    places = " ".join(shlex.quote(str(place)) for place in named)
    places = places or str(DEFAULT if DEFAULT.is_dir() else ".")
    ready = [case for case in _cases(suites) if case.state == "ready"]
    few = any(case.promise and case.promise.days < DAYS for case in ready)
    if few or any(case.performance in {"none", "other machine"} for case in ready):
        return f"pytest {places} --mlperf-update=missing"
    return f"pytest {places}"
