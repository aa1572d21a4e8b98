"""Sphinx extension: make the tables of the reference from the code.

A page holds a fence ```` ```{generated} suite-keys ````; what stands inside it is for readers of
the source, who see no table. Each part is a pure function that returns Markdown, so that tests
read what a reader of the site reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlperf_reference import (
    commands,
    documents,
    environment,
    extensions,
    links,
    metrics,
    options,
    outcomes,
    suite,
)

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

PARTS: Mapping[str, Callable[[], str]] = {
    "suite-keys": suite.markdown,
    "pytest-options": options.markdown,
    "commands": commands.markdown,
    "engines": lambda: extensions.markdown("engines"),
    "datasets": lambda: extensions.markdown("datasets"),
    "scorers": lambda: extensions.markdown("scorers"),
    "builders": lambda: extensions.markdown("builders"),
    "metrics": metrics.markdown,
    "gated-metrics": metrics.gated_markdown,
    "outcomes": outcomes.markdown,
    "results-file": documents.results_markdown,
    "performance-baseline": documents.performance_markdown,
    "accuracy-baseline": documents.accuracy_markdown,
    "environment": environment.markdown,
}
"""Functions of the generated parts, by their names in pages."""

FENCE = re.compile(r"^```\{generated\} ([a-z-]+)\n(?:.*?\n)??```$", re.MULTILINE | re.DOTALL)


def expand(text: str) -> str:
    """Return a page with its generated parts in the places of their fences.

    Raises:
        KeyError: A fence names no part.
    """
    return FENCE.sub(lambda found: PARTS[found[1]](), text)


def parts_of(text: str) -> Iterator[str]:
    """Yield the names of the generated parts of a page."""
    yield from (found[1] for found in FENCE.finditer(text))


def _read(app: Sphinx, docname: str, source: list[str]) -> None:
    page = Path(app.env.doc2path(docname))
    source[0] = links.inside_the_site(expand(source[0]), page, Path(app.srcdir))


def _outdated(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Return the pages with generated parts, which change with the code."""
    del app, added, changed, removed
    pages = ((name, Path(env.doc2path(name))) for name in env.found_docs)
    return [name for name, path in pages if FENCE.search(path.read_text("utf-8"))]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("source-read", _read)
    app.connect("env-get-outdated", _outdated)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
