"""Find the other Python of an engine entry, in another environment or a container."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_mlperf import registry
from pytest_mlperf.core.errors import MlperfError, RunError, SuiteError, UnavailableError
from pytest_mlperf.core.job import EarlierBuild, PythonEnvironment
from pytest_mlperf.core.untrusted_text import nearest, quoted
from pytest_mlperf.suite.load import defects_in
from pytest_mlperf.suite.places import expand
from pytest_mlperf.suite.plan import Planned
from pytest_mlperf.suite.tables import BaselineEngine, PythonTable, title_of
from pytest_mlperf.suite.values import KeyPath


def engine_python(planned: Planned) -> PythonEnvironment | None:
    """Return the other Python of a case's engine, or None; UnavailableError if it is missing."""
    return find_python(planned, planned.engine_key, planned.engine)


AGAINST = "--mlperf-against"
_REFERENCE_KINDS = {"git": "git", "pip": "wheel", "python": "python", "command": "command"}
"""Key of `baseline_engine` by the prefix of a value of `--mlperf-against`."""


def parse_against(text: str) -> BaselineEngine:
    """Parse `--mlperf-against`, e.g. "git:main"; raise MlperfError if it does not name a build."""
    kind, colon, value = text.partition(":")
    if not colon:
        kind, value = "git", text
    if kind not in _REFERENCE_KINDS:
        forms = "git:REF, pip:NAME==VERSION, python:PATH or command:WORDS"
        raise MlperfError(
            f"{quoted(text)} names no build; write {forms}{nearest(kind, _REFERENCE_KINDS)}"
        )
    try:
        words = shlex.split(value) if kind == "command" else value.strip()
        return BaselineEngine.model_validate({_REFERENCE_KINDS[kind]: words})
    except ValidationError as error:
        raise MlperfError(f"{quoted(text)}: {defects_in(error)[0][1]}") from None
    except ValueError as error:
        raise MlperfError(f"{quoted(text)} is no command: {error}") from None


def other_build(planned: Planned, table: BaselineEngine) -> EarlierBuild:
    """Return the build that `table` (--mlperf-against) names; RunError if it cannot be measured."""
    use, url = planned.engine.use, planned.options.get("url")
    if registry.harness(use):
        raise RunError(
            "against",
            f"{use} measures a running server and cannot start another build: compare two engine "
            "entries (pytest-mlperf turns --help)",
        )
    if url and registry.is_client(use):
        raise RunError(
            "against",
            f"both builds would use the same server, {url}: replace url by serve, which starts one "
            "for each build, or compare two engine entries (pytest-mlperf turns --help)",
        )
    try:
        return EarlierBuild(
            elsewhere=find_python(planned, (AGAINST,), table) or engine_python(planned),
            suite=planned.path,
            git=table.git,
            requirements=_wheels(planned, (AGAINST, "pip"), table.wheel),
            wheel=table.wheel or "",
            key=AGAINST,
        )
    except UnavailableError as error:
        raise RunError("against", str(error)) from None


def earlier_build(planned: Planned) -> EarlierBuild | None:
    """Return the build that `baseline_engine` names, or None; UnavailableError if it is missing."""
    table = planned.engine.baseline_engine
    if table is None:
        return None
    where = (*planned.engine_key, "baseline_engine")
    return EarlierBuild(
        elsewhere=find_python(planned, where, table) or engine_python(planned),
        suite=planned.path,
        git=None if table.git is None else str(_expanded(planned, (*where, "git"), table.git)),
        wheels=_wheels(planned, (*where, "wheel"), table.wheel),
        wheel=table.wheel or "",
        key=_key_text(where),
    )


def find_python(
    planned: Planned, where: KeyPath, python_table: PythonTable
) -> PythonEnvironment | None:
    """Return the Python that a suite table names, else None; UnavailableError if it is missing."""
    name = "python" if python_table.python is not None else "command"
    named_value = getattr(python_table, name)
    if named_value is None:
        return None
    key = (*where, name)
    expanded = _expanded(planned, key, named_value)
    if name == "python":
        command = (_program(planned, key, named_value, expanded, _folder(planned, key)),)
    else:
        _program(planned, key, named_value[0], expanded[0], Path())
        command = tuple(expanded)
    return PythonEnvironment(command=command, title=title_of(python_table), key=_key_text(key))


def _wheels(planned: Planned, key: KeyPath, text: str | None) -> tuple[str, ...]:
    """Return the packages in a table's `wheel` as pip arguments; wheel files as absolute paths."""
    if text is None:
        return ()
    words = str(_expanded(planned, key, text)).split()
    return tuple(_wheel(planned, key, word) if word.endswith(".whl") else word for word in words)


def _wheel(planned: Planned, key: KeyPath, text: str) -> str:
    path = (_folder(planned, key) / Path(text).expanduser()).absolute()
    if path.is_file():
        return str(path)
    raise UnavailableError(
        f"{_place(planned, key)}, {text}, is not a file here (looked at {path}); "
        "build it, or name a version: name==version"
    )


def _expanded(planned: Planned, key: KeyPath, value: Any) -> Any:
    try:
        return expand({"": value})[""]
    except SuiteError as error:
        raise UnavailableError(f"{_place(planned, key)}: {error}") from None


def _program(planned: Planned, key: KeyPath, text: str, expanded: str, folder: Path) -> str:
    """Return a program's absolute path, links unresolved; UnavailableError if it is missing."""
    is_path = "/" in expanded
    typed = Path(expanded).expanduser()
    program = folder / typed if is_path else Path(shutil.which(typed) or typed)
    path = program.absolute()
    if path.is_file() and os.access(path, os.X_OK):
        return str(path)
    advice = "create it with python -m venv DIR, and install the engine in it"
    if key[-1] == "command":
        advice = "install it, or put it on the PATH"
    elif (path / "bin/python").exists():
        advice = f"did you mean {text}/bin/python?"
    raise UnavailableError(
        f"{_place(planned, key)}, {text}, is not a program here (looked at {path}); {advice}"
    )


def _folder(planned: Planned, key: KeyPath) -> Path:
    return Path() if key[0] == AGAINST else planned.path.parent


def _place(planned: Planned, key: KeyPath) -> str:
    at = "" if key[0] == AGAINST else f"{planned.place(key)}: "
    return f"{at}{_key_text(key)}"


def _key_text(key: KeyPath) -> str:
    return "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in key).removeprefix(".")
