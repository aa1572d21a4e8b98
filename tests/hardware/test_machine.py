"""Test that a machine has the GPUs that CUDA would show, with the identity of baselines.

NVML is asked in real child processes, on a library whose GPUs a scenario describes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mlperf.hardware.host import Property
from pytest_mlperf.hardware.machine import Machine, Share, ask_nvml, detect, nearest, split
from pytest_mlperf.hardware.probe import hashed
from tests.nvml.library import SONAME, Fake

pytestmark = pytest.mark.process

HOST = {"kernel": "6.8.0", "python": "CPython 3.11.7"}
CPU: dict[str, Property] = {"cpu": "Testium 9000", "cores": 8, "governor": "performance"}


def gpu(number: int, **more: Property) -> dict[str, Property]:
    plain: dict[str, Property] = {"gpu": "NVIDIA H200", "mig": False, "power_limit_w": 700}
    return {"uuid": f"GPU-{number}", **plain, **more}


def machine(
    *gpus: Mapping[str, Property], cards: Mapping[str, Mapping[str, str]] | None = None
) -> Machine:
    return Machine(cpu=CPU, gpus=gpus, host=HOST, cards=cards or {})


EIGHT = machine(*(gpu(9 - index) for index in range(8)))
NONE = machine()
SLICED = machine(
    gpu(0),
    gpu(1, uuid="MIG-0", gpu="NVIDIA H200 MIG 1g.18gb", mig="1g.18gb"),
    gpu(1, uuid="MIG-1", gpu="NVIDIA H200 MIG 1g.18gb", mig="1g.18gb"),
)

NUMBERED = machine(gpu(7, index=3), gpu(5, index=1))
"""As CUDA_VISIBLE_DEVICES=3,1 leaves two of four."""


def test_an_accelerator_is_here_when_enough_of_its_class_are() -> None:
    """The CPU always is; two MIG instances never are one accelerator, as CUDA shows but one."""
    accelerators = ["cpu", "H200", "2xH200", "8xH200", "9xH200", "H100"]
    accelerators += ["H200_1g.18gb", "2xH200_1g.18gb", "H200_2g.35gb"]
    expected = {
        "cpu": (NONE, ["cpu"]),
        "8xH200, cpu": (EIGHT, accelerators[:4]),
        "H200, 2xH200_1g.18gb, cpu": (SLICED, ["cpu", "H200", "H200_1g.18gb"]),
    }
    for names, (here, accelerators_here) in expected.items():
        assert here.names == names
        assert [name for name in accelerators if here.has(name)] == accelerators_here
    assert SLICED.classes == Counter({"H200": 1, "H200_1g.18gb": 2})
    assert [split(name) for name in ("8xH100", "2xH200_1g.18gb")] == [
        (8, "H100"),
        (2, "H200_1g.18gb"),
    ]


def test_an_identity_is_that_of_the_gpus_that_are_used() -> None:
    """Their count is part of it, their UUIDs are not, and links matter to several only."""
    identity: dict[str, Property] = {"gpu": "NVIDIA H200", "mig": False, "power_limit_w": 700}
    profile: dict[str, Property] = {"gpu": "NVIDIA H200 MIG 1g.18gb", "mig": "1g.18gb"}

    assert EIGHT.identity("H200") == {"gpus": 1, **identity}
    assert EIGHT.identity("2xH200") == {"gpus": 2, **identity, "topology": None}
    assert NUMBERED.identity("2xH200") == EIGHT.identity("2xH200")
    assert EIGHT.identity("cpu") == CPU
    assert SLICED.identity("H200_1g.18gb") == {"gpus": 1, **identity, **profile}

    shared = replace(EIGHT, shared=True)
    assert shared.identity("H200") == {**EIGHT.identity("H200"), "shared_host": True}
    assert shared.identity("cpu") == EIGHT.identity("cpu")
    assert EIGHT.with_identity(shared.identity("H200")) == shared
    assert shared.with_identity(EIGHT.identity("H200")) == EIGHT


def test_gpus_are_shared_out_in_their_order_and_named_with_place_and_replica() -> None:
    """Each process sees its own GPUs by their numbers, and no other."""
    here = machine(*(gpu(number, index=number) for number in range(8)))
    shares = here.shares("8xH200", 4)
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert shares[3] == Share(
        gpus=("GPU-6", "GPU-7"),
        title="GPU 6, GPU 7",
        environment={"CUDA_VISIBLE_DEVICES": "6,7", **order},
    )
    assert [share.gpus for share in EIGHT.shares("2xH200", 2)] == [("GPU-9",), ("GPU-8",)]
    assert EIGHT.shares("H200", 1)[0].title == "GPU GPU-9"

    numbered = machine(*(gpu(n, index=n + 4, bus=f"0000:0{n}:00.0") for n in range(4)))
    unnumbered = machine(gpu(0, index=None, bus=None))
    used = numbered.used("4xH200", replicas=2)
    assert [one.name for one in used.values()] == ["GPU 4", "GPU 5", "GPU 6", "GPU 7"]
    assert used["GPU-2"].title == "GPU 6 (GPU-2, PCI 0000:02:00.0) of replica 1"
    assert used["GPU-2"].limit_w == 700
    assert unnumbered.used("H200")["GPU-0"].title == "GPU GPU-0"
    assert machine().used("cpu") == {}


def test_processors_are_shared_out_and_near_a_gpu_those_that_the_kernel_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 4, 8, 9})
    assert [share.cpus for share in NONE.shares("cpu", 2)] == [(1, 2), (4, 8)]
    assert [share.cpus for share in NONE.shares("cpu", 9)] == [()] * 9

    for bus, cpus in (("0000:3b:00.0", "0-2,8\n"), ("0000:af:00.0", "4\n")):
        folder = tmp_path / "sys/bus/pci/devices" / bus
        folder.mkdir(parents=True)
        (folder / "local_cpulist").write_text(cpus)
    assert nearest(["0000:3b:00.0"], tmp_path) == (1, 2, 8)
    assert nearest(["0000:3b:00.0", "0000:af:00.0"], tmp_path) == (1, 2, 4, 8)
    assert nearest(["0000:3b:00.0", None], tmp_path) == ()


def test_gpus_that_differ_are_not_passed_off_as_equal() -> None:
    """One capped GPU of two gives an identity of its own, whichever of them comes first."""
    for second, value in (
        (gpu(1, power_limit_w=500), "500, 700"),
        (gpu(1, power_limit_w=None), "700, None"),
        (gpu(1), 700),
    ):
        assert machine(gpu(0), second).identity("2xH200")["power_limit_w"] == value
        assert machine(second, gpu(0)).identity("2xH200")["power_limit_w"] == value

    gpus = [gpu(n, index=n, bus=f"0000:0{n}:00.0", ecc=True) for n in range(4)]
    cards = {f"GPU-{n}": {"vbios": "96.00", "card": f"{n}"} for n in range(4)}
    gpus[2] |= {"power_limit_w": 500, "ecc": None}
    cards["GPU-3"]["vbios"] = "97.00"
    here = machine(*gpus, cards=cards)
    assert here.differing("2xH200") == here.differing("cpu") == []
    assert here.differing("4xH200") == [
        "power_limit_w is 700, 500 on GPU 2",
        "ecc is True, None on GPU 2",
        "vbios is 96.00, 97.00 on GPU 3",
    ]


def test_how_several_gpus_reach_each_other_is_part_of_their_identity() -> None:
    """A box with NVSwitch has no baseline of one with PCIe; of one GPU it says nothing."""
    switch = "NV18 NVSwitch"
    tables: list[tuple[dict[str, str | None], str | None]] = [
        ({"01": switch, "02": switch, "12": switch}, switch),
        ({"01": "NV4", "02": "SYS", "12": "SYS"}, "1 x NV4; 2 x SYS"),
        ({"01": "NV4", "02": None, "12": "SYS"}, None),
        ({}, None),
    ]
    for paths, topology in tables:
        by_gpu: dict[str, dict[str, str | None]] = {f"GPU-{n}": {} for n in range(3)}
        for pair, path in paths.items():
            first, second = (f"GPU-{number}" for number in pair)
            by_gpu[first][second] = by_gpu[second][first] = path
        here = replace(machine(gpu(0), gpu(1), gpu(2)), paths=by_gpu)

        assert here.identity("3xH200")["topology"] == topology
        assert here.identity("2xH200")["topology"] == paths.get("01")
        assert "topology" not in here.identity("H200")


def test_leases_go_by_uuid_sorted_and_a_pretended_accelerator_equals_no_baseline() -> None:
    """Any GPU of the class will do; a pretended one has the lease of the CPU."""
    assert EIGHT.leases("2xH200") == ["GPU-8", "GPU-9"]
    assert EIGHT.leases("cpu") == ["cpu"]
    assert EIGHT.matching_gpus("2xH200") == [f"GPU-{n}" for n in range(9, 1, -1)]
    assert (
        EIGHT.matching_gpus("9xH200")
        == EIGHT.matching_gpus("cpu")
        == EIGHT.matching_gpus("H100")
        == []
    )

    two = EIGHT.only("2xH200", ("GPU-5", "GPU-3"))
    assert two.uuids("2xH200") == ["GPU-5", "GPU-3"]
    assert not two.has("3xH200")
    assert NONE.identity("H200") == {"pretended": "H200"}
    assert NONE.leases("H200") == ["cpu"]
    assert NONE.uuids("H200") == []
    assert NONE.environment("H200") == {}
    assert NONE.surroundings("H200") == NONE.surroundings("cpu")


def test_a_process_is_shown_the_gpus_it_is_to_use_and_surroundings_are_flat_text() -> None:
    """A GPU case also has its host's CPU, which for a CPU case is the identity."""
    assert EIGHT.environment("cpu") == {}
    for here, accelerator, devices in (
        (EIGHT, "H200", "GPU-9"),
        (EIGHT, "2xH200", "GPU-9,GPU-8"),
        (SLICED, "H200_1g.18gb", "MIG-0"),
        (NUMBERED, "H200", "3"),
        (NUMBERED, "2xH200", "3,1"),
        (machine(gpu(0, index=0), gpu(1, index=None)), "2xH200", "GPU-0,GPU-1"),
    ):
        assert here.environment(accelerator) == {
            "CUDA_VISIBLE_DEVICES": devices,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        }

    cards = {
        "GPU-0": {"driver": "580.95", "vbios": "96.00", "card": "0a"},
        "GPU-1": {"driver": "580.95", "vbios": "97.00", "card": "0b"},
        "GPU-2": {"driver": "580.95", "vbios": "99.00", "card": "0c"},
    }
    here = machine(gpu(1), gpu(0), gpu(2), cards=cards)
    host = {"machine.kernel": "6.8.0", "machine.python": "CPython 3.11.7"}
    assert here.surroundings("cpu") == host
    assert here.surroundings("2xH200") == {
        **host,
        "machine.card": "0a, 0b",
        "machine.cpu": "Testium 9000",
        "machine.driver": "580.95",
        "machine.governor": "performance",
        "machine.vbios": "96.00, 97.00",
    }
    assert set(here.surroundings("2xH200")) & set(here.identity("2xH200")) == set()


