"""Test that a failure of NVML costs one quantity, one GPU, or all of it, as it should.

Reactions of one call to one code are in test_nvml.py; here a sampler runs, and its file is read.
"""

from __future__ import annotations

import time
from itertools import product
from types import ModuleType

import pytest

from pytest_mlperf.core.reason import Key
from pytest_mlperf.hardware._nvml import (
    NvmlDevice,
    NvmlLibrary,
    Probe,
    ReadMethod,
    UnavailableNvml,
    find,
)
from pytest_mlperf.hardware.machine import UsedGpu
from pytest_mlperf.hardware.nvml_quantities import (
    IDENTITY_READERS,
    QUANTITY_READERS,
    SLOW_QUANTITIES,
    STATE,
    identity,
    probes,
)
from pytest_mlperf.run.figures import Findings
from pytest_mlperf.run.power.doubts import rejection_reasons
from pytest_mlperf.run.power.sampling import PowerLog, PowerSampling
from tests.hardware.test_nvml import REFUSED, together_with
from tests.nvml import library
from tests.nvml.library import Fake, scenario

pytestmark = pytest.mark.process

COUNTER = "nvmlDeviceGetTotalEnergyConsumption"

PROPERTIES = {
    "uuid": "nvmlDeviceGetUUID",
    "index": "nvmlDeviceGetIndex",
    "name": "nvmlDeviceGetName",
    "architecture": "nvmlDeviceGetArchitecture",
    "bus_id": "nvmlDeviceGetPciInfo_v3",
    "pci_device": "nvmlDeviceGetPciInfo_v3",
    "pci_subsystem": "nvmlDeviceGetPciInfo_v3",
    "vbios": "nvmlDeviceGetVbiosVersion",
    "memory_gib": "nvmlDeviceGetMemoryInfo",
    "limit_w": "nvmlDeviceGetEnforcedPowerLimit",
    "default_limit_w": "nvmlDeviceGetPowerManagementDefaultLimit",
    "limit_range_mw": "nvmlDeviceGetPowerManagementLimitConstraints",
    "ecc": "nvmlDeviceGetEccMode",
    "mig": "nvmlDeviceGetMigMode",
    "persistence": "nvmlDeviceGetPersistenceMode",
    "compute_mode": "nvmlDeviceGetComputeMode",
    "virtualization": "nvmlDeviceGetVirtualizationMode",
    "max_sm_mhz": "nvmlDeviceGetMaxClockInfo",
    "max_memory_mhz": "nvmlDeviceGetMaxClockInfo",
    "max_pcie_generation": "nvmlDeviceGetMaxPcieLinkGeneration",
    "max_pcie_width": "nvmlDeviceGetMaxPcieLinkWidth",
    "remapped_rows_pending": "nvmlDeviceGetRemappedRows",
    "slowdown_c": "nvmlDeviceGetTemperatureThreshold",
}
"""What must fail for a property to be unknown."""

SCENARIO = scenario("mig 0")


