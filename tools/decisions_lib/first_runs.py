"""How often rule R errs where the first run of a session is unlike the later ones.

A cold board is faster until it is warm, or one whose clocks are low is slower: the effect falls off
from run to run. A warm-up that does not count takes the first of it away on both sides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_mlperf.core.judge.rule_r import Judged, RuleR, Value, judge
from pytest_mlperf.core.judge.standing import Decision
from pytest_mlperf.core.metrics import METRICS, Direction

SEED = 20261122
RUN_SD = 0.009
"""A run's relative standard deviation: the typical one of MLPerf's published results."""

FIRST = 0.02
LIMIT = METRICS["throughput"].limit

DESIGNS = {"4x2": (4, 2), "1x8": (1, 8)}
"""Baselines: sessions, and runs of each."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """How the first runs of a session differ.

    Attributes:
        name: In words.
        now: Relative effect on the first run of now; above 0 is faster.
        then: On the first run of each of the baseline's sessions.
        decay: What is left of it from one run to the next.
    """

    name: str
    now: float
    then: float
    decay: float


MODELS = (
    Model(name="first run +2 %, halving", now=FIRST, then=FIRST, decay=0.5),
    Model(name="first run +2 %, halving; only the baseline's", now=0.0, then=FIRST, decay=0.5),
    Model(name="first run +2 %, halving; only now", now=FIRST, then=0.0, decay=0.5),
    Model(name="first run −2 %, halving; only now", now=-FIRST, then=0.0, decay=0.5),
    Model(name="first run +2 % alone; only the baseline's", now=0.0, then=FIRST, decay=0.0),
    Model(name="first run +2 % alone; only now", now=FIRST, then=0.0, decay=0.0),
    Model(name="first run −2 % alone; only now", now=-FIRST, then=0.0, decay=0.0),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """What rule R said of many cases; shares of all.

    Attributes:
        model: How first runs differ.
        design: The baseline's sessions and runs.
        warmed: Each session began with a warm-up that does not count.
        cases: How many.
        fails: An unchanged case failed.
        fails_leaning: An unchanged case was provisional, leaning to a drop.
        passes: A drop of the limit passed.
        passes_leaning: A drop of the limit was provisional, leaning to ok.
        found: A drop of the limit failed, or was provisional leaning to a drop.
        runs: Runs of an unchanged case.
    """

    model: str
    design: str
    warmed: bool
    cases: int
    fails: float
    fails_leaning: float
    passes: float
    passes_leaning: float
    found: float
    runs: float


def rows(cases: int = 1_000) -> Iterator[Row]:
    """Yield what rule R, as shipped, says under each model, design, and with or without warm-ups.

    Args:
        cases: Unchanged cases, and as many that fell by the limit, of each.
    """
    for stream, model in enumerate(MODELS):
        for design in DESIGNS:
            for warmed in (False, True):
                rng = np.random.default_rng([SEED, stream])  # the same noise with and without
                yield _row(model, design, warmed=warmed, cases=cases, rng=rng)


def _row(model: Model, design: str, *, warmed: bool, cases: int, rng: np.random.Generator) -> Row:
    same = [_judged(model, design, 0.0, warmed, rng) for _ in range(cases)]
    fallen = [_judged(model, design, LIMIT, warmed, rng) for _ in range(cases)]
    alike, less = (Counter(map(_word, found)) for found in (same, fallen))
    return Row(
        model=model.name,
        design=design,
        warmed=warmed,
        cases=cases,
        fails=alike["fail"] / cases,
        fails_leaning=alike["drop"] / cases,
        passes=less["pass"] / cases,
        passes_leaning=less["ok"] / cases,
        found=(less["fail"] + less["drop"]) / cases,
        runs=sum(one.runs_used for one in same) / cases,
    )


def _judged(
    model: Model, design: str, drop: float, warmed: bool, rng: np.random.Generator
) -> Judged:
    """Return what rule R says of one case against one baseline."""
    sessions, runs = DESIGNS[design]
    rule = RuleR()
    skipped = 1 if warmed else 0
    before = [
        value
        for session in range(sessions)
        for value in _session(runs, model.then, model.decay, skipped, session, rng)
    ]
    now = _session(rule.max_runs, model.now, model.decay, skipped, sessions, rng, drop=drop)
    return judge(before, now, direction=Direction.HIGHER, limit=LIMIT, rule=rule)


def _session(
    runs: int,
    first: float,
    decay: float,
    skipped: int,
    session: int,
    rng: np.random.Generator,
    *,
    drop: float = 0.0,
) -> Sequence[Value]:
    """Return the runs of one session, a day after the one before it."""
    places = np.arange(skipped, skipped + runs)
    logs = np.log1p(-drop) + first * decay**places + RUN_SD * rng.standard_normal(runs)
    return [
        Value(value=float(np.exp(x)), session=str(session), day=20_000.0 + session) for x in logs
    ]


def _word(found: Judged) -> str:
    """Return "pass", "fail", or which way a case leans that is provisional."""
    if found.decision is Decision.PROVISIONAL:
        return str(found.leans)
    return str(found.decision)
