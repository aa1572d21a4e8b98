"""Every form in which a session's results are written: for the terminal, people and programs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pytest_mlperf.core.addons import Format
from pytest_mlperf.core.causes import Siblings, causes
from pytest_mlperf.core.errors import EnvironmentFault, MlperfError
from pytest_mlperf.core.results import Absent, CaseResult, Results
from pytest_mlperf.core.untrusted_text import clean, meant
from pytest_mlperf.hardware.machine import detect
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.registry import declared
from pytest_mlperf.reports.export import exports, github
from pytest_mlperf.reports.export.junit import junit
from pytest_mlperf.reports.terminal import text
from pytest_mlperf.stores.atomic import write_whole
from pytest_mlperf.stores.results import as_text

MACHINE_INFO = """
import json
from pytest_benchmark.plugin import pytest_benchmark_generate_machine_info as machine_info
print(json.dumps(machine_info()))
"""
"""pytest-benchmark's own words on this machine; in a child, because they need pytest."""

MESSAGE_COLUMNS = 120


@dataclass(frozen=True, kw_only=True)
class ReportedSession:
    """What a report is made of.

    Attributes:
        results: One session, or several merged.
        file: The results file; an HTML page also shows what lies beside it.
        root: The folder that paths in the results begin at, pytest's root folder.
        options: The session's by name; `store` is that of earlier sessions, for an HTML page.
        absent: Planned tests without a result.
        own_files: Files that the verdicts rest on and that differ from those of the branch.
    """

    results: Results
    file: Path
    root: Path = Path()
    options: Mapping[str, Any] = field(default_factory=dict)
    absent: Sequence[Absent] = ()
    links: github.Links | None = None
    own_files: Sequence[str] = ()
    columns: int = 80


def formats() -> Mapping[str, Format | None]:
    """Return all formats by name; None: it is this package's own."""
    of_addons = declared("formats", Format, lambda _, module: Format(module=module))
    return {
        **dict.fromkeys(WRITERS),
        **{name: of_addons[name] for name in of_addons if name not in WRITERS},
    }


def module_of(form: str) -> Any:
    """Return the module of an add-on's format."""
    added = formats()[form]
    assert added
    try:
        return import_module(added.module)
    except ImportError as error:
        raise EnvironmentFault(
            f"format {form}: {added.module} cannot be imported: {error}"
        ) from None


def parse_report(words: str) -> tuple[str, Path]:
    """Return format and file of FORMAT=FILE; anything else is a ValueError."""
    form, _, file = words.partition("=")
    names = [name for name, added in formats().items() if added is None or not added.of_store]
    if form not in names or not file:
        like = meant(form, names) if form not in names else ""
        formats_here = ", ".join(names)
        raise ValueError(f"{words!r} is not FORMAT=FILE with one of {formats_here}{like}")
    require(form)
    return form, Path(file)


def require(form: str) -> None:
    """Refuse a format whose libraries are not here, without importing them."""
    added = formats()[form]
    libraries = added.libraries if added else FORMAT_LIBRARIES.get(form, {})
    if missing := [name for name in libraries if find_spec(name) is None]:
        packages = " ".join(dict.fromkeys(libraries[name] for name in missing))
        raise EnvironmentFault(f"a report of format {form} needs: pip install {packages}")


def make_report(form: str, session: ReportedSession) -> str:
    """Return a report; results that hold what no run can measure are an MlperfError."""
    require(form)
    make = WRITERS[form] if form in WRITERS else module_of(form).report
    try:
        text: str = make(session)
        return text
    except (ValueError, ArithmeticError) as error:
        raise MlperfError(f"{session.file}: {error}") from None


def write_report(form: str, file: Path, session: ReportedSession) -> None:
    """Write a report into a file, whole or not at all; missing folders are made."""
    write_whole(file, make_report(form, session))


def failure_message(results: Results, columns: int) -> Callable[[CaseResult], str]:
    """Return what tells a failed test of a session as pytest did, in lines of so many columns."""
    verdicts = Siblings(result.verdict for result in results.cases)

    def message(result: CaseResult) -> str:
        return text.failure(result.verdict, result, columns, causes(result.verdict, None, verdicts))

    return message


def machine_info(results: Results) -> dict[str, Any]:
    """Return the machine as pytest-benchmark describes it, where it is this one.

    Results that were measured elsewhere are only known by the identity of their hardware.
    """
    subjects = {
        result.verdict.case.accelerator: result.verdict.subject.identity
        for result in results.cases
        if result.verdict.subject
    }
    machine = detect(gpus=any(name != "cpu" for name in subjects))
    here = all(
        machine.as_in(identity).identity(name) == identity for name, identity in subjects.items()
    )
    if here and subjects:
        command = [sys.executable, "-c", MACHINE_INFO]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode == 0:
            described: dict[str, Any] = json.loads(done.stdout)
            return described
    return {name: dict(identity) for name, identity in subjects.items()}


def _of_results(make: Callable[[Results], str]) -> Callable[[ReportedSession], str]:
    return lambda session: make(session.results)


def _text(session: ReportedSession) -> str:
    lines = text.summary(session.results, session.columns, colour=False)
    return "".join(f"{clean(line)}\n" for line in lines)


def _benchmark(results: Results) -> str:
    commit = exports.commit_info(results)
    content = exports.document(results, machine_info=machine_info(results), commit_info=commit)
    return json.dumps(content, indent=4) + "\n"


WRITERS: Mapping[str, Callable[[ReportedSession], str]] = {
    "text": _text,
    "json": _of_results(as_text),
    "junit": lambda session: junit(
        session.results, session.absent, failure_message(session.results, MESSAGE_COLUMNS)
    ),
    "pytest-benchmark": _of_results(_benchmark),
    "markdown": lambda session: github.summary(session.results, session.absent),
    "comment": lambda session: github.comment(
        session.results, session.absent, links=session.links, own_files=session.own_files
    ),
    "annotations": lambda session: github.commands(session.results, session.absent),
    "csv": _of_results(exports.csv_table),
    "prometheus": _of_results(exports.prometheus),
    "customBiggerIsBetter": lambda session: exports.better(session.results, Direction.HIGHER),
    "customSmallerIsBetter": lambda session: exports.better(session.results, Direction.LOWER),
}

FORMAT_LIBRARIES: Mapping[str, Mapping[str, str]] = {
    "pytest-benchmark": {"pytest_benchmark": "pytest-benchmark"},
}
