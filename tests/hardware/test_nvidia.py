"""GPUs are identified through NVML; what NVML does not tell is None, never a guess.

The real nvidia-ml-py runs here on a library whose GPUs and failures a scenario describes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from types import ModuleType

import pytest

from pytest_mlperf.core.case import NAME_PATTERN
from pytest_mlperf.hardware import nvidia
from pytest_mlperf.hardware.host import Property
from pytest_mlperf.hardware.nvidia import GpuState, NvmlReport
from pytest_mlperf.hardware.probe import hashed
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
SCENARIO = scenario(*PLAIN)


def only(nvml_report: NvmlReport) -> GpuState:
    assert nvml_report["trouble"] is None
    (gpu,) = nvml_report["gpus"]
    return gpu


def identity_of(fake: Fake, pynvml: ModuleType, lines: str) -> dict[str, Property]:
    """Return the identity of the plain GPU with more lines, which " | " separates."""
    rules = [line for line in lines.split(" | ") if line.startswith("fail ")]
    more = [line for line in lines.split(" | ") if line not in rules]
    fake.write(*rules, *scenario(*PLAIN, *more))
    return only(nvidia.read(pynvml))["identity"]


PROPERTIES: dict[str, dict[str, Property]] = {
    "name NVIDIA H100 PCIe": {"gpu": "NVIDIA H100 PCIe"},
    "mem 85899345920 0": {"memory_gib": 80},
    "pci 233010DE 16C110DE": {"pci_id": "2330:16c1"},
    "limit 502.4": {"power_limit_w": 500},
    "limit 502.6": {"power_limit_w": 505},
    "ecc 0 1": {"ecc": False},
    "ecc none": {"ecc": None},
    "mig -1": {"mig": None},
    "virtualization 1": {"virtualization": "passthrough"},
    "virtualization 2": {"virtualization": "vgpu"},
    "virtualization 9": {"virtualization": None},
    "module only": {"power_scope": "module"},
    "name NVIDIA GH200 480GB": {"gpu": "NVIDIA GH200 480GB", "power_scope": "module"},
    # Clocks are free unless someone set them.
    "event 0x1": {},
    "event 0x4": {},
    "event 0x2 sm=1500": {"clocks": 1500},
    "event 0x6 sm=1500": {"clocks": 1500},
    "application 1200 1980": {"clocks": 1200},
    "application 1980 1980": {},
    "application 1980 1980 | event 0x2 sm=1500": {"clocks": 1500},
    "application 1980 1980 | event 0x2 sm=1980": {},
    # A counter and a trace do not compare; a counter that is forbidden is neither.
    "energy none": {"energy": "trace"},
    "energy none | instant none": {"energy": None},
    "fail nvmlDeviceGetTotalEnergyConsumption 3": {},
    "fail nvmlDeviceGetTotalEnergyConsumption 4": {"energy": None},
}


def test_a_gpus_identity_is_what_changes_its_speed_or_its_energy(
    fake: Fake, pynvml: ModuleType
) -> None:
    """Power is rounded to 5 W; an unknown property is None alone.

    UUID and versions are left out.
    """
    gpu = only(nvidia.read(pynvml))
    assert (gpu["uuid"], gpu["parent"], gpu["address"], gpu["index"]) == ("GPU-0", "GPU-0", None, 0)
    expected = {lines: {**H200, **changed} for lines, changed in PROPERTIES.items()}
    for function, names in READS.items():
        for code in (3, 4, 13, 999):
            expected[f"fail {function} {code}"] = {**H200, **dict.fromkeys(names)}

    assert {line: identity_of(fake, pynvml, line) for line in expected} == expected


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


NONE = "device | nvlink none"
SWITCHED = "NV18 NVSwitch"


PATHS: dict[str, tuple[str, dict[str, str | None]]] = {
    "alone": ("device", {}),
    "switch": ("device | device | device", {"01 02 12": SWITCHED}),
    "a link down": (
        "device | device | nvlink 17 18 | device",
        {"02": SWITCHED, "01 12": "NV17 NVSwitch"},
    ),
    "bridge": (
        f"device | nvlink 4 4 to=1 | device | nvlink 4 4 to=0 | {NONE} | device | nvlink 0 12",
        {"01": "NV4", "02 03 12 13 23": "SYS"},
    ),
    "PCIe": (
        f"{NONE} | near 10 | {NONE} | near 10 | {NONE} | near 40",
        {"01": "PIX", "02 12": "NODE"},
    ),
    "no P2P": (f"{NONE} | {NONE} | near 20 p2p=4", {"01": "SYS, no P2P"}),
    "forbidden": (
        "fail nvmlDeviceGetNvLinkState 4 dev=1 | device | device | device",
        {"01 12": None, "02": SWITCHED},
    ),
    "untold": (f"fail nvmlDeviceGetTopo* 3 | {NONE} | {NONE}", {"01": None}),
    "old driver": ("fail nvmlDeviceGetNvLinkState 13 | device | device", {"01": "SYS"}),
    "P2P untold": ("fail nvmlDeviceGetP2PStatus 3 | device | device", {"01": SWITCHED}),
    "ends untold": ("fail nvmlDeviceGetNvLinkRemote* 3 | device | device", {"01": None}),
    "lost meanwhile": ("fail nvmlDeviceGetNvLinkRemote* 15 | device | device", {"01": None}),
    "a switch untold": (
        "fail nvmlDeviceGetNvLinkRemoteDeviceType 3 | device | device",
        {"01": None},
    ),
    "a GPU untold": (
        "fail nvmlDeviceGetNvLinkRemoteDeviceType 3 | device | nvlink 4 4 to=1 | "
        "device | nvlink 4 4 to=0",
        {"01": "NV4"},
    ),
}


def test_links_between_gpus_are_reported_by_pairs(fake: Fake, pynvml: ModuleType) -> None:
    for name, (lines, paths) in PATHS.items():
        fake.write(*lines.split(" | "))
        seen = {gpu["uuid"]: gpu["paths"] for gpu in nvidia.read(pynvml)["gpus"]}

        paths_by_pair = {
            f"{u[-1]}{v[-1]}": p for u, to in seen.items() for v, p in to.items() if u < v
        }
        assert paths_by_pair == {
            pair: path for pairs, path in paths.items() for pair in pairs.split()
        }, name
        assert all(seen[v][u] == path for u, to in seen.items() for v, path in to.items()), name


def test_unreadable_quantities_are_reported_before_a_run(fake: Fake, pynvml: ModuleType) -> None:
    """Doctor shows it; each quantity with what NVML answered."""
    ecc = {"ecc_corrected", "ecc_uncorrected"}
    expected: dict[str, set[str]] = {
        "device": set(),
        "device | nvlink none": {"nvlinks", "nvlink_bytes", "nvlink_errors"},
        "device | fabric 0 0": {"fabric_health"},
        "device | nvlink 0 18": {"nvlink_bytes", "nvlink_errors"},
        "fail nvmlDeviceGetTotalEccErrors 4 | device": ecc,
        "device | arch 10": set(),
        "fail field:138 3 | device | arch 9": {"nvlink_bytes"},
        "fail field:16* 3 | device | arch 9": set(),
    }
    unread_by_rules = {}
    for lines in expected:
        fake.write(*lines.split(" | "))
        (gpu,) = nvidia.read(pynvml)["gpus"]
        unread_by_rules[lines] = set(gpu["unread"])
        assert all(reason.endswith((" (3)", " (4)")) for reason in gpu["unread"].values())

    assert unread_by_rules == expected


def test_surroundings_are_shown_only_on_change(fake: Fake, pynvml: ModuleType) -> None:
    """Versions, link, settings and a hash of the card; unknown ones are left out."""
    lines = ["driver 580.95.05", "cuda 12090", *scenario(*PLAIN, "gsp 580.95.05")]
    fake.write(*lines)
    whole = only(nvidia.read(pynvml))["surroundings"]

    assert whole == {
        "driver": "580.95.05",
        "cuda": "12.9",
        "vbios": "96.00.A1",
        "gsp": "580.95.05",
        "pcie": "gen5 x16",
        "persistence": "on",
        "compute_mode": "default",
        "card": hashed("GPU-0"),
    }
    assert re.fullmatch(r"[0-9a-f]{8}", whole["card"])
    assert hashed("GPU-1") != hashed("GPU-0")
    for function, name in SHOWN.items():
        fake.write(f"fail {function} 4", *lines)
        state = only(nvidia.read(pynvml))
        assert state["surroundings"] == {n: value for n, value in whole.items() if n != name}
        assert state["identity"] == H200


SHOWN = {
    "nvmlSystemGetDriverVersion": "driver",
    "nvmlSystemGetCudaDriverVersion_v2": "cuda",
    "nvmlDeviceGetVbiosVersion": "vbios",
    "nvmlDeviceGetGspFirmwareVersion": "gsp",
    "nvmlDeviceGetMaxPcieLinkWidth": "pcie",
    "nvmlDeviceGetPersistenceMode": "persistence",
    "nvmlDeviceGetComputeMode": "compute_mode",
}


def test_a_gpu_with_mig_is_its_instances(fake: Fake, pynvml: ModuleType) -> None:
    """Each has a name and a profile; all else is of the GPU that they share. Nothing is set."""
    fake.write(*scenario(*PLAIN, "mig 2"), "device", *PLAIN)
    gpus = nvidia.read(pynvml)["gpus"]

    assert [(gpu["uuid"], gpu["index"], gpu["address"]) for gpu in gpus] == [
        ("MIG-0-0", 0, "MIG-GPU-0/1/0"),
        ("MIG-0-1", 0, "MIG-GPU-0/2/0"),
        ("GPU-1", 1, None),
    ]
    instance: dict[str, Property] = {"gpu": "NVIDIA H200 MIG 1g.18gb", "mig": "1g.18gb"}
    assert gpus[1]["identity"] == {**H200, **instance}
    assert {gpu["surroundings"]["card"] for gpu in gpus[:2]} == {hashed("GPU-0")}
    calls = fake.calls()
    assert set(calls) & set(library.setters()) == set()
    assert (calls[0], calls[-1]) == ("nvmlInitWithFlags", "nvmlShutdown")


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
    identity = {"gpu": "NVIDIA H200 MIG 1g.18gb", "memory_gib": 140, "mig": "1g.18gb"}
    still = {"clocks": "free", "virtualization": "none"}
    assert gpu["identity"] == {**dict.fromkeys(H200), **identity, **still}


def test_an_unreported_instance_never_counts_as_a_whole_gpu(fake: Fake, pynvml: ModuleType) -> None:
    """Nor one whose instances may not be listed; a GPU without any cannot be used."""
    for rule, uuid in (
        ("fail nvmlDeviceGetName 3 dev=100", "MIG-0-0"),
        ("fail nvmlDeviceGetMigDeviceHandleByIndex 4", "GPU-0"),
    ):
        fake.write(rule, *scenario(*PLAIN, "mig 1"))
        gpu = only(nvidia.read(pynvml))
        identity = gpu["identity"]
        assert (gpu["uuid"], identity["gpu"], identity["mig"]) == (uuid, "NVIDIA H200", True)
    for code in (6, 2):
        fake.write(f"fail nvmlDeviceGetMigDeviceHandleByIndex {code}", *scenario(*PLAIN, "mig 1"))
        trouble = "GPU 0: MIG is on, but there is no instance: create one, or turn MIG off"
        answer = nvidia.read(pynvml)
        assert (answer["gpus"], answer["trouble"]) == ([], trouble)


INSTANCES: dict[tuple[str, Property], str] = {
    ("NVIDIA H200", False): "H200",
    ("NVIDIA H200", None): "H200",
    ("NVIDIA H200", True): "H200_mig",
    ("NVIDIA H200 MIG 1g.18gb", "1g.18gb"): "H200_1g.18gb",
    ("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", "1c.3g.20gb"): "A100_1c.3g.20gb",
    ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", "1g.10gb+me"): "H100_1g.10gb_me",
    ("NVIDIA H100 80GB HBM3 MIG 1g.10gb-me", "1g.10gb-me"): "H100_1g.10gb_no_me",
    (
        "NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb+me.all",
        "1g.24gb+me.all",
    ): "RTX_PRO_6000_1g.24gb_me.all",
}


def test_products_and_instances_have_class_names_that_suites_may_use() -> None:
    """A legal accelerator of a suite, and a legal part of a case's id."""
    class_names = {known: nvidia.instance_class(*known) for known in INSTANCES}

    assert class_names == INSTANCES
    assert all(
        re.fullmatch(_ACCELERATOR, n) and NAME_PATTERN.fullmatch(n) for n in class_names.values()
    )
    classes = {name: {nvidia.accelerator_class(one) for one in PRODUCTS[name]} for name in PRODUCTS}
    assert classes == {name: {name} for name in PRODUCTS}


