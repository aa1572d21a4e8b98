"""Memory is free again where no more is taken than before; where that is not known, at rest."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from pytest_mlperf.hardware import memory
from pytest_mlperf.hardware._nvml import UnavailableNvml
from tests.nvml.library import Fake

pytestmark = pytest.mark.process

MIB = 1 << 20
TOTAL = 150754820096


def gpu(used_mib: int, *more: str) -> list[str]:
    return ["device", f"mem {TOTAL} {used_mib * MIB}", *more]


def looks(fake: Fake, *scenarios: list[str]) -> tuple[Callable[[float], None], list[float]]:
    """Return what is slept by: each time the next scenario is here; and how often it was."""
    left, slept = list(scenarios), []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if left:
            fake.write(*left.pop(0))

    return sleep, slept


def test_it_waits_until_every_gpu_has_as_much_as_before(fake: Fake, pynvml: ModuleType) -> None:
    """Two ranks that end one after the other; the second GPU is freed last."""
    fake.write(*gpu(70_000), *gpu(70_000))
    sleep, slept = looks(fake, gpu(500) + gpu(70_000), gpu(500) + gpu(40_000), gpu(500) + gpu(600))

    last = memory.wait(pynvml, {"GPU-0": 400 * MIB, "GPU-1": 400 * MIB}, 60.0, sleep=sleep)

    assert len(slept) == 3
    assert [(each["used"], each["free"]) for each in last.values()] == [
        (500 * MIB, True),
        (600 * MIB, True),
    ]


def test_without_a_word_of_before_it_waits_while_memory_falls(
    fake: Fake, pynvml: ModuleType
) -> None:
    fake.write(*gpu(70_000))
    sleep, slept = looks(fake, gpu(40_000), gpu(2_000), gpu(2_000))

    last = memory.wait(pynvml, {"GPU-0": None}, 60.0, sleep=sleep)

    assert len(slept) == 3
    assert (last["GPU-0"]["used"], last["GPU-0"]["free"]) == (2_000 * MIB, True)


def test_what_is_still_taken_is_told_with_who_has_it(fake: Fake, pynvml: ModuleType) -> None:
    fake.write(*gpu(70_000, f"proc 4711 {69_000 * MIB}"))

    last = memory.wait(pynvml, {"GPU-0": 400 * MIB}, -1.0)

    assert last == {
        "GPU-0": {"used": 70_000 * MIB, "free": False, "processes": [[4711, 69_000 * MIB]]}
    }


def test_an_instance_has_memory_of_its_own(fake: Fake, pynvml: ModuleType) -> None:
    fake.write(*gpu(70_000, "mig 2"))

    last = memory.wait(pynvml, {"MIG-0-1": None}, -1.0)

    assert list(last) == ["MIG-0-1"]
    assert "nvmlDeviceGetDeviceHandleFromMigDeviceHandle" not in fake.calls()


def test_a_gpu_that_does_not_tell_or_is_not_here_is_not_waited_for(
    fake: Fake, pynvml: ModuleType
) -> None:
    fake.write("fail nvmlDeviceGetMemoryInfo_v2 4", "fail nvmlDeviceGetMemoryInfo 4", *gpu(70_000))

    last = memory.wait(pynvml, {"GPU-0": 1}, 60.0)

    assert (last["GPU-0"]["used"], last["GPU-0"]["free"]) == (None, True)
    with pytest.raises((UnavailableNvml, pynvml.NVMLError)):
        memory.wait(pynvml, {"GPU-7": None}, 60.0)
