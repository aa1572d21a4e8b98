"""Test that the fake NVML library follows its scenario, and that its structs match nvidia-ml-py.

Its exact joules are exact; a new release of the binding fails here.
"""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

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
    fake_gpu = Fake(tmp_path)
    fake_gpu.write("device")
    with fake_gpu.here():
        pynvml.nvmlInit()
        yield fake_gpu
        pynvml.nvmlShutdown()


def test_the_exact_joules_are_the_integral(fake: Fake) -> None:
    joules = []
    for wave, begin_s, end_s, _ in WAVES:
        fake.write("device", f"wave {wave}")
        joules.append(fake.joules(fake.t0 + begin_s, fake.t0 + end_s))

    assert joules == pytest.approx([joules for *_, joules in WAVES], rel=1e-9)


def test_the_counter_steps_and_trails(fake: Fake, pynvml: ModuleType, gpu: Any) -> None:
    """At 10.1 s, with steps of 1 s and a lag of 50 ms, it shows the energy until 9.95 s.

    With a phase of 900 ms the last step is at 9.9 s; a reset one begins at zero.
    """
    fake.t0 -= 10.1
    counts = []
    for energy in ("lag=50 base=7", "phase=900 base=0", "reset=8"):
        fake.write("device", "wave const 100", f"energy 1000 {energy}")
        counts.append(pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu))
    assert counts == [1_002_000, 990_000, 1000 * 100 * 2]

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
    codes_by_rule = {}
    for rule in codes:
        fake.write(f"fail nvmlDeviceGetPerformanceState {rule}", "device")
        codes_by_rule[rule] = [code() for _ in range(4)]
    assert codes_by_rule == codes
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
    """A scenario that is replaced is read again by the next call, and times are counted from t0."""
    pynvml.nvmlDeviceGetName(gpu)
    time_ns, _, *rest = fake.log.read_text().splitlines()[-1].split()
    assert rest == ["nvmlDeviceGetName", "0", "0"]
    assert int(time_ns) / 1e9 == pytest.approx(fake.t0, abs=10)
    clocks = []
    for seconds in (1, 3, 6):
        fake.t0 = time.monotonic() - seconds
        fake.write("device", "clocks 1980 3201", "event 0x8 after=2 until=5 sm=990")
        clocks.append([pynvml.nvmlDeviceGetClockInfo(gpu, kind) for kind in (1, 2)])
    assert clocks == [[1980, 3201], [990, 3201], [1980, 3201]]


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
    assert not busy or cpu > 0.001


SIZES = {
    "nvmlPciInfo_t": 68,
    "c_nvmlMemory_t": 24,
    "c_nvmlMemory_v2_t": 40,
    "c_nvmlFieldValue_t": 40,
    "c_nvmlProcessInfo_v3_t": 24,
    "c_nvmlTemperature_v1_t": 12,
    "c_nvmlViolationTime_t": 16,
    "c_nvmlUtilization_t": 8,
    "c_nvmlDeviceAttributes": 40,
    "c_nvmlSample_t": 16,
    "c_nvmlEventData_t": 32,
    "c_nvmlGpuFabricInfo_v2_t": 36,
}
"""The C source asserts the same numbers of its own structs when it is compiled."""

MEMBERS = {
    "c_nvmlFieldValue_t": "fieldId 0, scopeId 4, valueType 24, nvmlReturn 28, value 32",
    "c_nvmlEventData_t": "device 0, eventType 8, eventData 16, gpuInstanceId 24",
    "c_nvmlMemory_v2_t": "version 0, total 8, reserved 16, free 24, used 32",
    "c_nvmlProcessInfo_v3_t": "pid 0, usedGpuMemory 8, gpuInstanceId 16",
    "c_nvmlGpuFabricInfo_v2_t": "version 0, status 20, state 28, healthMask 32",
    "nvmlPciInfo_t": "pciDeviceId 28, pciSubSystemId 32, busId 36",
}

