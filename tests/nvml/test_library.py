"""The library of these tests does what a scenario says, and its exact joules are exact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.nvml import library
from tests.nvml.library import Fake

WAVES = [
    ("const 100", 0.0, 2.0, 200.0),
    ("square 80 620 1.0", 0.0, 3.0, 3 * 350.0),
    ("square 80 620 1.0 0.25", 0.0, 1.0, 0.25 * 620 + 0.75 * 80),
    ("square 80 620 1.0 0.25", 0.2, 0.5, 0.05 * 620 + 0.25 * 80),
    ("square 80 620 1.0", -1.0, 0.0, 350.0),
    ("sine 300 200 2.0", 0.0, 2.0, 600.0),
    ("sine 300 200 2.0", 0.0, 1.0, 300 + 200 * 2 / 3.141592653589793),
    ("steps 0:80 1:500 3:200", 0.0, 4.0, 80 + 1000 + 200),
    ("steps 0:80 1:500 3:200", 0.5, 1.5, 40 + 250),
    ("steps 0:80 1:500 3:200", -2.0, 0.0, 160.0),
]


@pytest.fixture(scope="module")
def pynvml() -> ModuleType:
    return library.binding()


@pytest.fixture
def fake(tmp_path: Path, pynvml: ModuleType) -> Iterator[Fake]:
    found = Fake(tmp_path)
    found.write("device")
    with found.here():
        pynvml.nvmlInit()
        yield found
        pynvml.nvmlShutdown()


@pytest.mark.parametrize(("wave", "begin_s", "end_s", "joules"), WAVES)
def test_the_exact_joules_are_the_integral(
    fake: Fake, wave: str, begin_s: float, end_s: float, joules: float
) -> None:
    fake.write("device", f"wave {wave}")

    assert fake.joules(fake.t0 + begin_s, fake.t0 + end_s) == pytest.approx(joules, rel=1e-9)


def test_the_counter_steps_and_trails(fake: Fake, pynvml: ModuleType) -> None:
    """At 10.25 s, with steps of 1 s and a lag of 50 ms, it shows what was used until 9.95 s."""
    fake.t0 -= 10.25
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    fake.write("device", "wave const 100", "energy 1000 lag=50 base=7")

    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) == 1_002_000


def test_a_counter_that_is_reset_begins_anew(fake: Fake, pynvml: ModuleType) -> None:
    fake.t0 -= 10.5
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    fake.write("device", "wave const 100", "energy 1000 reset=8")

    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) == 1000 * 100 * 2


def test_power_is_a_mean_over_the_sensors_window(fake: Fake, pynvml: ModuleType) -> None:
    """Held from one refresh to the next; the plain reading of a new part is a mean of a second."""
    fake.t0 -= 10.5
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    fake.write("device", "wave steps 0:100 9.5:400", "instant 1000 1000")

    (entry,) = pynvml.nvmlDeviceGetFieldValues(gpu, [(186, 0)])
    assert entry.value.uiVal == 100_000 + 300_000 // 2
    assert pynvml.nvmlDeviceGetPowerUsage(gpu) == pytest.approx(400_000, rel=0.01)


@pytest.mark.parametrize(
    ("rule", "codes"),
    [
        ("3", [3, 3, 3, 3]),
        ("3 calls=2-3", [0, 3, 3, 0]),
        ("999 every=2", [0, 999, 0, 999]),
        ("3 after=100", [0] * 4),
        ("3 until=100", [3] * 4),
        ("3 dev=1", [0] * 4),
    ],
)
def test_failures_come_when_the_scenario_says(
    fake: Fake, pynvml: ModuleType, rule: str, codes: list[int]
) -> None:
    fake.write(f"fail nvmlDeviceGetPerformanceState {rule}", "device")
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)

    def code() -> int:
        try:
            pynvml.nvmlDeviceGetPerformanceState(gpu)
        except pynvml.NVMLError as error:
            return int(error.value)
        return 0

    assert [code() for _ in codes] == codes
    log = fake.log.read_text().splitlines()
    assert [int(line.split()[4]) for line in log if "PerformanceState" in line] == codes


def test_the_log_has_time_thread_function_device_and_code(fake: Fake, pynvml: ModuleType) -> None:
    pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
    time_ns, _, *rest = fake.log.read_text().splitlines()[-1].split()

    assert rest == ["nvmlDeviceGetName", "0", "0"]
    assert int(time_ns) / 1e9 == pytest.approx(fake.t0, abs=10)
