"""The host's own counters: which count, which count something twice, and who may read them."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from pytest_mlperf.cli.doctor._machine import host_energy as doctor
from pytest_mlperf.hardware import rapl
from pytest_mlperf.hardware.rapl import HostSampling, domains

RANGE_UJ = 65_532_610_987


def zones(folder: Path, **named: str) -> Path:
    """Write zones as the kernel has them: intel_rapl_0_1="dram" is intel-rapl:0:1."""
    for key, name in named.items():
        zone = folder / key.replace("intel_rapl_mmio_", "intel-rapl-mmio:").replace(
            "intel_rapl_", "intel-rapl:"
        ).replace("_", ":")
        zone.mkdir(parents=True)
        (zone / "name").write_text(f"{name}\n")
        (zone / "energy_uj").write_text("1000000\n")
        (zone / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    return folder


INTEL = {
    "intel_rapl_0": "package-0",
    "intel_rapl_0_0": "core",
    "intel_rapl_0_1": "dram",
    "intel_rapl_1": "package-1",
    "intel_rapl_1_0": "dram",
    "intel_rapl_2": "psys",
    "intel_rapl_mmio_0": "package-0",
}


def test_packages_and_their_memory_count_and_nothing_twice(tmp_path: Path) -> None:
    """AMD's packages are shown by the same driver."""
    here = domains(zones(tmp_path / "intel", **INTEL))
    amd = zones(tmp_path / "amd", intel_rapl_0="package-0", intel_rapl_0_0="core")
    names = ["package-0", "package-0 dram", "package-1", "package-1 dram"]
    check = doctor(tmp_path / "intel")

    assert [domain.name for domain in here] == names
    assert {domain.range_j for domain in here} == {RANGE_UJ / 1e6}
    assert [domain.read_j() for domain in here] == [1.0] * 4
    assert (check.state, check.text) == ("ok", f"RAPL of {', '.join(names)}")
    assert [domain.name for domain in domains(amd)] == ["package-0"]


def test_counters_are_read_until_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the wall clock, as LoadGen's window is; one that was set leaves the energy unknown."""
    monkeypatch.setattr(rapl, "READING_PERIOD_SECONDS", 0.01)
    folder = zones(tmp_path, intel_rapl_0="package-0")
    began_s = time.time()
    with HostSampling(folder) as sampling:
        (folder / "intel-rapl:0" / "energy_uj").write_text("2000000\n")
    (counted,) = sampling.counted.values()

    assert counted.range_j == RANGE_UJ / 1e6
    assert counted.readings[-1].value == 2.0
    assert began_s <= counted.readings[0].time_s <= counted.readings[-1].time_s <= time.time()
    ahead = iter([100.0, 103.0])
    monkeypatch.setattr(rapl, "ahead_s", lambda: next(ahead))
    with HostSampling(folder) as sampling:
        pass
    assert sampling.counted == {}


def test_a_sum_never_lacks_a_part_and_a_host_without_counters_has_none(tmp_path: Path) -> None:
    """One counter that cannot be read leaves the whole unknown, and doctor says which."""
    folder = zones(tmp_path, intel_rapl_0="package-0", intel_rapl_1="package-1")
    for content in ("", "no number\n"):
        (folder / "intel-rapl:1" / "energy_uj").write_text(content)
        with HostSampling(folder) as sampling:
            pass
        check = doctor(folder)

        assert sampling.counted == {}
        assert (check.state, check.name) == ("note", "host energy")
        assert check.text.startswith("RAPL of package-1 cannot be read: ")

    with HostSampling(tmp_path / "absent") as sampling:
        pass
    assert domains(tmp_path / "absent") == []
    assert sampling.counted == {}
    assert doctor(tmp_path / "absent").state == "missing"


def test_counters_reserved_for_root_are_reported_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's refusal, in place of the file's mode, which root may read whatever it is."""
    folder = zones(tmp_path, intel_rapl_0="package-0")
    read = Path.read_text

    def refused(file: Path, encoding: str, errors: str = "strict") -> str:
        if file.name == "energy_uj":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
        return read(file, encoding, errors)

    monkeypatch.setattr(Path, "read_text", refused)
    check = doctor(folder)

    assert check.text == (
        f"RAPL of package-0 cannot be read: {folder}/intel-rapl:0/energy_uj: Permission denied"
    )
    assert check.do.startswith("for permissions, at each boot: sudo chmod a+r ")
