"""Runs in turns for many cases at once: the shipped settings, quantiles and bounds, on arrays."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from decisions_lib.noise import Bools, Floats
from pytest_mlperf.judge import ratio
from pytest_mlperf.judge.formulas import t_isf
from pytest_mlperf.judge.rule_r import RuleR

RULE = RuleR()

TURNS = (
    "0.3 %",
    "0.7 %",
    "1.4 %",
    "2.1 %",
    "3.5 %",
    "drift of 0.5 % a run",
    "random walk",
    "cold first runs",
    "1 in 20 runs -30 %",
    "t3",
    "now 3x noisier",
)
"""Noises of runs that are made in turns."""

PASS, FAIL, OPEN = 0, 1, 2


def in_turns(
    logs: Floats, *, passing: float, failing: float, rule: RuleR = RULE
) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Return decision and pairs of what `ratio` says of log ratios, shape (cases, pairs)."""
    decision = np.full(len(logs), OPEN, np.int8)
    pairs = np.full(len(logs), rule.max_runs, np.int8)
    is_open: Bools = np.ones(len(logs), bool)
    for k in range(ratio.FIRST_LOOK, rule.max_runs + 1):
        mean = logs[:, :k].mean(axis=1)
        squares = ((logs[:, :k] - mean[:, None]) ** 2).sum(axis=1)
        low, high = (_reach(squares, k, error, rule) for error in (rule.beta, rule.alpha))
        passed = is_open & (mean - low >= passing)
        failed = is_open & ~passed & (mean + high < failing)
        decision[passed], decision[failed] = PASS, FAIL
        pairs[passed | failed] = k
        is_open &= ~(passed | failed)
    return decision, pairs


def _reach(squares: Floats, k: int, error: float, rule: RuleR) -> Floats:
    share = ratio.WORST_SHARE
    usual = _far(squares, k, ratio.PRIOR_DF, 1.0, rule)
    worst = _far(squares, k, rule.prior_df, ratio.MAX_NOISE_RATIO, rule)
    return np.minimum(
        usual((1 - share) * error * ratio._error_share(k, rule.max_runs)),
        worst(share * error / (rule.max_runs - 1)),
    )


def _far(
    squares: Floats, k: int, prior_df: float, times: float, rule: RuleR
) -> Callable[[float], Floats]:
    df = prior_df + k - 1
    expected = 2 * (1 - rule.session_share) * (times * rule.prior_sd) ** 2
    sd = np.maximum(np.sqrt((prior_df * expected + squares) / df), math.sqrt(2) * rule.floor_sd)
    return lambda error: t_isf(error, max(df, 1.0)) * sd / math.sqrt(k)


def turns(rng: np.random.Generator, cases: int, name: str, pairs: int = RULE.max_runs) -> Floats:
    """Return log ratios of pairs of runs of equal builds in the order A B, B A, A B."""
    last = 2 * pairs
    number = name.removesuffix(" %")
    sd = float(number) / 100 if number.replace(".", "").isdigit() else 0.007
    x = sd * rng.standard_normal((cases, last))
    order = np.array([0, 1, 1, 0] * pairs)[:last]
    if name.startswith("drift"):
        x -= 0.005 * np.arange(last)
    elif name == "random walk":
        x = np.cumsum(x, axis=1)
    elif name == "cold first runs":
        x[:, 0] -= 0.06
        x[:, 1] -= 0.03
    elif name.startswith("1 in 20"):
        x += math.log(0.7) * (rng.random(x.shape) < 0.05)
    elif name == "t3":
        x = 0.006 * rng.standard_t(3, x.shape)
    elif name == "now 3x noisier":
        x[:, order == 1] *= 3
    found: Floats = x[:, order == 1] - x[:, order == 0]
    return found
