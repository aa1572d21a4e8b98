"""`pytest-mlperf doctor`: what this machine can run, and why not."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from pytest_mlperf.cli.checks import Check
from pytest_mlperf.cli.elsewhere import asking
from pytest_mlperf.cli.environment import look
from pytest_mlperf.cli.history import add_runs_dir
from pytest_mlperf.cli.output import add_parser, show, width
from pytest_mlperf.cli.readiness import CaseState, SuiteState, suite_state
from pytest_mlperf.cli.suites import DEFAULT, add_suites, find_suites
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.foreign_text import json_text
from pytest_mlperf.hardware.machine import detect
from pytest_mlperf.reports.layout import fold, plural, table
from pytest_mlperf.reports.selection import relative

FINE, DEFECTIVE, CANNOT = 0, 2, 3

SCHEMA = 1
"""Version of what `--json` prints."""

WORDS = {
    "absent": "accelerator not here",
    "missing": "model, data or library missing",
    "broken": "broken",
}


def add_command(commands: Any) -> None:
    """Register the subcommand."""
    parser = add_parser(
        commands,
        "doctor",
        summary="what this machine can run, and why not",
        description=(
            "Looks at Python, pytest and the plugin, runs LoadGen for a moment, finds the\n"
            "accelerators, space, leases and optional libraries, and says of every case\n"
            "whether it can run here and which baselines it has for this machine.\n"
            "Of a case it checks the options of engine, data set and scorer, that the files\n"
            "they name are here, that the model is neither empty nor a Git LFS pointer, that\n"
            "their libraries are installed and can be imported, that onnxruntime has the\n"
            "providers and the loader NVIDIA's libraries, that torch sees the CUDA device,\n"
            "that the program which serve starts is here, and that a server listens at url.\n"
            "It reads no data file, loads no model and imports no code that is not registered\n"
            "by an entry point: what is wrong inside of these is found by the first run. An\n"
            "engine that runs in another Python or a container (python or command in its\n"
            "entry) is asked there for the same.\n"
            "ok works; note works, read it; missing is optional; broken stops everything.\n"
            "\n"
            "Exit 2 when a suite or a baseline is defective, 3 when LoadGen or the plugin is\n"
            "broken or no case can run here, else 0."
        ),
        needs="nothing; suites are looked at where there are some",
        examples=[
            ("doctor", "this machine and every suite below suites/"),
            ("doctor suites/datacenter", "what is missing for these: variables, data, GPUs"),
            ("doctor --accelerator cpu", "only cases on the CPU"),
            ("doctor --json", "the same for a program, e.g. before a CI job"),
        ],
    )
    add_suites(parser)
    parser.add_argument(
        "--accelerator",
        action="append",
        default=[],
        metavar="NAME",
        help='only cases of this accelerator ("H200", "8xH100", "cpu"); repeatable',
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--baselines", type=Path, metavar="DIR", help="folder (default: nearest to each suite)"
    )
    add_runs_dir(parser)
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Look at everything and say what can run.

    Raises:
        MlperfError: A suite that was named is not there, or no case runs on an accelerator.
    """
    files = _suites(parsed.suites)
    machine = detect(gpus=True)
    checks, failures = look(machine, parsed.runs_dir)
    ask = asking(parsed.runs_dir)
    found = [
        suite_state(file, machine, parsed.baselines, failures, ask, parsed.runs_dir)
        for file in files
    ]
    suites = on(found, parsed.accelerator)
    code = exit_code(checks, suites)
    if parsed.json:
        print(json_text(_document(checks, suites, code)))
    else:
        show(lines(checks, suites, parsed.suites, code))
    return code


def _suites(named: Sequence[Path]) -> list[Path]:
    """Return the suites to look at; none is no error where none was named."""
    try:
        return find_suites(named)
    except MlperfError:
        if named:
            raise
        return []


def on(suites: Sequence[SuiteState], accelerators: Sequence[str]) -> list[SuiteState]:
    """Return suites with the cases of some accelerators only; everything where none is named.

    Raises:
        MlperfError: No case runs on one of them.
    """
    if not accelerators:
        return list(suites)
    known = dict.fromkeys(case.accelerator for case in _cases(suites))
    for name in accelerators:
        if name not in known:
            raise MlperfError(
                f"no case runs on {name!r}; these suites name: {', '.join(known) or 'none'}"
            )
    parts = [
        dataclasses.replace(
            suite, cases=tuple(case for case in suite.cases if case.accelerator in accelerators)
        )
        for suite in suites
    ]
    return [suite for suite in parts if suite.cases or suite.error]


