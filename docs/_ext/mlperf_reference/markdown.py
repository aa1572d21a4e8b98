"""Build Markdown: tables, definitions, names with anchors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

Term = tuple[str, str]
"""A term as Markdown, and its text."""


def text(plain: str) -> str:
    """Return prose of the code as Markdown, with text in backticks unchanged."""
    parts = re.split(r"(`[^`]*`)", plain)
    return "".join(part if index % 2 else _escaped(part) for index, part in enumerate(parts))


def _escaped(plain: str) -> str:
    escaped = re.sub(r"([\\*\[\]|~])", r"\\\1", plain)
    escaped = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", escaped)
    return escaped.replace("<", "&lt;").replace("{", "&#123;")


def code(plain: str) -> str:
    """Return any text as code."""
    ticks = "``" if "`" in plain else "`"
    space = " " if "`" in plain else ""
    return f"{ticks}{space}{plain}{space}{ticks}"


def slug(*words: str) -> str:
    """Return an id for an anchor: "metric-ttft-p99"."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower()).strip("-")


def named(plain: str, anchor: str) -> str:
    """Return a name as code with an anchor."""
    return f"[{code(plain)}]{{#{anchor}}}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells are Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace(chr(10), ' ') for cell in row)} |" for row in lines
    )


def definitions(terms: Iterable[Term]) -> str:
    """Return a list of terms with their texts."""
    return "\n\n".join(f"{term}\n: {body}" for term, body in terms)
