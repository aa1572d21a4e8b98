"""Every failure of NVML has its reaction; every quantity has its ways, from new to old."""

from __future__ import annotations

import time
from types import ModuleType, SimpleNamespace

import pytest

from pytest_mlperf.hardware._nvml import (
    Lost,
    NvmlDevice,
    NvmlLibrary,
    Probe,
    UnavailableNvml,
    call_nvml,
    find,
    measures_without_gaps,
    power_scope,
    reports_mean_power,
)
from pytest_mlperf.hardware.nvml_quantities import REASONS, identity, probes
from tests.nvml import library
from tests.nvml.library import Fake

pytestmark = pytest.mark.process

COUNTER = "nvmlDeviceGetTotalEnergyConsumption"

REFUSED = {
    "power_w": ("field:186",),
    "reasons": (
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
    ),
    "energy_j": (COUNTER, "field:83", "field:191"),
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
    "processes": ("nvmlDeviceGetComputeRunningProcesses_v3",),
    "limit_w": ("nvmlDeviceGetEnforcedPowerLimit",),
    "xids": ("nvmlDeviceRegisterEvents",),
    **dict.fromkeys(("sm_mhz", "memory_mhz"), ("nvmlDeviceGetClockInfo",)),
    **dict.fromkeys(("ecc_uncorrected", "ecc_corrected"), ("nvmlDeviceGetTotalEccErrors",)),
    **dict.fromkeys(("nvlinks", "nvlink_bytes", "nvlink_errors"), ("nvmlDeviceGetNvLinkState",)),
    "fabric_health": ("nvmlDeviceGetGpuFabricInfoV",),
}


