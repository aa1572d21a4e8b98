"""Draw the pictures of README and docs/report.md from the sessions in docs/pictures/sessions.

    make pictures                   draw them, with Debian's package chromium
    python tools/pictures.py --check    exit with 1 if a page differs from the one that was drawn

pictures.json keeps the digest of each page and of each picture that Chromium drew of it.

To record a session anew, copy its suite to a new repository of git, with the tiny model that it
names, and keep the results.json of the last command:

pull-request: pytest suites --mlperf-update=missing, four times; then write graph_optimization =
    "disable" into the suite; pytest suites.
serving: start a vLLM server of the tiny Llama on port 8123; pytest suites --mlperf-update=missing,
    four times; start the server again with --max-num-seqs 2; pytest suites.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mlperf.reports.formats import ReportedSession, make_report
from pytest_mlperf.stores.results import read_results

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
DIGESTS = "pictures.json"
DRAWN_MS = 30_000
"""Time for a page to draw its plots, in milliseconds."""

SEEN_PLOTS_ARE_DRAWN = """() => [...document.querySelectorAll('.plot')].every(plot => {
  const box = plot.getBoundingClientRect();
  return plot.dataset.drawn || box.bottom < 0 || box.top > innerHeight || !box.width;
})"""

COMMENT = """<!doctype html><meta charset="utf-8"><style>
:root {{ color-scheme: light dark; --line: light-dark(#d1d9e0, #3d444d); }}
body {{ margin: 0; padding: 12px; background: light-dark(#fff, #0d1117);
  color: light-dark(#1f2328, #f0f6fc); font: 14px/1.5 "DejaVu Sans", sans-serif; }}
article {{ border: 1px solid var(--line); border-radius: 6px; overflow: hidden; }}
header {{ padding: 8px 16px; background: light-dark(#f6f8fa, #151b23);
  border-bottom: 1px solid var(--line); }}
main {{ padding: 4px 16px; }}
h3 {{ margin: 12px 0 6px; }}
table {{ border-collapse: collapse; font-size: 13px; }}
td, th {{ padding: 5px 9px; border: 1px solid var(--line); text-align: left; }}
code {{ padding: 2px 5px; border-radius: 6px; font-size: 12px;
  background: light-dark(#eff1f3, #262c36); }}
</style><article><header><b>github-actions</b> bot commented</header><main>{}</main></article>
"""
"""A comment's HTML in a frame like that of a pull request."""


@dataclass(frozen=True)
class Picture:
    """A picture of part of a page.

    Attributes:
        name: Name of the file, without colour scheme and suffix.
        session: Folder of the recorded session.
        format: "comment" or "html", as in `pytest-mlperf report --format`.
        width: Width of the window in CSS pixels.
        height: Height of the window in CSS pixels.
        shows: CSS selector of the element to draw; None draws the window.
    """

    name: str
    session: str
    format: str
    width: int
    height: int
    shows: str | None = None


DRAWN = (
    Picture("comment", "pull-request", "comment", 1010, 600, "article"),
    Picture("report", "pull-request", "html", 1280, 800),
    Picture("phone", "pull-request", "html", 375, 812),
    Picture("curve", "serving", "html", 1000, 1400, "figure:has([aria-label*='users together'])"),
)
SCHEMES = ("light", "dark")


def main() -> int:
    """Draw every picture, or check that the pages are those that were drawn."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, and draw nothing")
    if not parser.parse_args().check:
        draw()
        return 0
    stale = list(outdated())
    print("\n".join(stale) or "every picture shows its page")
    return 1 if stale else 0


def page(picture: Picture) -> str:
    """Return the HTML page of a picture.

    It is made in a copy outside git, whose history of the baselines would change the page.
    """
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        shutil.copytree(PICTURES / "sessions" / picture.session, name, dirs_exist_ok=True)
        file = Path("results.json")
        session = ReportedSession(results=read_results(file), file=file)
        content = make_report(picture.format, session)
    if picture.format == "html":
        return content
    from markdown_it import MarkdownIt

    return COMMENT.format(MarkdownIt("commonmark").enable("table").render(content))


def digest(html: str) -> str:
    """Return the SHA-256 of a page without the plotting library, whose version may differ."""
    for inlined in (r"<meta http-equiv=[^>]*>", r'<script type="text/plain".*?</script>'):
        html = re.sub(inlined, "", html, flags=re.DOTALL)
    return hashlib.sha256(html.encode()).hexdigest()


def outdated() -> Iterator[str]:
    """Yield a sentence for each picture that does not show its page as it is now."""
    drawn = json.loads((PICTURES / DIGESTS).read_text("utf-8"))
    for picture in DRAWN:
        if drawn["pages"].get(picture.name) != digest(page(picture)):
            yield f"{picture.name}: its page changed after it was drawn: make pictures"
        for scheme in SCHEMES:
            file = PICTURES / f"{picture.name}-{scheme}.png"
            if drawn["pictures"].get(file.name) != _sha256(file):
                yield f"{file.name}: not the picture that was drawn: make pictures"


def draw() -> None:
    """Draw every picture in both colour schemes, then write the digests."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("there is no chromium: install Debian's package")
    pages, pictures = {}, {}
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"]) as browser,
    ):
        for picture in DRAWN:
            html = page(picture)
            pages[picture.name] = digest(html)
            for scheme in SCHEMES:
                file = PICTURES / f"{picture.name}-{scheme}.png"
                _screenshot(browser, picture, html, scheme, file)
                pictures[file.name] = _sha256(file)
                print(f"drew {file.relative_to(ROOT)}")
    (PICTURES / DIGESTS).write_text(
        json.dumps({"pages": pages, "pictures": pictures}, indent=1) + "\n", "utf-8"
    )


def _screenshot(browser: Any, picture: Picture, html: str, scheme: str, file: Path) -> None:
    size = {"width": picture.width, "height": picture.height}
    with (
        browser.new_context(viewport=size, color_scheme=scheme, device_scale_factor=2) as context,
        tempfile.NamedTemporaryFile("w", suffix=".html", encoding="utf-8") as written,
    ):
        written.write(html)
        written.flush()
        shown = context.new_page()
        shown.goto(Path(written.name).as_uri())
        element: Any = shown
        if picture.shows is not None:
            shown.evaluate(
                "() => document.querySelectorAll('details.case').forEach(c => c.open = true)"
            )
            element = shown.wait_for_selector(picture.shows, state="attached", timeout=DRAWN_MS)
            element.scroll_into_view_if_needed()
        shown.wait_for_function(SEEN_PLOTS_ARE_DRAWN, timeout=DRAWN_MS)
        element.screenshot(path=file)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
