"""Pages of this repository's documentation, their headings, links and parts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

SITE_PAGES = sorted([*DOCS.glob("*.md"), *(DOCS / "measurements").glob("*.md")])
"""What the site is made of."""

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *SITE_PAGES]
"""What is checked for links."""


GUIDES = ("Tutorial", "Measure", "Judge and accept", "CI and fleets", "MLPerf")
"""Parts of the index whose commands a test runs."""


def guides() -> list[Path]:
    """Return the pages of the parts with recipes, in the order of the index."""
    return [DOCS / f"{name}.md" for part in GUIDES for name in part_of_index(part)]


def part_of_index(caption: str) -> list[str]:
    """Return the names of the pages in one part of the index."""
    index = (DOCS / "index.md").read_text("utf-8")
    trees = re.findall(r"```\{toctree\}\n(.*?)```", index, re.DOTALL)
    (tree,) = [tree for tree in trees if f":caption: {caption}\n" in tree]
    entries = [line for line in tree.splitlines() if line and not line.startswith(":")]
    return [re.sub(r".*<(.+)>", r"\1", entry) for entry in entries]


def without_code(text: str) -> str:
    """Return a page without its fences and its code in lines, of which links are none."""
    text = re.sub(r"^(`{3,})[^\n]*\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(`+)(?!`)(?:.+?)(?<!`)\1(?!`)", "", text, flags=re.DOTALL)


def links(text: str) -> Iterator[str]:
    """Yield the targets of a page's links and pictures."""
    # What is in brackets may be code, which is then gone.
    yield from re.findall(r"\]\(([^)\s]*)\)", without_code(text))


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^(`{3,})[^\n]*\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    anchors_found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        repeated = sum(
            1 for one in anchors_found if re.fullmatch(rf"{re.escape(slug)}(-\d+)?", one)
        )
        anchors_found.add(f"{slug}-{repeated}" if repeated else slug)
    return anchors_found
