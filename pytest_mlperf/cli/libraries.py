"""Optional libraries: what is installed, what breaks, what an extension imports."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pytest_mlperf import registry
from pytest_mlperf.suite.libraries import cure, declared, is_here

IMPORT = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
        found = ""
    except BaseException as error:
        found = f"{type(error).__name__}: {error}".splitlines()[0]
    print(f"imported {name}={found}", flush=True)
"""

LIMIT_S = 120.0


def outline(distributions: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the installed distributions with their versions, and those that are not there."""
    found, lacking = [], []
    for name in distributions:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            lacking.append(name)
    return found, lacking


def importing(modules: Sequence[str]) -> dict[str, str]:
    """Return which modules cannot be imported by a fresh process, and why.

    One process imports all; the one that ends it is named, and the rest is tried by another.
    """
    failures: dict[str, str] = {}
    left = list(modules)
    while left:
        command = [sys.executable, "-c", IMPORT, *left]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return failures | dict.fromkeys(left, f"not imported within {LIMIT_S:.0f} s")
        told = dict(re.findall(r"^imported (\w+)=(.*)$", done.stdout, re.MULTILINE))
        failures |= {name: why for name, why in told.items() if why}
        left = [name for name in left if name not in told]
        if left:
            failures[left.pop(0)] = f"importing it ends the process with {done.returncode}"
    return failures


# --- what an extension needs -----------------------------------------------------------------


Failures = Mapping[str, str]


def needs(group: registry.Group, use: str) -> tuple[str, ...]:
    """Return the libraries that a registered extension imports, installed or not.

    One that declares none has its module read: engines import their library in `__enter__` by
    contract, data sets and scorers where they use it. Code of the user's own is never looked at:
    that would import it.
    """
    named = declared(group, use)
    if named is not None:
        return named
    entry = registry.registered(group).get(use)
    if entry is None:
        return ()
    module, _, name = entry.value.partition(":")
    return _imports(module, name, everywhere=group != "engines")


def lacking(group: registry.Group, use: str, failures: Failures) -> tuple[str, str] | None:
    """Return what a registered extension lacks and what helps, or None.

    Args:
        group: What it is.
        use: Its name.
        failures: Libraries that are installed and cannot be imported, with the reason.
    """
    for library in needs(group, use):
        if not is_here(library):
            return f"needs {library}, which is not installed", cure(group, use, [library])
        if library in failures:
            why = f"needs {library}, which breaks: {failures[library]}"
            return why, cure(group, use, [library])
    return None


@cache
def _imports(module: str, name: str, *, everywhere: bool) -> tuple[str, ...]:
    """Return the top-level libraries that a class imports, without the standard library's."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return ()
    tree = ast.parse(Path(spec.origin).read_text("utf-8"))
    places: list[ast.AST] = [tree] if everywhere else list(_loading(tree, name))
    found = (library for place in places for library in _libraries(place))
    ours = {"pytest_mlperf", *sys.stdlib_module_names}
    return tuple(dict.fromkeys(library for library in found if library not in ours))


def _loading(tree: ast.Module, name: str) -> Iterator[ast.AST]:
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        if isinstance(node, ast.ClassDef) and node.name == name:
            yield from (m for m in node.body if getattr(m, "name", "") == "__enter__")


def _libraries(place: ast.AST) -> Iterator[str]:
    type_only = {
        id(inner)
        for node in ast.walk(place)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(place):
        if id(node) in type_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]
