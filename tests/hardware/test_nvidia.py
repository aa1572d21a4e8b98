"""GPUs are identified through NVML; what NVML does not tell is None, never a guess.

The real nvidia-ml-py runs here on a library whose GPUs and failures a scenario describes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pytest_mlperf.core.case import NAME
from pytest_mlperf.hardware import nvidia
from pytest_mlperf.hardware.host import Property
from pytest_mlperf.hardware.nvidia import GpuState, NvmlReport, hashed
from pytest_mlperf.suite.values import _ACCELERATOR
from tests.nvml import library
from tests.nvml.library import Fake, scenario

pytestmark = pytest.mark.process

H200: dict[str, Property] = {
    "gpu": "NVIDIA H200",
    "memory_gib": 140,
    "pci_id": "2335:16c1",
    "mig": False,
    "power_limit_w": 700,
    "ecc": True,
    "clocks": "free",
    "virtualization": "none",
    "power_scope": "gpu",
    "energy": "counter",
}

PLAIN = ("mig 0", "limit 699.4", "pci 233510DE 16C110DE")


@pytest.fixture(scope="module")
def pynvml() -> ModuleType:
    return library.binding()


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Fake]:
    found = Fake(tmp_path)
    found.write(*scenario(*PLAIN))
    with found.here():
        yield found


def only(found: NvmlReport) -> GpuState:
    assert found["trouble"] is None
    (gpu,) = found["gpus"]
    return gpu


# --- one GPU ---------------------------------------------------------------------------------


def test_a_gpu_is_known_by_what_changes_its_speed_or_its_energy(
    fake: Fake, pynvml: ModuleType
) -> None:
    """The power limit is rounded to 5 W; no uuid, serial number or version is among it."""
    gpu = only(nvidia.read(pynvml))

    assert gpu["identity"] == H200
    assert (gpu["uuid"], gpu["parent"], gpu["address"], gpu["index"]) == ("GPU-0", "GPU-0", None, 0)


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("name NVIDIA H100 PCIe", "gpu", "NVIDIA H100 PCIe"),
        ("mem 85899345920 0", "memory_gib", 80),
        ("pci 233010DE 16C110DE", "pci_id", "2330:16c1"),
        ("limit 502.4", "power_limit_w", 500),
        ("limit 502.6", "power_limit_w", 505),
        ("ecc 0 1", "ecc", False),
        ("ecc none", "ecc", None),
        ("mig -1", "mig", None),
        ("virtualization 1", "virtualization", "passthrough"),
        ("virtualization 2", "virtualization", "vgpu"),
        ("virtualization 9", "virtualization", None),
        ("module only", "power_scope", "module"),
        ("name NVIDIA GH200 480GB", "power_scope", "module"),
    ],
)
def test_each_property_follows_the_gpu(
    fake: Fake, pynvml: ModuleType, line: str, name: str, value: Property
) -> None:
    fake.write(*scenario(*PLAIN, line))

    assert only(nvidia.read(pynvml))["identity"] == {**H200, "gpu": gpu_of(line), name: value}


def gpu_of(line: str) -> str:
    return line.removeprefix("name ") if line.startswith("name ") else "NVIDIA H200"


@pytest.mark.parametrize(
    ("lines", "clocks"),
    [
        ((), "free"),
        (("event 0x1",), "free"),
        (("event 0x4",), "free"),
        (("event 0x2 sm=1500",), 1500),
        (("event 0x6 sm=1500",), 1500),
        (("application 1200 1980",), 1200),
        (("application 1980 1980",), "free"),
        (("application 1980 1980", "event 0x2 sm=1500"), 1500),
        (("application 1980 1980", "event 0x2 sm=1980"), "free"),
    ],
)
def test_clocks_are_free_unless_someone_set_them(
    fake: Fake, pynvml: ModuleType, lines: tuple[str, ...], clocks: Property
) -> None:
    fake.write(*scenario(*PLAIN, *lines))

    assert only(nvidia.read(pynvml))["identity"]["clocks"] == clocks


@pytest.mark.parametrize(
    ("lines", "fails", "energy"),
    [
        ((), (), "counter"),
        (("energy none",), (), "trace"),
        (("energy none", "instant none"), (), None),
        ((), ("nvmlDeviceGetTotalEnergyConsumption 3",), "counter"),
        ((), ("nvmlDeviceGetTotalEnergyConsumption 4",), None),
    ],
    ids=["counter", "no counter", "no sensor", "through a field", "forbidden"],
)
def test_how_energy_can_be_had_is_part_of_the_identity(
    fake: Fake,
    pynvml: ModuleType,
    lines: tuple[str, ...],
    fails: tuple[str, ...],
    energy: str | None,
) -> None:
    """A counter and a trace do not compare; a counter that is forbidden is neither."""
    fake.write(*(f"fail {each}" for each in fails), *scenario(*PLAIN, *lines))

    assert only(nvidia.read(pynvml))["identity"]["energy"] == energy


READS = {
    "nvmlDeviceGetName": {"gpu", "power_scope"},
    "nvmlDeviceGetMemoryInfo": {"memory_gib"},
    "nvmlDeviceGetPciInfo_v3": {"pci_id"},
    "nvmlDeviceGetMigMode": {"mig"},
    "nvmlDeviceGetEnforcedPowerLimit": {"power_limit_w"},
    "nvmlDeviceGetEccMode": {"ecc"},
    "nvmlDeviceGetCurrentClocks*": {"clocks"},
    "nvmlDeviceGetVirtualizationMode": {"virtualization"},
}


@pytest.mark.parametrize("function", READS)
@pytest.mark.parametrize("code", [3, 4, 13, 999])
def test_what_nvml_does_not_tell_is_none_alone(
    fake: Fake, pynvml: ModuleType, function: str, code: int
) -> None:
    """Not supported, forbidden, unknown to the driver, broken: all else is still known."""
    fake.write(f"fail {function} {code}", *scenario(*PLAIN))

    assert only(nvidia.read(pynvml))["identity"] == {**H200, **dict.fromkeys(READS[function])}


NONE = "device | nvlink none"
SWITCHED = "NV18 NVSwitch"


@pytest.mark.parametrize(
    ("lines", "paths"),
    [
        ("device", {}),
        ("device | device | device", {"01 02 12": SWITCHED}),
        (
            "device | device | nvlink 17 18 | device",
            {"02": SWITCHED, "01 12": "NV17 NVSwitch"},
        ),
        (
            f"device | nvlink 4 4 to=1 | device | nvlink 4 4 to=0 | {NONE} | device | nvlink 0 12",
            {"01": "NV4", "02 03 12 13 23": "SYS"},
        ),
        (
            f"{NONE} | near 10 | {NONE} | near 10 | {NONE} | near 40",
            {"01": "PIX", "02 12": "NODE"},
        ),
        (f"{NONE} | {NONE} | near 20 p2p=4", {"01": "SYS, no P2P"}),
        (
            "fail nvmlDeviceGetNvLinkState 4 dev=1 | device | device | device",
            {"01 12": None, "02": SWITCHED},
        ),
        (f"fail nvmlDeviceGetTopo* 3 | {NONE} | {NONE}", {"01": None}),
        ("fail nvmlDeviceGetNvLinkState 13 | device | device", {"01": "SYS"}),
        ("fail nvmlDeviceGetP2PStatus 3 | device | device", {"01": SWITCHED}),
        ("fail nvmlDeviceGetNvLinkRemote* 3 | device | device", {"01": None}),
        ("fail nvmlDeviceGetNvLinkRemote* 15 | device | device", {"01": None}),
        ("fail nvmlDeviceGetNvLinkRemoteDeviceType 3 | device | device", {"01": None}),
        (
            "fail nvmlDeviceGetNvLinkRemoteDeviceType 3 | device | nvlink 4 4 to=1 | "
            "device | nvlink 4 4 to=0",
            {"01": "NV4"},
        ),
    ],
    ids=[
        "alone",
        "switch",
        "a link down",
        "bridge",
        "PCIe",
        "no P2P",
        "forbidden",
        "untold",
        "old driver",
        "P2P untold",
        "ends untold",
        "lost meanwhile",
        "a switch untold",
        "a GPU untold",
    ],
)
def test_how_gpus_reach_each_other_is_told_by_pairs(
    fake: Fake, pynvml: ModuleType, lines: str, paths: dict[str, str | None]
) -> None:
    fake.write(*lines.split(" | "))

    seen = {gpu["uuid"]: gpu["paths"] for gpu in nvidia.read(pynvml)["gpus"]}
    pairs = {pair: path for listed, path in paths.items() for pair in listed.split()}
    told = {f"{u[-1]}{v[-1]}": p for u, each in seen.items() for v, p in each.items() if u < v}
    assert told == pairs
    assert all(seen[v][u] == path for u, each in seen.items() for v, path in each.items())


@pytest.mark.parametrize(
    ("lines", "missing"),
    [
        ("device", set()),
        ("device | nvlink none", {"nvlinks", "nvlink_bytes", "nvlink_errors"}),
        ("device | fabric 0 0", {"fabric_health"}),
        ("device | nvlink 0 18", {"nvlink_bytes", "nvlink_errors"}),
        ("fail nvmlDeviceGetTotalEccErrors 4 | device", {"ecc_corrected", "ecc_uncorrected"}),
        ("device | arch 10", set()),
        ("fail field:138 3 | device | arch 9", {"nvlink_bytes"}),
        ("fail field:16* 3 | device | arch 9", set()),
    ],
    ids=[
        "all",
        "no NVLink",
        "no switch",
        "none up",
        "forbidden",
        "NVLink 5",
        "no traffic",
        "by function",
    ],
)
def test_what_cannot_be_sampled_is_said_before_a_run(
    fake: Fake, pynvml: ModuleType, lines: str, missing: set[str]
) -> None:
    """Doctor shows it; each quantity with what NVML answered."""
    fake.write(*lines.split(" | "))
    (gpu,) = nvidia.read(pynvml)["gpus"]

    assert set(gpu["unread"]) == missing
    assert all(reason.endswith((" (3)", " (4)")) for reason in gpu["unread"].values())


# --- beside the identity ---------------------------------------------------------------------


def test_what_is_only_shown_when_it_changed(fake: Fake, pynvml: ModuleType) -> None:
    """Versions, link and settings; the card is there as a hash that does not name it."""
    fake.write("driver 580.95.05", "cuda 12090", *scenario(*PLAIN, "gsp 580.95.05"))
    gpu = only(nvidia.read(pynvml))

    assert gpu["surroundings"] == {
        "driver": "580.95.05",
        "cuda": "12.9",
        "vbios": "96.00.A1",
        "gsp": "580.95.05",
        "pcie": "gen5 x16",
        "persistence": "on",
        "compute_mode": "default",
        "card": hashed("GPU-0"),
    }
    assert re.fullmatch(r"[0-9a-f]{8}", gpu["surroundings"]["card"])
    assert hashed("GPU-1") != hashed("GPU-0")


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("nvmlSystemGetDriverVersion", "driver"),
        ("nvmlSystemGetCudaDriverVersion_v2", "cuda"),
        ("nvmlDeviceGetVbiosVersion", "vbios"),
        ("nvmlDeviceGetGspFirmwareVersion", "gsp"),
        ("nvmlDeviceGetMaxPcieLinkWidth", "pcie"),
        ("nvmlDeviceGetPersistenceMode", "persistence"),
        ("nvmlDeviceGetComputeMode", "compute_mode"),
    ],
)
def test_what_is_not_known_of_it_is_left_out(
    fake: Fake, pynvml: ModuleType, function: str, name: str
) -> None:
    fake.write(*scenario(*PLAIN, "gsp 1"))
    all_of_it = only(nvidia.read(pynvml))["surroundings"]
    fake.write(f"fail {function} 4", *scenario(*PLAIN, "gsp 1"))

    found = only(nvidia.read(pynvml))

    assert found["surroundings"] == {n: all_of_it[n] for n in all_of_it if n != name}
    assert found["identity"] == H200


# --- MIG -------------------------------------------------------------------------------------


def test_a_gpu_with_mig_is_its_instances(fake: Fake, pynvml: ModuleType) -> None:
    """Each has a name, memory and profile of its own; all else is of the GPU that they share."""
    fake.write(*scenario(*PLAIN, "mig 2"), "device", *PLAIN)
    found = nvidia.read(pynvml)

    assert [gpu["uuid"] for gpu in found["gpus"]] == ["MIG-0-0", "MIG-0-1", "GPU-1"]
    assert [gpu["index"] for gpu in found["gpus"]] == [0, 0, 1]
    assert [gpu["address"] for gpu in found["gpus"]] == ["MIG-GPU-0/1/0", "MIG-GPU-0/2/0", None]
    assert found["gpus"][1]["identity"] == {
        **H200,
        "gpu": "NVIDIA H200 MIG 1g.18gb",
        "mig": "1g.18gb",
    }
    assert {gpu["surroundings"]["card"] for gpu in found["gpus"][:2]} == {hashed("GPU-0")}


def test_an_instance_whose_gpu_may_not_be_asked_is_there_all_the_same(
    fake: Fake, pynvml: ModuleType
) -> None:
    """In a container every question to the GPU is forbidden, and the instance's own are not."""
    reads = ("Name", "MemoryInfo", "UUID", "PciInfo_v3", "EnforcedPowerLimit", "EccMode", "MigMode")
    forbidden = [f"fail nvmlDeviceGet{read} 4 dev=0" for read in reads]
    forbidden += ["fail nvmlDeviceGetTotal* 4 dev=0", "fail nvmlDeviceGetFieldValues 4 dev=0"]
    fake.write(*forbidden, *scenario(*PLAIN, "mig 1"))

    gpu = only(nvidia.read(pynvml))

    assert (gpu["uuid"], gpu["parent"], gpu["address"]) == ("MIG-0-0", None, None)
    known = {"gpu": "NVIDIA H200 MIG 1g.18gb", "memory_gib": 140, "mig": "1g.18gb"}
    still = {"clocks": "free", "virtualization": "none"}
    assert gpu["identity"] == {**dict.fromkeys(H200), **known, **still}


