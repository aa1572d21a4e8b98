"""Every failure of NVML ends where it should: one quantity, one GPU, or all of it.

What one call does with one code is in test_nvml.py; here a sampler runs, and its file is read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pytest_mlperf.core.reason import Key
from pytest_mlperf.hardware._nvml import (
    Lost,
    NvmlDevice,
    NvmlLibrary,
    Probe,
    ReadMethod,
    UnavailableNvml,
    find,
    patiently,
)
from pytest_mlperf.hardware.nvml_quantities import IDENTITY, SLOW, STATE, WAYS, identity, probes
from pytest_mlperf.run.power.doubts import Doubts, doubts
from pytest_mlperf.run.power.sampling import PowerLog, PowerSampling
from tests.hardware.test_nvml import REFUSED, TOGETHER
from tests.nvml import library
from tests.nvml.library import Fake, scenario

pytestmark = pytest.mark.process

COUNTER = "nvmlDeviceGetTotalEnergyConsumption"
PASSING = [10, 999, 37]
"""Timeout, unknown, and a code without a class."""

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


@pytest.fixture(scope="module")
def pynvml() -> ModuleType:
    return library.binding()


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Fake]:
    found = Fake(tmp_path)
    found.write(*scenario("mig 0"))
    with found.here():
        yield found


@pytest.fixture
def opened(fake: Fake, pynvml: ModuleType) -> Iterator[NvmlLibrary]:
    found = NvmlLibrary(pynvml)
    yield found
    found.close()


def sampled(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, *gpus: str, seconds: float = 0.3, hz: float = 50.0
) -> PowerLog:
    """Sample for so long after the first record."""
    for name, value in fake.environment.items():
        if os.environ.get(name) != value:
            monkeypatch.setenv(name, value)
    with PowerSampling(gpus or ("GPU-0",), fake.folder, hz=hz, watch_s=0.02) as running:
        time.sleep(seconds)
    return running.log


def faults(given: Doubts) -> tuple[str, ...]:
    """Return why a run is invalid, but for the idle GPU that all of these are."""
    return tuple(str(why) for why in given.invalid if why.key is not Key.GPU_UNUSED)


def together_with(name: str) -> set[str]:
    """Return the quantities that are missing where one is refused."""
    return next((group for group in TOGETHER if name in group), {name})


@pytest.mark.parametrize("code", [3, 4])
def test_a_quantity_that_is_refused_costs_that_quantity_and_nothing_else(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """One GPU for each quantity, refused as not supported or not permitted; all in one run."""
    rules = [f"fail {f} {code} dev={i}" for i, name in enumerate(REFUSED) for f in REFUSED[name]]
    fake.write(*rules, *(["device", "wave const 250"] * len(REFUSED)))
    uuids = [f"GPU-{i}" for i in range(len(REFUSED))]
    log = sampled(fake, monkeypatch, *uuids, seconds=4.6, hz=20.0)

    assert (log.unavailable, log.ended) == (None, True)
    for name, gpu in zip(REFUSED, log.gpus, strict=True):
        missing = together_with(name)
        begin_s, end_s = gpu.states[0]["time"] + 0.3, gpu.states[-1]["time"] - 0.3
        found = gpu.energy(begin_s, end_s)
        read = {key for state in gpu.states for key, value in state.items() if value is not None}
        series = {"power_w": gpu.trace, "energy_j": gpu.counter, "reasons": gpu.reasons}
        assert set(gpu.missing) == missing, name
        assert gpu.forbidden == (missing if code == 4 else set())
        assert all(f"({code})" in why for why in gpu.missing.values())
        assert {n for n, values in series.items() if not values} == missing & set(series), name
        assert {*STATE, *SLOW} - read == missing - set(series), name
        assert faults(doubts(gpu, begin_s, end_s, warm_s=begin_s)) == (), name
        if name == "energy_j":
            assert (found.method, found.peak_w) == (None if code == 4 else "trace", 250.0)
        else:
            assert found.method == "counter"
        if found.method is None:
            assert (found.joules, found.uncertainty_j, found.gated) == (None, None, False)
            assert f"{COUNTER}: Insufficient Permissions (4)" in found.notes
        else:
            assert found.joules == pytest.approx(250 * (end_s - begin_s), rel=0.03), name


def test_energy_that_is_forbidden_in_mid_run_is_not_known(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where an administrator takes the right away: the trace does not stand in for it."""
    fake.write(f"fail {COUNTER} 4 calls=45", "device", "wave const 250")
    log = sampled(fake, monkeypatch, seconds=1.5)
    (gpu,) = log.gpus
    found = gpu.energy(gpu.trace[5].time_s, gpu.trace[-5].time_s)

    assert gpu.forbidden == {"energy_j"}
    assert len(gpu.counter) > 5
    assert (found.joules, found.peak_w) == (None, 250.0)


