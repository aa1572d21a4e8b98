"""The library of these tests and nvidia-ml-py mean the same memory: a new release fails here."""

from __future__ import annotations

import ctypes
import re
from types import ModuleType

import pytest

from tests.nvml import library

pytestmark = pytest.mark.process

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


@pytest.fixture(scope="module")
def pynvml() -> ModuleType:
    return library.binding()


def test_structs_and_numbers_are_those_that_the_library_was_written_for(pynvml: ModuleType) -> None:
    offsets = {}
    for struct, text in MEMBERS.items():
        members = [pair.split()[0] for pair in text.split(", ")]
        found = {name: getattr(getattr(pynvml, struct), name).offset for name in members}
        offsets[struct] = ", ".join(f"{name} {offset}" for name, offset in found.items())

    assert {name: ctypes.sizeof(getattr(pynvml, name)) for name in SIZES} == SIZES
    assert offsets == MEMBERS

    assert {name: getattr(pynvml, name) for name in CONSTANTS} == CONSTANTS

    from pytest_mlperf.hardware.nvml_quantities import KINDS

    assert tuple(name for name, _ in pynvml.c_nvmlValue_t._fields_) == KINDS
    assert len(KINDS) == pynvml.NVML_VALUE_TYPE_COUNT

    asserted = {
        int(size) for size in re.findall(r"sizeof\(\w+_t\) == (\d+)", library.SOURCE.read_text())
    }

    assert asserted == set(SIZES.values())


def test_every_setter_of_the_binding_is_in_the_library() -> None:
    """So that calling one shows in the log, instead of failing as unknown."""
    found = set(library.setters())

    assert len(found) > 60
    assert {
        "nvmlDeviceSetPowerManagementLimit_v2",
        "nvmlDeviceSetGpuLockedClocks",
        "nvmlDeviceResetGpuLockedClocks",
        "nvmlDeviceSetPersistenceMode",
        "nvmlDeviceClearEccErrorCounts",
        "nvmlDeviceSetMigMode",
        "nvmlDeviceSetEccMode",
    } <= found
