"""The first day: what one session of a baseline finds, and what runs in turns find beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from decisions_lib import rule, two_days
from decisions_lib.performance import DETECTED, SEED
from decisions_lib.turns import FAIL, RULE, in_turns
from decisions_lib.worlds import World, normal, runs
from pytest_mlperf.judge.formulas import bound_of
from pytest_mlperf.judge.inputs import Direction

SDS = (0.002, 0.005, 0.009, 0.015, 0.03)
"""Relative standard deviations of runs."""

ONE = "1x8"
PAIRS = (2, 4, 6)
DROPS = (0.0, 0.03, 0.05)
SWEEP = tuple(round(0.005 * step, 3) for step in range(1, 161))


@dataclass(frozen=True)
class Row:
    """One standard deviation of runs.

    Attributes:
        sd: Of runs.
        cases: Simulated, each.
        ok: Provisional or final, where nothing changed.
        wrong: Warned of or red, where nothing changed.
        warned: Provisional drops, after a drop of the limit.
        red: Smallest drop that is red on the first day in 95 % of the cases; None: none is.
        turns: By pairs made and drop, the share that runs in turns prove.
    """

    sd: float
    cases: int
    ok: float
    wrong: float
    warned: float
    red: float | None
    turns: dict[tuple[int, float], float]


def rows(cases: int) -> list[Row]:
    """Return a row for each standard deviation."""
    return [_row(sd, cases) for sd in SDS]


def _row(sd: float, cases: int) -> Row:
    world = World(name=f"runs {100 * sd:g} %", parts=(runs(normal(sd)),))
    rng = np.random.default_rng([SEED, 9, round(1e5 * sd)])
    settings, of = two_days.rule_of(world), world.slots((8,))
    logs = two_days.recorded(rng, world, of, cases, settings)

    def at(drop: float) -> rule.Decided:
        return two_days.days(world, of, logs + np.log1p(-drop) * of.now, settings)[0]

    same, fell = at(0.0), at(world.limit)
    return Row(
        sd=sd,
        cases=cases,
        ok=same.share(rule.PASS) + same.share(rule.SEEMS_OK),
        wrong=same.found,
        warned=fell.share(rule.SEEMS_DROP),
        red=_smallest([at(drop).share(rule.FAIL) for drop in SWEEP]),
        turns=_in_turns(rng, sd, cases),
    )


def _smallest(red: Sequence[float]) -> float | None:
    """Return the drop of `SWEEP` from which on as many are red as count as detected."""
    below = max((step for step, share in enumerate(red) if share < DETECTED), default=-1)
    return SWEEP[below + 1] if below + 1 < len(red) else None


def _in_turns(rng: np.random.Generator, sd: float, cases: int) -> dict[tuple[int, float], float]:
    logs = np.sqrt(2) * sd * rng.standard_normal((cases, max(PAIRS)))
    passing = bound_of(Direction.HIGHER, rule.LIMIT)
    found = {}
    for pairs in PAIRS:
        of_pairs = replace(RULE, max_runs=pairs)
        for drop in DROPS:
            fallen = logs[:, :pairs] + np.log1p(-drop)
            decision, _ = in_turns(fallen, passing=passing, failing=0.0, rule=of_pairs)
            found[pairs, drop] = float((decision == FAIL).mean())
    return found
