"""Fixtures of the plugin's tests: real pytest sessions in a folder of their own."""

from __future__ import annotations

from pathlib import Path

# pytester forgets what a run imported: what is slow, or cannot be imported twice, stays here.
import hypothesis  # noqa: F401
import numpy as np  # noqa: F401
import pytest

import pytest_mlperf.cli
import pytest_mlperf.plugin.checks
import pytest_mlperf.plugin.collect
import pytest_mlperf.plugin.xdist  # noqa: F401
from pytest_mlperf.core import energy
from tests import forked
from tests.conftest import LEAN
from tests.plugin.project import Project

NO_CONTROL = f"{LEAN} -omlperf_control=off"
"""The machine's own speed takes 0.6 s a run; tests/plugin/test_control.py is about it."""


@pytest.fixture(autouse=True)
def _own_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Let no test wait for another one's lease; hide that xdist runs the tests.

    What is dear to make, as the scripts of a page, is made once for all.
    """
    monkeypatch.setenv("PYTEST_MLPERF_LEASES", str(tmp_path / "leases"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def project(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Project:
    """Return a project without suites whose folder of baselines is empty.

    Quiet tests start interpreters, as users do: some look for started processes, and end them.
    """
    monkeypatch.setenv("PYTEST_ADDOPTS", NO_CONTROL)
    if request.node.get_closest_marker("quiet") is None:
        forked.use(monkeypatch, replicas=True)
    # A conftest.py of a test may change it.
    monkeypatch.setattr(energy, "MIN_GATED_SECONDS", energy.MIN_GATED_SECONDS)
    pytester.mkdir("baselines")
    return Project(pytester)