@pytest.mark.parametrize("code", [3, 4, 10, 13, 999])
@pytest.mark.parametrize("name", sorted(PROPERTIES))
def test_a_property_that_is_not_told_is_none_and_the_others_stand(
    fake: Fake, opened: NvmlLibrary, name: str, code: int
) -> None:
    device = find(opened, "GPU-0")
    whole = identity(device)
    fake.write(f"fail {PROPERTIES[name]} {code}", *scenario("mig 0"))
    found = identity(device)

    lacking = {each for each, function in PROPERTIES.items() if function == PROPERTIES[name]}
    assert None not in whole.values()
    assert found == {**whole, **dict.fromkeys(lacking)}


def test_every_property_has_a_test_of_its_absence() -> None:
    assert set(PROPERTIES) == set(IDENTITY)


@pytest.mark.parametrize("code", PASSING)
@pytest.mark.parametrize(
    "function",
    [
        "nvmlInitWithFlags",
        "nvmlDeviceGetHandleByUUID",
        "nvmlDeviceIsMigDeviceHandle",
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetMaxMigDeviceCount",
        "nvmlDeviceGetMigDeviceHandleByIndex",
    ],
)
def test_what_passes_at_the_start_is_asked_three_more_times(
    fake: Fake, pynvml: ModuleType, function: str, code: int
) -> None:
    def found(failures: int) -> NvmlDevice | None:
        fake.write(f"fail {function} {code} calls=1-{failures}", "device", "mig 2")
        opened = None
        try:
            opened = NvmlLibrary(pynvml)
            return find(opened, "MIG-0-0")
        except UnavailableNvml:
            return None
        finally:
            if opened is not None:
                opened.close()

    once, worse = found(3), found(4)

    assert once is not None
    assert (once.instance, once.instances, once.shared) == (True, 2, True)
    assert worse is None or worse.instances is None or not worse.instance


def test_what_does_not_pass_is_asked_once(fake: Fake, opened: NvmlLibrary) -> None:
    with pytest.raises(UnavailableNvml):
        find(opened, "GPU-7")
    fake.write("fail nvmlDeviceGetHandleByUUID 15", "device")
    with pytest.raises(UnavailableNvml) as caught:
        find(opened, "GPU-0")

    assert caught.value.code == 15
    assert fake.calls().count("nvmlDeviceGetHandleByUUID") == 2


def test_a_function_that_the_driver_lacks_leads_to_the_next_way(opened: NvmlLibrary) -> None:
    """The symbol is really not in the library, as in an old driver."""
    lacking = ReadMethod(
        name="nvmlDeviceGetFanSpeed",
        read=lambda nvml, handle: nvml.nvmlDeviceGetFanSpeed(handle),
    )
    probe = Probe(device=find(opened, "GPU-0"), name="energy_j", ways=[lacking, *WAYS["energy_j"]])

    with pytest.raises(opened.nvml.NVMLError_FunctionNotFound):
        lacking.read(opened.nvml, probe.device.handle)
    assert probe.read() is not None
    assert probe.way == COUNTER


@pytest.mark.parametrize(
    ("dropped", "refused", "name", "way"),
    [
        ("nvmlDeviceGetTotalEnergyConsumption", (), "energy_j", "field TOTAL_ENERGY_CONSUMPTION"),
        ("nvmlDeviceGetTemperature", ("nvmlDeviceGetTemperatureV",), "temperature_c", None),
        (
            "nvmlDeviceGetCurrentClocksThrottleReasons",
            ("nvmlDeviceGetCurrentClocksEventReasons",),
            "reasons",
            None,
        ),
        ("nvmlDeviceGetViolationStatus", ("nvmlDeviceGetFieldValues",), "throttle_ns", None),
        ("nvmlDeviceGetComputeRunningProcesses", (), "processes", None),
        ("nvmlDeviceGetMPSComputeRunningProcesses", (), "processes", "nvmlDeviceGetComputeRunning"),
    ],
)
def test_a_function_that_the_binding_dropped_leads_to_the_next_way_or_none(
    fake: Fake, dropped: str, refused: tuple[str, ...], name: str, way: str | None
) -> None:
    """What is deprecated now goes with CUDA 14: that costs a fallback, not the sampler."""
    newer = library.binding()
    delattr(newer, dropped)
    fake.write(*(f"fail {function} 3" for function in refused), "device")
    opened = NvmlLibrary(newer)
    probe = probes(find(opened, "GPU-0"), identity(find(opened, "GPU-0")), "595.45.04")[name]
    for _ in range(5):
        probe.read()
    opened.close()

    assert str(probe.way).startswith(str(way))
    assert (probe.failure is None) == (way is not None)
    assert way is not None or "Function Not Found (13)" in str(probe.failure)


