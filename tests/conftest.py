"""Settings of this project's own tests, and what keeps the quick ones honest.

A test that starts a process is marked `process`, by itself, its file or a fixture it asks for
(`tests.tiers`). `make quick` leaves it out, and in every tier a test without the mark that starts
one fails.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import tiers
from tests.sources import ROOT

# Eight processes share two cores: a thread of OpenMP that waits must not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# pytest loads this for `pytest --help` too, also where only the package itself is installed.
with contextlib.suppress(ModuleNotFoundError):
    from hypothesis import settings

    # The same examples every time, and no time limit for one: a busy machine must not fail a rule.
    settings.register_profile("steady", deadline=None, derandomize=True)
    settings.load_profile("steady")


@pytest.fixture(scope="session", autouse=True)
def _no_bytecode_of_what_tests_write() -> None:
    """A module that a test writes twice in a second would be read as it was first."""
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


@pytest.fixture(scope="session", autouse=True)
def _leases_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Give each session its own leases, so that no test waits for another process's measurement."""
    os.environ["PYTEST_MLPERF_LEASES"] = str(tmp_path_factory.mktemp("leases"))


@pytest.fixture(scope="module")
def lib() -> Iterator[Callable[[str], Any]]:
    """Import a script of tools/, research/ or twins/, or a part of one, by its name."""
    folders = [str(ROOT / name) for name in ("tools", "research", "twins")]
    sys.path[:0] = folders
    try:
        yield importlib.import_module
    finally:
        for folder in folders:
            sys.path.remove(folder)


LEAN = "-p no:hypothesispytest -p no:anyio -o mlperf_wait_idle=0"
"""What a run that a test makes goes without: these two plugins take a third of the time of a start,
and beside other tests no machine is idle."""


@pytest.fixture(scope="session", autouse=True)
def _at_a_desk() -> None:
    """Every run that a test makes is one at a desk: CI changes what pytest prints, and verdicts."""
    os.environ.pop("CI", None)
    os.environ.pop("BUILD_NUMBER", None)
    os.environ["PYTEST_ADDOPTS"] = LEAN


@pytest.fixture
def pytester(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """pytester removes the options of the environment."""
    monkeypatch.setenv("PYTEST_ADDOPTS", LEAN)
    return pytester


def pytest_configure() -> None:
    tiers.install()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import a module whose tests are all deselected: torch takes seconds to load."""
    return True if tiers.is_left_out(collection_path, config.option.markexpr) else None


def pytest_collection_finish() -> None:
    """Keep collected tests out of later garbage collections: they live as long as pytest."""
    gc.freeze()


def pytest_itemcollected(item: pytest.Item) -> None:
    tiers.mark(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with tiers.watching(item):
        return (yield)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    outcome = yield
    tiers.fail_if_started()
    return outcome


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    outcome = yield
    tiers.fail_if_started()
    return outcome
