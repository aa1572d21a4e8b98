"""Find libraries that extensions need and this Python lacks, and how to install them.

Nothing is imported: libraries are looked up as an import would look them up.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Sequence, Set
from functools import cache
from importlib.metadata import metadata

from pytest_mlperf import registry
from pytest_mlperf.core.errors import EnvironmentFault
from pytest_mlperf.core.imports import distribution, normal

DISTRIBUTION = "pytest-mlperf"

NOT_OFFERED = frozenset({"all", "dev", "docs", "onnx-gpu", "test", "train"})
"""Extras for developers, a sum of extras, and one in conflict with onnxruntime for CPUs."""

LARGE_DISTRIBUTIONS = frozenset({"torch"})
"""Distributions of gigabytes, which are only suggested if they are needed."""

NOUNS: dict[registry.Group, str] = {
    "engines": "engine",
    "datasets": "data set",
    "scorers": "scorer",
    "builders": "builder",
}


def declared_libraries(group: registry.Group, use: str) -> tuple[str, ...]:
    """Return the libraries that a registered extension needs with any options.

    They are the import names in its class attribute `libraries`. The user's own code is never
    inspected, because that would import it.
    """
    return tuple(registry.class_attribute(group, use, "libraries") or ())


def require_libraries(group: registry.Group, use: str) -> None:
    """Raise EnvironmentFault if libraries that the extension named `use` declares are missing."""
    absent = [library for library in declared_libraries(group, use) if not is_here(library)]
    if absent:
        verb = "are" if len(absent) > 1 else "is"
        raise EnvironmentFault(
            f"{NOUNS[group]} {use} needs {' and '.join(absent)}, which {verb} not installed in "
            f"{sys.executable}: {install_command(group, use, absent)}"
        )


def is_here(library: str) -> bool:
    """Return whether a top-level module can be found; nothing is imported."""
    try:
        return importlib.util.find_spec(library) is not None
    except ValueError:  # a module without a spec, which a program put into sys.modules
        return True


def install_command(group: registry.Group, use: str, absent: Sequence[str]) -> str:
    """Return the command that installs missing libraries: the extension's `install`, or pip."""
    advice: str | None = registry.class_attribute(group, use, "install")
    if advice is not None:
        return advice
    missing = {distribution(library) for library in absent}
    all_of_it = {distribution(library) for library in declared_libraries(group, use)} | missing
    extra = _smallest_extra(all_of_it, use) or _smallest_extra(missing, use)
    names = f"'{DISTRIBUTION}[{extra}]'" if extra else " ".join(sorted(missing))
    return f"pip install {names}"


def _smallest_extra(needed: Set[str], use: str) -> str | None:
    """Return the smallest extra with the `needed` distributions; prefer the one named `use`."""
    fitting = [
        name
        for name, brings in extras().items()
        if needed <= set(brings) and not (LARGE_DISTRIBUTIONS & set(brings)) - needed
    ]
    return min(fitting, key=lambda name: (name != use, len(extras()[name])), default=None)


# --- extras ---------------------------------------------------------------------------------


@cache
def extras() -> dict[str, list[str]]:
    """Return the distributions that each extra of this package installs."""
    about = metadata(DISTRIBUTION)
    brings: dict[str, list[str]] = {
        name: [] for name in about.get_all("Provides-Extra") or [] if name not in NOT_OFFERED
    }
    for requirement in about.get_all("Requires-Dist") or []:
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", requirement)
        if name and extra and extra[1] in brings and normal(name[0]) != DISTRIBUTION:
            brings[extra[1]].append(normal(name[0]))
    return {name: needed for name, needed in brings.items() if needed}
