"""A CPU machine is known by its model, the cores it may use, and its governor."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_mlperf.cli.doctor._machine import int8_products
from pytest_mlperf.hardware import host as cpu

XEON = "processor\t: 0\nmodel name\t: Intel(R) Xeon(R)  Platinum 8480+\nflags\t: avx\n"
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\n"


def tree(root: Path, **files: str) -> Path:
    """Write files of /proc and /sys; "__" in a name stands for "/"."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("cpu/max", "cpu.max")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_model_name_or_the_architecture(tmp_path: Path) -> None:
    """Blanks are folded; a kernel that names no model leaves the architecture."""
    expected = {XEON: "Intel(R) Xeon(R) Platinum 8480+", ARM: os.uname().machine}
    expected[""] = os.uname().machine

    found = {info: cpu.identity(tree(tmp_path, proc__cpuinfo=info))["cpu"] for info in expected}
    assert found == expected


def test_int8_saturates_on_cpus_with_avx2_and_without_vnni(tmp_path: Path) -> None:
    """Older kernels add in 32 bits, and so do those of Arm."""
    for cpuinfo, saturates in {
        "flags\t: sse4_2 avx avx2 fma\nflags\t: sse4_2 avx avx2 fma\n": True,
        "flags\t: avx2 avx512f avx512bw\n": True,
        "flags\t: avx2 avx512f avx512_vnni\n": False,
        "flags\t: avx2 avx_vnni\n": False,
        XEON: False,
        "Features\t: fp asimd\n": False,
        "": False,
    }.items():
        root = tree(tmp_path, proc__cpuinfo=cpuinfo)
        assert cpu.int8_can_saturate(root) is saturates
        assert [check.state for check in int8_products(root)] == ["note"] * saturates


def test_cores_are_those_this_process_may_use_and_the_governor_is_part_of_the_identity(
    tmp_path: Path,
) -> None:
    """Affinity, cut by a container's quota."""
    affinity = len(os.sched_getaffinity(0))
    assert cpu.identity(tmp_path)["cores"] == affinity
    for quota, cores in {
        "max 100000": affinity,
        "50000 100000": 0.5,
        "99900000 100000": affinity,
        "nonsense": affinity,
    }.items():
        assert cpu.identity(tree(tmp_path, sys__fs__cgroup__cpu__max=quota))["cores"] == cores

    assert cpu.identity(tmp_path)["governor"] is None
    folder = tmp_path / "sys/devices/system/cpu/cpu0/cpufreq"
    folder.mkdir(parents=True)
    for text, governor in (("performance\n", "performance"), ("\n", None)):
        (folder / "scaling_governor").write_text(text)
        assert cpu.identity(tmp_path)["governor"] == governor
