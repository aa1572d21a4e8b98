"""Where an engine runs when that is not this Python: another environment, or a container."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pytest_mlperf.core.errors import SuiteError, UnavailableError
from pytest_mlperf.suite.places import place_of
from pytest_mlperf.suite.variables import expand

if TYPE_CHECKING:
    from pytest_mlperf.suite.plan import Planned

WORDS = 4
"""A command of more words is shown by its first two and its last."""


class Named(Protocol):
    """A table of a suite that may name another Python."""

    @property
    def python(self) -> str | None:
        """Path of a Python."""
        ...

    @property
    def command(self) -> list[str] | None:
        """What starts one."""
        ...


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """Another Python, ready to be started.

    Attributes:
        command: What starts it; a script and its arguments are appended.
        title: What messages call it, as the suite writes it.
        key: The key of the suite that names it.
    """

    command: tuple[str, ...]
    title: str
    key: str


def elsewhere(planned: Planned) -> Elsewhere | None:
    """Return where a case's engine entry says that it runs; None: in this Python.

    Raises:
        UnavailableError: A variable is not set, or the program is not here.
    """
    return find(planned, ("engines", planned.suite.engines.index(planned.engine)), planned.engine)


def baseline_elsewhere(planned: Planned) -> Elsewhere | None:
    """Return the same of its `baseline_engine`; where that names none, of the entry itself.

    Raises:
        UnavailableError: A variable is not set, or the program is not here.
    """
    entry = planned.engine
    assert entry.baseline_engine is not None
    where = ("engines", planned.suite.engines.index(entry), "baseline_engine")
    return find(planned, where, entry.baseline_engine) or elsewhere(planned)


def title_of(named: Named) -> str:
    """Return what messages call the Python that a table names; "" where it names none.

    Variables stay unexpanded: their values may be secrets.
    """
    if named.python is not None:
        return f"python {named.python}"
    words = named.command or []
    shown = [*words[:2], "…", words[-1]] if len(words) > WORDS else words
    return f"command {' '.join(shown)}" if words else ""


def find(planned: Planned, where: tuple[str | int, ...], named: Named) -> Elsewhere | None:
    """Return the Python that a table names, ready to be started; None where it names none.

    Args:
        planned: The case.
        where: The table's key.
        named: The table.

    Raises:
        UnavailableError: A variable is not set, or the program is not here.
    """
    name = "python" if named.python is not None else "command"
    given = getattr(named, name)
    if given is None:
        return None
    key = (*where, name)
    expanded = _expanded(planned, key, given)
    if name == "python":
        command = (_program(planned, key, given, expanded, planned.path.parent),)
    else:
        _program(planned, key, given[0], expanded[0], Path())
        command = tuple(expanded)
    return Elsewhere(command=command, title=title_of(named), key=_shown(key))


def baseline_ref(planned: Planned) -> str | None:
    """Return the ref in git that a case's `baseline_engine` names, or None.

    Raises:
        UnavailableError: A variable is not set.
    """
    entry = planned.engine
    if entry.baseline_engine is None or entry.baseline_engine.git is None:
        return None
    key = ("engines", planned.suite.engines.index(entry), "baseline_engine", "git")
    return str(_expanded(planned, key, entry.baseline_engine.git))


def _expanded(planned: Planned, key: tuple[str | int, ...], given: Any) -> Any:
    """Return a value with its variables expanded.

    Raises:
        UnavailableError: One is not set.
    """
    try:
        return expand({"": given})[""]
    except SuiteError as error:
        raise UnavailableError(f"{_place(planned, key)}: {_shown(key)}: {error}") from None


def _program(
    planned: Planned, key: tuple[str | int, ...], text: str, expanded: str, beside: Path
) -> str:
    """Return the path of a program; links stay: what they point to has another environment.

    Raises:
        UnavailableError: It is not there, or is no program.
    """
    is_path = "/" in expanded
    given = Path(expanded).expanduser()
    found = beside / given if is_path else Path(shutil.which(given) or given)
    path = found.absolute()
    if path.is_file() and os.access(path, os.X_OK):
        return str(path)
    advice = "make the environment: python -m venv, then install into it"
    if key[-1] == "command":
        advice = "install it, or put it on the PATH"
    elif (path / "bin/python").exists():
        advice = f"did you mean {text}/bin/python?"
    raise UnavailableError(
        f"{_place(planned, key)}: {_shown(key)}, {text}, is no program here (looked at {path}); "
        f"{advice}"
    )


def _place(planned: Planned, key: tuple[str | int, ...]) -> str:
    is_suite = planned.path.suffix == ".toml"
    return place_of(planned.path, key) if is_suite else f"{planned.path}:{planned.line}"


def _shown(key: tuple[str | int, ...]) -> str:
    """Return "engines[0].python" of a key path."""
    return "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in key).removeprefix(".")
