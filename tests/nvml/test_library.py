"""The library of these tests does what a scenario says, and its exact joules are exact."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.nvml import library
from tests.nvml.library import Fake

pytestmark = pytest.mark.process

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


def test_each_gpu_has_its_own_failures(fake: Fake, pynvml: ModuleType) -> None:
    fake.write("fail nvmlDeviceGetPerformanceState 15 dev=1", "device", "device")

    assert pynvml.nvmlDeviceGetPerformanceState(pynvml.nvmlDeviceGetHandleByIndex(0)) == 0
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetPerformanceState(pynvml.nvmlDeviceGetHandleByIndex(1))


@pytest.mark.parametrize(("how", "busy"), [("", False), (" spin", True)])
def test_a_call_takes_as_long_as_the_scenario_says(
    fake: Fake, pynvml: ModuleType, how: str, busy: bool
) -> None:
    fake.write(f"latency nvmlDeviceGetName 50000{how}", "device")
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    wall, cpu = time.monotonic(), time.thread_time()
    pynvml.nvmlDeviceGetName(gpu)
    wall, cpu = time.monotonic() - wall, time.thread_time() - cpu

    assert wall >= 0.05
    assert busy or cpu < 0.025
    # A waiting process uses no core at all; a busy one may have to share it.
    assert not busy or cpu > 0.005


def test_a_counter_has_its_phase(fake: Fake, pynvml: ModuleType) -> None:
    """With steps of 1 s a phase of 300 ms puts the last one at 9.3 s."""
    fake.t0 -= 10.25
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    fake.write("device", "wave const 100", "energy 1000 phase=300 base=0")

    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) == 930_000


@pytest.mark.parametrize(
    ("line", "read", "before", "after"),
    [
        ("event 0x24 after=5", "nvmlDeviceGetCurrentClocksEventReasons", 0, 0x24),
        ("pcie 4 8 5 16 replay=3 after=5", "nvmlDeviceGetPcieReplayCounter", 0, 3),
        ("energy 0 base=500 reset=5", "nvmlDeviceGetTotalEnergyConsumption", 1_700_000, 300_000),
    ],
)
def test_states_change_when_the_scenario_says(
    fake: Fake, pynvml: ModuleType, line: str, read: str, before: int, after: int
) -> None:
    """Looked at 4 s and 6 s after the scenario begins, at 300 W."""
    found = []
    for seconds in (4.0, 6.0):
        fake.t0 = time.monotonic() - seconds
        fake.write("device", line)
        found.append(getattr(pynvml, read)(pynvml.nvmlDeviceGetHandleByIndex(0)))

    assert found == pytest.approx([before, after], rel=0.3)


def test_an_event_slows_the_clock_while_it_lasts(fake: Fake, pynvml: ModuleType) -> None:
    found = []
    for seconds in (1.0, 3.0, 6.0):
        fake.t0 = time.monotonic() - seconds
        fake.write("device", "clocks 1980 3201", "event 0x8 after=2 until=5 sm=990")
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        found.append([pynvml.nvmlDeviceGetClockInfo(gpu, kind) for kind in (1, 2)])

    assert found == [[1980, 3201], [990, 3201], [1980, 3201]]


@pytest.mark.parametrize(("error", "kind"), [("corrected", 0), ("uncorrected", 1)])
def test_memory_errors_come_when_the_scenario_says(
    fake: Fake, pynvml: ModuleType, error: str, kind: int
) -> None:
    found = []
    for seconds in (1.0, 3.0):
        fake.t0 = time.monotonic() - seconds
        fake.write("device", f"ecc 1 0 {error}=5 after=2")
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        found.append(pynvml.nvmlDeviceGetTotalEccErrors(gpu, kind, 0))

    assert found == [0, 5]
    assert pynvml.nvmlDeviceGetEccMode(gpu) == [1, 0]
    assert pynvml.nvmlDeviceGetTotalEccErrors(gpu, 1 - kind, 0) == 0


def test_processes_come_and_go(fake: Fake, pynvml: ModuleType) -> None:
    found = []
    for seconds in (1.0, 3.0, 6.0):
        fake.t0 = time.monotonic() - seconds
        fake.write("device", "proc 42 1000 after=2 until=5", "proc self 77")
        listed = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0))
        found.append({entry.pid: entry.usedGpuMemory for entry in listed})

    ours = {os.getpid(): 77}
    assert found == [ours, {42: 1000, **ours}, ours]


def test_the_link_has_its_width_and_its_most(fake: Fake, pynvml: ModuleType) -> None:
    fake.write("device", "pcie 3 8 5 16")
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    asked = ("CurrPcieLinkGeneration", "CurrPcieLinkWidth", "MaxPcieLinkGeneration")

    assert [getattr(pynvml, f"nvmlDeviceGet{what}")(gpu) for what in asked] == [3, 8, 5]


@pytest.mark.parametrize("how", ["", " energy=parent"])
def test_instances_are_listed_and_have_no_energy_of_their_own(
    fake: Fake, pynvml: ModuleType, how: str
) -> None:
    fake.t0 -= 10
    fake.write("device", f"mig 2{how}", "wave const 100", "energy 100 base=0")
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    first = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)

    assert pynvml.nvmlDeviceGetMigMode(gpu) == [1, 1]
    assert pynvml.nvmlDeviceGetUUID(first) == "MIG-0-0"
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 2)
    if how:
        assert pynvml.nvmlDeviceGetTotalEnergyConsumption(first) == pytest.approx(1e6, rel=0.2)
    else:
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetTotalEnergyConsumption(first)


def test_events_are_counted_in_ns(fake: Fake, pynvml: ModuleType) -> None:
    fake.t0 -= 10
    fake.write("device", "event 0x4 after=1 until=1.25", "event 0x20 after=2 until=2.004")
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    entries = pynvml.nvmlDeviceGetFieldValues(gpu, [74, 75])

    assert [entry.value.ullVal for entry in entries] == [250_000_000, 4_000_000]


def test_a_scenario_that_is_replaced_is_read_again(fake: Fake, pynvml: ModuleType) -> None:
    """By the next call, even when its size and its second are the same."""
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    found = []
    for clock in (1100, 1200, 1300):
        fake.write("device", f"clocks {clock} 3201")
        found.append(pynvml.nvmlDeviceGetClockInfo(gpu, 1))

    assert found == [1100, 1200, 1300]
