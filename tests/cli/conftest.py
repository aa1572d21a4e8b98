"""Fixtures of the command's tests: real sessions, made once."""

from __future__ import annotations

import math
from pathlib import Path

# pytester forgets what a run imported: what is slow, or cannot be imported twice, stays here.
import hypothesis  # noqa: F401
import pytest

import pytest_mlperf.plugin.checks
import pytest_mlperf.plugin.collect  # noqa: F401
from tests import forked
from tests.cli.lab import Lab, build
from tests.cli.text import Say
from tests.shared import once


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set 80 columns, forks in place of processes, and no load by other tests."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("pytest_mlperf.bench.case.tolerated_load_share", lambda limits: math.inf)
    forked.use(monkeypatch)


@pytest.fixture(scope="session")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Return a project with three real sessions, which is read-only."""
    leases = tmp_path_factory.mktemp("leases")
    return once(tmp_path_factory, "lab", lambda folder: build(folder, leases))


@pytest.fixture
def lab(sessions: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """The project as the working folder."""
    monkeypatch.chdir(sessions.path)
    monkeypatch.delenv("CI", raising=False)
    return sessions


@pytest.fixture
def own_lab(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A copy of the project that the test may change."""
    copy = lab.copy(tmp_path / "copy")
    monkeypatch.chdir(copy.path)
    return copy


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as the working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Run the command."""
    return Say(capsys)