CONSTANTS = {
    "NVML_FI_DEV_POWER_INSTANT": 186,
    "NVML_FI_DEV_POWER_AVERAGE": 185,
    "NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 83,
    "NVML_FI_DEV_ENERGY": 191,
    "NVML_FI_DEV_MEMORY_TEMP": 82,
    "NVML_FI_DEV_PERF_POLICY_POWER": 74,
    "NVML_FI_DEV_PERF_POLICY_RELIABILITY": 79,
    "NVML_POWER_SCOPE_GPU": 0,
    "NVML_POWER_SCOPE_MODULE": 1,
    "NVML_CLOCK_SM": 1,
    "NVML_CLOCK_MEM": 2,
    "NVML_TEMPERATURE_GPU": 0,
    "NVML_MEMORY_ERROR_TYPE_CORRECTED": 0,
    "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
    "NVML_VOLATILE_ECC": 0,
    "NVML_DEVICE_ARCH_AMPERE": 7,
    "NVML_PERF_POLICY_POWER": 0,
    "NVML_PERF_POLICY_RELIABILITY": 5,
    "nvmlMemory_v2": 0x02000028,
    "nvmlTemperature_v1": 0x0100000C,
    "NVML_GPU_FABRIC_STATE_COMPLETED": 3,
    "NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY": 6,
    "NVML_NVLINK_DEVICE_TYPE_SWITCH": 2,
    "NVML_NVLINK_MAX_LINKS": 36,
    "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX": 138,
    "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX": 139,
    "NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY": 161,
    "NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY": 162,
    "NVML_FI_DEV_NVLINK_ERROR_DL_CRC": 163,
    "NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES": 202,
    "NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES": 204,
    "NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS": 206,
    "NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS": 207,
    "NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS": 208,
    "NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS": 211,
    "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS": 215,
    "NVML_TOPOLOGY_INTERNAL": 0,
    "NVML_TOPOLOGY_SYSTEM": 50,
    "NVML_ERROR_UNINITIALIZED": 1,
    "NVML_ERROR_INVALID_ARGUMENT": 2,
    "NVML_ERROR_NOT_SUPPORTED": 3,
    "NVML_ERROR_NO_PERMISSION": 4,
    "NVML_ERROR_NOT_FOUND": 6,
    "NVML_ERROR_DRIVER_NOT_LOADED": 9,
    "NVML_ERROR_LIBRARY_NOT_FOUND": 12,
    "NVML_ERROR_FUNCTION_NOT_FOUND": 13,
    "NVML_ERROR_GPU_IS_LOST": 15,
    "NVML_ERROR_RESET_REQUIRED": 16,
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": 18,
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH": 25,
    "NVML_ERROR_DEPRECATED": 26,
    "NVML_ERROR_TIMEOUT": 10,
    "NVML_ERROR_UNKNOWN": 999,
    "nvmlEventTypeXidCriticalError": 8,
    "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN": 1,
}
"""Numbers that our modules spell out, because they also run with the oldest binding allowed."""


def test_structs_and_numbers_are_those_that_the_library_was_written_for(pynvml: ModuleType) -> None:
    offsets = {}
    for struct, text in MEMBERS.items():
        members = [pair.split()[0] for pair in text.split(", ")]
        offset_by_name = {name: getattr(getattr(pynvml, struct), name).offset for name in members}
        offsets[struct] = ", ".join(f"{name} {offset}" for name, offset in offset_by_name.items())
    assert {name: ctypes.sizeof(getattr(pynvml, name)) for name in SIZES} == SIZES
    assert offsets == MEMBERS
    assert {name: getattr(pynvml, name) for name in CONSTANTS} == CONSTANTS

    from pytest_mlperf.hardware.nvml_quantities import UNION_MEMBERS

    assert tuple(name for name, _ in pynvml.c_nvmlValue_t._fields_) == UNION_MEMBERS
    assert len(UNION_MEMBERS) == pynvml.NVML_VALUE_TYPE_COUNT

    asserted = {
        int(size) for size in re.findall(r"sizeof\(\w+_t\) == (\d+)", library.SOURCE.read_text())
    }
    assert asserted == set(SIZES.values())


def test_every_setter_of_the_binding_is_in_the_library() -> None:
    """So that calling one shows in the log, instead of failing as unknown."""
    setters = set(library.setters())

    assert len(setters) > 60
    assert {
        "nvmlDeviceSetPowerManagementLimit_v2",
        "nvmlDeviceSetGpuLockedClocks",
        "nvmlDeviceResetGpuLockedClocks",
        "nvmlDeviceSetPersistenceMode",
        "nvmlDeviceClearEccErrorCounts",
        "nvmlDeviceSetMigMode",
        "nvmlDeviceSetEccMode",
    } <= setters