def test_garbage_is_unknown_in_an_identity_too(fake: Fake, pynvml: ModuleType) -> None:
    """No function reports a value that a board cannot have; an impossible limit is never set."""
    for blank in (2**32 - 1, 2**63 - 14):
        garbage_rules = [f"show {function} {blank}" for function in GARBAGE]
        fake.write(*garbage_rules, "device", "application 1500 1980")
        gpu = only(nvidia.read(pynvml))
        identity = gpu["identity"]
        assert identity["power_limit_w"] is None
        assert (identity["clocks"], identity["memory_gib"]) in {(None, 140), (None, None)}
        assert str(blank) not in json.dumps(gpu)
        assert "pcie" not in gpu["surroundings"]
        assert identity["ecc"] is None
    fake.write(f"show nvmlDeviceGetCount_v2 {2**32 - 1}", "device")
    assert nvidia.read(pynvml)["trouble"] == "GPUs cannot be counted: Unknown Error (999)"


GARBAGE = (
    "nvmlDeviceGetPower*",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetMax*",
    "nvmlDeviceGetCurr*",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetApplicationsClock",
    "nvmlDeviceGetDefaultApplicationsClock",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetTemperature*",
    "nvmlDeviceGetEccMode",
    "field:*",
)


def test_without_a_gpu_there_is_a_reason_and_one_that_is_broken_leaves_the_others(
    fake: Fake, pynvml: ModuleType
) -> None:
    for lines, reason in (
        ("fail nvmlInit* 9 | device", "NVIDIA's kernel driver is not loaded"),
        (
            "fail nvmlInit* 12 | device",
            "NVIDIA's library libnvidia-ml.so.1 was not found: no driver is installed, or ",
        ),
        ("fail nvmlInit* 18 | device", "NVIDIA's driver was upgraded, but the old one is still "),
        ("fail nvmlInit* 4 | device", "this user may not open NVIDIA's device files"),
        ("fail nvmlInit* 999 | device", "NVML does not start: "),
        ("", "NVIDIA's driver is loaded, but lists no GPU"),
        ("fail nvmlDeviceGetCount_v2 4 | device", "GPUs cannot be counted: this user may "),
    ):
        fake.write(*lines.split(" | "))
        answer = nvidia.read(pynvml)
        assert answer["gpus"] == []
        assert (answer["trouble"] or "").startswith(reason)

    for rule, reason in (
        (
            "nvmlDeviceGetHandleByIndex_v2 4 calls=2-2",
            "GPU 1 cannot be queried: this user may not open NVIDIA's device files",
        ),
        ("nvmlDeviceGetHandleByIndex_v2 15 calls=2-2", "GPU 1 cannot be queried: "),
        ("nvmlDeviceGetEccMode 15 dev=1", "GPU 1: "),
        ("nvmlDeviceGetUUID 999 dev=1", "GPU 1: it does not report its UUID"),
    ):
        fake.write(f"fail {rule}", *["device", *PLAIN] * 3)
        answer = nvidia.read(pynvml)
        gpus = [(gpu["uuid"], gpu["index"]) for gpu in answer["gpus"]]
        assert gpus == [("GPU-0", 0), ("GPU-2", 2)]
        assert (answer["trouble"] or "").startswith(reason)


