"""The noises in which a promise of speed is not kept, with the figures found and the reasons.

A bound is the figure that was found at full size, rounded up to a tenth of a per cent; of several
runs the largest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

Promise = Literal["red", "ok"]
Bounds = Mapping[str, Mapping[str, float]]
"""By world and design of the baseline."""


@dataclass(frozen=True, kw_only=True)
class Excepted:
    """Worlds in which a promise is not kept.

    Attributes:
        machine: What they have in common.
        why: Why no rule can keep it there, or what it would cost.
        red: The most of unchanged code that is red in a session.
        ok: The most of drops of the limit that are ok for good.
    """

    machine: str
    why: str
    red: Bounds = field(default_factory=dict)
    ok: Bounds = field(default_factory=dict)

    def bounds(self, of: Promise) -> Bounds:
        """Return the bounds of one promise."""
        return self.red if of == "red" else self.ok


EXCEPTED = (
    Excepted(
        machine="sessions differ by 2 to 4 times as much as runs",
        why="Four days show only roughly how much sessions differ. A PROVISIONAL drop is red on "
        "day 2 if the scatter of the days explains it with p < 6.5 %. With p < 1.5 % four days "
        "would keep the guarantee, but only 68 % of the drops at typical noise would be red by day "
        "2. With ten days final drops alone come to 1 %, and those of two days add up to 0.5 %. "
        "With one day a final drop allows for 4 times, but these runs are noisier than it expects.",
        red={
            "runs 0.5 %, sessions 1.5 % (x3)": {"4x2": 0.014, "8+2+2+2": 0.018, "10x2": 0.012},
            "runs 0.5 %, sessions 2 % (x4)": {"4x2": 0.021, "8+2+2+2": 0.023, "10x2": 0.014},
            "runs 1.5 %, sessions 6 % (x4)": {
                "4x2": 0.023,
                "8+2+2+2": 0.027,
                "1x8": 0.017,
                "10x2": 0.014,
            },
            "CPU: runs 5 %, sessions 10 %, limit 20 %": {"8+2+2+2": 0.018},
            "CPU: runs 11 %, sessions 28 %, limit 40 %": {
                "4x2": 0.016,
                "8+2+2+2": 0.020,
                "10x2": 0.013,
            },
        },
    ),
    Excepted(
        machine="some sessions are of a slower kind",
        why="If a share p of the sessions is slow, the N days of a baseline met none with "
        "probability (1-p)^N. A rule that speaks on one day then errs with p(1-p)^N, about "
        "1/(e(N+1)) at most: 3.5 % for ten days. One that waits for a second day errs with "
        "p²(1-p)^N, at most 2.2 % for four days. Baselines with one slow day add to these rates.",
        red={
            "1 session in 5 -4 %": {"4x2": 0.017, "8+2+2+2": 0.023, "10x2": 0.046},
            "1 session in 20 -4 %": {"10x2": 0.035},
            "half of the sessions -3 %": {"4x2": 0.021, "8+2+2+2": 0.032},
            "clock states 0/-1.5/-3 %": {"10x2": 0.038},
        },
    ),
    Excepted(
        machine="the machine wanders",
        why="Ten days in a row lie closer together than days farther apart. A walk of 0.5 % a day "
        "leads 1.3 % away in a week: renew the baseline more often there.",
        red={
            "AR(1) 0.8 a day, 1 %": {"10x2": 0.018},
            "AR(1) 0.95 a day, 1.5 %": {"10x2": 0.016},
            "AR(1) 0.95 a day, 1.5 %, 10 days old": {"10x2": 0.014},
            "walk 0.3 % a day, 7 days old": {"10x2": 0.014},
            "walk 0.5 % a day, 1 day old": {"10x2": 0.012},
            "walk 0.5 % a day, 7 days old": {"10x2": 0.046},
            "walk 0.5 % a day, 14 days old": {"10x2": 0.012},
        },
        ok={"walk 0.5 % a day, 7 days old": {"10x2": 0.079}},
    ),
    Excepted(
        machine="the new build varies 3 times as much",
        why="One run shows nothing of it, and two runs can lie close together by chance.",
        red={
            "now 3x noisier, 0.6 to 1.8 %": {"10x2": 0.017},
            "now 3x noisier, 1.2 to 3.6 %": {"8+2+2+2": 0.014, "10x2": 0.027},
        },
        ok={
            "now 3x noisier, 0.3 to 0.9 %": {"4x2": 0.059, "8+2+2+2": 0.106, "10x2": 0.128},
            "now 3x noisier, 0.6 to 1.8 %": {"4x2": 0.162, "8+2+2+2": 0.178, "10x2": 0.199},
            "now 3x noisier, 1.2 to 3.6 %": {"4x2": 0.193, "8+2+2+2": 0.196, "10x2": 0.207},
        },
    ),
)


def bounds(of: Promise) -> Iterator[tuple[str, str, float]]:
    """Yield the world, the design and the bound of every row that does not keep a promise."""
    for excepted in EXCEPTED:
        for world, by_design in excepted.bounds(of).items():
            yield from ((world, design, bound) for design, bound in by_design.items())


def bound(world: str, design: str, of: Promise) -> float | None:
    """Return the bound of a row that does not keep a promise; None if it must."""
    return next((most for *row, most in bounds(of) if row == [world, design]), None)
