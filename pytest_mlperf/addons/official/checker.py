"""Run MLCommons' submission checker from a checkout of its repository."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_mlperf import EnvironmentFault
from pytest_mlperf.extension import answer_of, ended
from pytest_mlperf.processes import last_line

CHECKER_TIMEOUT_SECONDS = 3600.0
KILL_SECONDS = 10.0

MAX_LINES = 20
"""Maximum number of shown lines per severity."""

MAX_CHARACTERS = 500
"""Maximum number of shown characters per line."""

LOGGED = re.compile(r"(?:\[\S+ \S+ \S+ )?([A-Z]+)(?:\] |:\w+:)(.*)")
"""Line of Python's logging, in the formats of v4.1 and v6.1: severity and message."""

VERDICTS = {"SUMMARY: submission looks OK": 0, "SUMMARY: submission has errors": 1}
"""Last message of the checker, and its exit code."""

MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w+)")

DISTRIBUTIONS = {"yaml": "pyyaml"}
"""Names on the package index of modules, if they differ."""


def how_to_get(round_name: str) -> str:
    """Return advice on how to clone the checker of a round, for messages."""
    branch = "--branch v4.1 " if round_name == "v4.1" else ""
    return (
        f"get it with git clone {branch}https://github.com/mlcommons/inference and add "
        "--checker inference"
    )


def run_checker(tree: Path, round_name: str, checkout: Path) -> tuple[int, list[str]]:
    """Run the checker on a submission's tree for a round such as "v6.1".

    `checkout` is a clone of mlcommons/inference, or its folder tools/submission. Returns an exit
    code (1 if the checker finds errors, else 0) and the lines to show, the verdict last. Raises
    EnvironmentFault if the checker cannot run or gives no verdict.
    """
    import_folder, module = _entry_point(checkout, round_name)
    folder = Path(tempfile.mkdtemp(prefix="pytest-mlperf-checker-"))
    tree = tree.resolve()
    # -P prevents imports from the working folder.
    command = [sys.executable, "-P", "-m", module, "--input", str(tree), "--version", round_name]
    # The checker of v4.1 renames files if INFER_SYSTEM_FILE is set.
    variables = {name: value for name, value in os.environ.items() if name != "INFER_SYSTEM_FILE"}
    path = os.pathsep.join(filter(None, [str(import_folder), variables.get("PYTHONPATH")]))
    answer = answer_of(
        [*command, "--csv", str(folder / "summary.csv")],
        limit_s=CHECKER_TIMEOUT_SECONDS,
        killed_s=KILL_SECONDS,
        environment={**variables, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    if answer is None:
        raise EnvironmentFault(
            f"MLCommons' checker did not end within {CHECKER_TIMEOUT_SECONDS:g} s: killed"
        )
    code, output = answer[0], answer[1] + answer[2]
    (folder / "output.txt").write_bytes(output)
    text = output.decode("utf-8", "replace").replace(f"{tree}/", "")
    lines = [logged.groups() for logged in map(LOGGED.fullmatch, text.split("\n")) if logged]
    verdict = next((line for _, line in reversed(lines) if line in VERDICTS), "")
    if VERDICTS.get(verdict) != code:
        raise _fault(code, last_line(output), round_name, folder)
    by_severity: dict[str, dict[str, None]] = {}
    for severity, line in lines:
        if line != verdict:
            by_severity.setdefault(severity, {})[line] = None
    return code, [
        *_shortened("error", [*by_severity.get("ERROR", ())]),
        *_shortened("warning", [*by_severity.get("WARNING", ())]),
        f"info: {len(by_severity.get('INFO', ())):,} lines; full output and summary.csv: {folder}",
        verdict,
    ]


def _entry_point(checkout: Path, round_name: str) -> tuple[Path, str]:
    for folder in (checkout.resolve() / "tools/submission", checkout.resolve()):
        if (folder / "submission_checker/main.py").is_file():
            return folder, "submission_checker.main"
        if (folder / "submission_checker.py").is_file():
            return folder, "submission_checker"
    raise EnvironmentFault(
        f"{checkout} has no tools/submission with MLCommons' submission checker: "
        f"{how_to_get(round_name)}"
    )


def _shortened(severity: str, messages: Sequence[str]) -> Iterator[str]:
    for message in messages[:MAX_LINES]:
        cut = "…" if len(message) > MAX_CHARACTERS else ""
        yield f"{severity}: {message[:MAX_CHARACTERS]}{cut}"
    if len(messages) > MAX_LINES:
        yield f"{severity}: {len(messages) - MAX_LINES:,} more, in the full output (see below)"


def _fault(code: int, last: str, round_name: str, folder: Path) -> EnvironmentFault:
    if missing := MISSING_MODULE.match(last):
        name = DISTRIBUTIONS.get(missing[1], missing[1])
        return EnvironmentFault(
            f"MLCommons' checker needs the module {missing[1]}: {sys.executable} -m pip install "
            f"{name}"
        )
    if "argument --version: invalid choice" in last:
        return EnvironmentFault(
            f"this checkout's checker does not know {round_name} ({last}): {how_to_get(round_name)}"
        )
    return EnvironmentFault(
        f"MLCommons' checker {ended(code, ' and gave no verdict')}: {last[:MAX_CHARACTERS]}; its "
        f"whole output: {folder / 'output.txt'}"
    )
