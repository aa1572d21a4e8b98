"""What is known of a GPU's power sensor by the GPU's name and architecture."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pytest_mlperf.hardware.nvml_probe import Probe

Property = str | int | float | bool | list[int] | list[float] | None
"""What a GPU says of itself."""

AMPERE = 7
"""As NVML numbers architectures."""


def covers(found: Mapping[str, Property]) -> bool:
    """Whether the power sensor is known to see all of the time, so that its trace is a witness.

    That of GA10x is; those of Volta, GA100 and Hopper see a quarter to a half of it, and of others
    it is not known.
    """
    return found["architecture"] == AMPERE and not ga100(found)


def averages(found: Mapping[str, Property]) -> bool:
    """Whether the quantity average_w is a mean of the last second, not once more that of a moment.

    It is on Ampere, but for GA100, and later.
    """
    architecture = found["architecture"]
    recent = isinstance(architecture, int) and architecture >= AMPERE
    return recent and not ga100(found)


def scope(found: Mapping[str, Property], probe: Probe) -> str:
    """Return "module" where power or energy are those of GPU, CPU and memory together."""
    return "module" if "module" in (probe.way or "") or grace(found) else "gpu"


def grace(found: Mapping[str, Property]) -> bool:
    """Whether it shares a module with a CPU, whose energy counter counts both."""
    return re.search(r"\bG[HB]\d", str(found["name"])) is not None


def ga100(found: Mapping[str, Property]) -> bool:
    """Whether it is the large chip of Ampere, whose power sensor is another."""
    return re.search(r"\bA(100|800|30)\b", str(found["name"])) is not None
