"""Define physically possible sensor readings, because drivers also report garbage."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

BOUNDS: Mapping[str, tuple[float, float]] = {
    # A power of 0 is an error; the largest module (GB200, two GPUs and a CPU) takes 2,700 W.
    **dict.fromkeys(("power_w", "average_w", "limit_w", "default_limit_w"), (1e-3, 1e4)),
    "limit_range_mw": (0, 1e7),
    "package_w": (0, 2000),  # of a processor, or of its memory
    "wall_w": (0, 1e7),  # a hundred racks of 100 kW
    "energy_j": (0, 1e11),  # 700 W for 4.5 years; DCGM's 2^47 mJ are more
    "utilization_percent": (0, 100),
    # No GPU has run at 4 GHz; GDDR7 reports up to 17 GHz.
    **dict.fromkeys(("sm_mhz", "max_sm_mhz"), (1, 5e3)),
    **dict.fromkeys(("memory_mhz", "max_memory_mhz"), (1, 5e4)),
    # Silicon is specified up to 125 °C and shuts down above; 0 and -1 are blanks.
    **dict.fromkeys(("temperature_c", "memory_temperature_c", "slowdown_c"), (1, 150)),
    "pstate": (0, 15),  # NVML's 32 is "unknown"
    "memory_used": (0, 2**42),  # boards of 2026 have 288 GB
    "memory_gib": (0, 2**12),
    **dict.fromkeys(("pcie_generation", "max_pcie_generation"), (1, 8)),  # PCI-SIG has announced 8
    **dict.fromkeys(("pcie_width", "max_pcie_width"), (1, 32)),  # PCI Express Base: x32 at most
    # Error counts since the driver was loaded: below 2^30, the smallest blank.
    **dict.fromkeys(("ecc_uncorrected", "ecc_corrected"), (0, 1e9)),
    **dict.fromkeys(("pcie_replays", "nvlink_errors"), (0, 1e9)),
    "throttle_ns": (0, 3.2e17),  # ten years
    "nvlink_bytes": (0, 2**63),  # half of a counter's 64 bits
    "xids": (1, 2**16),  # NVIDIA's list ends below 200
    "reasons": (0, 2**24 - 1),  # NVML defines 11 bits; all ones are a blank
    "architecture": (0, 255),
    **dict.fromkeys(("ecc", "mig", "persistence"), (0, 1)),  # modes: present, and after a restart
    "gpus": (0, 4096),
}
"""Lowest and highest reading of each quantity, in the unit of its name."""


def plausible_reading(quantity: str, reading: Any, most: float = math.inf) -> Any:
    """Return a sensor's reading; None if it is impossible for the quantity, or above `most`.

    Impossible values are dropped from a mapping; one in a list makes the whole list None.
    """
    if quantity not in BOUNDS:
        return reading
    if isinstance(reading, Mapping):
        parts = {key: plausible_reading(quantity, value, most) for key, value in reading.items()}
        return {key: value for key, value in parts.items() if value is not None}
    if isinstance(reading, list):
        return (
            None if None in (plausible_reading(quantity, one, most) for one in reading) else reading
        )
    if not isinstance(reading, int | float):
        return reading
    lowest, highest = BOUNDS[quantity]
    return reading if lowest <= reading <= min(highest, most) else None
