"""What stands whatever sessions differ by, for many cases at once: shipped constants, on arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from decisions_lib.noise import Bools, Floats
from pytest_mlperf.judge import robustness as shipped
from pytest_mlperf.judge.formulas import t_isf
from pytest_mlperf.judge.inputs import DAYS, MAX_NOISE
from pytest_mlperf.judge.rule_r import RuleR

if TYPE_CHECKING:
    from decisions_lib.rule import Baselines

_INVERSE = np.linspace(0.0, 1.0, 8193)
"""Inverse degrees of freedom at which quantiles are known."""


@lru_cache(maxsize=256)
def _quantiles(p: float) -> Floats:
    found: Floats = np.concatenate([[-ndtri(p)], stdtrit(1 / _INVERSE[1:], 1 - p)])
    return found


def t_isf_at(p: float, df: Floats) -> Floats:
    """Return quantiles of Student's t for many degrees of freedom, each 1 or more.

    They are interpolated: they lie within a millionth of `formulas.t_isf`.
    """
    found: Floats = np.interp(1 / df, _INVERSE, _quantiles(p))
    return found


@dataclass(frozen=True)
class Learnt:
    """What sessions were seen to differ by, as `SessionNoise`; ratios of all cases, or by case."""

    ratio: Any
    df: float

    def at(self, chosen: Any) -> Learnt:
        """Return it for some of the cases."""
        return self if np.ndim(self.ratio) == 0 else Learnt(self.ratio[chosen], self.df)


def learnt(base: Baselines, rule: RuleR) -> Learnt | None:
    """Return what each baseline knows, as its record keeps it, or the rule, whichever is surer.

    Source: `pytest_mlperf.core.noise.session_noise`, of one build; rounded as it is written.
    """
    known = rule.session_noise
    others = Learnt(known.ratio, known.df) if known else None
    sizes, n0 = base.sizes, len(base.sessions)
    df = len(sizes) - 1
    if df < 1 or (others and others.df > df):
        return others
    expected = (1 - rule.session_share) * rule.prior_sd**2 + base.within / n0
    run_df = n0 - len(sizes)
    all_df = rule.prior_df + run_df
    variance = np.maximum((rule.prior_df * expected + base.inside) / all_df, rule.floor_sd**2)
    fair = 1 / (1 + 2 * run_df / all_df**2)
    excess = (base.squares - base.inside) / variance * fair - df
    ratio = np.clip(excess / (df * times_of_session(sizes)), 0.0, MAX_NOISE)
    rounded = np.array([float(f"{one:.3g}") for one in ratio.ravel().tolist()])
    return Learnt(rounded.reshape(ratio.shape), float(df))


def times_of_session(sizes: list[int]) -> float:
    """Return how often the variance of a session is in their mean square."""
    n0, squared = sum(sizes), sum(size**2 for size in sizes)
    return (n0 - squared / n0) / (len(sizes) - 1) if len(sizes) > 1 else float(n0)


def final_for(x0: Floats, days: NDArray[np.int64]) -> Floats:
    """Return for how many days after its last one each baseline is final, as `final_until` does.

    Args:
        x0: Log values, shape (cases, runs).
        days: Day of each run.
    """
    known = np.unique(days)
    span = float(known[-1] - known[0])
    if not span:
        return np.full(len(x0), -1.0)
    keeps = min(shipped.KEEPS_SPANS * span, max(shipped.KEEPS_DAYS, span))
    found, df = np.full(len(x0), keeps), len(known) - 2
    if df > 0:
        means = np.stack([x0[:, days == day].mean(axis=1) for day in known], axis=1)
        means -= means.mean(axis=1, keepdims=True)
        along = known - known.mean()
        squares = (means**2).sum(axis=1) * (along**2).sum()
        r2 = (means @ along) ** 2 / np.where(squares > 0, squares, 1.0)
        t = t_isf(shipped.TREND / 2, df)
        found[r2 * (t * t + df) > t * t] = min(span, 2 * span / (df + 1))
    return found


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What some runs show beside their baselines, by case: `_Variances` on arrays.

    Attributes:
        change: Difference of the means.
        variance: Of the change.
        doubt: Sum of the squared parts of the variance, each over its degrees of freedom.
        between: The part of the sessions.
        run: Variance of a run.
        known_df: Degrees of freedom that what is known of sessions rests on.
        old: The baseline's sessions lie too far back.
        lost, lost_before: Means of what load can have taken from now, and from the baseline.
    """

    change: Floats
    variance: Floats
    doubt: Floats
    between: Floats
    run: Floats
    between_df: float
    run_df: float
    of_runs: float
    of_sessions: float
    known_df: float
    old: Bools
    lost: Floats
    lost_before: Floats
    days: int
    rule: RuleR

    def passes(self, bound: float) -> Bools:
        """Return where it is final that a drop of the limit is excluded."""
        return self._final(self.change - self.lost_before - bound, self.rule.beta / 2, DAYS - 1)

    @property
    def fails(self) -> Bools:
        """Return where it is final that something dropped."""
        return self._final(-self.change - self.lost, self.rule.alpha / 2, shipped.KNOWN_DF)

    @property
    def known(self) -> Bools:
        """The baseline shows what sessions differ by well enough for a drop, and still does."""
        return (self.known_df >= shipped.KNOWN_DF) & ~self.old

    @property
    def likely(self) -> Bools:
        """Return which drops are red, though provisional, where the last session had one too."""
        if self.days < DAYS:
            return np.zeros(self.change.shape, bool)
        distance = -self.change - self.lost
        bears = ~self.old | self._bears(distance, self.rule.alpha / 2, shipped.BEARS_AGE)
        t = t_isf(shipped.MIN_DAY_CHANCE, self.between_df)
        return bears & (distance > t * np.sqrt(self.between))

    def _final(self, distance: Floats, p: float, needed_df: float) -> Bools:
        lacking = self.old | (self.known_df < needed_df)
        stands = ~lacking | self._bears(distance, p, shipped.MAX_SPREAD_RATIO)
        if self.known_df >= 1:
            stands[stands] = self._proves(distance, p, stands)
        return stands

    def _bears(self, distance: Floats, p: float, times: float) -> Bools:
        """Return where it holds though sessions differ by so many times what runs differ by."""
        widest = np.sqrt(self.run * (times**2 * self.of_sessions + self.of_runs))
        found: Bools = distance >= t_isf(p, self.run_df) * widest
        return found

    def _proves(self, distance: Floats, p: float, where: Any = slice(None)) -> Bools:
        """Return where a distance has less than this probability, by what the sessions show."""
        parts = [x[where] for x in (distance, self.variance, self.doubt, self.between)]
        found = np.zeros(parts[0].shape, bool)
        left, most = np.arange(found.size), self.run_df + self.between_df
        least = t_isf(p, most)
        for added in shipped.ADDED_VARIANCES:
            far, variance, doubt, between = parts
            more = added * variance
            root = np.sqrt(variance + more)
            open_ = far > least * root
            if not open_.all():  # those that no larger variance can prove either
                left, parts = left[open_], [x[open_] for x in parts]
                far, variance, doubt, between = parts
                more, root = more[open_], root[open_]
            if not left.size:
                break
            doubt = doubt + more * (2 * between + more) / self.between_df
            df = np.clip((variance + more) ** 2 / doubt, 1.0, most)
            proven = far > t_isf_at(p, df) * root
            if proven.any():
                found[left[proven]] = True
                left, parts = left[~proven], [x[~proven] for x in parts]
        return found


