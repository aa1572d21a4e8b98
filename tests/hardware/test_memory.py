"""Test that memory counts as free at its former level, or else once it is stable."""

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
    """Return a sleep function that applies the next scenario, and the list of its calls."""
    left, slept = list(scenarios), []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if left:
            fake.write(*left.pop(0))

    return sleep, slept


def test_it_waits_until_every_gpu_has_as_much_as_before(fake: Fake, pynvml: ModuleType) -> None:
    """Two ranks that end one after the other; without a word of before, while memory falls."""
    fake.write(*gpu(70_000), *gpu(70_000))
    sleep, slept = looks(fake, gpu(500) + gpu(70_000), gpu(500) + gpu(40_000), gpu(500) + gpu(600))
    last = memory.wait_until_free(
        pynvml, {"GPU-0": 400 * MIB, "GPU-1": 400 * MIB}, 60.0, sleep=sleep
    )
    memory_of_gpus = [(each["used"], each["free"]) for each in last.values()]
    assert (len(slept), memory_of_gpus) == (3, [(500 * MIB, True), (600 * MIB, True)])

    fake.write(*gpu(70_000))
    sleep, slept = looks(fake, gpu(40_000), gpu(2_000), gpu(2_000))
    (only,) = memory.wait_until_free(pynvml, {"GPU-0": None}, 60.0, sleep=sleep).values()
    assert (len(slept), only["used"], only["free"]) == (3, 2_000 * MIB, True)


def test_memory_that_stays_in_use_is_reported_with_its_owner(
    fake: Fake, pynvml: ModuleType
) -> None:
    """An instance has memory of its own."""
    fake.write(*gpu(70_000, f"proc 4711 {69_000 * MIB}"))
    assert memory.wait_until_free(pynvml, {"GPU-0": 400 * MIB}, -1.0) == {
        "GPU-0": {"used": 70_000 * MIB, "free": False, "processes": [[4711, 69_000 * MIB]]}
    }
    fake.write(*gpu(70_000, "mig 2"))
    assert list(memory.wait_until_free(pynvml, {"MIG-0-1": None}, -1.0)) == ["MIG-0-1"]
    assert "nvmlDeviceGetDeviceHandleFromMigDeviceHandle" not in fake.calls()


def test_a_gpu_that_does_not_tell_or_is_not_here_is_not_waited_for(
    fake: Fake, pynvml: ModuleType
) -> None:
    fake.write("fail nvmlDeviceGetMemoryInfo_v2 4", "fail nvmlDeviceGetMemoryInfo 4", *gpu(70_000))

    last = memory.wait_until_free(pynvml, {"GPU-0": 1}, 60.0)

    assert (last["GPU-0"]["used"], last["GPU-0"]["free"]) == (None, True)
    with pytest.raises((UnavailableNvml, pynvml.NVMLError)):
        memory.wait_until_free(pynvml, {"GPU-7": None}, 60.0)