@pytest.mark.parametrize("code", [15, 16])
@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByUUID", "nvmlDeviceGetName", COUNTER])
def test_a_gpu_that_is_lost_at_the_start_is_told_from_one_that_cannot_be_read(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, function: str, code: int
) -> None:
    """It is not merely without energy: whatever was measured on it is void."""
    fake.write(f"fail {function} {code}", "device")
    log = sampled(fake, monkeypatch, seconds=0.0)
    words = {15: "GPU is lost (15)", 16: "GPU requires restart (16)"}[code]

    (gpu,) = log.gpus
    (said,) = log.lost({})
    assert words in str(log.unavailable)
    assert gpu.lost is not None
    assert said.startswith("GPU GPU-0 was lost: ")
    assert words in said
    energy = gpu.energy(0.0, 30.0)
    assert (energy.joules, energy.gated) == (None, False)
    assert f"the GPU was lost: {gpu.lost}" in energy.invalid


def test_a_gpu_that_was_seen_and_is_gone_is_lost(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = sampled(fake, monkeypatch, "GPU-0", "GPU-3", seconds=0.0)

    assert log.lost({}) == ("GPU GPU-3 was lost: there is no GPU GPU-3 here",)
    assert [gpu.unavailable for gpu in log.gpus] == [None, "there is no GPU GPU-3 here"]


@pytest.mark.parametrize("code", [9, 15, 16, 18])
def test_lost_is_never_asked_again(fake: Fake, opened: NvmlLibrary, code: int) -> None:
    device = find(opened, "GPU-0")
    fake.write(f"fail {COUNTER} {code}", "device")
    with pytest.raises(Lost):
        Probe(device=device, name="energy_j", ways=WAYS["energy_j"]).read()
    with pytest.raises(opened.nvml.NVMLError):
        patiently(opened.nvml, opened.nvml.nvmlDeviceGetTotalEnergyConsumption, device.handle)

    assert fake.calls().count(COUNTER) == 2


def test_a_sensor_that_times_out_in_mid_run_is_missed_and_counted(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Null, never 0: the longest row of nulls is as long as the sensor was silent."""
    for name, value in fake.environment.items():
        if os.environ.get(name) != value:
            monkeypatch.setenv(name, value)
    with PowerSampling(["GPU-0"], fake.folder, watch_s=0.02) as running:
        fake.restart("fail field:186 10 after=0.3 until=0.7", "device", "wave const 333")
        time.sleep(max(0.0, fake.t0 + 1.2 - time.monotonic()))
    (gpu,) = running.log.gpus
    times = [reading.time_s - fake.t0 for reading in gpu.trace]

    assert {r.value for r in gpu.trace if r.time_s > fake.t0 + 0.1} == {333.0}
    assert not [t for t in times if 0.32 < t < 0.68]
    assert [t for t in times if t > 0.75]
    assert gpu.missing == {}


def test_an_instance_whose_handle_tells_the_whole_gpus_energy_is_given_none_of_it(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, pynvml: ModuleType
) -> None:
    fake.write("device", "mig 2 energy=parent", "wave const 600")
    opened = NvmlLibrary(pynvml)
    instance = pynvml.nvmlDeviceGetHandleByUUID("MIG-0-1")
    whole = pynvml.nvmlDeviceGetTotalEnergyConsumption(find(opened, "MIG-0-1").handle)
    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(instance) == pytest.approx(whole, rel=1e-3)
    opened.close()
    asked = len(fake.log.read_text().splitlines())
    (gpu,) = sampled(fake, monkeypatch, "MIG-0-1").gpus
    lines = [line.split() for line in fake.log.read_text().splitlines()[asked:]]
    given = doubts(gpu, gpu.trace[0].time_s, gpu.trace[-1].time_s, warm_s=0.0)

    assert {dev for _, _, function, dev, _ in lines if function == COUNTER} == {"0"}
    assert given.energy == ("2 MIG instances share this GPU and its energy",)
    assert faults(given) == ()
