"""Which runs of a session are recorded: the shipped screen, on arrays where it keeps them all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from decisions_lib.noise import Bools, Floats
from pytest_mlperf.core.rulings.screening import SCREEN, first_run_effect, outliers
from pytest_mlperf.judge.formulas import t_isf
from pytest_mlperf.judge.rule_r import RuleR, Value, log_scale

LOOSE = 1.1
"""Cases whose runs are this many times likelier than `SCREEN` are screened one by one."""

Columns = NDArray[np.int64]


def spare(size: int) -> int:
    """Return how many runs are made at most beside those of a session, the first one included."""
    return max(size // 2, 2) + 1


def chosen(
    x: Floats, sessions: Sequence[Columns], sizes: Sequence[int], settings: RuleR
) -> Columns:
    """Return the columns of the runs that are recorded; -1 in all of them: refused.

    Args:
        x: Log values, shape (cases, runs).
        sessions: Columns of each session in the order of its runs, spare ones among them.
        sizes: How many of each are to be recorded.
    """
    usual = np.concatenate([own[:size] for own, size in zip(sessions, sizes, strict=True)])
    found = np.tile(usual, (len(x), 1))
    for case in np.flatnonzero(_odd(x, sessions, sizes, settings)):
        picked = _screened(x[case], sessions, sizes, settings)
        found[case] = -1 if picked is None else picked
    return found


def _odd(x: Floats, sessions: Sequence[Columns], sizes: Sequence[int], settings: RuleR) -> Bools:
    """Return which cases the screen may change; far more than it does."""
    odd = np.zeros(len(x), bool)
    weights, effects, scatters, count = [], [], np.zeros(len(x)), 0
    for own, size in zip(sessions, sizes, strict=True):
        runs = x[:, own[:size]]
        odd |= _outlying(runs, scatters, count, settings)
        later = runs[:, 1:]
        scatters = scatters + ((later - later.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
        count += size - 1
        weights.append(1 - 1 / size)
        effects.append(runs[:, 0] - later.mean(axis=1))
        odd |= _first_run(np.array(weights), np.stack(effects, axis=1), scatters, count, settings)
    return odd


def _outlying(runs: Floats, scatters: Floats, count: int, settings: RuleR) -> Bools:
    """Return where a run of a session may be an outlier, see `outliers`.

    Args:
        scatters: Sums of squares inside the sessions before, with `count` degrees of freedom.
    """
    odd, left = np.zeros(len(runs), bool), np.ones(runs.shape, bool)
    cases, size = np.arange(len(runs)), runs.shape[1]
    for number in range(size, size - (size - 1 if count else size // 2), -1):
        df = settings.prior_df + count + number - 2
        if count + number <= 2:
            break
        mean = (runs * left).sum(axis=1, keepdims=True) / number
        inside = (left * (runs - mean) ** 2).sum(axis=1, keepdims=True)
        rest = (number * mean - runs) / (number - 1)
        others = np.maximum(inside - (number - 1) / number * (runs - rest) ** 2, 0.0)
        prior = settings.prior_df * settings.prior_sd**2
        sd = np.sqrt((prior + scatters[:, None] + others) / df)
        far = np.abs(runs - rest) / np.maximum(sd, settings.floor_sd)
        far = np.where(left, far * math.sqrt((number - 1) / number), -1.0)
        worst = far.argmax(axis=1)
        odd |= far[cases, worst] > t_isf(LOOSE * SCREEN / (2 * number), df)
        left[cases, worst] = False
    return odd


def _first_run(
    weights: Floats, effects: Floats, scatters: Floats, count: int, settings: RuleR
) -> Bools:
    """Return where the first runs may be unlike the later ones, see `first_run_effect`."""
    if count < 2:
        return np.zeros(len(effects), bool)
    effect = (effects @ weights) / weights.sum()
    squares = scatters + ((effects - effect[:, None]) ** 2) @ weights
    sd = np.sqrt(np.maximum(squares / (count - 1), settings.floor_sd**2) / weights.sum())
    found: Bools = np.abs(effect) > t_isf(LOOSE * SCREEN / 2, count - 1) * sd
    return found


class _UnlikeError(Exception):
    """First runs are unlike the later ones."""


class _RefusedError(Exception):
    """Too few runs belong together."""


def _screened(
    x: Floats, sessions: Sequence[Columns], sizes: Sequence[int], settings: RuleR
) -> Columns | None:
    """Return what is recorded of one case: without first runs, once they are unlike the others."""
    for skips in (False, True):
        try:
            return np.concatenate(list(_each(x, sessions, sizes, settings, skips=skips)))
        except _UnlikeError:
            continue
        except _RefusedError:
            break
    return None


def _each(
    x: Floats, sessions: Sequence[Columns], sizes: Sequence[int], settings: RuleR, *, skips: bool
) -> Iterator[Columns]:
    """Yield the columns that are recorded of each session, as `bench.baseline.screen` has it."""
    scale, kept = log_scale(), list[Value]()
    for number, (own, size) in enumerate(zip(sessions, sizes, strict=True), start=1):
        runs, made = own[int(skips) :], size
        while True:
            values = [
                Value(value=float(np.exp(x[column])), session=str(number)) for column in runs[:made]
            ]
            odd, unlike = set(outliers(values, kept, scale, settings)), False
            if not skips:
                clean = [one for n, one in enumerate(values) if not n or n not in odd]
                chance = 1.0 if not kept and 0 in odd else SCREEN
                unlike = first_run_effect([*kept, *clean], scale, settings, chance) is not None
            if unlike:
                odd = {0, *(n + 1 for n in outliers(values[1:], kept, scale, settings))}
            left = [n for n in range(made) if n not in odd]
            if len(left) >= size:
                break
            if made >= size + spare(size) - (not unlike):
                raise _RefusedError
            made += 1
        if unlike and kept:
            raise _UnlikeError
        skips = skips or unlike
        kept += [values[n] for n in left[:size]]
        yield runs[left[:size]]
