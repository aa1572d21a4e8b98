"""Rule R beside load that is known as a bound only: constant, in bursts, and growing.

Each run lost some share of its speed, and the rule knows a bound of that share. Nobody knows which
part of its bound a run lost: rows with all of it on one side and nothing on the other are the worst
cases of an unchanged build and of a drop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from decisions_lib.noise import MODELS, Floats, runs
from decisions_lib.performance import SEED
from pytest_mlperf.core.contention import TOLERATED, lost_change
from pytest_mlperf.core.judge.rule_r import Judged, RuleR, Value, judge
from pytest_mlperf.core.judge.standing import Decision
from pytest_mlperf.core.metrics import Direction

TYPICAL = next(model for model in MODELS if model.name == "typical")
LIMIT = 0.03
LARGE = 0.5
"""A drop that load of 30 % cannot hide."""

BEFORE, NOW = (4, 2), 5
"""Sessions of the baseline with their runs, and runs of now."""

TRIALS = 2_000
MOST_RUNS, LEAST_FOUND = 1.5, 0.94
"""What a machine with idle load must reach: runs of an unchanged build, drops of 3 % found."""

Bounds = Callable[[np.random.Generator, int], Floats]
"""Draws the largest shares that load can have taken from so many runs, oldest first."""


def idle(rng: np.random.Generator, count: int) -> Floats:
    """Return what an idle machine shows."""
    return rng.uniform(0.0, 0.04, count)


def constant(rng: np.random.Generator, count: int) -> Floats:
    """Return the bounds beside neighbours that never stop."""
    return np.full(count, rng.uniform(TOLERATED, 0.4))


def bursts(rng: np.random.Generator, count: int) -> Floats:
    """Return the bounds beside a neighbour that works now and then."""
    return np.where(rng.random(count) < 0.5, rng.uniform(0.0, 0.4, count), 0.0)


def growing(rng: np.random.Generator, count: int) -> Floats:
    """Return the bounds beside a load that grows from run to run."""
    return np.linspace(0.0, rng.uniform(TOLERATED, 0.4), count)


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


def rows(scale: float) -> list[Row]:
    """Return a row for each kind of load and what it took."""
    cases = max(50, round(scale * TRIALS))
    loaded = [row(load, taken, cases) for load in LOADS if load != IDLE for taken in TAKEN]
    return [row(IDLE, "nothing", 4 * cases), *loaded]


def row(load: str, taken: str, cases: int) -> Row:
    """Simulate one kind of load."""
    rng = np.random.default_rng([SEED, list(LOADS).index(load), list(TAKEN).index(taken)])
    found = {drop: list(decisions(rng, load, taken, drop, cases)) for drop in (0.0, LIMIT, LARGE)}

    def share(drop: float, word: str) -> float:
        return sum(_word(one) == word for one in found[drop]) / cases

    return Row(
        load=load,
        taken=taken,
        fails=share(0.0, "drop"),
        passes=share(LIMIT, "ok"),
        found=share(LIMIT, "drop"),
        large=share(LARGE, "drop"),
        runs=sum(one.runs_used for one in found[0.0]) / cases,
        cases=cases,
    )


def _word(judged: Judged) -> str | None:
    """Return "drop" or "ok", final or provisional; None if it is undecided."""
    if judged.decision is Decision.PROVISIONAL:
        return judged.leans
    return {Decision.FAIL: "drop", Decision.PASS: "ok"}.get(judged.decision)


def decisions(
    rng: np.random.Generator, load: str, taken: str, drop: float, cases: int
) -> Iterator[Judged]:
    """Yield the decision of each case."""
    of_before, of_now = LOADS[load]
    part_before, part_now = TAKEN[taken]
    rule, count = RuleR(tolerated=TOLERATED), math.prod(BEFORE)
    for _ in range(cases):
        before = _values(rng, of_before(rng, count), part_before, 0.0, "b")
        now = _values(rng, of_now(rng, NOW), part_now, drop, "now")
        yield judge(before, now, direction=Direction.HIGHER, limit=LIMIT, rule=rule)


def _values(
    rng: np.random.Generator, bounds: Floats, part: float, drop: float, session: str
) -> list[Value]:
    logs, errors = runs(TYPICAL, rng, bounds.shape)
    ids = [f"{session}{i // BEFORE[1]}" if session == "b" else session for i in range(len(bounds))]
    # What is tolerated counts as nothing, and is none.
    counted = np.where(bounds > TOLERATED, bounds, 0.0)
    return [
        Value(
            value=(1 - drop) * math.exp(x + math.log1p(-part * bound)),
            within_se=float(error),
            session=one,
            lost=lost_change("throughput", bound),
        )
        for x, error, bound, one in zip(logs, errors, counted, ids, strict=True)
    ]
