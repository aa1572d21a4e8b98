"""Rule R for many cases at once: the shipped settings, quantiles and bounds, on arrays."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from decisions_lib import standing
from decisions_lib.noise import Bools, Floats
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.judge import rule_r
from pytest_mlperf.judge.formulas import bound_of, t_isf
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.judge.rule_r import OUTLIER_RISK, RuleR, Value

PASS, FAIL, INCONCLUSIVE, SEEMS_OK, SEEMS_DROP = 0, 1, 2, 3, 4
"""Codes of decisions in arrays; the last two are PROVISIONAL and lean this way."""

SESSIONS = ("a", "a", "b", "b", "c", "c", "d", "d")
"""The default baseline: four sessions of two runs."""

ONE_SESSION = ("a",) * 8

RULE = RuleR()
LIMIT = METRICS["throughput"].limit


@dataclass(frozen=True)
class Baselines:
    """Baselines of equal size, summed up.

    Attributes:
        sessions: Session of each run.
        mean: Mean log value.
        squares: Sum of squared deviations from it.
        within: Sum of squared standard errors within the runs.
        inside: Sum of squared deviations of runs from the mean of their session.
        least: The worst run.
        lost: Mean of what load can have taken from the runs, logarithmic.
    """

    sessions: tuple[str, ...]
    mean: Floats
    squares: Floats
    within: Floats
    inside: Floats
    least: Floats
    lost: Floats

    @property
    def sizes(self) -> list[int]:
        """Runs of each session."""
        return list(Counter(self.sessions).values())

    def at(self, chosen: Any) -> Baselines:
        """Return some of them."""
        arrays = ("mean", "squares", "within", "inside", "least", "lost")
        return replace(self, **{name: getattr(self, name)[chosen] for name in arrays})

    def factor(self, k: int, rule: RuleR) -> float:
        """Return the shipped ratio of d's standard error and a run's standard deviation."""
        runs = [Value(value=1.0, session=session) for session in self.sessions]
        return rule_r._se_factor(runs, k, rule)


def baselines(
    x0: Floats, errors: Floats, sessions: Sequence[str], lost: Floats | None = None
) -> Baselines:
    """Return baselines of log values and standard errors, shape (..., runs); higher is better."""
    mean = x0.mean(axis=-1)
    squares = ((x0 - mean[..., None]) ** 2).sum(axis=-1)
    inside = np.zeros_like(mean)
    for name in set(sessions):
        own = x0[..., [at for at, session in enumerate(sessions) if session == name]]
        inside += ((own - own.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1)
    return Baselines(
        sessions=tuple(sessions),
        mean=mean,
        squares=squares,
        within=(errors**2).sum(axis=-1),
        inside=inside,
        least=x0.min(axis=-1),
        lost=np.zeros_like(mean) if lost is None else lost.mean(axis=-1),
    )


@dataclass(frozen=True)
class Decided:
    """What the rule says of each case.

    Attributes:
        decision: PASS, FAIL, INCONCLUSIVE, SEEMS_OK or SEEMS_DROP.
        runs: Runs up to the decision.
        p: Chance that an unchanged case looks this bad; only where it was asked for, else empty.
        likely: Of provisional drops: red where the last session had one too.
    """

    decision: NDArray[np.int8]
    runs: NDArray[np.int8]
    p: Floats
    likely: Bools

    def share(self, decision: int) -> float:
        """Return how often it was this decision."""
        return float((self.decision == decision).mean())

    @property
    def found(self) -> float:
        """Share of what is a drop, or seems one."""
        return self.share(FAIL) + self.share(SEEMS_DROP)

    @property
    def mean_runs(self) -> float:
        """Runs used on average."""
        return float(self.runs.mean())


def decide(
    base: Baselines,
    x1: Floats,
    errors: Floats,
    lost: Floats | None = None,
    *,
    limit: float = LIMIT,
    rule: RuleR = RULE,
    with_p: bool = False,
    old: Any = False,
    final: bool = True,
) -> Decided:
    """Judge cases of which all `rule.max_runs` runs are given; those after a decision are ignored.

    Every baseline knows what its own sessions differ by, as its record does.

    Args:
        base: One for each case; without `final` one for all will do.
        x1: Log values, shape (..., runs), oldest first; higher is better.
        errors: Relative standard errors within the runs, same shape.
        lost: What load can have taken from each run, logarithmic, same shape; None: nothing.
        limit: Largest drop that does not matter, as a share.
        rule: The settings.
        with_p: Return p values as well.
        old: The baseline's sessions lie too far back to speak for today; of all, or by case.
        final: Tell what is final from what is provisional; without, all that is decided is said to
            be provisional, which is much faster.
    """
    shape = x1.shape[:-1]
    decision = np.full(shape, INCONCLUSIVE, np.int8)
    runs = np.full(shape, rule.max_runs, np.int8)
    p = np.ones(shape)
    is_open, likely = np.ones(shape, bool), np.zeros(shape, bool)
    bound, expected = bound_of(Direction.HIGHER, limit), least_expected(base, rule)
    noise = standing.learnt(base, rule) if final else None
    is_old = np.broadcast_to(old, shape)
    taken = np.zeros_like(x1) if lost is None else lost

    def seen(of: Bools, k: int) -> standing.Seen:
        of_noise = noise.at(of) if noise else None
        runs_of = (one[of][:, :k] for one in (x1, errors, taken))
        return standing.seen(base.at(of), *runs_of, rule=rule, noise=of_noise, old=is_old[of])

    for k in range(1, rule.max_runs + 1):
        look = look_at(base, x1[..., :k], errors[..., :k], rule, taken[..., :k])
        low, high = cast(Any, look.low(rule)), cast(Any, look.high(rule))
        passed = is_open & (low > bound)
        if k == 1:
            passed &= look.worst <= t_isf(rule_r._TOO_FAST, look.df) * look.se
            failed = np.zeros(shape, bool)
        else:
            failed = is_open & ~passed & (high < 0)
            if with_p:
                own = (rule.max_runs - 1) * stats.t.sf(-look.best / look.se, look.df)
                p = np.where(is_open, np.minimum(p, own), p)
        if k < rule.max_runs:
            stray = (x1 + taken)[..., :k] < expected[..., None]
            passed &= ~stray.any(axis=-1) | stray.all(axis=-1)
        if not final:
            decision[passed], decision[failed] = SEEMS_OK, SEEMS_DROP
        if final and passed.any():
            decision[passed] = np.where(seen(passed, k).passes(bound), PASS, SEEMS_OK)
        if final and failed.any():
            drops = seen(failed, k)
            stands = drops.fails
            over = stands | ~drops.known | (k == rule.max_runs)  # more runs make others surer
            failed[failed] = over
            decision[failed] = np.where(stands[over], FAIL, SEEMS_DROP)
            likely[failed] = drops.likely[over]
        runs[passed | failed] = k
        is_open &= ~(passed | failed)
    good = (decision == PASS) | (decision == SEEMS_OK)
    return Decided(decision, runs, np.where(good, 1.0, p) if with_p else np.empty(0), likely)


def least_expected(base: Baselines, rule: RuleR) -> Floats:
    """Return below what a run strays from the baseline's, as `strays` has it."""
    n0 = len(base.sessions)
    if n0 < 3:
        return np.full_like(base.mean, -np.inf)
    df = rule.prior_df + n0 - 1
    far = t_isf(OUTLIER_RISK, df) * moderated(base.within / n0, base.squares, df, rule)
    found: Floats = np.minimum(base.least, base.mean - far * np.sqrt(1 + 1 / n0))
    return found


