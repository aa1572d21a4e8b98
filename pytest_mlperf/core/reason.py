"""Why a run is INVALID: a key to decide by, and words to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Key(StrEnum):
    """What made a run INVALID; results files hold these words, so that none ever changes."""

    LOADGEN = "loadgen"
    NO_RATE = "no_rate"
    GPU_LOST = "gpu_lost"
    GPU_UNUSED = "gpu_unused"
    IN_USE_BEFORE = "in_use_before"
    USED_BY_OTHERS = "used_by_others"
    ECC_UNCORRECTED = "ecc_uncorrected"
    HW_SLOWDOWN = "hw_slowdown"
    SW_THERMAL_SLOWDOWN = "sw_thermal_slowdown"
    HW_THERMAL_SLOWDOWN = "hw_thermal_slowdown"
    HW_POWER_BRAKE_SLOWDOWN = "hw_power_brake_slowdown"
    POWER_LIMIT_CHANGED = "power_limit_changed"
    ABOVE_PHYSICAL_LIMIT = "above_physical_limit"
    CLIENT_LATE = "client_late"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """Why a run may not be judged.

    Attributes:
        key: What decisions are made by.
        text: The sentence for people, with its figures.
    """

    key: Key
    text: str

    def __str__(self) -> str:
        """Return the sentence."""
        return self.text


def measured_again(invalid: Sequence[Sequence[Reason]]) -> str:
    """Return "1 run INVALID, measured again: 2 uncorrected memory errors": each reason once.

    Args:
        invalid: The reasons of each such run, oldest first.
    """
    latest = {reason.key: reason.text for reasons in invalid for reason in reasons}
    runs = "1 run" if len(invalid) == 1 else f"{len(invalid)} runs"
    return f"{runs} INVALID, measured again: {'; '.join(latest.values())}"
