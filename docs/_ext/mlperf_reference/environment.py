"""List the environment variables that the code reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest_mlperf
from mlperf_reference.markdown import named, slug, table, text
from mlperf_reference.words import ENVIRONMENT

PACKAGE = Path(pytest_mlperf.__file__).parent

NAME = re.compile(r"[A-Z][A-Z0-9_]*[A-Z0-9]")

READERS = frozenset({"environ", "environment"})
"""Names that the code gives to an environment."""


def markdown() -> str:
    """Return the table."""
    rows = [
        [named(name, slug("environment", name)), text(ENVIRONMENT.get(name, ""))]
        for name in found()
    ]
    return table(("variable", "effect"), rows)


@cache
def found() -> tuple[str, ...]:
    """Return every variable that the package reads, sorted."""
    names = {
        name for file in PACKAGE.rglob("*.py") for name in read(ast.parse(file.read_text("utf-8")))
    }
    return tuple(sorted(names))


def read(tree: ast.Module) -> Iterator[str]:
    """Yield the variables that code reads."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="get", value=where), args=[key, *_]):
                pass
            case ast.Subscript(value=where, slice=key, ctx=ast.Load()):
                pass
            case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[where]):
                pass
            case ast.ListComp(elt=ast.JoinedStr() as text, generators=[each]) if _asks(text):
                yield from _names(each.iter)
                continue
            case _:
                continue
        if ast.unparse(where).rpartition(".")[2] in READERS:
            yield from _names(key)


def _asks(text: ast.JoinedStr) -> bool:
    return any(f"{name}.get(" in ast.unparse(text) for name in READERS)


def _names(key: ast.expr) -> Iterator[str]:
    """Yield the value of an expression: text, or a constant of some module."""
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        if NAME.fullmatch(key.value) or key.value == "container":
            yield key.value
    elif isinstance(key, ast.Name) and key.id.isupper():
        yield from _constants().get(key.id, ())


@cache
def _constants() -> dict[str, tuple[str, ...]]:
    """Return the texts of the package's constants that could name a variable."""
    found: dict[str, tuple[str, ...]] = {}
    for file in PACKAGE.rglob("*.py"):
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.Assign):
                for name, values in _assigned(node.targets[0], node.value):
                    found[name] = tuple(dict.fromkeys((*found.get(name, ()), *values)))
    return found


def _assigned(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, list[str]]]:
    """Yield names with their variables: A = "X", A, B = "X", "Y", A = ("X",)."""
    match target, value:
        case ast.Tuple(elts=targets), ast.Tuple(elts=values):
            for one, other in zip(targets, values, strict=False):
                yield from _assigned(one, other)
        case ast.Name(id=name), ast.Constant() | ast.Tuple():
            texts = value.elts if isinstance(value, ast.Tuple) else [value]
            plain = [str(one.value) for one in texts if isinstance(one, ast.Constant)]
            if name.isupper():
                yield name, [text for text in plain if NAME.fullmatch(text)]
