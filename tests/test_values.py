"""Test that decisions rest on values, and never on text for people."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.sources import modules, parsed

TEXTS = {"headline", "note", "notes", "message", "in_words", "says", "INTERRUPTED"}
"""Names that hold sentences: of verdicts, metrics, runs, reasons and causes."""

ERRORS = {"error", "problem", "exc", "fault", "defect"}
"""What exceptions are called; their text is `str(…)` of them."""

CUTS = {
    *("startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition"),
    *("find", "index", "count"),
}
"""Methods that look for something inside a text."""

PATTERNS = {"search", "match", "fullmatch", "findall", "finditer", "sub", "split"}
"""Functions and methods of regular expressions."""

LEFT = 3
"""Places that still read text; this number only ever becomes smaller.

They are: a layer in an error (bench.bench), and what another library only says in words: where TOML
is broken (tomllib has no line before Python 3.14: suite.load).
"""


def is_text(node: ast.expr) -> bool:
    """Whether an expression is a sentence for people, or several."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in TEXTS
        case ast.Call(func=ast.Name("str" | "text_of"), args=[ast.Name(id=name)]):
            return name in ERRORS
        case ast.Call(func=ast.Name("str"), args=[ast.Attribute(attr=name)]):
            return name in ERRORS | TEXTS
        case ast.Attribute(value=value, attr="args"):
            return isinstance(value, ast.Name) and value.id in ERRORS
        case ast.Subscript(value=value):
            return is_text(value)
        case ast.Call(func=ast.Attribute(value=value, attr="lower" | "strip" | "casefold")):
            return is_text(value)
    return False


def is_line_break(args: list[ast.expr]) -> bool:
    """Whether a text is cut where its first line ends: another library's is quoted so."""
    return any(isinstance(one, ast.Constant) and one.value == "\n" for one in args)


def readings(tree: ast.AST) -> Iterator[int]:
    """Yield the line of every place that compares, cuts or searches a sentence."""
    within = (ast.In, ast.NotIn, ast.Eq, ast.NotEq)
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, ops=ops, comparators=others):
                compared = any(isinstance(op, within) for op in ops)
                empty = any(isinstance(o, ast.Constant) and not o.value for o in others)
                if compared and not empty and any(map(is_text, (left, *others))):
                    yield node.lineno
            case ast.Call(func=ast.Attribute(value=value, attr=name), args=args) if name in CUTS:
                if is_text(value) and not is_line_break(args):
                    yield node.lineno
            case ast.Call(func=ast.Attribute(attr=name), args=args) if name in PATTERNS:
                if any(map(is_text, args)):
                    yield node.lineno


EXTENSIONS = ("engines", "datasets", "scorers", "builders")


def names_no_option(tree: ast.AST) -> Iterator[int]:
    """Yield the line of every error about `option = value` that does not keep the option's name."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name("SuiteError"), args=[ast.JoinedStr() as text]):
                about_option = re.search(r"(\w|\}) = \{", ast.unparse(text))
                if about_option and not any(k.arg == "option" for k in node.keywords):
                    yield node.lineno


def test_an_error_about_an_option_keeps_its_name_as_a_value() -> None:
    unnamed = [
        f"{name}:{line}"
        for name, path in modules().items()
        if name.split(".")[0] in EXTENSIONS
        for line in names_no_option(parsed(path))
    ]

    assert not unnamed
    assert list(names_no_option(ast.parse('raise SuiteError(f"a = {a!r} is no number")')))


def test_no_further_decision_reads_a_sentence() -> None:
    read = [f"{name}:{line}" for name, path in modules().items() for line in readings(parsed(path))]

    assert len(read) <= LEFT, read


def test_a_reading_is_seen_and_nothing_else() -> None:
    readings_of_text = (
        'if "absent" in str(error): pass',
        'if verdict.headline.startswith("PERF"): pass',
        "if metric.note == INTERRUPTED: pass",
        "if metric.note not in verdict.headline: pass",
        'share = re.search("[0-9]+", run.notes[0])',
        "rest = verdict.headline.removeprefix(before.headline)",
        'if "memory" in str(error).lower(): pass',
        "known = pattern.search(note)",
    )
    others = (
        "if not metric.note: pass",
        'if metric.note == "": pass',
        "if metric.outcome is Outcome.OK: pass",
        "text = verdict.headline + str(error)",
        'name = path.name.removesuffix(".json")',
        'first = str(error).strip().partition("\\n")[0]',
    )

    assert [code for code in readings_of_text if not list(readings(ast.parse(code)))] == []
    assert [code for code in others if list(readings(ast.parse(code)))] == []
