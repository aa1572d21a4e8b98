"""What several files of these tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.nvml.library import Fake


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