TWO = ("device", "mig 0", "device", "mig 0", "limit 500")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake_gpu = Fake(tmp_path)
    fake_gpu.write(*TWO)
    for name in ("LD_LIBRARY_PATH", "FAKE_NVML_SCENARIO"):
        monkeypatch.setenv(name, fake_gpu.environment[name])
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    return fake_gpu


def look() -> Machine:
    """Detect the machine again, without the cache."""
    return detect.__wrapped__(gpus=True)


def test_a_machine_is_looked_at_through_a_child(fake: Fake) -> None:
    """Identity, links and versions of each GPU; for the CPU no NVML is needed."""
    cpu = detect.__wrapped__(gpus=False)
    assert (cpu.gpus, cpu.nvml_trouble, fake.log.exists()) == ((), None, False)
    assert cpu.surroundings("cpu")["machine.python"]

    machine_seen = look()
    assert (machine_seen.names, machine_seen.nvml_trouble) == ("2xH200, cpu", None)
    assert machine_seen.identity("H200")["power_limit_w"] == 700
    assert machine_seen.identity("2xH200")["power_limit_w"] == "500, 700"
    assert machine_seen.identity("2xH200")["topology"] == "NV18 NVSwitch"
    surroundings = machine_seen.surroundings("H200")
    assert (surroundings["machine.driver"], surroundings["machine.cuda"]) == ("595.45.04", "13.0")
    assert surroundings["machine.card"] == hashed("GPU-0")
    code = "import sys; from pytest_mlperf.hardware.machine import detect; detect(gpus=True);"
    code += "assert 'pynvml' not in sys.modules and 'ctypes' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_only_visible_gpus_are_here(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """And when one is not, that is the reason: CUDA stops at an entry that names none."""
    some, nothing = "leaves 1 of 2 GPUs visible", "leaves none of 2 GPUs visible"
    for value, uuids, trouble in (
        ("1", ["GPU-1"], some),
        ("1,0", ["GPU-1", "GPU-0"], None),
        ("GPU-1", ["GPU-1"], some),
        ("1,9,0", ["GPU-1"], some),
        ("", [], nothing),
        ("7", [], nothing),
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        machine_seen = look()
        assert [gpu["uuid"] for gpu in machine_seen.gpus] == uuids
        assert machine_seen.uuids("H200") == uuids[:1]
        assert list(machine_seen.cards) == uuids
        assert machine_seen.nvml_trouble == (
            trouble and f"CUDA_VISIBLE_DEVICES={value!r} {trouble}"
        )


def test_a_worker_gets_the_number_that_the_driver_counts(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1")
    machine_seen = look()
    assert machine_seen.environment("H200") == {
        "CUDA_VISIBLE_DEVICES": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    assert machine_seen.leases("H200") == machine_seen.uuids("H200") == ["GPU-1"]
    assert "index" not in machine_seen.identity("H200")

    fake.write("device", "mig 2", "device", "mig 0")
    assert look().environment("H200")["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    fake.write("fail nvmlDeviceGetUUID 999 dev=0", "device", "mig 0", "device", "mig 0")
    assert look().nvml_trouble
    assert look().environment("H200")["CUDA_VISIBLE_DEVICES"] == "GPU-1"


def test_a_number_that_may_mean_another_gpu_is_not_guessed(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instances are classes of their own, named by their address."""
    fake.write("device", "name NVIDIA A100-PCIE-40GB", "device", "mig 2")
    assert look().names == "A100, 2xH200_1g.18gb, cpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-GPU-1/2/0")
    machine_seen = look()
    assert machine_seen.environment("H200_1g.18gb")["CUDA_VISIBLE_DEVICES"] == "MIG-1-1"
    assert machine_seen.identity("H200_1g.18gb")["mig"] == "1g.18gb"

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    machine_seen = look()
    assert machine_seen.gpus == ()
    assert "for different products (NVIDIA A100-PCIE-40GB, NVIDIA H200)" in (
        machine_seen.nvml_trouble or ""
    )
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert look().names == "A100, cpu"


