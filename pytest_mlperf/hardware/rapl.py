"""Read energy counters of processors and memory (RAPL), if Linux permits it.

Intel's processors have them, and AMD's from Linux 5.8 on; the driver intel_rapl shows both in
/sys/class/powercap. Since 2020 only root may read them, because they leak the computations of other
users (CVE-2020-8694).
"""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pytest_mlperf.core.energy.host import Counted
from pytest_mlperf.core.energy.readings import Reading
from pytest_mlperf.hardware.probe import line_at

READING_PERIOD_SECONDS = 0.2
"""Time between readings; at 20 µs per file this uses 0.05 % of a core."""

POWERCAP_FOLDER = Path("/sys/class/powercap")


@dataclass(frozen=True, kw_only=True, slots=True)
class Domain:
    """Describe an energy counter: file [µJ], value range [J], and why it is unreadable."""

    name: str
    file: Path
    range_j: float = 0.0
    trouble: str | None = None

    def read_j(self) -> float:
        """Return the counter [J]; raise OSError or ValueError if it cannot be read."""
        return int(self.file.read_text("ascii")) / 1e6


def domains(folder: Path = POWERCAP_FOLDER) -> list[Domain]:
    """Return the energy counters of all CPU packages and of their memory (DRAM), sorted by name.

    Counters that would count energy twice are omitted: cores and graphics belong to a package,
    packages to the platform ("psys"), and intel-rapl-mmio repeats a package.
    """
    by_place = {}
    for zone in folder.glob("intel-rapl:*"):
        if re.fullmatch(r"intel-rapl:\d+(:\d+)?", zone.name):
            by_place[zone.name] = zone, line_at(zone / "name")
    counters = []
    for zone_name, (zone, name) in by_place.items():
        package = by_place.get(zone_name.rpartition(":")[0])
        if name.startswith("package"):
            counters.append(_domain(name, zone))
        elif name == "dram" and package:
            counters.append(_domain(f"{package[1]} dram", zone))
    return sorted(counters, key=lambda domain: domain.name)


def _domain(name: str, zone: Path) -> Domain:
    file = zone / "energy_uj"
    try:
        domain = Domain(
            name=name, file=file, range_j=float(line_at(zone / "max_energy_range_uj")) / 1e6
        )
        domain.read_j()
    except OSError as error:
        return Domain(name=name, file=file, trouble=error.strerror or str(error))
    except ValueError:
        return Domain(name=name, file=file, trouble="it holds no number")
    return domain


CLOCK_STEP_S = 0.02
"""Larger moves between the wall clock and the monotonic clock mean that it was set."""


def ahead_s() -> float:
    """Return how far the wall clock is ahead of the monotonic clock [s]."""
    return time.time() - time.monotonic()


class HostSampling:
    """Read a host's energy counters in a thread while the `with` block runs.

    Attributes:
        counted: Readings by counter name; empty if the host has no counter, one of them cannot be
            read (the sum would be too small), or the wall clock was set during the block.
    """

    def __init__(self, folder: Path = POWERCAP_FOLDER) -> None:
        self.counted: dict[str, Counted] = {}
        counters = domains(folder)
        self._domains = [] if any(domain.trouble for domain in counters) else counters
        self._readings: dict[str, list[Reading]] = {domain.name: [] for domain in self._domains}
        self._offset_s = ahead_s()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rapl", daemon=True)

    def __enter__(self) -> Self:
        if self._domains:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._domains:
            self._thread.join()
        if abs(ahead_s() - self._offset_s) > CLOCK_STEP_S:
            return
        self.counted = {
            domain.name: Counted(
                range_j=domain.range_j, readings=tuple(self._readings[domain.name])
            )
            for domain in self._domains
        }

    def _run(self) -> None:
        done = False
        while True:
            for domain in self._domains:
                try:
                    reading = Reading(time_s=time.time(), value=domain.read_j())
                except (OSError, ValueError):
                    continue  # a gap in the readings is judged later
                self._readings[domain.name].append(reading)
            if done:
                return
            done = self._stop.wait(READING_PERIOD_SECONDS)
