"""`${VAR}` in the texts of a suite: stored as written, expanded where it runs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from pytest_mlperf.core.errors import SuiteError


def unset_variables(text: str) -> list[str]:
    """Return the names of `${VAR}` in a text that the environment lacks."""
    return [name for name in re.findall(r"\$\{(\w+)\}", text) if name not in os.environ]


def expand(options: Mapping[str, Any]) -> dict[str, Any]:
    """Replace `${VAR}` in the strings of options.

    Raises:
        SuiteError: A variable is not set.
    """

    def value(given: Any) -> Any:
        if isinstance(given, str):
            for name in unset_variables(given):
                raise SuiteError(f"${{{name}}} is not set; export {name}=...")
            return os.path.expandvars(given)
        if isinstance(given, Mapping):
            return {key: value(inner) for key, inner in given.items()}
        if isinstance(given, list):
            return [value(inner) for inner in given]
        return given

    return {key: value(given) for key, given in options.items()}