CRASH = "int nvmlInitWithFlags(unsigned flags) { return *(volatile int *)0; }\n"


def test_a_library_that_crashes_counts_as_no_gpu(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "crash.c").write_text(CRASH)
    compiler = shutil.which("cc")
    assert compiler is not None
    library = ["-shared", "-fPIC", f"-Wl,-soname,{SONAME}", "-o", str(tmp_path / SONAME)]
    subprocess.run([compiler, *library, str(tmp_path / "crash.c")], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    machine_seen = look()

    assert machine_seen.names == "cpu"
    assert machine_seen.nvml_trouble == (
        "NVIDIA's library crashed when it was asked for GPUs: Segmentation fault"
    )


def test_a_driver_that_fails_or_hangs_counts_as_no_gpu_with_a_reason(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for rules, trouble in (
        (["fail nvmlInit* 9"], "NVIDIA's kernel driver is not loaded"),
        (["fail nvmlInit* 18"], "NVIDIA's driver was upgraded, but the old one is still loaded"),
        (
            ["latency nvmlInitWithFlags 900000", "latency nvmlDeviceGet* 900000"],
            "NVIDIA's driver did not answer within 1 s: see dmesg, or reboot",
        ),
    ):
        fake.write(*rules, *TWO)
        answer = ask_nvml(limit_s=1 if "latency" in rules[0] else 60)
        assert answer["gpus"] == []
        assert (answer["trouble"] or "").startswith(trouble)

    (tmp_path / SONAME).write_text("no library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert look().names == "cpu"
    assert "libnvidia-ml.so.1 was not found" in (look().nvml_trouble or "")


def test_a_child_that_cannot_run_or_has_no_binding_says_its_last_word(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the last case a module of the standard library is hidden by one that is broken."""
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    for module, text, trouble in (
        (
            "pynvml",
            "raise ImportError('no pynvml')\n",
            "NVIDIA's binding: no pynvml; pip install 'pytest-mlperf[loadgen]'",
        ),
        ("pynvml", "nvmlInit = None\n", "is not nvidia-ml-py 12.575.51 or newer"),
        (
            "hashlib",
            "raise RuntimeError('nothing works here')\n",
            "NVML could not be queried: RuntimeError: nothing works here",
        ),
    ):
        (tmp_path / f"{module}.py").write_text(text)
        assert trouble in (ask_nvml()["trouble"] or "")


def test_machines_and_gpus_are_distinguished_without_their_names() -> None:
    """Without an id of systemd and without GPUs nothing is known."""
    gpus = ({"uuid": "GPU-1", "gpu": "NVIDIA H200"}, {"uuid": "GPU-2", "gpu": "NVIDIA H200"})
    here = Machine(cpu={}, gpus=gpus, machine_id="0123456789abcdef")
    first, *cards = here.hashes("2xH200").split()

    assert len({first, *cards}) == 3
    assert here.hashes("cpu") == first
    assert replace(here, machine_id="").hashes("2xH200") == " ".join(cards)
    assert replace(here, machine_id="0123456789abcde0").hashes("cpu") != first
    assert Machine(cpu={}).hashes("cpu") == ""
    assert not {"GPU-1", "0123456789abcdef"} & {first, *cards}
