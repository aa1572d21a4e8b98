"""Links in the sources lead somewhere, on GitHub as on the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT, anchors, links

EXTERNAL = re.compile(r"https://[a-z0-9-]+(\.[a-z0-9-]+)+(/[\w.~!$&'*+,;=:@%/-]*)?(#[\w.-]+)?")


def _of(path: Path) -> Any:
    return pytest.param(path, id=str(path.relative_to(ROOT)))


@pytest.mark.parametrize("page", [*map(_of, PAGES)])
def test_links_lead_to_files_and_headings(page: Path, reference: Any) -> None:
    """A relative link names a file of the repository, its anchor a heading of that page."""
    broken = []
    for link in links(page.read_text("utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        found = (page.parent / file).resolve() if file else page
        if not found.exists() or (anchor and anchor not in anchors(_whole(found, reference))):
            broken.append(link)

    assert broken == []


def _whole(page: Path, reference: Any) -> str:
    text = page.read_text("utf-8")
    return str(reference().expand(text)) if page.parent == DOCS else text


@pytest.mark.parametrize("page", [*map(_of, PAGES)])
def test_links_to_elsewhere_are_well_formed(page: Path) -> None:
    outside = [link for link in links(page.read_text("utf-8")) if re.match(r"[a-z]+:", link)]

    assert [link for link in outside if not EXTERNAL.fullmatch(link)] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("# The command `pytest-mlperf`", {"the-command-pytest-mlperf"}),
        ("## round --json", {"round---json"}),
        ("## Claims: `[[pairs]]`", {"claims-pairs"}),
        ("## A [link](x.md) in it", {"a-link-in-it"}),
        ("# Twice\n# Twice", {"twice", "twice-1"}),
        ("```toml\n# no heading\n```", set()),
    ],
)
def test_anchors_are_made_as_github_makes_them(text: str, found: set[str]) -> None:
    assert anchors(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[a](b.md#c) ![d](e.svg)", ["b.md#c", "e.svg"]),
        ("[`code`](b.md)", ["b.md"]),
        ("`[a](b.md)` and ``[a](`b`)``", []),
        ("```text\n[a](b.md)\n```", []),
    ],
)
def test_links_are_found_outside_of_code(text: str, found: list[str]) -> None:
    assert list(links(text)) == found
