"""Find marks of unclear language in docstrings, pages and names, for `make house`.

The marks are words of an elliptic style. They show where to look: a text without a mark may be
unclear too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

MARKS = re.compile(
    r"^Of (a|an|the|its|these|those|each|all|single|[a-z]+)\b"
    r"|\bwhat (is|it|was|has|had|of|they|one|its|all|each|there|an?|the|every|runs?|another|others?"
    r"|somebody|nobody|none|can)\b"
    r"|(;|,|\.) (None|\"\"|\{\}|0|-1|False|True|empty): ?\w"
    r"|\b(nobody|somebody|whoever|none of)\b"
    r"|\bwhere (none|nothing|it|there|they|one|some|that|nobody|these|those|no)\b"
    r"|\b(told|tells|says? (of|what|that)|said)\b"
    r"|\b(let pass|beside|as far as|so many|so much|so often|so long|all the same|meanwhile|of late"
    r"|from which on|from here on|likewise|in force|anew)\b"
    r"|\b(is|are|be|was) no (?!longer|more|such|way|need|doubt|reason|guarantee|point|op)\w+"
)

CODE = re.compile(r"`[^`]*`")
FENCED = re.compile(r"```.*?```", re.DOTALL)
END_OF_SENTENCE = re.compile(r"(?<=[.!?:]) ")
NO_PROSE = ("|", "#", "<!--")
"""Beginnings of Markdown lines that hold no sentences: tables, titles, comments."""

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def in_one_line(text: str) -> str:
    """Return a text in one line, with its code replaced by x."""
    return CODE.sub("x", " ".join(text.split()))


def docstrings(module: ast.Module) -> Iterator[str]:
    """Yield docstrings, and strings under assignments of modules and classes."""
    for node in ast.walk(module):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
            yield in_one_line(text)
        if isinstance(node, ast.Module | ast.ClassDef):
            for first, second in zip(node.body, node.body[1:], strict=False):
                match first, second:
                    case ast.Assign() | ast.AnnAssign(), ast.Expr(ast.Constant(str(text))):
                        yield in_one_line(text)


def prose(page: str) -> str:
    """Return the sentences of a Markdown page in one line."""
    lines = FENCED.sub(" ", page).splitlines()
    return in_one_line(" ".join(line for line in lines if not line.lstrip().startswith(NO_PROSE)))


def is_marked(text: str) -> bool:
    """Return whether a text has a mark."""
    return bool(MARKS.search(text))


def sentences(text: str) -> list[str]:
    """Return the sentences of a text in one line."""
    return END_OF_SENTENCE.split(text)


def bound_names(module: ast.Module) -> Iterator[str]:
    """Yield variables, arguments and functions; targets of comprehensions are left out."""
    targets: set[int] = set()
    for node in ast.walk(module):  # a comprehension comes before its parts
        match node:
            case ast.comprehension(target=target):
                targets.update(map(id, ast.walk(target)))
            case ast.Name(id=name, ctx=ast.Store()) if id(node) not in targets:
                yield name
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
