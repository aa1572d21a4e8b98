"""What is promised of speed in every noise, and the noises in which no rule can keep it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from decisions_lib import first_day, load
from decisions_lib.two_days import Row
from decisions_lib.worlds import NAMED, TYPICAL

Z95 = 1.959964

RED, OK = 0.01, 0.05
"""At most so much of unchanged code is red in a session, and so many drops of the limit are ok for
good."""

NOTICED, MOST_RUNS = 0.94, 1.5
"""At typical noise and with four days or more: drops of the limit warned of or red on the first
day, at least; runs of unchanged code, at most."""

IN_TWO_DAYS = 0.90
"""The same of drops that are red by the second day."""


def above(share: float, promised: float, count: int) -> bool:
    """Whether a share lies above what is promised by more than the simulation's error."""
    return share - Z95 * math.sqrt(promised * (1 - promised) / count) > promised


@dataclass(frozen=True)
class Required:
    """One requirement.

    Attributes:
        text: What.
        found: The figure.
        bound: What it must keep.
        at_most: Whether the bound is an upper one.
        share: Whether the figures are shares, shown in per cent.
        of: Which do not keep it, where the figure counts them.
    """

    text: str
    found: float
    bound: float
    at_most: bool = True
    share: bool = True
    of: Sequence[str] = ()

    @property
    def met(self) -> bool:
        """Whether the figure keeps the bound."""
        return self.found <= self.bound if self.at_most else self.found >= self.bound

    @property
    def missed(self) -> str:
        """What is said of one that is not met."""
        return f"{self.text}: {'; '.join(self.of)}" if self.of else self.text


def counted(text: str, count: int, bad: Sequence[str]) -> Required:
    """Return the requirement that none of many rows lies above its promise."""
    return Required(
        f"{text}: of {count} rows, above the promise", float(len(bad)), 0.0, share=False, of=bad
    )


@dataclass(frozen=True, kw_only=True)
class Excepted:
    """Worlds in which a promise is not kept, and what is told of them instead.

    Attributes:
        why: Why no rule can keep it there.
        worlds: By name.
        red: By design, the most of unchanged code that is red in a session.
        ok: By design, the most of drops of the limit that are ok for good.
    """

    why: str
    worlds: tuple[str, ...]
    red: Mapping[str, float] = field(default_factory=dict)
    ok: Mapping[str, float] = field(default_factory=dict)


EXCEPTED = (
    Excepted(
        why="sessions differ by two to four times what runs do, which few days hardly show",
        worlds=(
            "CPU: runs 5 %, sessions 10 %, limit 20 %",
            "runs 0.5 %, sessions 1.5 % (x3)",
            "runs 0.5 %, sessions 2 % (x4)",
            "runs 1.5 %, sessions 6 % (x4)",
            "half of the sessions -3 %",
            "CPU: runs 11 %, sessions 28 %, limit 40 %",
        ),
        red={"4x2": 0.025, "8+2+2+2": 0.025, "1x8": 0.02, "10x2": 0.02},
    ),
    Excepted(
        why="sessions of a rare kind: a baseline that met none does not know of them",
        worlds=("1 session in 5 -4 %", "1 session in 20 -4 %", "clock states 0/-1.5/-3 %"),
        red={"4x2": 0.025, "8+2+2+2": 0.025, "10x2": 0.055},
    ),
    Excepted(
        why="the machine comes to lie further off than its days did from each other",
        worlds=("AR(1) 0.8 a day, 1 %", "AR(1) 0.95 a day, 1.5 %"),
        red={"10x2": 0.02},
    ),
    Excepted(
        why="the machine has wandered on by 0.3 % a day for a week or two",
        worlds=tuple(f"walk 0.3 % a day, {age} days old" for age in (7, 14)),
        red={"10x2": 0.025},
        ok={"10x2": 0.085},
    ),
    Excepted(
        why="the machine has wandered on by 0.5 % a day for a week or two",
        worlds=(
            "AR(1) 0.95 a day, 1.5 %, 10 days old",
            *(f"walk 0.5 % a day, {age} days old" for age in (7, 14)),
        ),
        red={"10x2": 0.075},
        ok={"10x2": 0.13},
    ),
    Excepted(
        why="one run of now does not show that the new build varies three times as much",
        worlds=tuple(
            f"now 3x noisier, {before:g} to {3 * before:g} %" for before in (0.3, 0.6, 1.2)
        ),
        red={"10x2": 0.035},
        ok={"4x2": 0.22, "8+2+2+2": 0.22, "10x2": 0.22},
    ),
)


def _bound(row: Row, usual: float, of: str) -> float:
    for excepted in EXCEPTED:
        if row.world in excepted.worlds:
            bound: float = getattr(excepted, of).get(row.design, usual)
            return bound
    return usual


def red_in_a_session(row: Row) -> float:
    """Return how much of unchanged code is red: on the first day, or on one after a warning."""
    return max(row.same.fail, row.same.again)


def passed(row: Row) -> float:
    """Return how many drops of the limit are ok for good."""
    return row.fell.ok


def required(
    rows: Sequence[Row], days: Iterable[first_day.Row], loads: Sequence[load.Row]
) -> list[Required]:
    """Return what is promised of two days, of the first one and beside load, as it was found."""
    red, ok = [], []
    promised = [row for row in rows if NAMED[row.world].promised]
    for row in promised:
        share = red_in_a_session(row)
        if above(share, _bound(row, RED, "red"), row.cases):
            red.append(f"{row.name}: {share:.2%}")
        if above(passed(row), _bound(row, OK, "ok"), row.cases):
            ok.append(f"{row.name}: {passed(row):.2%}")
    turns = [
        f"runs {day.sd:.1%}, {pairs} pairs: {share:.2%}"
        for day in days
        for (pairs, drop), share in day.turns.items()
        if not drop and above(share, RED, day.cases)
    ]
    loaded = [
        f"{row.load}, {row.taken}"
        for row in loads
        if above(row.fails, RED, row.cases) or above(row.passes, OK, row.cases)
    ]
    (quiet,) = (row for row in loads if row.load == load.IDLE)
    return [
        counted("unchanged is red in a session", len(promised), red),
        counted("a drop of the limit is ok for good", len(promised), ok),
        counted("unchanged is red by runs in turns", 3 * len(first_day.SDS), turns),
        counted("load as a bound: false drops, and drops of the limit", len(loads), loaded),
        *_floors(rows),
        Required("an idle machine: -3 % is found", quiet.found, NOTICED, at_most=False),
        Required("an idle machine: runs, unchanged", quiet.runs, MOST_RUNS, share=False),
    ]


def _floors(rows: Sequence[Row]) -> Iterator[Required]:
    for row in rows:
        if row.world != TYPICAL or row.design == "1x8":
            continue
        of = f"typical noise, {row.design}"
        yield Required(f"{of}: -3 %, warned of or red", row.fell.noticed, NOTICED, at_most=False)
        yield Required(f"{of}: -3 %, red in two days", row.fell.red, IN_TWO_DAYS, at_most=False)
        yield Required(f"{of}: runs, unchanged", row.same.runs, MOST_RUNS, share=False)