@pytest.fixture
def children(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let child processes find the library too."""
    for name in ("LD_LIBRARY_PATH", "FAKE_NVML_SCENARIO", "FAKE_NVML_LOG"):
        monkeypatch.setenv(name, fake.environment[name])


def sampled(fake: Fake, *gpus: str, seconds: float = 0.3, hz: float = 50.0) -> PowerLog:
    with PowerSampling(gpus or ("GPU-0",), fake.folder, hz=hz, watch_s=0.02) as running:
        time.sleep(seconds)
    return running.log


def faults(gpu_doubts: Findings) -> tuple[str, ...]:
    """Return why a run is invalid, but for the idle GPU that all of these are."""
    return tuple(str(why) for why in gpu_doubts.invalid if why.key is not Key.GPU_UNUSED)


@pytest.mark.usefixtures("children")
def test_a_quantity_that_is_refused_costs_that_quantity_and_nothing_else(fake: Fake) -> None:
    """One GPU for each quantity, refused as not supported or not permitted; all in one run."""
    refused = [(name, code) for code in (3, 4) for name in SEVERAL]
    rules = [f"fail {f} {c} dev={i}" for i, (name, c) in enumerate(refused) for f in REFUSED[name]]
    fake.write(*rules, *(["device", "wave const 250"] * len(refused)))
    uuids = [f"GPU-{i}" for i in range(len(refused))]
    log = sampled(fake, *uuids, seconds=4.6, hz=20.0)

    assert (log.unavailable, log.ended) == (None, True)
    for (name, code), gpu in zip(refused, log.gpus, strict=True):
        missing = together_with(name)
        begin_s, end_s = gpu.states[0]["time"] + 0.3, gpu.states[-1]["time"] - 0.3
        energy = gpu.energy(begin_s, end_s)
        read = {key for state in gpu.states for key, value in state.items() if value is not None}
        series = {"power_w": gpu.trace, "energy_j": gpu.counter, "reasons": gpu.reasons}
        assert set(gpu.missing) == missing, name
        assert gpu.forbidden == (missing if code == 4 else set())
        assert all(f"({code})" in why for why in gpu.missing.values())
        assert {n for n, values in series.items() if not values} == missing & set(series), name
        assert {*STATE, *SLOW_QUANTITIES} - read == missing - set(series), name
        assert faults(rejection_reasons(gpu, begin_s, end_s, warm_s=begin_s)) == (), name
        if name == "energy_j":
            assert (energy.method, energy.peak_w) == (None if code == 4 else "trace", 250.0)
        else:
            assert energy.method == "counter"
        if energy.method is None:
            assert (energy.joules, energy.uncertainty_j, energy.gated) == (None, None, False)
            assert f"{COUNTER}: Insufficient Permissions (4)" in energy.notes
        else:
            assert energy.joules == pytest.approx(250 * (end_s - begin_s), rel=0.03), name


SEVERAL = ("power_w", "energy_j", "reasons", "sm_mhz", "processes", "xids", "nvlink_bytes")
"""Quantities of each thread and each way of reading."""


@pytest.mark.usefixtures("children")
def test_energy_that_is_forbidden_in_mid_run_is_not_known(fake: Fake) -> None:
    """As where an administrator takes the right away: the trace does not stand in for it."""
    fake.write(f"fail {COUNTER} 4 calls=45", "device", "wave const 250")
    (gpu,) = sampled(fake, seconds=1.5).gpus
    energy = gpu.energy(gpu.trace[5].time_s, gpu.trace[-5].time_s)

    assert gpu.forbidden == {"energy_j"}
    assert len(gpu.counter) > 5
    assert (energy.joules, energy.peak_w) == (None, 250.0)


def test_a_property_that_is_not_reported_is_none_and_the_others_stand(
    fake: Fake, opened: NvmlLibrary
) -> None:
    assert set(PROPERTIES) == set(IDENTITY_READERS)
    device = find(opened, "GPU-0")
    whole = identity(device)
    assert None not in whole.values()
    for function, code in product(sorted(set(PROPERTIES.values())), (3, 4, 10, 13, 999)):
        fake.write(f"fail {function} {code}", *SCENARIO)
        lacking = [name for name, read in PROPERTIES.items() if read == function]
        assert identity(device) == {**whole, **dict.fromkeys(lacking)}, (function, code)


STARTING = (
    "nvmlInitWithFlags",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceIsMigDeviceHandle",
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMigDeviceHandleByIndex",
)


def found_after(fake: Fake, pynvml: ModuleType, rule: str) -> NvmlDevice | None:
    fake.write(rule, "device", "mig 2")
    opened = None
    try:
        opened = NvmlLibrary(pynvml)
        return find(opened, "MIG-0-0")
    except UnavailableNvml:
        return None
    finally:
        if opened is not None:
            opened.close()


def test_transient_errors_at_the_start_are_retried_three_times(
    fake: Fake, pynvml: ModuleType, opened: NvmlLibrary
) -> None:
    """A timeout, an unknown error, and a code without a class; permanent errors are tried once."""
    for function, code in product(STARTING, (10, 999, 37)):
        three, four = (
            found_after(fake, pynvml, f"fail {function} {code} calls=1-{n}") for n in (3, 4)
        )
        assert three is not None
        assert (three.instance, three.instances, three.shared) == (True, 2, True)
        assert four is None or four.instances is None or not four.instance
    for rules, uuid, code in (
        ([], "GPU-7", 6),
        (["fail nvmlDeviceGetHandleByUUID 15"], "GPU-0", 15),
    ):
        fake.write(*rules, "device")
        calls = fake.calls().count("nvmlDeviceGetHandleByUUID")
        with pytest.raises(UnavailableNvml) as caught:
            find(opened, uuid)
        assert caught.value.code == code
        assert fake.calls().count("nvmlDeviceGetHandleByUUID") == calls + 1


def test_a_function_that_is_lacking_leads_to_the_next_way_or_none(
    opened: NvmlLibrary, fake: Fake
) -> None:
    """In an old driver, and in a binding without the functions that are removed in CUDA 14."""
    lacking = ReadMethod(
        name="nvmlDeviceGetFanSpeed",
        read=lambda nvml, handle: nvml.nvmlDeviceGetFanSpeed(handle),
    )
    probe = Probe(
        device=find(opened, "GPU-0"), name="energy_j", ways=[lacking, *QUANTITY_READERS["energy_j"]]
    )
    with pytest.raises(opened.nvml.NVMLError_FunctionNotFound):
        lacking.read(opened.nvml, probe.device.handle)
    assert probe.read() is not None
    assert probe.way == COUNTER

    for dropped, (refused, name, way) in DROPPED.items():
        newer = library.binding()
        delattr(newer, dropped)
        fake.write(*[f"fail {refused} 3"] * bool(refused), "device")
        opened = NvmlLibrary(newer)
        device = find(opened, "GPU-0")
        probe = probes(device, identity(device), "595.45.04")[name]
        for _ in range(5):
            probe.read()
        opened.close()

        assert str(probe.way).startswith(str(way)), dropped
        assert (probe.failure is None) == (way is not None)
        assert way is not None or "Function Not Found (13)" in str(probe.failure)


DROPPED: dict[str, tuple[str, str, str | None]] = {
    COUNTER: ("", "energy_j", "field TOTAL_ENERGY_CONSUMPTION"),
    "nvmlDeviceGetTemperature": ("nvmlDeviceGetTemperatureV", "temperature_c", None),
    "nvmlDeviceGetCurrentClocksThrottleReasons": (
        "nvmlDeviceGetCurrentClocksEventReasons",
        "reasons",
        None,
    ),
    "nvmlDeviceGetViolationStatus": ("nvmlDeviceGetFieldValues", "throttle_ns", None),
    "nvmlDeviceGetComputeRunningProcesses": ("", "processes", None),
    "nvmlDeviceGetMPSComputeRunningProcesses": ("", "processes", "nvmlDeviceGetComputeRunning"),
}
"""By function: another that is refused, the quantity, and the way that is left."""


@pytest.mark.usefixtures("children")
def test_a_gpu_that_is_lost_at_the_start_is_distinguished_from_an_unreadable_one(
    fake: Fake,
) -> None:
    """It is not merely without energy: whatever was measured on it is void."""
    for function, code, words in (
        ("nvmlDeviceGetHandleByUUID", 15, "GPU is lost (15)"),
        ("nvmlDeviceGetName", 16, "GPU requires restart (16)"),
        (COUNTER, 15, "GPU is lost (15)"),
    ):
        fake.write(f"fail {function} {code}", "device")
        log = sampled(fake, seconds=0.0)
        (gpu,) = log.gpus
        (sentence,) = log.lost({})
        assert words in str(log.unavailable)
        assert gpu.lost is not None
        assert sentence.startswith("GPU GPU-0 was lost: ")
        assert words in sentence
        energy = gpu.energy(0.0, 30.0)
        assert (energy.joules, energy.gated) == (None, False)
        assert f"the GPU was lost: {gpu.lost}" in energy.invalid

    fake.write("fail * 15 dev=1", "fail * 15 dev=2", "fail * 16 dev=3", *["device"] * 4)
    log = sampled(fake, "GPU-0", "GPU-1", "GPU-2", "GPU-3", seconds=0.0)
    used = {f"GPU-{n}": UsedGpu(uuid=f"GPU-{n}", name=f"GPU {n}") for n in range(4)}
    several, single = log.lost(used)
    assert several.startswith("2 of 4 GPUs (1, 2): lost: ")
    assert single.startswith("GPU 3 (GPU-3) was lost: ")

    fake.write("device")
    log = sampled(fake, "GPU-0", "GPU-3", seconds=0.0)
    assert log.lost({}) == ("GPU GPU-3 was lost: there is no GPU GPU-3 here",)
    assert [gpu.unavailable for gpu in log.gpus] == [None, "there is no GPU GPU-3 here"]


@pytest.mark.usefixtures("children")
def test_a_sensor_that_times_out_in_mid_run_is_missed_and_counted(fake: Fake) -> None:
    """Null, never 0: the longest row of nulls is as long as the sensor was silent."""
    with PowerSampling(["GPU-0"], fake.folder, watch_s=0.02) as running:
        fake.restart("fail field:186 10 after=0.3 until=0.7", "device", "wave const 333")
        time.sleep(max(0.0, fake.t0 + 1.2 - time.monotonic()))
    (gpu,) = running.log.gpus
    times = [reading.time_s - fake.t0 for reading in gpu.trace]

    assert {r.value for r in gpu.trace if r.time_s > fake.t0 + 0.1} == {333.0}
    assert not [t for t in times if 0.32 < t < 0.68]
    assert [t for t in times if t > 0.75]
    assert gpu.missing == {}


@pytest.mark.usefixtures("children")
def test_an_instance_whose_handle_reports_the_whole_gpus_energy_has_none(
    fake: Fake, pynvml: ModuleType
) -> None:
    fake.write("device", "mig 2 energy=parent", "wave const 600")
    opened = NvmlLibrary(pynvml)
    instance = pynvml.nvmlDeviceGetHandleByUUID("MIG-0-1")
    whole = pynvml.nvmlDeviceGetTotalEnergyConsumption(find(opened, "MIG-0-1").handle)
    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(instance) == pytest.approx(whole, rel=1e-3)
    opened.close()
    calls_so_far = len(fake.log.read_text().splitlines())
    (gpu,) = sampled(fake, "MIG-0-1").gpus
    lines = [line.split() for line in fake.log.read_text().splitlines()[calls_so_far:]]
    gpu_doubts = rejection_reasons(gpu, gpu.trace[0].time_s, gpu.trace[-1].time_s, warm_s=0.0)

    assert {dev for _, _, function, dev, _ in lines if function == COUNTER} == {"0"}
    assert gpu_doubts.energy_unknown == "2 MIG instances share this GPU and its energy"
    assert faults(gpu_doubts) == ()
