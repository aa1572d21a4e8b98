"""Test that names describe things, in the words of MLPerf and pytest, each one thing only."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from tests.sources import ROOT, modules, parsed

VAGUE = {"found", "given", "known", "own", "said", "told", "wanted", "what", "why"}
"""Words that fit every value, and so tell a reader nothing of this one."""

VAGUE_CLASSES = {"At", "Beside", "Looked", "Talk", "There", "Way"}

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def bound(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield every name that code binds, with its line; those of comprehensions are short-lived."""
    if isinstance(node, COMPREHENSIONS):
        return
    match node:
        case ast.Name(id=name, ctx=ast.Store(), lineno=line):
            yield name, line
        case ast.arg(arg=name, lineno=line):
            yield name, line
        case ast.FunctionDef(name=name, lineno=line) | ast.AsyncFunctionDef(name=name, lineno=line):
            yield name, line
        case ast.MatchAs(name=str(name), lineno=line) | ast.MatchStar(name=str(name), lineno=line):
            yield name, line
        case ast.Attribute(attr=name, ctx=ast.Store(), lineno=line):
            yield name, line
    for child in ast.iter_child_nodes(node):
        yield from bound(child)


def test_names_say_what_a_thing_is() -> None:
    vague = [
        f"{file}:{line} {name}"
        for file in modules().values()
        for name, line in bound(parsed(file))
        if name.strip("_") in VAGUE
    ]

    assert vague == []


def test_no_class_name_stands_for_two_things() -> None:
    places = defaultdict(list)
    for file in modules().values():
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{file}:{node.lineno}")

    assert {name: where for name, where in places.items() if len(where) > 1} == {}
    assert VAGUE_CLASSES & set(places) == set()


def test_a_bound_name_is_seen_and_nothing_else() -> None:
    binding = (
        *("found = 1", "for found in rows: pass", "def f(found): pass", "def found(): pass"),
        *("async def found(): pass", "class C:\n    found: int", "self.found = 1"),
        *("match x:\n    case [*found]: pass", "match x:\n    case int() as found: pass"),
        *("if found := f(): pass", "with f() as found: pass"),
    )
    others = ("[found for found in rows]", "f(found=1)", "print(found)")
    counts = {
        code: [name for name, _ in bound(ast.parse(code))].count("found")
        for code in (*binding, *others)
    }

    assert counts == {**dict.fromkeys(binding, 1), **dict.fromkeys(others, 0)}


def test_the_words_are_in_the_guide() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("## Words")[2]

    assert {word for word in VAGUE | VAGUE_CLASSES if f"`{word}`" not in text} == set()