def test_the_child_process_prints_the_report_of_nvml(fake: Fake) -> None:
    command = [sys.executable, "-m", "pytest_mlperf.hardware.nvidia"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=fake.environment, timeout=60
    )
    printed: NvmlReport = json.loads(done.stdout)

    assert only(printed)["identity"] == H200
    assert done.stderr == ""


PRODUCTS = {
    "H100": ["NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA H100 NVL"],
    "H200": ["NVIDIA H200"],
    "B200": ["NVIDIA B200"],
    "GH200": ["NVIDIA GH200 480GB"],
    "A100": ["NVIDIA A100-SXM4-80GB", "NVIDIA A100-PCIE-40GB"],
    "L40S": ["NVIDIA L40S"],
    "L4": ["NVIDIA L4"],
    "T4": ["Tesla T4"],
    "V100": ["Tesla V100-SXM2-16GB"],
    "RTX_4090": ["NVIDIA GeForce RTX 4090"],
    "RTX_PRO_6000": ["NVIDIA RTX PRO 6000 Blackwell Server Edition"],
    "A6000": ["NVIDIA RTX A6000"],
    "B300": ["NVIDIA B300 SXM6 AC"],
    "RTX_4090_D": ["NVIDIA GeForce RTX 4090 D"],
    "RTX_5090_D_v2": ["NVIDIA GeForce RTX 5090 D v2"],
    "RTX_4090_Laptop": ["NVIDIA GeForce RTX 4090 Laptop GPU"],
    "RTX_4080_SUPER": ["NVIDIA GeForce RTX 4080 SUPER"],
    "RTX_2080_Ti": ["NVIDIA GeForce RTX 2080 Ti"],
    "RTX_PRO_6000_Max_Q": ["NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"],
    "RTX_6000_Ada_Generation": ["NVIDIA RTX 6000 Ada Generation"],
    "P4000_with_Max_Q_Design": ["Quadro P4000 with Max-Q Design"],
    "A5000_Laptop": ["NVIDIA RTX A5000 Laptop GPU"],
    "A100_GRID_40C": ["GRID A100-40C"],
    "A40_48Q": ["NVIDIA A40-48Q"],
    "A100_4_20C": ["NVIDIA A100-4-20C"],
    "RTX_PRO_6000_DC_48Q": ["NVIDIA RTX PRO 6000 Blackwell DC-48Q"],
}
