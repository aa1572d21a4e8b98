"""Fixtures of the command's tests: real sessions, made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

# pytester forgets what a run imported: what is slow, or cannot be imported twice, stays here.
import hypothesis  # noqa: F401
import pytest

import pytest_mlperf.plugin.checks
import pytest_mlperf.plugin.collect  # noqa: F401
from pytest_mlperf.cli import main
from tests.cli.lab import Lab, build
from tests.shared import once


@pytest.fixture(scope="session")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A project with three real sessions; nobody may change it."""
    leases = tmp_path_factory.mktemp("leases")
    return once(tmp_path_factory, "lab", lambda folder: build(folder, leases))


@pytest.fixture
def lab(sessions: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """The project as the working folder, in a terminal of 80 columns."""
    monkeypatch.chdir(sessions.path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("CI", raising=False)
    return sessions


@pytest.fixture
def own_lab(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A copy of the project that the test may change."""
    copy = lab.copy(tmp_path / "copy")
    monkeypatch.chdir(copy.path)
    return copy


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run the command; return its exit code and everything it printed."""

    def run(*arguments: object) -> tuple[int, str]:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    return run
