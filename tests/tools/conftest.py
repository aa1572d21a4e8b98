"""The scripts of tools/, which are no package."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.docs.pages import ROOT


@pytest.fixture(scope="module")
def lib() -> Iterator[Callable[[str], Any]]:
    """Import a tool, or a part of one, by its name."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        yield importlib.import_module
    finally:
        sys.path.remove(str(ROOT / "tools"))
