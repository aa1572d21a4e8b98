"""What stands whatever sessions differ by, for many cases at once: shipped constants, on arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtri, stdtrit

from decisions_lib.noise import Bools, Floats
from pytest_mlperf.core.baseline import DAYS
from pytest_mlperf.core.judge import standing as shipped
from pytest_mlperf.core.judge.formulas import t_isf
from pytest_mlperf.core.judge.rule_r import RuleR

if TYPE_CHECKING:
    from decisions_lib.rule import Baselines


@dataclass(frozen=True)
class Stands:
    """Which words are final, by case.

    Attributes:
        passes: That a drop of the limit is excluded.
        fails: That a drop is proven.
        known: The baseline shows what sessions differ by well enough for a drop, and still does.
    """

    passes: Bools
    fails: Bools
    known: Bools


def at(
    base: Baselines, x1: Floats, errors: Floats, *, bound: float, rule: RuleR, old: Any
) -> Stands:
    """Return what stands after the runs given, as `pytest_mlperf.core.judge.standing` has it."""
    sizes, k = base.sizes, x1.shape[-1]
    n0, sessions = sum(sizes), len(sizes)
    mean1 = x1.mean(axis=-1)
    own = ((x1 - mean1[..., None]) ** 2).sum(axis=-1)
    ratio = rule.session_share / (1 - rule.session_share)
    within = (base.within + (errors**2).sum(axis=-1)) / (n0 + k)
    expected = (1 - rule.session_share) * rule.prior_sd**2 + within
    run_df = rule.prior_df + n0 - sessions + k - 1
    run = (rule.prior_df * expected + base.inside + own) / run_df
    run = np.maximum(run, rule.floor_sd**2)
    now, now_df = run, run_df
    if k > 1:
        before = (rule.prior_df * expected + base.inside) / (run_df - (k - 1))
        now_df = shipped.CANDIDATE_DF + k - 1
        now = np.maximum((shipped.CANDIDATE_DF * before + own) / now_df, run)
    squared = sum(size**2 for size in sizes)
    of_sessions = 1 + squared / n0**2
    size = (n0 - squared / n0) / (sessions - 1) if sessions > 1 else float(n0)
    between, between_df = _between(base, run, size, ratio, rule)
    session = np.maximum((between - run) / size, ratio * run)
    variance = session * of_sessions + run / n0 + now / k
    share = of_sessions / size
    doubt = (
        (share * between) ** 2 / between_df
        + ((1 / n0 - share) * run) ** 2 / run_df
        + (now / k) ** 2 / now_df
    )
    change = mean1 - base.mean
    known_df = max(sessions - 1.0, rule.session_noise.df if rule.session_noise else 0.0)
    widest = np.sqrt(run * (shipped.WIDEST**2 * of_sessions + 1 / n0 + 1 / k))

    def needed(added: Any, p: float, variance: Floats, doubt: Floats, of_between: Floats) -> Any:
        more = added * variance
        doubt = doubt + more * (2 * of_between + more) / between_df
        df = np.clip((variance + more) ** 2 / doubt, 1.0, run_df + between_df)
        return stdtrit(df, 1 - p) * np.sqrt(variance + more)

    def final(distance: Floats, p: float, needed_df: float) -> Any:
        seen = np.ones(distance.shape, bool)
        if known_df >= 1:
            seen = distance > needed(0.0, p, variance, doubt, share * between)
            for added in shipped.ADDED[1:]:
                left = ~seen & (distance > -ndtri(p) * np.sqrt(variance))
                parts = [x[left] for x in (variance, doubt, share * between)]
                seen[left] = distance[left] > needed(added, p, *parts)
        lacking = np.logical_or(old, known_df < needed_df)
        return seen & (~lacking | (distance >= t_isf(p, run_df) * widest))

    return Stands(
        passes=final(change - bound, rule.beta / 2, DAYS - 1),
        fails=final(-change, rule.alpha / 2, shipped.KNOWN_DF),
        known=np.logical_and(known_df >= shipped.KNOWN_DF, np.logical_not(old)),
    )


def _between(
    base: Baselines, run: Floats, size: float, ratio: float, rule: RuleR
) -> tuple[Any, float]:
    """Return the mean square between sessions and its degrees of freedom."""
    expected = shipped.ASSUMED_DF * run * (1 + size * ratio)
    noise, own = rule.session_noise, len(base.sizes) - 1
    if noise and noise.df >= own:
        df = shipped.ASSUMED_DF + noise.df
        return (expected + noise.df * run * (1 + size * noise.ratio)) / df, df
    df = shipped.ASSUMED_DF + own
    across = base.squares - base.inside
    return (expected + np.maximum(across, 0.0)) / df, df
