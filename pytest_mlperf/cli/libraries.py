"""Optional libraries: what the extras need, what is installed, what an extension imports."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path

from pytest_mlperf import registry

OURS = "pytest-mlperf"

NOT_FOR_USERS = frozenset({"all", "dev", "docs", "test", "train"})
"""Extras for work on this project, and the one that only adds up others."""

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


@cache
def extras() -> dict[str, list[str]]:
    """Return the distributions that each extra of this package asks for."""
    about = metadata(OURS)
    found: dict[str, list[str]] = {
        name: [] for name in about.get_all("Provides-Extra") or [] if name not in NOT_FOR_USERS
    }
    for requirement in about.get_all("Requires-Dist") or []:
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", requirement)
        if name and extra and extra[1] in found and normal(name[0]) != OURS:
            found[extra[1]].append(normal(name[0]))
    return {name: needed for name, needed in found.items() if needed}


def normal(name: str) -> str:
    """Return a distribution's name as the index writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


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
                command, capture_output=True, text=True, timeout=LIMIT_S, check=False
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

    An extension that has them from its helpers names them in its attribute `libraries`. Else its
    module is read: engines import their library in `__enter__` by contract, data sets and scorers
    where they use it. Code of the user's own is never looked at: that would import it.
    """
    known = registry.registered(group).get(use)
    if known is None:
        return ()
    named: tuple[str, ...] | None = getattr(registry.resolve(known.value), "libraries", None)
    if named is not None:
        return named
    module, _, name = known.value.partition(":")
    return _imports(module, name, everywhere=group != "engines")


def lacking(group: registry.Group, use: str, failures: Failures) -> tuple[str, str] | None:
    """Return what a registered extension lacks and the command that helps, or None.

    Args:
        group: What it is.
        use: Its name.
        failures: Libraries that are installed and cannot be imported, with the reason.
    """
    for library in needs(group, use):
        if not is_here(library):
            return f"needs {library}, which is not installed", _cure(library)
        if library in failures:
            return f"needs {library}, which breaks: {failures[library]}", _cure(library)
    return None


def is_here(library: str) -> bool:
    """Whether a top-level module can be found; nothing is imported."""
    return importlib.util.find_spec(library) is not None


def _cure(library: str) -> str:
    aliases = {"PIL": "pillow", "sklearn": "scikit-learn", "modelopt": "nvidia-modelopt"}
    distribution = normal(aliases.get(library, library))
    extra = next((name for name, needed in extras().items() if distribution in needed), None)
    return f"pip install 'pytest-mlperf[{extra}]'" if extra else f"pip install {distribution}"


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
