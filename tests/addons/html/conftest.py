"""The browser is started once, and only where a test needs it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.addons.html.browser import Browser, started


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A real Chromium."""
    with started() as running_browser:
        yield running_browser
