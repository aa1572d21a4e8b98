"""Links in the sources lead somewhere, on GitHub as on the site."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from tests.docs.pages import DOCS, PAGES, anchors, links

EXTERNAL = re.compile(r"https://[a-z0-9-]+(\.[a-z0-9-]+)+(/[\w.~!$&'*+,;=:@%/-]*)?(#[\w.-]+)?")


def test_links_lead_to_files_and_headings_or_are_well_formed(reference: Any) -> None:
    """A relative link names a file of the repository, its anchor a heading of that page."""
    anchors_of = cache(lambda page: anchors(_whole(page, reference)))
    broken = []
    for page in PAGES:
        for link in links(page.read_text("utf-8")):
            file, _, anchor = link.partition("#")
            target = (page.parent / file).resolve() if file else page
            if re.match(r"[a-z]+:", link):
                leads = EXTERNAL.fullmatch(link) is not None
            else:
                leads = target.exists() and (not anchor or anchor in anchors_of(target))
            if not leads:
                broken.append((page.name, link))

    assert broken == []


def _whole(page: Path, reference: Any) -> str:
    text = page.read_text("utf-8")
    return str(reference().expand(text)) if page.parent == DOCS else text


def test_anchors_are_made_as_github_makes_them_and_links_found_outside_of_code() -> None:
    expected = {
        "# The command `pytest-mlperf`": {"the-command-pytest-mlperf"},
        "## round --json": {"round---json"},
        "## Claims: `[[pairs]]`": {"claims-pairs"},
        "## A [link](x.md) in it": {"a-link-in-it"},
        "# Twice\n# Twice": {"twice", "twice-1"},
        "```toml\n# no heading\n```": set(),
    }
    assert {text: anchors(text) for text in expected} == expected
    targets = {
        "[a](b.md#c) ![d](e.svg)": ["b.md#c", "e.svg"],
        "[`code`](b.md)": ["b.md"],
        "`[a](b.md)` and ``[a](`b`)``": [],
        "```text\n[a](b.md)\n```": [],
    }
    assert {text: list(links(text)) for text in targets} == targets
