"""Describe the fields of written files, from their types."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any, get_args, get_type_hints

from mlperf_reference.markdown import named, slug, table, text
from pytest_mlperf.core.baseline import AccuracyBaseline, Baseline
from pytest_mlperf.core.results import Results

FIELDS = re.compile(r"^    (\w+(?:, \w+)*): (.*(?:\n {8,}.*)*)", re.MULTILINE)
"""A line of a docstring's "Attributes:", with those that continue it."""


def results_markdown() -> str:
    """Return the fields of results.json."""
    return _document(Results)


def performance_markdown() -> str:
    """Return the fields of a performance baseline."""
    return _document(Baseline)


def accuracy_markdown() -> str:
    """Return the fields of an accuracy baseline."""
    return _document(AccuracyBaseline)


def types_of(root: type) -> list[type]:
    """Return a document's type and its inner types, each once, from the outside in."""
    found: dict[type, None] = {root: None}
    for kind in iter_types(root):
        found.setdefault(kind)
    return list(found)


def iter_types(kind: type) -> Iterator[type]:
    """Yield the dataclasses inside a dataclass, at any depth."""
    seen: set[type] = set()
    waiting = [kind]
    while waiting:
        hints = get_type_hints(waiting.pop(0))
        for inner in (one for hint in hints.values() for one in _inside(hint)):
            if inner not in seen:
                seen.add(inner)
                waiting.append(inner)
                yield inner


def _inside(hint: Any) -> Iterator[type]:
    if inspect.isclass(hint) and dataclasses.is_dataclass(hint):
        yield hint
    elif not (inspect.isclass(hint) and issubclass(hint, Enum)):
        for inner in get_args(hint):
            yield from _inside(inner)


def fields_of(kind: type) -> dict[str, str]:
    """Return the description of each field in a dataclass's docstring, or ""."""
    told = {
        name.strip(): " ".join(words.split())
        for names, words in FIELDS.findall(inspect.cleandoc(kind.__doc__ or ""))
        for name in names.split(",")
    }
    return {one.name: told.get(one.name, "") for one in dataclasses.fields(kind)}


def anchor(kind: type, name: str) -> str:
    """Return the id of a field on the page."""
    return slug("field", kind.__name__, name)


def _document(root: type) -> str:
    blocks = []
    for kind in types_of(root):
        summary = inspect.cleandoc(kind.__doc__ or "").partition("\n")[0]
        rows = [
            [named(name, anchor(kind, name)), text(words)]
            for name, words in fields_of(kind).items()
        ]
        title = "" if kind is root else f"### {kind.__name__}\n\n{text(summary)}\n\n"
        blocks.append(title + table(("field", "meaning"), rows))
    return "\n\n".join(blocks)
