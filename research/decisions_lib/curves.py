"""Curves: the mean over the points and the worst point, judged together by the shipped rule."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from decisions_lib.noise import MODELS, Floats, Noise, of_sessions, runs
from decisions_lib.rule import (
    FAIL,
    PASS,
    RULE,
    SEEMS_DROP,
    SEEMS_OK,
    SESSIONS,
    Decided,
    baselines,
    decide,
)
from pytest_mlperf.core.metrics import METRICS, at_point

POINTS = 4
"""Ultra-low, low, medium and high."""

TOO_NOISY = "noisy"
"""The noise in which five runs do not decide."""

SEED = 20_261_123

EVERYWHERE, AT_ONE = METRICS["throughput"].limit, METRICS[at_point("throughput", 8)].limit
"""Drops that are followed: of the limit of the mean at every point, of that of a point at one."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Shares of cases; `found` counts drops that are PROVISIONAL too.

    Attributes:
        failed: Of unchanged curves, called a drop.
        passed: Of unchanged curves, ok or provisionally ok.
        runs: Of unchanged curves, on average.
        everywhere: Found where every point is slower by `EVERYWHERE`.
        at_one: Found where one point is slower by `AT_ONE`.
        missed: Passed, where one point is slower by `AT_ONE`.
    """

    noise: str
    cases: int
    failed: float
    passed: float
    runs: float
    everywhere: float
    at_one: float
    missed: float


def rows(cases: int) -> list[Row]:
    """Simulate so many curves for each noise and kind of drop."""
    return [_row(noise, cases, np.random.default_rng([SEED, n])) for n, noise in enumerate(MODELS)]


def _row(noise: Noise, cases: int, rng: np.random.Generator) -> Row:
    same = _judged(noise, cases, rng, np.zeros(POINTS))
    all_of_them = _judged(noise, cases, rng, np.full(POINTS, np.log1p(-EVERYWHERE)))
    one = np.zeros(POINTS)
    one[0] = np.log1p(-AT_ONE)
    at_one = _judged(noise, cases, rng, one)
    return Row(
        noise=noise.name,
        cases=cases,
        failed=_any(same, FAIL, SEEMS_DROP),
        passed=_all_good(same),
        runs=float(np.maximum.reduce([one.runs for one in same]).mean()),
        everywhere=_any(all_of_them, FAIL, SEEMS_DROP),
        at_one=_any(at_one, FAIL, SEEMS_DROP),
        missed=_all_good(at_one),
    )


def _judged(noise: Noise, cases: int, rng: np.random.Generator, shift: Floats) -> list[Decided]:
    """Return what the rule says of the mean, and of each point."""
    x0, e0 = _curves(noise, rng, cases, len(SESSIONS))
    for name in dict.fromkeys(SESSIONS):
        own = [at for at, session in enumerate(SESSIONS) if session == name]
        x0[..., own] += of_sessions(noise, rng, (cases, 1, 1))
    x1, e1 = _curves(noise, rng, cases, RULE.max_runs)
    x1 += of_sessions(noise, rng, (cases, 1, 1)) + shift[:, None]
    mean = replace(RULE, alpha=RULE.alpha / 2)
    point = replace(RULE, alpha=RULE.alpha / (2 * POINTS))
    zero0, zero1 = np.zeros_like(e0[:, 0]), np.zeros_like(e1[:, 0])
    decided = [
        decide(
            baselines(x0.mean(axis=1), zero0, SESSIONS),
            x1.mean(axis=1),
            zero1,
            limit=EVERYWHERE,
            rule=mean,
        )
    ]
    for n in range(POINTS):
        base = baselines(x0[:, n], zero0, SESSIONS)
        decided.append(decide(base, x1[:, n], zero1, limit=AT_ONE, rule=point))
    return decided


def _curves(
    noise: Noise, rng: np.random.Generator, cases: int, count: int
) -> tuple[Floats, Floats]:
    """Return log rates, shape (cases, points, runs).

    Half of the variance of a run is what its process has in common over all points.
    """
    half = noise.run / math.sqrt(2)
    logs, errors = runs(replace(noise, run=half), rng, (cases, POINTS, count))
    return logs + half * rng.standard_normal((cases, 1, count)), errors


def _any(judged: list[Decided], *codes: int) -> float:
    hit = np.logical_or.reduce([np.isin(one.decision, codes) for one in judged])
    return float(hit.mean())


def _all_good(judged: list[Decided]) -> float:
    good = np.logical_and.reduce([np.isin(one.decision, (PASS, SEEMS_OK)) for one in judged])
    return float(good.mean())
