"""A real Chromium, offline, and helpers that read a page in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

WIDE, PHONE = (1280, 900), (375, 812)

DRAWN_MS = 20_000
"""A plot that is not there by then never comes."""


@dataclass
class Opened:
    """A page in the browser.

    Attributes:
        page: Playwright's page.
        messages: Errors and warnings of its console, and its network requests.
    """

    page: Any
    messages: list[str] = field(default_factory=list)

    def unfold(self) -> None:
        """Unfold every figure of the session, and wait until all of them are drawn."""
        for figure in self.page.query_selector_all("details.figure"):
            figure.evaluate("one => { one.open = true; one.scrollIntoView(); }")
            self.wait(figure)

    def wait(self, inside: Any) -> None:
        """Wait until the plots inside an element are drawn."""
        self.page.wait_for_function(
            "one => [...one.querySelectorAll('.plot')].every(plot => plot.dataset.drawn)",
            arg=inside,
            timeout=DRAWN_MS,
        )

    def open_case(self, number: int) -> Any:
        """Open a case, and wait for its plots; return its element."""
        case = self.page.query_selector(f"#case-{number}")
        case.evaluate("one => { one.open = true; }")
        self.page.wait_for_function("one => one.querySelector('.drawn').dataset.made", arg=case)
        for plot in case.query_selector_all(".plot"):
            plot.scroll_into_view_if_needed()
            self.page.wait_for_function("plot => plot.dataset.drawn", arg=plot, timeout=DRAWN_MS)
        return case

    def tables(self, inside: Any) -> list[list[list[str]]]:
        """Unfold the tables of an element; return each one's rows of text."""
        tables = []
        for folded in inside.query_selector_all("details.table"):
            folded.evaluate("one => { one.open = true; }")
            self.page.wait_for_function("one => one.querySelector('table')", arg=folded)
            tables.append(
                folded.evaluate(
                    "one => [...one.querySelectorAll('tr')]"
                    ".map(row => [...row.cells].map(cell => cell.textContent))"
                )
            )
        return tables

    def visible_cases(self) -> list[str]:
        """Return the labels of the cases that the filters leave."""
        headings: list[str] = self.page.evaluate(
            "[...document.querySelectorAll('details.case:not([hidden]) h3')]"
            ".map(head => head.textContent)"
        )
        return headings


class Browser:
    """Chromium, started once."""

    def __init__(self, started: Any) -> None:
        self._started = started

    @contextmanager
    def opened(
        self,
        file: Path,
        *,
        size: tuple[int, int] = WIDE,
        scheme: Literal["light", "dark"] = "light",
        scripts: bool = True,
    ) -> Iterator[Opened]:
        """Open a file in a window of its own."""
        context = self._started.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme=scheme,
            java_script_enabled=scripts,
        )
        try:
            opened_page = Opened(context.new_page())
            opened_page.page.on(
                "console",
                lambda message: (
                    opened_page.messages.append(f"{message.type}: {message.text}")
                    if message.type != "log"
                    else None
                ),
            )
            opened_page.page.on(
                "pageerror", lambda error: opened_page.messages.append(f"error: {error}")
            )
            opened_page.page.on("request", lambda request: _note(opened_page, request.url, file))
            opened_page.page.goto(file.as_uri())
            yield opened_page
        finally:
            context.close()


def _note(opened_page: Opened, url: str, file: Path) -> None:
    if url != file.as_uri():
        opened_page.messages.append(f"asked for {url}")


@contextmanager
def started() -> Iterator[Browser]:
    """Start Chromium, or skip with the reason."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium; Debian's package has it")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        try:
            yield Browser(browser)
        finally:
            browser.close()
