"""The library of these tests does what a scenario says, and its exact joules are exact."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

from tests.nvml import library
from tests.nvml.library import Fake

pytestmark = pytest.mark.process

T = TypeVar("T")

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
"""Waves, when they begin and end, and joules."""


@pytest.fixture
def gpu(pynvml: ModuleType, fake: Fake) -> Any:
    """The handle of the first GPU, whatever the scenario makes of it."""
    return pynvml.nvmlDeviceGetHandleByIndex(0)


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


def test_the_exact_joules_are_the_integral(fake: Fake) -> None:
    found = []
    for wave, begin_s, end_s, _ in WAVES:
        fake.write("device", f"wave {wave}")
        found.append(fake.joules(fake.t0 + begin_s, fake.t0 + end_s))

    assert found == pytest.approx([joules for *_, joules in WAVES], rel=1e-9)


def test_the_counter_steps_and_trails(fake: Fake, pynvml: ModuleType, gpu: Any) -> None:
    """At 10.25 s, with steps of 1 s and a lag of 50 ms, it shows what was used until 9.95 s; with
    a phase of 300 ms the last step is at 9.3 s; one that is reset begins anew."""
    fake.t0 -= 10.25
    found = []
    for energy in ("lag=50 base=7", "phase=300 base=0", "reset=8"):
        fake.write("device", "wave const 100", f"energy 1000 {energy}")
        found.append(pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu))

    assert found == [1_002_000, 930_000, 1000 * 100 * 2]

    fake.t0 -= 10
    fake.write("device", "event 0x4 after=1 until=1.25", "event 0x20 after=2 until=2.004")
    entries = pynvml.nvmlDeviceGetFieldValues(gpu, [74, 75])

    assert [entry.value.ullVal for entry in entries] == [250_000_000, 4_000_000]


def test_power_is_a_mean_over_the_sensors_window(fake: Fake, pynvml: ModuleType, gpu: Any) -> None:
    """Held from one refresh to the next; the plain reading of a new part is a mean of a second."""
    fake.t0 -= 10.5
    fake.write("device", "wave steps 0:100 9.5:400", "instant 1000 1000")

    (entry,) = pynvml.nvmlDeviceGetFieldValues(gpu, [(186, 0)])
    assert entry.value.uiVal == 100_000 + 300_000 // 2
    assert pynvml.nvmlDeviceGetPowerUsage(gpu) == pytest.approx(400_000, rel=0.01)


def test_failures_come_when_and_where_the_scenario_says(
    fake: Fake, pynvml: ModuleType, gpu: Any
) -> None:
    def code() -> int:
        try:
            pynvml.nvmlDeviceGetPerformanceState(gpu)
        except pynvml.NVMLError as error:
            return int(error.value)
        return 0

    codes = {
        "3": [3, 3, 3, 3],
        "3 calls=2-3": [0, 3, 3, 0],
        "999 every=2": [0, 999, 0, 999],
        "3 after=100": [0] * 4,
        "3 until=100": [3] * 4,
        "3 dev=1": [0] * 4,
    }
    found = {}
    for rule in codes:
        fake.write(f"fail nvmlDeviceGetPerformanceState {rule}", "device")
        found[rule] = [code() for _ in range(4)]

    assert found == codes
    log = [line.split() for line in fake.log.read_text().splitlines()]
    states = [int(line[4]) for line in log if "PerformanceState" in line[2]]
    assert states == [code for row in codes.values() for code in row]

    fake.write("fail nvmlDeviceGetPerformanceState 15 dev=1", "device", "device")

    assert pynvml.nvmlDeviceGetPerformanceState(pynvml.nvmlDeviceGetHandleByIndex(0)) == 0
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetPerformanceState(pynvml.nvmlDeviceGetHandleByIndex(1))


def test_the_log_has_time_thread_function_device_and_code(
    fake: Fake, pynvml: ModuleType, gpu: Any
) -> None:
    pynvml.nvmlDeviceGetName(gpu)
    time_ns, _, *rest = fake.log.read_text().splitlines()[-1].split()

    assert rest == ["nvmlDeviceGetName", "0", "0"]
    assert int(time_ns) / 1e9 == pytest.approx(fake.t0, abs=10)

    found = []
    for clock in (1100, 1200, 1300):
        fake.write("device", f"clocks {clock} 3201")
        found.append(pynvml.nvmlDeviceGetClockInfo(gpu, 1))

    assert found == [1100, 1200, 1300]

    fake.write("device", "pcie 3 8 5 16")
    names = ("CurrPcieLinkGeneration", "CurrPcieLinkWidth", "MaxPcieLinkGeneration")

    assert [getattr(pynvml, f"nvmlDeviceGet{name}")(gpu) for name in names] == [3, 8, 5]


@pytest.mark.parametrize(("how", "busy"), [("", False), (" spin", True)])
def test_a_call_takes_as_long_as_the_scenario_says(
    fake: Fake, pynvml: ModuleType, gpu: Any, how: str, busy: bool
) -> None:
    fake.write(f"latency nvmlDeviceGetName 50000{how}", "device")
    wall, cpu = time.monotonic(), time.thread_time()
    pynvml.nvmlDeviceGetName(gpu)
    wall, cpu = time.monotonic() - wall, time.thread_time() - cpu

    assert wall >= 0.05
    assert busy or cpu < 0.025
    # A waiting process uses no core at all; a busy one may have to share it.
    assert not busy or cpu > 0.005


def at(
    fake: Fake, seconds: Sequence[float], lines: Sequence[str], read: Callable[[], T]
) -> list[T]:
    """Return what is read so many seconds after a scenario began."""
    found = []
    for second in seconds:
        fake.t0 = time.monotonic() - second
        fake.write("device", *lines)
        found.append(read())
    return found


def test_states_change_when_the_scenario_says(fake: Fake, pynvml: ModuleType, gpu: Any) -> None:
    """The counter at 300 W."""
    for line, name, first, second in (
        ("event 0x24 after=5", "nvmlDeviceGetCurrentClocksEventReasons", 0, 0x24),
        ("pcie 4 8 5 16 replay=3 after=5", "nvmlDeviceGetPcieReplayCounter", 0, 3),
        ("energy 0 base=500 reset=5", "nvmlDeviceGetTotalEnergyConsumption", 1_700_000, 300_000),
    ):
        found = at(fake, (4, 6), [line], partial(getattr(pynvml, name), gpu))
        assert found == pytest.approx([first, second], rel=0.3)

    clocks = at(
        fake,
        (1, 3, 6),
        ["clocks 1980 3201", "event 0x8 after=2 until=5 sm=990"],
        lambda: [pynvml.nvmlDeviceGetClockInfo(gpu, kind) for kind in (1, 2)],
    )
    assert clocks == [[1980, 3201], [990, 3201], [1980, 3201]]
    for error, kind in (("corrected", 0), ("uncorrected", 1)):
        errors = at(
            fake,
            (1, 3),
            [f"ecc 1 0 {error}=5 after=2"],
            lambda: [pynvml.nvmlDeviceGetTotalEccErrors(gpu, kind, 0) for kind in (0, 1)],
        )
        assert errors == [[0, 0], [5 * (kind == 0), 5 * (kind == 1)]]
        assert pynvml.nvmlDeviceGetEccMode(gpu) == [1, 0]


def test_processes_come_and_go(fake: Fake, pynvml: ModuleType, gpu: Any) -> None:
    def listed() -> dict[int, int]:
        entries = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
        return {entry.pid: entry.usedGpuMemory for entry in entries}

    found = at(fake, (1, 3, 6), ["proc 42 1000 after=2 until=5", "proc self 77"], listed)

    ours = {os.getpid(): 77}
    assert found == [ours, {42: 1000, **ours}, ours]


def test_instances_are_listed_and_have_no_energy_of_their_own(
    fake: Fake, pynvml: ModuleType, gpu: Any
) -> None:
    fake.t0 -= 10
    lines = ("wave const 100", "energy 100 base=0")
    fake.write("device", "mig 2", *lines)
    first = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)

    assert pynvml.nvmlDeviceGetMigMode(gpu) == [1, 1]
    assert pynvml.nvmlDeviceGetUUID(first) == "MIG-0-0"
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 2)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetTotalEnergyConsumption(first)
    fake.write("device", "mig 2 energy=parent", *lines)
    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(first) == pytest.approx(1e6, rel=0.2)
