"""Find report formats by their entry points, and load a format when it is requested."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from pytest_mlperf.core.addons import Format
from pytest_mlperf.core.errors import EnvironmentFault, MlperfError, text_of
from pytest_mlperf.core.results import Absent, Results
from pytest_mlperf.core.untrusted_text import spelling_hint
from pytest_mlperf.registry import declared, is_own, registered, title_of
from pytest_mlperf.stores.atomic import write_whole

Returned = TypeVar("Returned")


@dataclass(frozen=True, kw_only=True)
class ReportedSession:
    """Hold the input of a report.

    Attributes:
        results: The results of one session, or of several merged ones.
        file: The results file; an HTML page also shows other files of its folder.
        root: Folder to which paths in the results are relative: pytest's root folder.
        options: Options of the session by name; the HTML page reads histories from `store`.
        arguments: Arguments of `pytest-mlperf report` by name; empty in a pytest session.
        absent: Planned tests without a result.
    """

    results: Results
    file: Path
    root: Path = Path()
    options: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    absent: Sequence[Absent] = ()
    columns: int = 80


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokenFormat(Format):
    """Stand in for a format whose declaration cannot be loaded."""

    reason: str


@cache
def formats() -> Mapping[str, Format]:
    """Return all report formats by name, in alphabetical order; load their declarations once."""
    loaded = declared(
        "formats", Format, lambda reason, module: BrokenFormat(module=module, reason=reason)
    )
    return dict(sorted(loaded.items()))


def parse_report(words: str) -> tuple[str, Path]:
    """Parse "FORMAT=FILE" to format and file; raise ValueError for any other text."""
    form, _, file = words.partition("=")
    names = [name for name, added in formats().items() if not added.of_store]
    if form not in names or not file:
        like = spelling_hint(form, names) if form not in names else ""
        raise ValueError(f"{words!r} is not FORMAT=FILE with one of {', '.join(names)}{like}")
    require(form)
    return form, Path(file)


def require(form: str) -> None:
    """Raise an error if a format is broken or a library that it needs is not installed."""
    added = formats()[form]
    if isinstance(added, BrokenFormat):
        title = title_of(registered("formats")[form])
        raise EnvironmentFault(f"format {title} cannot be loaded: {added.reason}")
    if missing := [name for name in added.libraries if find_spec(name) is None]:
        packages = " ".join(dict.fromkeys(added.libraries[name] for name in missing))
        raise EnvironmentFault(f"a report of format {form} needs: pip install {packages}")


def call(form: str, function: str, kind: type[Returned], *arguments: Any) -> Returned:
    """Call a function of format `form`, which returns a `kind`; redirect its stdout to stderr.

    Raises EnvironmentFault if a format of another package raises anything but an MlperfError.
    """
    require(form)
    entry = registered("formats")[form]
    try:
        with contextlib.redirect_stdout(sys.stderr):
            value = getattr(import_module(formats()[form].module), function)(*arguments)
        if not isinstance(value, kind):
            raise TypeError(f"{function} returns no {kind.__name__}")
    except (Exception, SystemExit) as error:  # an add-on may raise anything
        if isinstance(error, MlperfError) or is_own(entry):
            raise
        reason = f"{type(error).__name__}: {text_of(error)}"
        raise EnvironmentFault(f"format {title_of(entry)} cannot be used: {reason}") from error
    return value


def make_report(form: str, session: ReportedSession) -> str:
    """Return a report as text; raise MlperfError if the results contain impossible values."""
    try:
        return call(form, "report", str, session)
    except (ValueError, ArithmeticError) as error:
        raise MlperfError(f"{session.file}: {error}") from None


def write_report(form: str, file: Path, session: ReportedSession) -> None:
    """Write a report to a file atomically, and create missing folders."""
    write_whole(file, make_report(form, session))
