"""The real nvidia-ml-py on a library whose GPUs and failures a scenario describes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pytest_mlperf.hardware._nvml import NvmlLibrary
from tests.nvml import library
from tests.nvml.library import Fake


@pytest.fixture(scope="module")
def pynvml() -> ModuleType:
    return library.binding()


@pytest.fixture
def fake(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Fake]:
    """The scenario of the module, for the library in this process."""
    fake_gpu = Fake(tmp_path)
    fake_gpu.write(*getattr(request.module, "SCENARIO", ["device"]))
    with fake_gpu.here():
        yield fake_gpu


@pytest.fixture
def opened(fake: Fake, pynvml: ModuleType) -> Iterator[NvmlLibrary]:
    library = NvmlLibrary(pynvml)
    yield library
    library.close()
