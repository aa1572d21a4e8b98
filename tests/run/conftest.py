"""What several files of these tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import forked
from tests.nvml.library import Fake
from tests.run.harness import RunningWorker, settings, spec


@pytest.fixture(autouse=True)
def _workers_are_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    forked.use(monkeypatch)


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start an interpreter for each process of this test."""
    forked.use_no(monkeypatch)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a worker that did a performance run and an accuracy block."""
    folder = tmp_path_factory.mktemp("real")
    with RunningWorker(spec(folder, settings=settings("Server"))) as worker:
        worker.wait_for("ready")
        worker.send(command="accuracy", block=0, indices=[4, 2, 7])
        worker.wait_for("ready")
        worker.send(command="stop")
        assert worker.exit_code() == 0
    return folder


def fake_gpus(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Return GPUs of a scenario that lies in a folder; the binding of NVML finds them."""
    fake = Fake(folder)
    fake.write("device")
    for name, value in fake.environment.items():
        if os.environ.get(name) != value:
            monkeypatch.setenv(name, value)
    return fake


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    return fake_gpus(tmp_path, monkeypatch)
