"""What was wrong with a run, or stood out in it: a key to decide by, and words to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pytest_mlperf.core.numbers import NotNegative, Positive, Probability


class Key(StrEnum):
    """What made a run INVALID; results files hold these words, so that none ever changes."""

    LOADGEN = "loadgen"
    EARLY_STOPPING = "early_stopping"
    NO_RATE = "no_rate"
    GPU_LOST = "gpu_lost"
    GPU_UNUSED = "gpu_unused"
    IN_USE_BEFORE = "in_use_before"
    USED_BY_OTHERS = "used_by_others"
    ECC_UNCORRECTED = "ecc_uncorrected"
    NVLINK_DOWN = "nvlink_down"
    NVLINK_RECOVERY = "nvlink_recovery"
    NVSWITCH = "nvswitch"
    HW_SLOWDOWN = "hw_slowdown"
    SW_THERMAL_SLOWDOWN = "sw_thermal_slowdown"
    HW_THERMAL_SLOWDOWN = "hw_thermal_slowdown"
    HW_POWER_BRAKE_SLOWDOWN = "hw_power_brake_slowdown"
    POWER_LIMIT_CHANGED = "power_limit_changed"
    ABOVE_PHYSICAL_LIMIT = "above_physical_limit"
    CLIENT_LATE = "client_late"
    CLOCK_SET = "clock_set"
    SLOW_START = "slow_start"
    TOO_SHORT = "too_short"
    MACHINE_BUSY = "machine_busy"
    TOO_FEW_REQUESTS = "too_few_requests"
    CONCURRENCY_NOT_HELD = "concurrency_not_held"
    NOT_STEADY = "not_steady"
    OVERLOADED = "overloaded"
    NOT_COMPLETE = "not_complete"
    REQUESTS_FAILED = "requests_failed"
    ANSWERS_MISSING = "answers_missing"
    TOKENS_MISCOUNTED = "tokens_miscounted"


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


class SignKey(StrEnum):
    """What a run or a GPU showed; results files hold these words, so that none ever changes."""

    GPU_IDLE = "gpu_idle"
    APPLICATION_CLOCKS = "application_clocks"
    SW_POWER_CAP = "sw_power_cap"
    HW_SLOWDOWN = "hw_slowdown"
    SYNC_BOOST = "sync_boost"
    SW_THERMAL_SLOWDOWN = "sw_thermal_slowdown"
    HW_THERMAL_SLOWDOWN = "hw_thermal_slowdown"
    HW_POWER_BRAKE_SLOWDOWN = "hw_power_brake_slowdown"
    DISPLAY_CLOCKS = "display_clocks"
    BOARD_LIMIT = "board_limit"
    RELIABILITY = "reliability"
    UNKNOWN_CLOCK_EVENT = "unknown_clock_event"
    ECC_CORRECTED = "ecc_corrected"
    PCIE_REPLAYS = "pcie_replays"
    PCIE_GENERATION = "pcie_generation"
    PCIE_WIDTH = "pcie_width"
    PCIE_WIDTH_FELL = "pcie_width_fell"
    NVLINK_ERRORS = "nvlink_errors"
    NVLINK_DOWN = "nvlink_down"
    NVSWITCH = "nvswitch"
    GPUS_DIFFER = "gpus_differ"
    MEMORY_IN_USE = "memory_in_use"
    RESET_WAITS = "reset_waits"
    XID = "xid"
    HOT = "hot"
    NOT_WATCHED = "not_watched"
    CLIENT_LATE = "client_late"
    GOODPUT_UNKNOWN = "goodput_unknown"
    TOKENS_TOGETHER = "tokens_together"
    IN_ONE_PIECE = "in_one_piece"
    ANSWERS_CUT = "answers_cut"
    UNTIMED_INPUT = "untimed_input"
    REQUESTS_FAILED = "requests_failed"
    TURNS = "turns"
    STALLED = "stalled"
    TOKENS_COUNTED = "tokens_counted"
    PREFIX_SHARE = "prefix_share"
    SERVER_SHARED = "server_shared"
    SERVER_UNREAD = "server_unread"
    DRAFTS = "drafts"
    SLOW_START = "slow_start"
    TOO_LONG = "too_long"


SEVERAL = frozenset({SignKey.RESET_WAITS, SignKey.UNKNOWN_CLOCK_EVENT})
"""Keys of signs that are told apart by their texts, which have no figures."""


LASTED = "{}"
"""Stands in the text of a sign for how long it lasted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sign:
    """What a run or a GPU showed in the run's window that makes nothing INVALID.

    Attributes:
        key: What decisions are made by.
        text: The sentence for people; of what lasted, with `LASTED`.
        gpu: UUID, where there are several.
        name: What a person calls that GPU: "GPU 3".
        seconds: How long it lasted; None: it is nothing that lasts.
        share: The same as a share of the window; of what does not last, the share that `LASTED`
            stands for.
        point: The point of a curve, where it is of one.
    """

    key: SignKey
    text: str
    gpu: str = ""
    name: str = ""
    seconds: NotNegative | None = None
    share: Probability | None = None
    point: Positive | None = None

    @property
    def kind(self) -> tuple[str, str, str]:
        """What is equal of two that differ in their figures or points alone."""
        return self.gpu, self.key, self.text if self.key in SEVERAL else ""

    def in_words(self, lasted: str | None = None) -> str:
        """Return the sentence, with how long it lasted or what is to stand for that."""
        if lasted is None and self.seconds is not None and self.share is not None:
            lasted = f"{self.seconds:.2f} s, {self.share:.1%} of the window"
        elif lasted is None and self.share is not None:
            lasted = f"{self.share:.0%}"
        text = self.text if lasted is None else self.text.replace(LASTED, lasted)
        text = text if self.point is None else f"at {self.point:,.10g}: {text}"
        return f"{self.name or f'GPU {self.gpu}'}: {text}" if self.gpu else text


def of_each(signs: Sequence[Sign]) -> str:
    """Return in a sentence what GPUs or points showed, which have the same kind of sign.

    "each of 8 GPUs: clocks are held back …: 1.25 to 3.40 s, 6.2% to 17.0% of the window". Where
    their texts have figures of their own, these follow each other.
    """
    if len({sign.text for sign in signs}) > 1:
        return "; ".join(sign.in_words() for sign in signs)
    spans = [sign.seconds for sign in signs if sign.seconds is not None]
    shares = [sign.share for sign in signs if sign.share is not None]
    lasted = ""
    if spans and shares:
        lasted = f"{min(spans):.2f} to {max(spans):.2f} s, {min(shares):.1%} to {max(shares):.1%}"
        lasted += " of the window"
    elif shares:
        lasted = " to ".join(dict.fromkeys(f"{share:.0%}" for share in (min(shares), max(shares))))
    points = ", ".join(f"{sign.point:,.10g}" for sign in signs if sign.point is not None)
    head = f"at {points}" if points else f"each of {len(signs)} GPUs"
    return f"{head}: {signs[0].text.replace(LASTED, lasted)}"


def measured_again(invalid: Sequence[Sequence[Reason]]) -> str:
    """Return "1 run INVALID, measured again: 2 uncorrected memory errors": each reason once."""
    latest = {reason.key: reason.text for reasons in invalid for reason in reasons}
    runs = "1 run" if len(invalid) == 1 else f"{len(invalid)} runs"
    return f"{runs} INVALID, measured again: {'; '.join(latest.values())}"