def test_an_instance_that_does_not_tell_its_profile_is_one_all_the_same(
    fake: Fake, pynvml: ModuleType
) -> None:
    fake.write("fail nvmlDeviceGetName 3 dev=100", *scenario(*PLAIN, "mig 1"))

    identity = only(nvidia.read(pynvml))["identity"]

    assert (identity["gpu"], identity["mig"]) == ("NVIDIA H200", True)


def test_a_gpu_whose_instances_may_not_be_listed_is_no_whole_one(
    fake: Fake, pynvml: ModuleType
) -> None:
    fake.write("fail nvmlDeviceGetMigDeviceHandleByIndex 4", *scenario(*PLAIN, "mig 1"))

    gpu = only(nvidia.read(pynvml))

    assert (gpu["uuid"], gpu["identity"]["mig"]) == ("GPU-0", True)


@pytest.mark.parametrize("code", [6, 2], ids=["none there", "no such place"])
def test_a_gpu_with_mig_and_no_instance_cannot_be_used(
    fake: Fake, pynvml: ModuleType, code: int
) -> None:
    """The fake has an instance and hides it, as one has it before any is created."""
    fake.write(f"fail nvmlDeviceGetMigDeviceHandleByIndex {code}", *scenario(*PLAIN, "mig 1"))

    found = nvidia.read(pynvml)

    assert found["gpus"] == []
    assert found["trouble"] == (
        "GPU 0: MIG is on and it has no instance: create one, or turn MIG off"
    )


