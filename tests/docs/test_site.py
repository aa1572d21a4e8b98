"""The site builds strictly, and all of it can be reached."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from tests.docs.conftest import Site
from tests.docs.pages import DOCS, GUIDES, SITE_PAGES, part_of_index

PARTS = (*GUIDES, "Reference", "Explanation", "Development")


class _Page(HTMLParser):
    """Ids and internal targets of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.targets: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            if name in {"href", "src"} and value and not re.match(r"[a-z]+:|//|#$", value):
                self.targets.append(value)


@cache
def _read(path: Path) -> _Page:
    return _Page(path.read_text("utf-8"))


@pytest.mark.process
@pytest.mark.nightly
def test_every_link_of_the_site_leads_somewhere(site: Site) -> None:
    """It builds without a warning; a link leads to a file and an id in it, nothing elsewhere."""
    assert (site.code, site.output) == (0, "")
    broken = []
    for path in site.folder.rglob("*.html"):
        for target in _read(path).targets:
            file, anchor = urldefrag(unquote(target))
            page_file = (path.parent / file.partition("?")[0]).resolve() if file else path
            if not page_file.is_file() or (anchor and anchor not in _read(page_file).ids):
                broken.append(f"{path.name}: {target}")
    assert broken == []
    foreign = [
        f"{path.name}: {found}"
        for path in site.folder.rglob("*.html")
        for found in re.findall(
            r'<(?:script|img|link|iframe)[^>]*(?:src|href)="((?:https?:)?//[^"]+)"',
            path.read_text("utf-8"),
        )
    ]
    assert foreign == []


def test_every_page_is_in_one_part_of_the_index() -> None:
    """A page answers one kind of question."""
    listed = Counter(name for part in PARTS for name in part_of_index(part))
    there = {str(path.relative_to(DOCS).with_suffix("")) for path in SITE_PAGES} - {"index"}

    assert listed == Counter(there)