def look_at(
    base: Baselines, x1: Floats, errors: Floats, rule: RuleR, lost: Floats | None = None
) -> rule_r._RunStatistics:
    """Return the statistics after the runs given, as arrays in the shipped look."""
    n0, k = len(base.sessions), x1.shape[-1]
    mean = x1.mean(axis=-1)
    squares = base.squares + ((x1 - mean[..., None]) ** 2).sum(axis=-1)
    inside = (base.within + (errors**2).sum(axis=-1)) / (n0 + k)
    df = rule.prior_df + n0 - 1 + k - 1
    sd = moderated(inside, squares, df, rule)
    se = sd * base.factor(k, rule)
    return rule_r._RunStatistics(
        k=k,
        d=cast(Any, mean - base.mean),
        sd=cast(Any, sd),
        df=df,
        se=se,
        lost=0.0 if lost is None else cast(Any, lost.mean(axis=-1)),
        lost_before=cast(Any, base.lost),
    )


def moderated(inside: Floats, squares: Floats, df: float, rule: RuleR) -> Any:
    """Return standard deviations drawn towards the expected one."""
    variance = (rule.prior_df * (rule.prior_sd**2 + inside) + squares) / df
    return np.maximum(np.sqrt(variance), rule.floor_sd)


def detectable(base: Baselines, rule: RuleR = RULE) -> Floats:
    """Return the smallest drop that each baseline is said to prove when it is recorded."""
    n0 = len(base.sessions)
    sd = moderated(base.within / n0, base.squares, rule.prior_df + n0 - 1, rule)
    # The shipped formula is linear in the standard deviation, inside the exponential.
    flat = [Value(value=1.0, session=session) for session in base.sessions]
    own = rule_r.moderated_sd(flat, 0.0, rule.prior_df + n0 - 1, rule)
    per_sd = -math.log1p(-rule_r.minimum_detectable_change(flat, rule=rule)) / own
    found: Floats = -np.expm1(-per_sd * sd)
    return found