def seen(
    base: Baselines,
    x1: Floats,
    errors: Floats,
    lost: Floats,
    *,
    rule: RuleR,
    noise: Learnt | None,
    old: Bools,
) -> Seen:
    """Return what runs show, as `pytest_mlperf.judge.robustness` has it.

    Args:
        base: One for each case.
        x1: Log values of the runs so far, shape (cases, runs).
        errors: Their relative standard errors, same shape.
        lost: What load can have taken from them, same shape.
        noise: What `learnt` says of these baselines.
        old: Which of them are.
    """
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
    of_sessions = 1 + sum(size**2 for size in sizes) / n0**2
    size = times_of_session(sizes)
    between, between_df = _between(base, run, size, ratio, noise)
    session = np.maximum((between - run) / size, ratio * run)
    variance = session * of_sessions + run / n0 + now / k
    share = of_sessions / size
    doubt = (
        (share * between) ** 2 / between_df
        + ((1 / n0 - share) * run) ** 2 / run_df
        + (now / k) ** 2 / now_df
    )
    return Seen(
        change=mean1 - base.mean,
        variance=variance,
        doubt=doubt,
        between=share * between,
        run=run,
        between_df=between_df,
        run_df=run_df,
        of_runs=1 / n0 + 1 / k,
        of_sessions=of_sessions,
        known_df=max(sessions - 1.0, noise.df if noise else 0.0),
        old=old,
        lost=lost.mean(axis=-1),
        lost_before=base.lost,
        days=sessions,
        rule=rule,
    )


def _between(
    base: Baselines, run: Floats, size: float, ratio: float, noise: Learnt | None
) -> tuple[Any, float]:
    """Return the mean square between sessions and its degrees of freedom."""
    expected = shipped.ASSUMED_DF * run * (1 + size * ratio)
    own = len(base.sizes) - 1
    if noise and noise.df >= own:
        df = shipped.ASSUMED_DF + noise.df
        return (expected + noise.df * run * (1 + size * noise.ratio)) / df, df
    df = shipped.ASSUMED_DF + own
    return (expected + np.maximum(base.squares - base.inside, 0.0)) / df, df
