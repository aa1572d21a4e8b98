"""Find the other Python of an engine, in another environment or a container."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import SuiteError, UnavailableError
from pytest_mlperf.core.job import EarlierBuild, Elsewhere
from pytest_mlperf.suite.places import expand
from pytest_mlperf.suite.plan import Planned
from pytest_mlperf.suite.tables import Named, title_of
from pytest_mlperf.suite.values import KeyPath


def elsewhere(planned: Planned) -> Elsewhere | None:
    """Return the other Python of a case's engine, or None; UnavailableError if it is missing."""
    return find(planned, planned.engine_key, planned.engine)


def earlier_build(planned: Planned) -> EarlierBuild | None:
    """Return the build of `baseline_engine`, if any; raise UnavailableError if it is missing."""
    table = planned.engine.baseline_engine
    if table is None:
        return None
    where = (*planned.engine_key, "baseline_engine")
    return EarlierBuild(
        elsewhere=find(planned, where, table) or elsewhere(planned),
        suite=planned.path,
        git=None if table.git is None else str(_expanded(planned, (*where, "git"), table.git)),
        wheels=_wheels(planned, (*where, "wheel"), table.wheel),
        wheel=table.wheel or "",
        key=_key_text(where),
    )


def find(planned: Planned, where: KeyPath, named: Named) -> Elsewhere | None:
    """Return the Python that a table names, or None; UnavailableError if it is missing."""
    name = "python" if named.python is not None else "command"
    named_value = getattr(named, name)
    if named_value is None:
        return None
    key = (*where, name)
    expanded = _expanded(planned, key, named_value)
    if name == "python":
        command = (_program(planned, key, named_value, expanded, planned.path.parent),)
    else:
        _program(planned, key, named_value[0], expanded[0], Path())
        command = tuple(expanded)
    return Elsewhere(command=command, title=title_of(named), key=_key_text(key))


def _wheels(planned: Planned, key: KeyPath, text: str | None) -> tuple[str, ...]:
    """Return the packages in `wheel` as arguments of pip; wheel files get absolute paths."""
    if text is None:
        return ()
    words = str(_expanded(planned, key, text)).split()
    return tuple(_wheel(planned, key, word) if word.endswith(".whl") else word for word in words)


def _wheel(planned: Planned, key: KeyPath, text: str) -> str:
    path = (planned.path.parent / Path(text).expanduser()).absolute()
    if path.is_file():
        return str(path)
    raise UnavailableError(
        f"{planned.place(key)}: {_key_text(key)}, {text}, is not a file here (looked at "
        f"{path}); build it, or name a version: name==version"
    )


def _expanded(planned: Planned, key: KeyPath, value: Any) -> Any:
    try:
        return expand({"": value})[""]
    except SuiteError as error:
        raise UnavailableError(f"{planned.place(key)}: {_key_text(key)}: {error}") from None


def _program(planned: Planned, key: KeyPath, text: str, expanded: str, folder: Path) -> str:
    """Return a program's absolute path; keep links, as their target has another environment."""
    is_path = "/" in expanded
    typed = Path(expanded).expanduser()
    program = folder / typed if is_path else Path(shutil.which(typed) or typed)
    path = program.absolute()
    if path.is_file() and os.access(path, os.X_OK):
        return str(path)
    advice = "create it: python -m venv DIR, then install into it"
    if key[-1] == "command":
        advice = "install it, or put it on the PATH"
    elif (path / "bin/python").exists():
        advice = f"did you mean {text}/bin/python?"
    raise UnavailableError(
        f"{planned.place(key)}: {_key_text(key)}, {text}, is not a program here (looked at "
        f"{path}); {advice}"
    )


def _key_text(key: KeyPath) -> str:
    """Return a key path as "engines[0].python"."""
    return "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in key).removeprefix(".")
