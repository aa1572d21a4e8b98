"""A load finds the memory that the one before it found, or says in one sentence who has it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.run.gpu_memory import require_free
from tests.nvml.library import Fake

pytestmark = pytest.mark.process

GIB = 1 << 30
MEM = f"mem {140 * GIB} {GIB // 2}"


@pytest.fixture(autouse=True)
def used(fake: Fake) -> None:
    fake.write("device", MEM)


def test_the_next_load_waits_for_the_memory_of_the_last(fake: Fake, tmp_path: Path) -> None:
    """A rank may outlive its parent; memory that was taken from the first does not count."""
    fake.write("device", f"{MEM} more={20 * GIB}")
    for _ in range(2):
        require_free(["GPU-0"], tmp_path, limit_s=0.0)
    fake.write("device", MEM)
    require_free(["GPU-0"], tmp_path)
    fake.restart("device", f"{MEM} more={70 * GIB} after=0 until=1")
    messages: list[str] = []

    require_free(["GPU-0"], tmp_path, waiting=messages.append)

    assert messages == ["waiting for the last process on GPU-0 to free its GPU memory"]
    fake.write("device", f"{MEM} more={20 * GIB} after=0")
    with pytest.raises(RunError, match=r"before, 0\.5 GiB were in use"):  # it is never given back
        require_free(["GPU-0"], tmp_path, limit_s=0.0)


def test_memory_that_is_never_released_is_one_sentence(fake: Fake, tmp_path: Path) -> None:
    require_free(["GPU-0"], tmp_path)
    mine = f"proc {os.getpid()} {69 * GIB}"
    fake.write("device", f"{MEM} more={70 * GIB}", mine, *(f"proc {n} 1" for n in range(1, 5)))
    with pytest.raises(RunError) as error:
        require_free(["GPU-0"], tmp_path, limit_s=0.3)
    assert str(error.value).startswith("GPU-0 has 70.5 GiB in use by process 1 (")
    assert (
        " and 2 more, 0.3 s after this session's previous process on it ended; before, 0.5 GiB "
        "were in use: "
        "the next model may not fit. End the process that holds the memory (see nvidia-smi)"
    ) in str(error.value)


def test_where_nvml_does_not_answer_nothing_is_refused(fake: Fake, tmp_path: Path) -> None:
    fake.write("fail nvmlInitWithFlags 9", "fail nvmlInit_v2 9", "device")

    require_free(["GPU-0"], tmp_path)
    require_free([], tmp_path)

    assert not (tmp_path / ".memory").exists()
