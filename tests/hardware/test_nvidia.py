"""GPUs are identified through NVML; what NVML does not tell is None, never a guess."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mlperf.hardware import nvidia
from pytest_mlperf.hardware.machine import Machine, split


class NvmlError(Exception):
    """NVML's own error."""


class FakeNvml:
    """NVML with `count` equal GPUs; functions named in `broken` raise."""

    NVMLError = NvmlError

    def __init__(self, count: int = 1, *, broken: tuple[str, ...] = (), name: Any = None) -> None:
        self._count, self._broken, self._name = count, broken, name or "NVIDIA H200"
        self.open = False

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
        self._check("nvmlInit")
        self.open = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open = False

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self._count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def _check(self, function: str) -> None:
        if function in self._broken:
            raise NvmlError(function)

    def __getattr__(self, function: str) -> Callable[[int], Any]:
        answers: dict[str, Callable[[int], Any]] = {
            "nvmlDeviceGetUUID": lambda i: f"GPU-{9 - i}",
            "nvmlDeviceGetName": lambda _: self._name,
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=150_754_820_096),
            "nvmlDeviceGetEnforcedPowerLimit": lambda _: 699_400,
            "nvmlDeviceGetEccMode": lambda _: (1, 1),
            "nvmlDeviceGetMigMode": lambda _: (0, 0),
        }
        if function not in answers:
            raise AttributeError(function)

        def call(handle: int) -> Any:
            self._check(function)
            return answers[function](handle)

        return call


def test_a_gpu_is_known_by_what_changes_its_speed() -> None:
    """Name, memory, power limit, ECC and MIG; the power limit is rounded to 5 W."""
    fake = FakeNvml()

    assert nvidia.read(fake) == [
        {
            "uuid": "GPU-9",
            "gpu": "NVIDIA H200",
            "memory_gib": 140,
            "power_limit_w": 700,
            "ecc": True,
            "mig": False,
        }
    ]
    assert not fake.open


@pytest.mark.parametrize(
    ("function", "key"),
    [
        ("nvmlDeviceGetMemoryInfo", "memory_gib"),
        ("nvmlDeviceGetEnforcedPowerLimit", "power_limit_w"),
        ("nvmlDeviceGetEccMode", "ecc"),
        ("nvmlDeviceGetMigMode", "mig"),
    ],
)
def test_what_nvml_does_not_tell_is_none(function: str, key: str) -> None:
    """A function that this GPU or driver lacks leaves its property unknown."""
    (gpu,) = nvidia.read(FakeNvml(broken=(function,)))

    assert gpu[key] is None


def test_no_driver_is_no_gpu() -> None:
    """A machine without NVIDIA's driver has no GPU; that is no error."""
    assert nvidia.read(FakeNvml(broken=("nvmlInit",))) == []


def test_old_bindings_give_names_as_bytes() -> None:
    """They are text for us."""
    (gpu,) = nvidia.read(FakeNvml(name=b"NVIDIA L40S"))

    assert gpu["gpu"] == "NVIDIA L40S"


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100"),
        ("NVIDIA H100 NVL", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-PCIE-40GB", "A100"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA GeForce RTX 4090", "RTX_4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX_PRO_6000"),
        ("NVIDIA RTX A6000", "A6000"),
    ],
)
def test_products_have_the_class_names_that_suites_use(product: str, name: str) -> None:
    """ "H200", not "NVIDIA H200"."""
    assert nvidia.accelerator_class(product) == name


def machine(count: int) -> Machine:
    """A machine with H200s."""
    return Machine(cpu={"cpu": "x", "cores": 8}, gpus=tuple(nvidia.read(FakeNvml(count))))


@pytest.mark.parametrize(
    ("count", "accelerator", "here"),
    [
        (0, "cpu", True),
        (0, "H200", False),
        (1, "H200", True),
        (1, "2xH200", False),
        (8, "8xH200", True),
        (8, "H100", False),
    ],
)
def test_an_accelerator_is_here_when_enough_of_its_class_are(
    count: int, accelerator: str, here: bool
) -> None:
    """The CPU is always here."""
    assert machine(count).has(accelerator) is here


def test_identity_and_leases_belong_to_the_gpus_that_are_used() -> None:
    """The count is part of the identity, serial numbers are not; leases go by UUID, sorted."""
    eight = machine(8)

    assert eight.identity("2xH200")["gpus"] == 2
    assert "uuid" not in eight.identity("2xH200")
    assert eight.identity("cpu") == {"cpu": "x", "cores": 8}
    assert eight.leases("2xH200") == ["GPU-8", "GPU-9"]
    assert eight.leases("cpu") == ["cpu"]


def test_a_pretended_accelerator_equals_no_baseline() -> None:
    """Its identity says that it was pretended, and it takes the CPU's lease."""
    assert machine(0).identity("H200") == {"pretended": "H200"}
    assert machine(0).leases("H200") == ["cpu"]


def test_messages_list_what_is_here() -> None:
    """Counts stand before the class, as in suites."""
    assert machine(8).names == "8xH200, cpu"
    assert machine(0).names == "cpu"
    assert machine(2).classes == Counter({"H200": 2})
    assert split("8xH100") == (8, "H100")


def test_the_child_process_prints_json_without_a_driver_too() -> None:
    """`python -m pytest_mlperf.hardware.nvidia` always prints a list."""
    command = [sys.executable, "-m", "pytest_mlperf.hardware.nvidia"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert isinstance(json.loads(done.stdout), list)