@pytest.mark.parametrize(
    ("product", "mig", "name"),
    [
        ("NVIDIA H200", False, "H200"),
        ("NVIDIA H200", None, "H200"),
        ("NVIDIA H200", True, "H200_mig"),
        ("NVIDIA H200 MIG 1g.18gb", "1g.18gb", "H200_1g.18gb"),
        ("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", "1c.3g.20gb", "A100_1c.3g.20gb"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", "1g.10gb+me", "H100_1g.10gb_me"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb-me", "1g.10gb-me", "H100_1g.10gb_no_me"),
        (
            "NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb+me.all",
            "1g.24gb+me.all",
            "RTX_PRO_6000_1g.24gb_me.all",
        ),
    ],
)
def test_instances_have_class_names_that_suites_may_use(
    product: str, mig: Property, name: str
) -> None:
    """A legal accelerator of a suite, and a legal part of a case's id."""
    found = nvidia.instance_class(product, mig)

    assert found == name
    assert re.fullmatch(_ACCELERATOR, found)
    assert NAME.fullmatch(found)


# --- no GPU ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (9, "NVIDIA's kernel driver is not loaded"),
        (12, "NVIDIA's library libnvidia-ml.so.1 is not here: no driver is installed, or "),
        (18, "NVIDIA's driver was upgraded while loaded: reboot"),
        (4, "this user may not open NVIDIA's device files"),
        (999, "NVML does not start: "),
    ],
)
def test_a_driver_that_does_not_start_is_no_gpu_and_says_why(
    fake: Fake, pynvml: ModuleType, code: int, why: str
) -> None:
    fake.write(f"fail nvmlInit* {code}", *scenario())
    found = nvidia.read(pynvml)

    assert found["gpus"] == []
    assert (found["trouble"] or "").startswith(why)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (
            "fail nvmlDeviceGetHandleByIndex_v2 4 calls=2-2",
            "GPU 1 may not be asked: this user may not open NVIDIA's device files",
        ),
        ("fail nvmlDeviceGetHandleByIndex_v2 15 calls=2-2", "GPU 1 may not be asked: "),
        ("fail nvmlDeviceGetEccMode 15 dev=1", "GPU 1: "),
        ("fail nvmlDeviceGetUUID 999 dev=1", "GPU 1: it does not tell its UUID"),
    ],
    ids=["forbidden", "lost", "lost meanwhile", "nameless"],
)
def test_one_gpu_that_is_broken_leaves_the_others(
    fake: Fake, pynvml: ModuleType, line: str, why: str
) -> None:
    fake.write(line, "device", *PLAIN, "device", *PLAIN, "device", *PLAIN)
    found = nvidia.read(pynvml)

    assert [(gpu["uuid"], gpu["index"]) for gpu in found["gpus"]] == [("GPU-0", 0), ("GPU-2", 2)]
    assert (found["trouble"] or "").startswith(why)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ((), "NVIDIA's driver runs, and lists no GPU"),
        (("fail nvmlDeviceGetCount_v2 4", "device"), "GPUs may not be counted: this user may "),
    ],
)
def test_no_gpu_has_its_reason(
    fake: Fake, pynvml: ModuleType, lines: tuple[str, ...], why: str
) -> None:
    fake.write(*lines)
    found = nvidia.read(pynvml)

    assert found["gpus"] == []
    assert (found["trouble"] or "").startswith(why)


def test_nothing_is_ever_set(fake: Fake, pynvml: ModuleType) -> None:
    fake.write(*scenario(*PLAIN, "mig 2"))
    nvidia.read(pynvml)

    assert set(fake.calls()) & set(library.setters()) == set()
    assert fake.calls()[0] == "nvmlInitWithFlags"
    assert fake.calls()[-1] == "nvmlShutdown"


def test_the_child_process_prints_what_nvml_tells(fake: Fake) -> None:
    command = [sys.executable, "-m", "pytest_mlperf.hardware.nvidia"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=fake.environment, timeout=60
    )
    found: NvmlReport = json.loads(done.stdout)

    assert only(found)["identity"] == H200
    assert done.stderr == ""


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
