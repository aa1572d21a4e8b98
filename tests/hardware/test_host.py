"""Test the identity of a CPU machine: model, cores and governor.

Other influences on speed are read if Linux reports them.
"""

from __future__ import annotations

import getpass
import os
import platform
from pathlib import Path

from pytest_mlperf.cli.doctor._machine import int8_products
from pytest_mlperf.hardware import host

CPU = "sys/devices/system/cpu"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


NODES = {
    "sys/devices/system/node/node0/cpulist": "0-3\n",
    "sys/devices/system/node/node1/cpulist": "4-7\n",
}

READINGS: list[tuple[dict[str, str], str, str | None]] = [
    ({"proc/sys/kernel/osrelease": "6.8.0-45-generic\n"}, "kernel", "6.8.0-45-generic"),
    (
        {"proc/cpuinfo": "processor : 0\nmicrocode\t: 0x2b000603\n\nmicrocode : 0x1\n"},
        "microcode",
        "0x2b000603",
    ),
    ({"proc/cpuinfo": "processor : 0\nmodel name : ARM\n"}, "microcode", None),
    ({f"{CPU}/smt/active": "1\n"}, "smt", "on"),
    ({f"{CPU}/smt/active": "0\n"}, "smt", "off"),
    ({f"{CPU}/smt/active": "notsupported\n"}, "smt", None),
    ({f"{CPU}/cpufreq/boost": "1\n"}, "boost", "on"),
    ({f"{CPU}/cpufreq/boost": "0\n"}, "boost", "off"),
    ({f"{CPU}/intel_pstate/no_turbo": "0\n"}, "boost", "on"),
    ({f"{CPU}/intel_pstate/no_turbo": "1\n", f"{CPU}/cpufreq/boost": "1\n"}, "boost", "off"),
    ({"sys/devices/system/node/node0/cpulist": "0-3\n"}, "numa", "1 node"),
    (
        {
            **NODES,
            "sys/devices/system/node/online": "0-1\n",
            "proc/sys/kernel/numa_balancing": "1\n",
        },
        "numa",
        "2 nodes, balancing on",
    ),
    (NODES, "numa", "2 nodes"),
]


def test_each_is_read_where_linux_tells_it(tmp_path: Path) -> None:
    """A kernel that names no model leaves the architecture."""
    values = [
        (files, name, host.read(tree(tmp_path / str(number), files), {}).get(name))
        for number, (files, name, _) in enumerate(READINGS)
    ]
    assert values == READINGS

    expected = {XEON: "Intel(R) Xeon(R) Platinum 8480+", ARM: os.uname().machine}
    expected[""] = os.uname().machine
    cpus = {info: host.identity(tree(tmp_path, {"proc/cpuinfo": info}))["cpu"] for info in expected}
    assert cpus == expected


PODMAN = """engine="podman-5.2.0"
name="alice_workbench"
id="6b1f"
image="registry.example/alice/bench:24.08"
imageid="0123456789abcdef0123"
rootless=1
"""


CONTAINERS: list[tuple[dict[str, str], dict[str, str], str | None]] = [
    ({}, {}, None),
    ({".dockerenv": ""}, {}, "docker"),
    ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
    ({"run/.containerenv": ""}, {"container": "podman"}, "podman"),
    ({"run/.containerenv": PODMAN}, {"container": "podman"}, "bench:24.08@0123456789ab"),
    ({"run/.containerenv": 'image="localhost/bench"\n'}, {}, "bench"),
    ({}, {"container": "lxc"}, "lxc"),
    ({"run/systemd/container": "systemd-nspawn\n"}, {}, "systemd-nspawn"),
    ({}, {"APPTAINER_CONTAINER": "/home/alice/bench.sif"}, "bench.sif"),
    ({}, {"SINGULARITY_CONTAINER": "/home/alice/bench.sif"}, "bench.sif"),
]


def test_a_container_is_known_by_its_image_else_by_its_kind(tmp_path: Path) -> None:
    """Never by what names a host, a user or the very container."""
    containers = []
    for number, (files, environ, _) in enumerate(CONTAINERS):
        root = tree(tmp_path / str(number), files)
        containers.append((files, environ, host.read(root, environ).get("container")))

    assert containers == CONTAINERS


def test_this_machine_is_read_without_naming_its_host_or_its_user(tmp_path: Path) -> None:
    facts = host.read()
    assert facts["python"].endswith(platform.python_version())
    assert set(facts) <= {"kernel", "microcode", "smt", "boost", "numa", "container", "python"}
    # A name as short as "root" or "vm" may be part of anything.
    names = {os.uname().nodename, os.environ.get("USER") or getpass.getuser()}
    assert not [n for n in names for value in facts.values() if len(n) > 4 and n in value]

    facts = host.read(tmp_path, {})
    assert facts == {"python": f"{platform.python_implementation()} {platform.python_version()}"}


XEON = "processor\t: 0\nmodel name\t: Intel(R) Xeon(R)  Platinum 8480+\nflags\t: avx\n"
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\n"


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
        root = tree(tmp_path, {"proc/cpuinfo": cpuinfo})
        assert host.int8_can_saturate(root) is saturates
        assert [check.state for check in int8_products(root)] == ["note"] * saturates


def test_cores_are_those_this_process_may_use_and_the_governor_is_part_of_the_identity(
    tmp_path: Path,
) -> None:
    """Affinity, cut by a container's quota."""
    affinity = len(os.sched_getaffinity(0))
    assert host.identity(tmp_path)["cores"] == affinity
    for quota, cores in {
        "max 100000": affinity,
        "50000 100000": 0.5,
        "99900000 100000": affinity,
        "nonsense": affinity,
    }.items():
        assert host.identity(tree(tmp_path, {"sys/fs/cgroup/cpu.max": quota}))["cores"] == cores
    assert host.identity(tmp_path)["governor"] is None
    folder = tmp_path / "sys/devices/system/cpu/cpu0/cpufreq"
    folder.mkdir(parents=True)
    for text, governor in (("performance\n", "performance"), ("\n", None)):
        (folder / "scaling_governor").write_text(text)
        assert host.identity(tmp_path)["governor"] == governor
