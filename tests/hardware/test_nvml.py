"""Every failure of NVML has its reaction; every quantity has its ways, from new to old.

The real nvidia-ml-py runs here on a library whose GPUs and failures a scenario describes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_mlperf.hardware import _nvml as nvml
from pytest_mlperf.hardware._nvml import (
    Lost,
    NvmlDevice,
    NvmlLibrary,
    Probe,
    UnavailableNvml,
    averages,
    covers,
    find,
    scope,
)
from pytest_mlperf.hardware.nvml_quantities import REASONS, identity, probes
from tests.nvml import library
from tests.nvml.library import Fake, scenario

pytestmark = pytest.mark.process

COUNTER = "nvmlDeviceGetTotalEnergyConsumption"

REFUSED = {
    "power_w": ("field:186",),
    "reasons": (
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
    ),
    "energy_j": (COUNTER, "field:83", "field:191"),
    "sm_mhz": ("nvmlDeviceGetClockInfo",),
    "memory_mhz": ("nvmlDeviceGetClockInfo",),
    "temperature_c": ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"),
    "memory_temperature_c": ("field:82",),
    "pstate": ("nvmlDeviceGetPerformanceState",),
    "average_w": ("field:185", "nvmlDeviceGetPowerUsage"),
    "memory_used": ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"),
    "utilization_percent": ("nvmlDeviceGetUtilizationRates",),
    "throttle_ns": (*(f"field:{n}" for n in (*range(74, 80), 269, 270, 271)), "nvmlDeviceGetVio*"),
    "pcie_generation": ("nvmlDeviceGetCurrPcieLinkGeneration",),
    "pcie_width": ("nvmlDeviceGetCurrPcieLinkWidth",),
    "pcie_replays": ("nvmlDeviceGetPcieReplayCounter",),
    "ecc_uncorrected": ("nvmlDeviceGetTotalEccErrors",),
    "ecc_corrected": ("nvmlDeviceGetTotalEccErrors",),
    "processes": ("nvmlDeviceGetComputeRunningProcesses_v3",),
    "limit_w": ("nvmlDeviceGetEnforcedPowerLimit",),
    "xids": ("nvmlDeviceRegisterEvents",),
    "nvlinks": ("nvmlDeviceGetNvLinkState",),
    "nvlink_bytes": ("nvmlDeviceGetNvLinkState",),
    "nvlink_errors": ("nvmlDeviceGetNvLinkState",),
    "fabric_health": ("nvmlDeviceGetGpuFabricInfoV",),
}
"""What must fail for a quantity to be unavailable."""

TOGETHER = (
    {"sm_mhz", "memory_mhz"},
    {"ecc_uncorrected", "ecc_corrected"},
    {"nvlinks", "nvlink_bytes", "nvlink_errors"},
)


@pytest.fixture(scope="module")
def pynvml() -> ModuleType:
    return library.binding()


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Fake]:
    found = Fake(tmp_path)
    found.write(*scenario())
    with found.here():
        yield found


@pytest.fixture
def opened(fake: Fake, pynvml: ModuleType) -> Iterator[NvmlLibrary]:
    found = NvmlLibrary(pynvml)
    yield found
    found.close()


def probe(opened: NvmlLibrary, name: str = "energy_j", uuid: str = "GPU-0") -> Probe:
    return all_probes(find(opened, uuid))[name]


def all_probes(device: NvmlDevice) -> dict[str, Probe]:
    driver = device.library.nvml.nvmlSystemGetDriverVersion()
    return probes(device, identity(device), driver)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (12, "NVIDIA_DRIVER_CAPABILITIES=utility,compute"),
        (9, "kernel driver is not loaded"),
        (18, "reboot; until then its performance is suspect"),
        (4, "may not open"),
        (999, "NVML does not start: "),
        (37, "NVML does not start: "),
    ],
)
def test_a_library_that_does_not_start_says_what_to_do(
    fake: Fake, pynvml: ModuleType, code: int, words: str
) -> None:
    fake.write(f"fail nvmlInitWithFlags {code}", "device")

    with pytest.raises(UnavailableNvml, match=words) as caught:
        NvmlLibrary(pynvml)

    assert caught.value.code == code


def test_another_package_of_the_same_name_is_told_apart() -> None:
    """The package pynvml puts an old API in the way of nvidia-ml-py."""
    with pytest.raises(UnavailableNvml, match=r"/old/pynvml\.py is not nvidia-ml-py 12\.575\.51"):
        NvmlLibrary(SimpleNamespace(__file__="/old/pynvml.py"))


def test_a_gpu_that_is_not_here_is_named(opened: NvmlLibrary) -> None:
    with pytest.raises(UnavailableNvml, match="there is no GPU GPU-7 here"):
        find(opened, "GPU-7")


def test_the_first_way_answers_and_is_remembered(opened: NvmlLibrary) -> None:
    counter = probe(opened)

    assert counter.read() == pytest.approx(1e6, rel=0.1)
    assert counter.way == COUNTER
    assert (counter.failure, counter.missed) == (None, 0)


def test_three_refusals_from_the_start_are_meant(fake: Fake, opened: NvmlLibrary) -> None:
    """The third "not supported" in a row leads to the next way, in the same read."""
    fake.write(f"fail {COUNTER} 3", "device")
    counter = probe(opened)

    assert [counter.read() is None for _ in range(4)] == [True, True, False, False]
    assert counter.way == "field TOTAL_ENERGY_CONSUMPTION"
    assert fake.calls().count(COUNTER) == 3


def test_refusals_that_are_not_in_a_row_are_not_meant(fake: Fake, opened: NvmlLibrary) -> None:
    """Two of them, something that passes, two more: then it answers."""
    fake.write(
        f"fail {COUNTER} 3 calls=1-2",
        f"fail {COUNTER} 10 calls=1-1",
        f"fail {COUNTER} 3 calls=1-2",  # a rule counts the calls that the ones above let pass
        "device",
    )
    counter = probe(opened)

    assert [counter.read() is None for _ in range(6)] == [True] * 5 + [False]
    assert counter.way == COUNTER


def test_a_refusal_in_mid_run_is_a_missed_sample(fake: Fake, opened: NvmlLibrary) -> None:
    """However many: the sensor was asked too soon, and will answer again."""
    fake.write(f"fail {COUNTER} 3 calls=3-7", "device")
    counter = probe(opened)

    assert [counter.read() is None for _ in range(8)] == [False] * 2 + [True] * 5 + [False]
    assert (counter.way, counter.missed) == (COUNTER, 5)


@pytest.mark.parametrize("code", [13, 2, 25, 26])
def test_what_the_driver_does_not_know_is_asked_another_way_at_once(
    fake: Fake, opened: NvmlLibrary, code: int
) -> None:
    fake.write(f"fail {COUNTER} {code}", "device")
    counter = probe(opened)

    assert counter.read() is not None
    assert counter.way == "field TOTAL_ENERGY_CONSUMPTION"


def test_without_permission_the_quantity_is_given_up(fake: Fake, opened: NvmlLibrary) -> None:
    """Another way to the same thing would not be allowed either; it is not asked again."""
    fake.write(f"fail {COUNTER} 4", "device")
    counter = probe(opened)

    assert [counter.read() for _ in range(5)] == [None] * 5
    assert counter.failure == f"{COUNTER}: Insufficient Permissions (4)"
    assert fake.calls().count(COUNTER) == 1


@pytest.mark.parametrize("code", [15, 16, 9, 18])
def test_a_gpu_that_is_gone_is_lost(fake: Fake, opened: NvmlLibrary, code: int) -> None:
    fake.write(f"fail {COUNTER} {code} calls=2-99", "device")
    counter = probe(opened)
    assert counter.read() is not None

    with pytest.raises(Lost) as caught:
        counter.read()

    assert caught.value.code == code
    assert str(caught.value)


@pytest.mark.parametrize("code", [15, 16])
def test_a_gpu_that_is_gone_shows_in_fields_too(fake: Fake, opened: NvmlLibrary, code: int) -> None:
    fake.write(f"fail field:77 {code}", "device")

    with pytest.raises(Lost):
        probe(opened, "throttle_ns").read()


@pytest.mark.parametrize("code", [10, 999, 37, 21])
@pytest.mark.parametrize(("failures", "answered"), [(1, True), (3, True), (4, False)])
def test_a_passing_failure_is_asked_three_more_times(
    fake: Fake, opened: NvmlLibrary, code: int, failures: int, answered: bool
) -> None:
    fake.write(f"fail {COUNTER} {code} calls=2-{1 + failures}", "device")
    counter = probe(opened)
    counter.read()

    assert (counter.read() is not None) == answered
    assert counter.missed == (not answered)
    assert fake.calls().count(COUNTER) == 1 + min(failures + 1, 4)


def test_a_dead_sensor_is_asked_once_a_time(fake: Fake, opened: NvmlLibrary) -> None:
    """Four calls for each missed sample would slow the others down."""
    fake.write(f"fail {COUNTER} 999 calls=2-99", "device")
    counter = probe(opened)

    assert [counter.read() is None for _ in range(6)] == [False] + [True] * 5
    assert fake.calls().count(COUNTER) == 1 + 4 + 4


def test_what_never_answers_is_given_up_after_its_chances(fake: Fake, opened: NvmlLibrary) -> None:
    fake.write(f"fail {COUNTER} 999", "device")
    counter = probe(opened)
    for _ in range(20):
        assert counter.read() is None
    counter.settle()

    assert counter.failure == f"{COUNTER} never answered, last with: Unknown Error (999)"


def test_a_shut_down_library_is_started_again_once(fake: Fake, opened: NvmlLibrary) -> None:
    counter = probe(opened)
    fake.write("shutdown 0", "device")

    assert counter.read() is not None
    assert fake.calls().count("nvmlInitWithFlags") == 2

    fake.write("shutdown 0.0", "device")
    with pytest.raises(Lost, match="shut down twice"):
        counter.read()


def test_a_shut_down_library_that_does_not_start_again_is_lost(
    fake: Fake, opened: NvmlLibrary
) -> None:
    counter = probe(opened)
    fake.write("shutdown 0", "fail nvmlInitWithFlags 9", "device")

    with pytest.raises(Lost, match="did not start again"):
        counter.read()


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_quantity_that_is_not_supported_leaves_the_others(
    fake: Fake, opened: NvmlLibrary, name: str
) -> None:
    fake.write(*(f"fail {function} 3" for function in REFUSED[name]), "device")
    found = all_probes(find(opened, "GPU-0"))
    for each in found.values():
        for _ in range(20):
            each.read()
        each.settle()

    missing = {each.name for each in found.values() if each.failure}
    assert missing == next((group for group in TOGETHER if name in group), {name})
    assert "Not Supported (3)" in str(found[name].failure)
    assert all(each.way for each in found.values() if each.name not in missing)


def test_every_quantity_has_a_test_of_its_absence(opened: NvmlLibrary) -> None:
    assert set(all_probes(find(opened, "GPU-0"))) == set(REFUSED)


ERRORS = ("linkerror 2 7 12", "linkerror 1 3 1", "linkerror 0 7 2")
"""Twelve checksum errors and two replays on link 7, one recovery of link 3."""


@pytest.mark.parametrize(
    ("lines", "kind", "way"),
    [
        (("device", "arch 10"), ("receive", "packet"), "fields 206, 207, 208, 211, 215"),
        (("device",), ("crc", "replay"), "fields 161, 162, 163"),
        (("device", "arch 8"), ("crc", "replay"), "nvmlDeviceGetNvLinkErrorCounter"),
        (("fail field:16* 3", "device"), ("crc", "replay"), "nvmlDeviceGetNvLinkErrorCounter"),
    ],
    ids=["NVLink 5", "NVLink 4", "NVLink 3", "an older driver"],
)
def test_errors_of_links_are_read_as_each_generation_tells_them(
    fake: Fake, opened: NvmlLibrary, lines: tuple[str, ...], kind: tuple[str, str], way: str
) -> None:
    """By kind and link; links without any are left out, so that a clean board is empty."""
    fake.write(*lines, *ERRORS, "device")
    one, clean = (all_probes(find(opened, f"GPU-{n}"))["nvlink_errors"] for n in (0, 1))
    read = [one.read() for _ in range(9)][-1]
    empty = [clean.read() for _ in range(9)][-1]

    assert read == {kind[0]: {7: 12}, "recovery": {3: 1}, kind[1]: {7: 2}}
    assert one.way == way
    assert empty == {}


@pytest.mark.parametrize(("arch", "way"), [(9, "fields 138 and 139"), (10, "fields 202 and 204")])
def test_traffic_of_links_is_in_bytes(fake: Fake, opened: NvmlLibrary, arch: int, way: str) -> None:
    traffic = "nvlink 18 18 sent=3e9 received=1e9"
    fake.write("device", f"arch {arch}", traffic, "device", f"arch {arch}", "nvlink 0 18")
    up, down = (all_probes(find(opened, f"GPU-{n}"))["nvlink_bytes"] for n in (0, 1))
    sent, received = [up.read() for _ in range(9)][-1]
    nothing = [down.read() for _ in range(9)][-1]
    moment_s = time.monotonic() - fake.t0

    assert up.way == way
    assert sent == pytest.approx(1e12 + 3e9 * moment_s, rel=0.01)
    assert received == pytest.approx(1e12 + 1e9 * moment_s, rel=0.01)
    assert nothing is None
    assert "Not Supported (3)" in str(down.failure)


@pytest.mark.parametrize(
    ("name", "lacking", "way"),
    [
        (
            "reasons",
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleR",
        ),
        ("temperature_c", "nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"),
        ("memory_used", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"),
        ("average_w", "field:185", "nvmlDeviceGetPowerUsage"),
        ("energy_j", COUNTER, "field TOTAL_ENERGY_CONSUMPTION"),
    ],
)
def test_an_older_driver_is_asked_the_older_way(
    fake: Fake, opened: NvmlLibrary, name: str, lacking: str, way: str
) -> None:
    new = probe(opened, name).read()
    fake.write(f"fail {lacking} 13", "device", "mem 150754820096 1000000000")
    old = probe(opened, name)

    assert old.read() == pytest.approx(new, rel=0.6)
    assert str(old.way).startswith(way)


def test_power_of_the_module_is_asked_where_the_gpu_alone_does_not_tell(
    fake: Fake, opened: NvmlLibrary
) -> None:
    """On a superchip the answer is that of GPU, CPU and memory together, and says so."""
    fake.write("device", "name NVIDIA GB200", "module only", "wave const 900")
    device = find(opened, "GPU-0")
    power = all_probes(device)["power_w"]
    read = [power.read() for _ in range(3)]

    assert read[-1] == pytest.approx(900)
    assert scope(identity(device), power) == "module"


@pytest.mark.parametrize(
    ("architecture", "name", "allowed"),
    [
        (6, "Tesla T4", True),
        (5, "Tesla V100-SXM2-16GB", True),
        (7, "NVIDIA A100-SXM4-80GB", True),
        (7, "NVIDIA A40", False),
        (8, "NVIDIA L4", False),
        (9, "NVIDIA H200", False),
    ],
)
def test_a_mean_of_a_second_is_never_taken_for_power(
    fake: Fake, opened: NvmlLibrary, architecture: int, name: str, allowed: bool
) -> None:
    """Before Ampere, and on GA100, the plain reading is that of the moment."""
    fake.write("device", f"name {name}", f"arch {architecture}", "instant none")
    power = probe(opened, "power_w")
    for _ in range(20):
        power.read()

    assert power.way == ("nvmlDeviceGetPowerUsage" if allowed else None)
    assert bool(power.failure) != allowed


def test_a_power_of_zero_is_a_missed_sample(fake: Fake, opened: NvmlLibrary) -> None:
    fake.write("device", "wave const 0")

    assert probe(opened, "power_w").read() is None


@pytest.mark.parametrize(
    ("name", "architecture", "whole", "second"),
    [
        ("Tesla V100-SXM2-16GB", 5, False, False),
        ("NVIDIA A40", 7, True, True),
        ("NVIDIA GeForce RTX 3090", 7, True, True),
        ("NVIDIA A100-SXM4-80GB", 7, False, False),
        ("NVIDIA A30", 7, False, False),
        ("NVIDIA H100 80GB HBM3", 9, False, True),
        ("NVIDIA H200", 9, False, True),
        ("NVIDIA B200", 10, False, True),
        ("Something new", None, False, False),
    ],
)
def test_only_sensors_known_to_see_all_of_the_time_are_witnesses(
    name: str, architecture: int | None, whole: bool, second: bool
) -> None:
    found = {"name": name, "architecture": architecture}

    assert covers(found) is whole
    assert averages(found) is second


@pytest.mark.parametrize(
    ("name", "first"), [("NVIDIA GH200 480GB", "of the module"), ("NVIDIA H200", "POWER_")]
)
def test_where_the_counter_is_the_modules_so_is_the_power(
    fake: Fake, opened: NvmlLibrary, name: str, first: str
) -> None:
    """On a superchip the counter counts the CPU too: its witness must as well."""
    fake.write("device", f"name {name}", "module here")

    for quantity in ("power_w", "average_w"):
        found = probe(opened, quantity)
        assert found.read() == pytest.approx(300)
        assert first in (found.way or "")
        assert ("module" in (found.way or "")) == (first == "of the module")


@pytest.mark.parametrize("driver", ["575.51.03", "580.65.06", "580.82.07", "595.45.04"])
def test_slowdowns_are_counted_whatever_the_number_of_their_field(
    fake: Fake, opened: NvmlLibrary, driver: str
) -> None:
    """The numbers changed within driver branch 580."""
    fake.t0 -= 10
    fake.write(
        f"driver {driver}",
        "device",
        "event 0x20 after=1 until=1.5",
        "event 0x40 after=2 until=2.25",
        "event 0x80 after=3 until=3.125",
        "event 0x4 after=4 until=5",
    )

    found = probe(opened, "throttle_ns").read()

    assert {name: ns / 1e9 for name, ns in found.items() if ns} == pytest.approx(
        {
            "sw_power_cap": 1.0,
            "thermal": 0.5,
            "sw_thermal_slowdown": 0.5,
            "hw_thermal_slowdown": 0.25,
            "hw_power_brake_slowdown": 0.125,
        }
    )


def test_an_old_driver_counts_in_another_function(fake: Fake, opened: NvmlLibrary) -> None:
    fake.t0 -= 10
    fake.write(
        "device", "counters none", "event 0x20 after=1 until=1.5", "event 0x4 after=1 until=2"
    )
    counted = probe(opened, "throttle_ns")
    found = [counted.read() for _ in range(3)][-1]

    assert counted.way == "nvmlDeviceGetViolationStatus"
    assert found["thermal"] == pytest.approx(5e8)
    assert found["sw_power_cap"] == pytest.approx(1e9)


@pytest.mark.parametrize("bit", [*REASONS, 0x800])
def test_each_event_reason_is_read_as_it_is(fake: Fake, opened: NvmlLibrary, bit: int) -> None:
    fake.write("device", f"event {bit:#x}")

    assert probe(opened, "reasons").read() == bit


def test_processes_are_listed_with_their_memory(fake: Fake, opened: NvmlLibrary) -> None:
    fake.write("device", "proc 4321 1000", "proc 77 5000 until=0")

    assert probe(opened, "processes").read() == [[4321, 1000]]


def test_an_identity_tells_what_decides_speed(fake: Fake, opened: NvmlLibrary) -> None:
    fake.write("device", "limit 500 default=700 max=700", "ecc 1 0", "mig 0", "fail x 3")
    found = identity(find(opened, "GPU-0"))

    assert found["name"] == "NVIDIA H200"
    assert (found["limit_w"], found["default_limit_w"]) == (500.0, 700.0)
    assert found["limit_range_mw"] == [100_000, 700_000]
    assert (found["ecc"], found["mig"]) == ([1, 0], [0, 0])
    assert found["memory_gib"] == 140
    assert found["pci_device"] == 0x233510DE


def test_an_identity_leaves_out_what_is_not_told(fake: Fake, opened: NvmlLibrary) -> None:
    fake.write("fail nvmlDeviceGetVbiosVersion 3", "device", "ecc none")
    found = identity(find(opened, "GPU-0"))

    assert (found["vbios"], found["ecc"], found["mig"]) == (None, None, None)


@pytest.mark.parametrize(
    ("instances", "uuid", "instance", "shared"),
    [
        (0, "GPU-0", False, False),
        (1, "MIG-0-0", True, False),
        (3, "MIG-0-2", True, True),
        (3, "GPU-0", False, True),
    ],
)
def test_an_instance_is_read_as_the_whole_gpu(
    fake: Fake, opened: NvmlLibrary, instances: int, uuid: str, instance: bool, shared: bool
) -> None:
    fake.write("device", f"mig {instances}", "wave const 321")
    device = find(opened, uuid)

    assert (device.instance, device.instances, device.shared) == (instance, instances, shared)
    assert all_probes(device)["power_w"].read() == pytest.approx(321)
    assert identity(device)["uuid"] == "GPU-0"


def test_an_instance_in_a_container_has_no_energy(fake: Fake, opened: NvmlLibrary) -> None:
    """There the whole GPU may not be asked anything, and who else uses it is not known."""
    fake.write("fail * 4 dev=0", "device", "mig 2")
    device = find(opened, "MIG-0-0")

    assert (device.instances, device.shared) == (None, None)
    found = all_probes(device)
    assert [found[name].read() for name in ("energy_j", "power_w")] == [None, None]
    assert "Insufficient Permissions (4)" in str(found["energy_j"].failure)


def test_an_instance_whose_gpu_is_not_told_is_unavailable(fake: Fake, opened: NvmlLibrary) -> None:
    fake.write("fail nvmlDeviceGetDeviceHandleFromMigDeviceHandle 4", "device", "mig 2")

    with pytest.raises(UnavailableNvml, match="the GPU of instance MIG-0-1 may not be asked"):
        find(opened, "MIG-0-1")


def test_nothing_is_ever_set(fake: Fake, opened: NvmlLibrary) -> None:
    """The log of calls, which would show it, has no setter in it."""
    for each in all_probes(find(opened, "GPU-0")).values():
        each.read()
    called = set(fake.calls())

    assert len(called) > 25
    assert called & set(library.setters()) == set()


def test_a_setter_would_show_in_the_log(fake: Fake, opened: NvmlLibrary) -> None:
    opened.nvml.nvmlDeviceSetPersistenceMode(find(opened, "GPU-0").handle, 1)

    assert "nvmlDeviceSetPersistenceMode" in fake.calls()


@pytest.mark.parametrize(
    ("code", "told"),
    [(3, "Not Supported (3)"), (37, "an error of the fake library (37)")],
)
def test_codes_are_told_with_their_number(pynvml: Any, code: int, told: str) -> None:
    assert nvml.words(pynvml.NVMLError(code)) == told
