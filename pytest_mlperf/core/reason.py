"""Define reasons why a run is INVALID, and signs (warnings that fail no test)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, groupby
from typing import Any

from pytest_mlperf.core.notes import Note, NoteKey, Words
from pytest_mlperf.core.numbers import NotNegative, Positive, Probability


class Key(StrEnum):
    """Name causes of INVALID runs; results files store these values, so never change them."""

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
    SERVER_HARDWARE = "server_hardware"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """State why a run may not be judged.

    Attributes:
        key: Cause, for comparisons in code.
        text: Note that `reports.sentences` turns into a sentence, or a message of another program.
    """

    key: Key
    text: Words

    @classmethod
    def of(cls, key: Key, note: NoteKey, /, **values: Any) -> Reason:
        """Return a reason with this cause and a note of this key and these values."""
        return cls(key=key, text=Note.of(note, **values))


class SignKey(StrEnum):
    """Name kinds of warnings, which fail no test; keep the values, as results files store them."""

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
    SELDOM_READ = "seldom_read"
    CLIENT_LATE = "client_late"
    GOODPUT_UNKNOWN = "goodput_unknown"
    TOKENS_TOGETHER = "tokens_together"
    IN_ONE_PIECE = "in_one_piece"
    ANSWERS_BUFFERED = "answers_buffered"
    HIDDEN_TOKENS = "hidden_tokens"
    FIRST_UNSIZED = "first_unsized"
    ANSWERS_CUT = "answers_cut"
    UNTIMED_INPUT = "untimed_input"
    REQUESTS_FAILED = "requests_failed"
    TURNS = "turns"
    STALLED = "stalled"
    TOKENS_COUNTED = "tokens_counted"
    PREFIX_SHARE = "prefix_share"
    SERVER_SHARED = "server_shared"
    SERVER_UNREAD = "server_unread"
    PROMPTS_LONGER = "prompts_longer"
    BUILDS_DIFFER = "builds_differ"
    CACHE_UNKNOWN = "cache_unknown"
    DRAFTS = "drafts"
    SLOW_START = "slow_start"
    TOO_LONG = "too_long"


TEXT_KEYS = frozenset({SignKey.RESET_WAITS, SignKey.UNKNOWN_CLOCK_EVENT})
"""Keys of signs that are distinguished by their texts, which have no figures."""


DURATION_PLACEHOLDER = "{}"
"""Stands in the sentence of a sign for its duration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sign:
    """Report a warning about a run or a GPU that does not make the run INVALID.

    Attributes:
        key: Kind of warning, for comparisons in code.
        text: Note that `reports.sentences` turns into a sentence, or a message of another program.
        gpu: UUID of the GPU if the run has several; else "".
        name: Display name of that GPU: "GPU 3".
        seconds: Duration of the state [s]; None if unknown.
        share: Duration as a share of the run; without `seconds`, a share that the sentence shows
            instead of a duration.
        point: Concurrency or rate on a curve; None without a curve.
    """

    key: SignKey
    text: Words
    gpu: str = ""
    name: str = ""
    seconds: NotNegative | None = None
    share: Probability | None = None
    point: Positive | None = None

    @classmethod
    def of(
        cls,
        key: SignKey,
        note: NoteKey,
        /,
        *,
        seconds: float | None = None,
        share: float | None = None,
        point: float | None = None,
        **values: Any,
    ) -> Sign:
        """Return a `key` warning whose text is `note` with `values`; other fields: see `Sign`."""
        text = Note.of(note, **values)
        return cls(key=key, text=text, seconds=seconds, share=share, point=point)

    @property
    def kind(self) -> tuple[str, str, object]:
        """Tuple (GPU UUID, kind, text if it matters), equal for repeats of a warning."""
        return self.gpu, self.key, self.text if self.key in TEXT_KEYS else ""

    @property
    def note(self) -> Note:
        """The sign (a warning that fails no test) as a note, which reports format as text."""
        name = self.name or (f"GPU {self.gpu}" if self.gpu else "")
        return Note.of(
            "sign",
            text=self.text,
            name=name,
            seconds=self.seconds,
            share=self.share,
            point=self.point,
        )


_FIGURE = re.compile(
    r"(?<!process )(?<!NVLink )(?<!link )(?<!XID )(?<![\w.,-])"
    r"[+−]?\d(?:[\d,]*\d)?(?:\.\d+)?(?!\.?\d)%?"
)
"""A figure in a text; a number that names something, or a version, is not one."""


def gpu_sentences(texts: Sequence[tuple[str, str]], gpus: int) -> list[str]:
    """Return sentences on (GPU name, text) pairs; merge texts that differ only in numbers.

    A text of all `gpus` GPUs begins with "each of 8 GPUs: ", others with "4 of 8 GPUs (4 to 7): ".
    """
    alike = ranges_of(texts)
    every = f"each of {gpus} GPUs: "
    heads = [every if len(of) == gpus else _some(of, gpus) for of, _ in alike]
    return [f"{head}{text}" for head, (_, text) in zip(heads, alike, strict=True)]


def ranges_of(texts: Iterable[tuple[str, str]]) -> list[tuple[list[str], str]]:
    """Merge (name, text) pairs whose texts differ only in numbers, to (names, text with ranges)."""
    alike: dict[str, dict[str, list[str]]] = {}
    for name, text in texts:
        alike.setdefault(_FIGURE.sub("\0", text), {}).setdefault(name, []).append(text)
    return [(list(named), _ranges([*chain(*named.values())])) for named in alike.values()]


def _ranges(texts: Sequence[str]) -> str:
    words = _FIGURE.split(texts[0])
    for index, figures in enumerate(zip(*map(_FIGURE.findall, texts), strict=True)):
        ordered = sorted(figures, key=_value)
        words[index] += " to ".join(dict.fromkeys((ordered[0], ordered[-1])))
    return "".join(words)


def _value(figure: str) -> float:
    return float(figure.replace(",", "").replace("−", "-").rstrip("%"))


def _some(names: Sequence[str], gpus: int) -> str:
    numbers = [name.removeprefix("GPU ") for name in names]
    if len(names) == 1 or not all(map(str.isdigit, numbers)):
        return f"{', '.join(names)}: "
    rows = groupby(enumerate(map(int, numbers)), key=lambda pair: pair[1] - pair[0])
    spans = [[str(number) for _, number in row] for _, row in rows]
    parts = (f"{s[0]} to {s[-1]}" if len(s) > 2 else ", ".join(s) for s in spans)
    return f"{len(names)} of {gpus} GPUs ({', '.join(parts)}): "