def exit_code(checks: Sequence[Check], suites: Sequence[SuiteState]) -> int:
    """Return 2 where a suite or a baseline is defective, 3 where nothing can run, else 0."""
    states = [case.state for suite in suites for case in suite.cases]
    if any(suite.error for suite in suites) or "broken" in states:
        return DEFECTIVE
    if any(check.state == "broken" for check in checks) or (states and "ready" not in states):
        return CANNOT
    return FINE


def _document(checks: Sequence[Check], suites: Sequence[SuiteState], code: int) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "checks": [dataclasses.asdict(check) for check in checks],
        "suites": [
            {**dataclasses.asdict(suite), "path": relative(suite.path.absolute())}
            for suite in suites
        ],
        "exit_code": code,
    }


# --- text ------------------------------------------------------------------------------------


def lines(
    checks: Sequence[Check], suites: Sequence[SuiteState], named: Sequence[Path], code: int
) -> Iterator[str]:
    """Yield what was found, grouped, then the verdict and the command that helps most.

    Args:
        checks: What was looked at on the machine.
        suites: The suites.
        named: The arguments that named them.
        code: What `exit_code` gave.
    """
    for group, inside in groupby(checks, key=lambda check: check.group):
        yield group
        found = list(inside)
        wide = max(len(check.name) for check in found)
        for check in found:
            head = f"  {check.state:<7}  {check.name:<{wide}}  "
            yield from fold(check.text, width(), first=head, rest=" " * len(head))
            yield from fold(check.do, width(), first=" " * len(head), rest=" " * len(head))
    if suites:
        yield "suites, with the baselines that they have for this machine"
    for suite in suites:
        yield from _suite(suite)
    yield ""
    yield from fold(_verdict(checks, suites), width())
    yield f"next: {_next(checks, suites, named, code)}"


def _suite(suite: SuiteState) -> Iterator[str]:
    place = relative(suite.path.absolute())
    if suite.error:
        yield f"  {place}: defective"
        yield from (f"    {line}" for line in suite.error.splitlines())
        return
    yield f"  {place}: {suite.workload}, {suite.profile}"
    rows = [
        {
            "state": case.state,
            "case": case.case,
            "performance": case.performance,
            "accuracy": case.accuracy,
        }
        for case in suite.cases
    ]
    columns = ["state", "case", "performance", "accuracy"]
    yield from (f"    {line}" for line in table(columns, rows, width() - 4, left=columns))
    for there in dict.fromkeys(case.elsewhere for case in suite.cases if case.elsewhere):
        yield from fold(f"runs in {there}", width(), first="    - ", rest="      ")
    for build in dict.fromkeys(case.build for case in suite.cases if case.build):
        yield from fold(build, width(), first="    - ", rest="      ")
    for why in dict.fromkeys(line for case in suite.cases for line in case.why.splitlines()):
        yield from fold(why, width(), first="    - ", rest="      ")


def _cases(suites: Sequence[SuiteState]) -> list[CaseState]:
    return [case for suite in suites for case in suite.cases]


def _verdict(checks: Sequence[Check], suites: Sequence[SuiteState]) -> str:
    broken = [check.name for check in checks if check.state == "broken"]
    if broken:
        return f"nothing can be measured: {', '.join(broken)} broken"
    defective = sum(bool(suite.error) for suite in suites)
    cases = _cases(suites)
    if not suites:
        return "this machine can measure; there is no suite here yet"
    counts = Counter(case.state for case in cases)
    reasons = [f"{words} {counts[state]}" for state, words in WORDS.items() if counts[state]]  # type: ignore[index]
    if defective:
        reasons.append(plural(defective, "suite") + " defective")
    rest = f": {', '.join(reasons)}" if reasons else ""
    return f"{counts['ready']} of {plural(len(cases), 'case')} can run here{rest}"


def _next(
    checks: Sequence[Check], suites: Sequence[SuiteState], named: Sequence[Path], code: int
) -> str:
    """Return the one command that helps most."""
    broken = next((check for check in checks if check.state == "broken"), None)
    if broken:
        return broken.do or "repair what is broken above"
    if not suites:
        return "pytest-mlperf init"
    if code == DEFECTIVE:
        return "repair the lines named above, then pytest-mlperf doctor again"
    if code == CANNOT:
        return "set what is missing above, or name other suites"
    places = " ".join(shlex.quote(str(place)) for place in named)
    places = places or str(DEFAULT if DEFAULT.is_dir() else ".")
    ready = [case for case in _cases(suites) if case.state == "ready"]
    if any(case.performance in {"none", "other machine"} for case in ready):
        return f"pytest {places} --mlperf-update=missing"
    return f"pytest {places}"
