"""The site, built once, and the code that makes its reference."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import DOCS
from tests.shared import once


@dataclass(frozen=True)
class Site:
    """A built site, and how the build went."""

    folder: Path
    code: int
    output: str


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The site as `make docs` builds it."""
    for library in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(library, reason="needs pytest-mlperf[docs]")
    return once(tmp_path_factory, "site", build)


def build(folder: Path) -> Site:
    """Build it into a folder."""
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-b", "html"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    command += ["-d", str(folder / "doctrees"), str(DOCS), str(folder / "html")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return Site(folder / "html", done.returncode, done.stdout + done.stderr)


@pytest.fixture(scope="session")
def reference() -> Iterator[Any]:
    """Import a module of the reference by its name."""
    sys.path.insert(0, str(DOCS / "_ext"))
    try:
        yield lambda name="": importlib.import_module(f"mlperf_reference{name and '.'}{name}")
    finally:
        sys.path.remove(str(DOCS / "_ext"))