def together_with(name: str) -> set[str]:
    """Return the quantities that are missing if one is refused."""
    shared = {"nvmlDeviceGetClockInfo", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetNvLinkState"}
    same = {other for other, functions in REFUSED.items() if functions == REFUSED[name]}
    return same if shared & set(REFUSED[name]) else {name}


def probe(opened: NvmlLibrary, name: str = "energy_j", uuid: str = "GPU-0") -> Probe:
    return all_probes(find(opened, uuid))[name]


def all_probes(device: NvmlDevice) -> dict[str, Probe]:
    driver = device.library.nvml.nvmlSystemGetDriverVersion()
    return probes(device, identity(device), driver)


def test_a_library_that_does_not_start_or_is_another_one_names_the_remedy(
    fake: Fake, pynvml: ModuleType
) -> None:
    """The package pynvml puts an old API in the way of nvidia-ml-py."""
    for code, words in (
        (12, "NVIDIA_DRIVER_CAPABILITIES=utility,compute"),
        (9, "kernel driver is not loaded"),
        (18, "reboot; until then measurements may be wrong"),
        (4, "may not open"),
        (999, "NVML does not start: "),
        (37, "NVML does not start: "),
    ):
        fake.write(f"fail nvmlInitWithFlags {code}", "device")
        with pytest.raises(UnavailableNvml, match=words) as caught:
            NvmlLibrary(pynvml)
        assert caught.value.code == code

    with pytest.raises(UnavailableNvml, match=r"/old/pynvml\.py is not nvidia-ml-py 12\.575\.51"):
        NvmlLibrary(SimpleNamespace(__file__="/old/pynvml.py"))


FIELD = "field TOTAL_ENERGY_CONSUMPTION"

READS: list[tuple[str, str, str | None, int | None]] = [
    ("", "...", COUNTER, 3),
    # The third "not supported" in a row leads to the next way, in the same read.
    ("3", "--..", FIELD, 3),
    # Two of them, something that passes, two more (a rule counts the calls that the ones above
    # let pass): they are not in a row.
    ("3 calls=1-2 | 10 calls=1-1 | 3 calls=1-2", "-----.", COUNTER, None),
    # In mid run the sensor was asked too soon, however often, and will answer again.
    ("3 calls=3-7", "..-----.", COUNTER, 8),
    # What the driver does not know is asked another way at once.
    *((str(code), ".", FIELD, 1) for code in (13, 2, 25, 26)),
    # Another way to what is forbidden would not be allowed either; it is not asked again.
    ("4", "-----", None, 1),
    # A passing failure is asked three more times, a dead sensor once a time after that.
    *((f"{code} calls=2-{n}", "..", COUNTER, n + 1) for code in (10, 999, 37, 21) for n in (2, 4)),
    *((f"{code} calls=2-5", ".-", COUNTER, 5) for code in (10, 999, 37, 21)),
    ("999 calls=2-99", ".-----", COUNTER, 1 + 4 + 4),
    ("999", "-" * 20, None, None),
]
"""Rules, what is read ("-" is a missed sample), the way that is left, calls of the first way."""


def test_each_failure_has_its_reaction(fake: Fake, opened: NvmlLibrary) -> None:
    with pytest.raises(UnavailableNvml, match="there is no GPU GPU-7 here"):
        find(opened, "GPU-7")
    reactions = []
    for rules, reads, way, calls in READS:
        fake.write(*(f"fail {COUNTER} {rule}" for rule in rules.split(" | ") if rule), "device")
        counter, calls_at_start = probe(opened), fake.calls().count(COUNTER)
        read = "".join("-" if counter.read() is None else "." for _ in reads)
        counter.set_failure()
        calls_of_read = fake.calls().count(COUNTER) - calls_at_start
        reactions.append((rules, read, counter.way, calls and calls_of_read))
        if way:
            assert counter.missed == (reads.count("-") if reads[0] == "." else 0), rules
        elif rules == "4":
            assert counter.failure == f"{COUNTER}: Insufficient Permissions (4)"
        else:
            assert counter.failure == f"{COUNTER} gave no value; last answer: Unknown Error (999)"

    assert reactions == READS


def test_a_gpu_that_is_gone_is_lost_and_never_asked_again(fake: Fake, opened: NvmlLibrary) -> None:
    device = find(opened, "GPU-0")
    for code in (15, 16, 9, 18):
        fake.write(f"fail {COUNTER} {code} calls=2-99", "device")
        counter, calls = probe(opened), fake.calls().count(COUNTER)
        assert counter.read() is not None
        with pytest.raises(Lost) as caught:
            counter.read()
        assert caught.value.code == code
        assert str(caught.value)
        with pytest.raises(opened.nvml.NVMLError):
            call_nvml(opened.nvml, opened.nvml.nvmlDeviceGetTotalEnergyConsumption, device.handle)
        assert fake.calls().count(COUNTER) == calls + 3
    for code in (15, 16):
        fake.write(f"fail field:77 {code}", "device")
        with pytest.raises(Lost):
            probe(opened, "throttle_ns").read()


def test_a_shut_down_library_is_started_again_once(fake: Fake, opened: NvmlLibrary) -> None:
    counter, other = probe(opened), probe(opened)
    fake.write("shutdown 0", "device")
    assert counter.read() is not None
    assert fake.calls().count("nvmlInitWithFlags") == 2
    fake.write("shutdown 0.0", "device")
    with pytest.raises(Lost, match="shut down twice"):
        counter.read()
    fake.write("shutdown 0", "fail nvmlInitWithFlags 9", "device")
    with pytest.raises(Lost, match="did not start again"):
        other.read()


def test_a_quantity_that_is_not_supported_leaves_the_others(
    fake: Fake, opened: NvmlLibrary
) -> None:
    assert set(all_probes(find(opened, "GPU-0"))) == set(REFUSED)
    for name, functions in REFUSED.items():
        fake.write(*(f"fail {function} 3" for function in functions), "device")
        probes = all_probes(find(opened, "GPU-0"))
        for quantity in probes.values():
            for _ in range(20):
                quantity.read()
            quantity.set_failure()

        missing = {other for other, quantity in probes.items() if quantity.failure}
        assert missing == together_with(name)
        assert "Not Supported (3)" in str(probes[name].failure)
        assert all(probes[other].way for other in probes.keys() - missing), name


ERRORS = ("linkerror 2 7 12", "linkerror 1 3 1", "linkerror 0 7 2")
"""Twelve checksum errors and two replays on link 7, one recovery of link 3."""


LINKS = {
    "device | arch 10": ("receive", "packet", "fields 206, 207, 208, 211, 215"),
    "device": ("crc", "replay", "fields 161, 162, 163"),
    "device | arch 8": ("crc", "replay", "nvmlDeviceGetNvLinkErrorCounter"),
    "fail field:16* 3 | device": ("crc", "replay", "nvmlDeviceGetNvLinkErrorCounter"),
}
"""NVLink 5, 4, 3 and an older driver: what errors of links are called, and how they are read."""


def test_errors_of_links_are_read_as_each_generation_tells_them(
    fake: Fake, opened: NvmlLibrary
) -> None:
    """By kind and link; links without any are left out, so that a clean board is empty."""
    for lines, (checksum, replay, way) in LINKS.items():
        fake.write(*lines.split(" | "), *ERRORS, "device")
        errors, clean = (all_probes(find(opened, f"GPU-{n}"))["nvlink_errors"] for n in (0, 1))
        read = [errors.read() for _ in range(9)][-1]

        assert read == {checksum: {7: 12}, "recovery": {3: 1}, replay: {7: 2}}
        assert errors.way == way
        assert [clean.read() for _ in range(9)][-1] == {}


def test_traffic_of_links_is_in_bytes(fake: Fake, opened: NvmlLibrary) -> None:
    for arch, way in ((9, "fields 138 and 139"), (10, "fields 202 and 204")):
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


def test_an_older_driver_is_asked_the_older_way_and_never_for_a_mean_of_a_second(
    fake: Fake, opened: NvmlLibrary
) -> None:
    """Before Ampere, and on GA100, the plain reading is that of the moment."""
    for architecture, name, allowed in (
        (6, "Tesla T4", True),
        (5, "Tesla V100-SXM2-16GB", True),
        (7, "NVIDIA A100-SXM4-80GB", True),
        (7, "NVIDIA A40", False),
        (8, "NVIDIA L4", False),
        (9, "NVIDIA H200", False),
    ):
        fake.write("device", f"name {name}", f"arch {architecture}", "instant none")
        power = probe(opened, "power_w")
        for _ in range(20):
            power.read()
        assert power.way == ("nvmlDeviceGetPowerUsage" if allowed else None), name
        assert bool(power.failure) != allowed

    for name, lacking, way in (
        ("reasons", REFUSED["reasons"][0], "nvmlDeviceGetCurrentClocksThrottleR"),
        ("temperature_c", "nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"),
        ("memory_used", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"),
        ("average_w", "field:185", "nvmlDeviceGetPowerUsage"),
        ("energy_j", COUNTER, "field TOTAL_ENERGY_CONSUMPTION"),
    ):
        fake.write("device")
        new = probe(opened, name).read()
        fake.write(f"fail {lacking} 13", "device", "mem 150754820096 1000000000")
        old = probe(opened, name)
        assert old.read() == pytest.approx(new, rel=0.6)
        assert str(old.way).startswith(way)


def test_only_sensors_known_to_see_all_of_the_time_are_witnesses() -> None:
    """Whether power covers all of the time, and whether it is the mean of a second."""
    witnesses = {
        ("Tesla V100-SXM2-16GB", 5): (False, False),
        ("NVIDIA A40", 7): (True, True),
        ("NVIDIA GeForce RTX 3090", 7): (True, True),
        ("NVIDIA A100-SXM4-80GB", 7): (False, False),
        ("NVIDIA A30", 7): (False, False),
        ("NVIDIA H100 80GB HBM3", 9): (False, True),
        ("NVIDIA H200", 9): (False, True),
        ("NVIDIA B200", 10): (False, True),
        ("Something new", None): (False, False),
    }
    gpus_by_name = {key: {"name": key[0], "architecture": key[1]} for key in witnesses}

    assert {
        key: (measures_without_gaps(gpu), reports_mean_power(gpu))
        for key, gpu in gpus_by_name.items()
    } == witnesses


def test_power_is_of_the_module_where_the_counter_or_nothing_else_is(
    fake: Fake, opened: NvmlLibrary
) -> None:
    """On a superchip both are of GPU, CPU and memory together; a power of 0 is a missed sample."""
    for name, first in (("NVIDIA GH200 480GB", "of the module"), ("NVIDIA H200", "POWER_")):
        fake.write("device", f"name {name}", "module here")
        for quantity in ("power_w", "average_w"):
            probe_found = probe(opened, quantity)
            assert probe_found.read() == pytest.approx(300)
            assert first in (probe_found.way or "")
            assert ("module" in (probe_found.way or "")) == (first == "of the module")
    fake.write("device", "name NVIDIA GB200", "module only", "wave const 900")
    device = find(opened, "GPU-0")
    power = all_probes(device)["power_w"]
    assert [power.read() for _ in range(3)][-1] == pytest.approx(900)
    assert power_scope(identity(device), power) == "module"
    fake.write("device", "wave const 0")
    assert probe(opened, "power_w").read() is None


def test_slowdowns_are_counted_under_any_number_of_their_field(
    fake: Fake, opened: NvmlLibrary
) -> None:
    """The numbers changed within driver branch 580; an old driver counts in another function."""
    fake.t0 -= 10
    events = (
        "event 0x20 after=1 until=1.5",
        "event 0x40 after=2 until=2.25",
        "event 0x80 after=3 until=3.125",
        "event 0x4 after=4 until=5",
    )
    for driver in ("575.51.03", "580.65.06", "580.82.07", "595.45.04"):
        fake.write(f"driver {driver}", "device", *events)
        slowdowns = probe(opened, "throttle_ns").read()
        assert {name: ns / 1e9 for name, ns in slowdowns.items() if ns} == pytest.approx(
            {
                "sw_power_cap": 1.0,
                "thermal": 0.5,
                "sw_thermal_slowdown": 0.5,
                "hw_thermal_slowdown": 0.25,
                "hw_power_brake_slowdown": 0.125,
            }
        ), driver
    fake.write("device", "counters none", events[0], events[3])
    counted = probe(opened, "throttle_ns")
    slowdowns = [counted.read() for _ in range(3)][-1]
    assert counted.way == "nvmlDeviceGetViolationStatus"
    assert (slowdowns["thermal"], slowdowns["sw_power_cap"]) == pytest.approx((5e8, 1e9))


def test_event_reasons_and_processes_are_read_as_they_are_and_nothing_is_ever_set(
    fake: Fake, opened: NvmlLibrary
) -> None:
    """The log of calls has no setter in it, and would show one."""
    for bit in (*REASONS, 0x800):
        fake.write("device", f"event {bit:#x}", "proc 4321 1000", "proc 77 5000 until=0")
        assert probe(opened, "reasons").read() == bit
    assert probe(opened, "processes").read() == [[4321, 1000]]

    for quantity in all_probes(find(opened, "GPU-0")).values():
        quantity.read()
    called = set(fake.calls())
    opened.nvml.nvmlDeviceSetPersistenceMode(find(opened, "GPU-0").handle, 1)
    assert len(called) > 25
    assert called & set(library.setters()) == set()
    assert "nvmlDeviceSetPersistenceMode" in fake.calls()


def test_an_identity_has_the_properties_that_decide_speed(fake: Fake, opened: NvmlLibrary) -> None:
    fake.write("device", "limit 500 default=700 max=700", "ecc 1 0", "mig 0", "fail x 3")
    gpu_identity = identity(find(opened, "GPU-0"))

    assert gpu_identity["name"] == "NVIDIA H200"
    assert (gpu_identity["limit_w"], gpu_identity["default_limit_w"]) == (500.0, 700.0)
    assert gpu_identity["limit_range_mw"] == [100_000, 700_000]
    assert (gpu_identity["ecc"], gpu_identity["mig"]) == ([1, 0], [0, 0])
    assert gpu_identity["memory_gib"] == 140
    assert gpu_identity["pci_device"] == 0x233510DE


def test_an_instance_is_read_as_the_whole_gpu(fake: Fake, opened: NvmlLibrary) -> None:
    for instances, uuid, instance, shared in (
        (0, "GPU-0", False, False),
        (1, "MIG-0-0", True, False),
        (3, "MIG-0-2", True, True),
        (3, "GPU-0", False, True),
    ):
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
    probes = all_probes(device)
    assert [probes[name].read() for name in ("energy_j", "power_w")] == [None, None]
    assert "Insufficient Permissions (4)" in str(probes["energy_j"].failure)

    fake.write("fail nvmlDeviceGetDeviceHandleFromMigDeviceHandle 4", "device", "mig 2")
    with pytest.raises(UnavailableNvml, match="the GPU of instance MIG-0-1 cannot be queried"):
        find(opened, "MIG-0-1")
