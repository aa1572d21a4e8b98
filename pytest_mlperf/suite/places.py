"""Files that a suite names: where they lie, and what to set where they do not."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import SuiteError, UnavailableError
from pytest_mlperf.suite.load import line_of
from pytest_mlperf.suite.variables import expand, unset_variables


def place_of(suite: Path, where: tuple[str | int, ...]) -> str:
    """Return file and line of a key of a suite."""
    return f"{suite}:{line_of(suite.read_text('utf-8-sig'), where)}"


def local(suite: Path, where: tuple[str | int, ...], text: str) -> str:
    """Resolve a path of a suite.

    Args:
        suite: The suite file; the path is relative to its folder.
        where: The key that names the path.
        text: The path; `${VAR}` is expanded.

    Raises:
        UnavailableError: A variable is not set, or there is no such file; says what to set.
    """
    missing = unset_variables(text)
    if missing:
        raise UnavailableError(
            f"{place_of(suite, where)}: ${{{missing[0]}}} is not set; set it so that {text} "
            f"is the {where[-1]}, e.g. export {missing[0]}=/path/to/it"
        )
    path = suite.parent / Path(os.path.expandvars(text)).expanduser()
    if not path.exists():
        raise UnavailableError(
            f"{place_of(suite, where)}: the {where[-1]} {text} is not here (looked at {path})"
        )
    return str(path.resolve())


def available(
    suite: Path, where: tuple[str | int, ...], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Expand `${VAR}` in options of a data set or scorer.

    Raises:
        UnavailableError: A variable is not set.
    """
    try:
        return expand(options)
    except SuiteError as error:
        raise UnavailableError(f"{place_of(suite, where)}: {where[-1]}: {error}") from None


def near(suite: Path, value: Any) -> Any:
    """Resolve an option that is a path, also in "evaluate:PATH", if it lies near the suite."""
    if not isinstance(value, str):
        return value
    prefix, path = "", value
    if value.startswith("evaluate:"):
        prefix, path = "evaluate:", value.removeprefix("evaluate:")
    there = suite.parent / path
    is_path = bool(prefix or "/" in path or Path(path).suffix)
    return f"{prefix}{there.resolve()}" if is_path and there.exists() else value
