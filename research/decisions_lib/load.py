"""Rule R beside load that is known as a bound only: constant, in bursts, and growing.

Each run lost some share of its speed, and the rule knows a bound of that share. Nobody knows which
part of its bound a run lost: rows with all of it on one side and nothing on the other are the worst
cases of an unchanged build and of a drop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from decisions_lib import rule
from decisions_lib.noise import MODELS, Floats, runs
from decisions_lib.performance import SEED
from pytest_mlperf.core.contention import TOLERATED_SHARE, lost_change
from pytest_mlperf.judge.rule_r import RuleR

TYPICAL = next(model for model in MODELS if model.name == "typical")
LARGE = 0.5
"""A drop that load of 30 % cannot hide."""

Shape = tuple[int, int]
Bounds = Callable[[np.random.Generator, Shape], Floats]
"""Draws the largest shares that load can have taken, shape (cases, runs), oldest runs first."""


def idle(rng: np.random.Generator, shape: Shape) -> Floats:
    """Return what an idle machine shows."""
    return rng.uniform(0.0, 0.04, shape)


def constant(rng: np.random.Generator, shape: Shape) -> Floats:
    """Return the bounds beside neighbours that never stop."""
    return np.broadcast_to(rng.uniform(TOLERATED_SHARE, 0.4, (shape[0], 1)), shape)


def bursts(rng: np.random.Generator, shape: Shape) -> Floats:
    """Return the bounds beside a neighbour that works now and then."""
    return np.where(rng.random(shape) < 0.5, rng.uniform(0.0, 0.4, shape), 0.0)


def growing(rng: np.random.Generator, shape: Shape) -> Floats:
    """Return the bounds beside a load that grows from run to run."""
    return rng.uniform(TOLERATED_SHARE, 0.4, (shape[0], 1)) * np.linspace(0.0, 1.0, shape[1])


@dataclass(frozen=True, kw_only=True)
class Row:
    """What rule R says beside one kind of load, as shares of cases.

    Attributes:
        load: What runs of now, or of the baseline, meet.
        taken: Which runs really lost their bound.
        fails: Nothing changed, and it is a drop; at most 1 % may.
        passes: A drop of the limit is no drop; at most 5 % may.
        found: A drop of the limit is a drop.
        large: A drop by half is a drop.
        runs: Runs of an unchanged build.
        cases: How many of each.
    """

    load: str
    taken: str
    fails: float
    passes: float
    found: float
    large: float
    runs: float
    cases: int


IDLE = "idle"
LOADS: dict[str, tuple[Bounds, Bounds]] = {
    IDLE: (idle, idle),
    "constant, now": (idle, constant),
    "constant, baseline": (constant, idle),
    "constant, both": (constant, constant),
    "bursts, both": (bursts, bursts),
    "growing, now": (idle, growing),
}
"""Bounds of the baseline and of now."""

TAKEN = {"nothing": (0.0, 0.0), "all of now": (0.0, 1.0), "all of the baseline": (1.0, 0.0)}
"""The part of their bound that runs of the baseline, and of now, really lost."""


def rows(cases: int) -> list[Row]:
    """Return a row for each kind of load and what it took."""
    loaded = [row(load, taken, cases) for load in LOADS if load != IDLE for taken in TAKEN]
    return [row(IDLE, "nothing", cases), *loaded]


def row(load: str, taken: str, cases: int) -> Row:
    """Simulate one kind of load."""
    rng = np.random.default_rng([SEED, list(LOADS).index(load), list(TAKEN).index(taken)])
    (of_before, of_now), (part_before, part_now) = LOADS[load], TAKEN[taken]
    settings = RuleR(tolerated=TOLERATED_SHARE)
    x0, e0, lost0 = _runs(rng, of_before(rng, (cases, len(rule.SESSIONS))), part_before)
    x1, e1, lost1 = _runs(rng, of_now(rng, (cases, settings.max_runs)), part_now)
    base = rule.baselines(x0, e0, rule.SESSIONS, lost0)

    def at(drop: float) -> rule.Decided:
        return rule.decide(base, x1 + np.log1p(-drop), e1, lost1, rule=settings)

    same, fell = at(0.0), at(rule.LIMIT)
    return Row(
        load=load,
        taken=taken,
        fails=same.found,
        passes=fell.share(rule.PASS) + fell.share(rule.SEEMS_OK),
        found=fell.found,
        large=at(LARGE).found,
        runs=same.mean_runs,
        cases=cases,
    )


def _runs(rng: np.random.Generator, bounds: Floats, part: float) -> tuple[Floats, Floats, Floats]:
    """Return log values of runs that lost a part of their bounds, their errors, and the bounds."""
    logs, errors = runs(TYPICAL, rng, bounds.shape)
    # What is tolerated counts as nothing, and is none.
    counted = np.where(bounds > TOLERATED_SHARE, bounds, 0.0)
    lost = np.vectorize(lambda share: lost_change("throughput", share), otypes=[float])(counted)
    return logs + np.log1p(-part * counted), errors, lost
