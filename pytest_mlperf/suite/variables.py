"""`${VAR}` in the texts of a suite: stored as written, expanded where it runs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_mlperf.core.errors import SuiteError


def unset_variables(text: str) -> list[str]:
    """Return the names of `${VAR}` in a text that the environment lacks, or has empty."""
    names = dict.fromkeys(re.findall(r"\$\{(\w+)\}", text))
    return [name for name in names if not os.environ.get(name)]


def unset_in(given: Any) -> list[str]:
    """Return the same of every text in a value, however deep inside."""
    return list(dict.fromkeys(name for text in _texts(given) for name in unset_variables(text)))


def expand(options: Mapping[str, Any]) -> dict[str, Any]:
    """Replace `${VAR}` in the strings of options.

    Raises:
        SuiteError: Variables are not set; all are named.
    """

    def value(given: Any) -> Any:
        if isinstance(given, str):
            return os.path.expandvars(given)
        if isinstance(given, Mapping):
            return {key: value(inner) for key, inner in given.items()}
        if isinstance(given, list):
            return [value(inner) for inner in given]
        return given

    if missing := unset_in(options):
        names = " and ".join(f"${{{name}}}" for name in missing)
        exports = " ".join(f"{name}=..." for name in missing)
        raise SuiteError(
            f"{names} {'is' if len(missing) == 1 else 'are'} not set; export {exports}"
        )
    return {key: value(given) for key, given in options.items()}


def _texts(given: Any) -> Iterator[str]:
    """Yield every string in a value, however deep inside."""
    if isinstance(given, str):
        yield given
    elif isinstance(given, Mapping):
        for inner in given.values():
            yield from _texts(inner)
    elif isinstance(given, list):
        for inner in given:
            yield from _texts(inner)
