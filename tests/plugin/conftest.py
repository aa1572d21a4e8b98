"""Fixtures of the plugin's tests: real pytest sessions in a folder of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

# pytester forgets what a run imported: what is slow, or cannot be imported twice, stays here.
import hypothesis  # noqa: F401
import pytest

import pytest_mlperf.checks
import pytest_mlperf.cli
import pytest_mlperf.collect
import pytest_mlperf.xdist  # noqa: F401
from tests.plugin.project import Project


@pytest.fixture(autouse=True)
def _own_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep tests that run side by side from waiting for each other, and CI from changing them."""
    monkeypatch.setenv("PYTEST_MLPERF_LEASES", str(tmp_path / "leases"))
    monkeypatch.delenv("CI", raising=False)


@pytest.fixture
def project(pytester: pytest.Pytester) -> Project:
    """Return an empty project."""
    return Project(pytester)


@pytest.fixture
def suite(project: Project) -> Callable[..., Path]:
    """Return the factory of suite files."""
    return project.suite
