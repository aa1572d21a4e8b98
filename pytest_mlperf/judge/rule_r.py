"""Apply rule R: a sequential t test of a few fresh runs (speed, energy) against a baseline."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean

from pytest_mlperf.judge.decision import Answer, Decision
from pytest_mlperf.judge.formulas import bound_of, scatter, squares, t_isf, t_sf, to_relative_change
from pytest_mlperf.judge.inputs import Direction, SessionNoise, check
from pytest_mlperf.judge.robustness import (
    MAX_SPREAD_RATIO,
    Robustness,
    Sample,
    Why,
    final_until,
    robust_answer,
    robustness,
)

OUTLIER_RISK = 0.01
GATING_RUNS = 5
"""Baseline runs below which a verdict is only advisory."""

_TOO_FAST = 0.0005


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleR:
    """Hold the settings of rule R, fixed before the first run.

    Attributes:
        alpha: Probability that an unchanged case fails, over all interim analyses.
        beta: Probability that a true drop of the limit passes, over all interim analyses.
        max_runs: Largest number of runs and of interim analyses (K).
        prior_df: Degrees of freedom of the expected noise (ν0).
        prior_sd: Expected relative standard deviation between runs (s0).
        session_share: Share of the variance that all runs of one session have in common (φ).
        floor_sd: Smallest relative standard deviation that is assumed for a run.
        session_noise: Observed session noise, including the baseline's; None for the baseline's
            alone.
        tolerated: Slowdown by other processes that is ignored, as a share; inf ignores any.
    """

    alpha: float = 0.01
    beta: float = 0.05
    max_runs: int = 5
    prior_df: float = 4.0
    prior_sd: float = 0.007
    session_share: float = 0.25
    floor_sd: float = 0.001
    session_noise: SessionNoise | None = None
    tolerated: float = math.inf

    def __post_init__(self) -> None:
        check(
            self,
            (0 < self.alpha < 0.5, "alpha", "between 0 and 0.5"),
            (0 < self.beta < 0.5, "beta", "between 0 and 0.5"),
            (self.max_runs >= 2, "max_runs", "at least 2: one run alone never fails"),
            (1 <= self.prior_df < math.inf, "prior_df", "at least 1"),
            (0 <= self.prior_sd < math.inf, "prior_sd", "at least 0"),
            (0 <= self.session_share < 1, "session_share", "at least 0 and below 1"),
            (0 < self.floor_sd < math.inf, "floor_sd", "above 0"),
        )

    def shared(self, parts: int) -> RuleR:
        """Return the rule for one of `parts` joint decisions, with alpha divided by `parts`."""
        return replace(self, alpha=self.alpha / parts)

    def inside_sessions(
        self, squares: float, run_df: int, within: float = 0.0
    ) -> tuple[float, float]:
        """Return the variance between runs of a session, pooled with the prior, and its df.

        `squares`: sum of squared deviations, with `run_df` df; `within`: variance inside a run.
        """
        expected = (1 - self.session_share) * self.prior_sd**2 + within
        df = self.prior_df + run_df
        return max((self.prior_df * expected + squares) / df, self.floor_sd**2), df


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """Hold one metric of one run.

    Attributes:
        value: Value in the metric's unit, above 0.
        within_se: Relative standard error inside the run by batch means; 0 if unknown.
        session: Id of the first session on the run's day and machine; equal ids share an effect.
        day: Time in days since 1970; None if unknown.
        lost: Largest worsening that other processes' load may have caused, as a log ratio.
    """

    value: float
    within_se: float = 0.0
    session: str = ""
    day: float | None = None
    lost: float = 0.0

    def __post_init__(self) -> None:
        check(
            self,
            (0 < self.value < math.inf, "value", "finite and above 0"),
            (0 <= self.within_se < math.inf, "within_se", "finite and at least 0"),
            (0 <= self.lost < math.inf, "lost", "finite and at least 0"),
        )


Scale = Callable[[Value], float]
"""Maps a value to a scale where higher is better and differences count."""


def log_scale(direction: Direction = Direction.HIGHER) -> Scale:
    """Return a function that maps a value to its logarithm, negated if lower is better."""
    sign = 1 if direction is Direction.HIGHER else -1
    return lambda run: sign * math.log(run.value)


def by_session(runs: Sequence[Value], scale: Scale) -> list[list[float]]:
    """Group the scaled values by session, in the order of each session's first run."""
    sessions: dict[str, list[float]] = {}
    for run in runs:
        sessions.setdefault(run.session, []).append(scale(run))
    return list(sessions.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged(Decision):
    """Hold a decision of rule R with its figures.

    Attributes:
        change: Relative change of the metric's value, e.g. -0.021, whether that is better or worse.
        sd: Relative standard deviation of a run as estimated at the decision.
        mde: Minimum detectable effect: the smallest drop that the baseline can prove, as a share.
        se: Standard error of the logarithmic change at the decision.
        lost, lost_before: Most that other load may have slowed present and baseline runs down, on
            average [log ratio].
        robust: Whether a fail would stay one despite between-session variance.
        likely: Whether two such drops in a row, on different days, count as proven.
        outliers: Number of runs that are much worse than every run of the baseline.
    """

    change: float
    limit: float
    runs_used: int
    runs_baseline: int
    sd: float
    df: float
    se: float
    lost: float
    lost_before: float
    mde: float
    advisory: bool
    robust: bool = False
    likely: bool = False
    lacks: Why | None = None
    outliers: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class _RunStatistics:
    """Hold the mean log ratio `d` of `k` runs to a baseline, its se, and a run's sd with df."""

    k: int
    d: float
    sd: float
    df: float
    se: float
    lost: float = 0.0
    lost_before: float = 0.0

    @property
    def worst(self) -> float:
        return self.d - self.lost_before

    @property
    def best(self) -> float:
        return self.d + self.lost

    def low(self, rule: RuleR) -> float:
        return self.worst - t_isf(rule.beta / rule.max_runs, self.df) * self.se

    def high(self, rule: RuleR) -> float:
        return self.best + t_isf(rule.alpha / (rule.max_runs - 1), self.df) * self.se


def judge(
    baseline: Sequence[Value],
    runs: Sequence[Value],
    *,
    direction: Direction,
    limit: float,
    rule: RuleR,
) -> Judged:
    """Judge runs against a baseline in the order they were made; the first pass or fail is final.

    Unchanged performance fails with probability `alpha` at most. A drop of `limit` in every run
    passes with probability `beta` at most. The decision is PROVISIONAL if the unknown
    between-session variance could reverse it (`robustness`). The limit is a share: a drop if higher
    is better (then below 1), a rise if lower is better.

    Before a fail the largest effect of load (`Value.lost`) is added to the runs, before a pass to
    the baseline. So both error rates are valid for any effect of load up to that.

    Source: moderated t (G. K. Smyth, 2004, doi:10.2202/1544-6115.1027) on log values, two one-sided
        bounds, error divided evenly among the interim analyses.
    """
    if not baseline or not runs:
        raise ValueError(f"nothing to compare: {len(baseline)} baseline runs and {len(runs)} runs")
    bound = bound_of(direction, limit)
    ruled = judge_sequentially(baseline, runs, log_scale(direction), bound, rule)
    low, high = sorted(to_relative_change(end, direction) for end in ruled.interval)
    change, mde = to_relative_change(ruled.change, direction), -math.expm1(-ruled.mde)
    return replace(ruled, change=change, interval=(low, high), limit=limit, mde=mde)


def judge_sequentially(
    baseline: Sequence[Value], runs: Sequence[Value], scale: Scale, bound: float, rule: RuleR
) -> Judged:
    """Apply the t test of rule R after each run until it decides; limit `bound` is on `scale`."""
    p_value = 1.0
    for k in range(1, min(len(runs), rule.max_runs) + 1):
        look = interim_statistics(baseline, runs[:k], scale, rule)
        if k > 1:
            p_value = min(p_value, (rule.max_runs - 1) * t_sf(-look.best / look.se, look.df))
        plain = _decide(look, bound, rule)
        outliers = _outliers(baseline, runs[:k], scale, rule)
        if outliers and plain is Answer.PASS and k < rule.max_runs:
            plain = Answer.MORE  # there may be more of them, with a drop in some processes
        robust = _robustness(baseline, runs[:k], scale, bound, rule)
        decision = robust_answer(plain, robust, last=k == rule.max_runs)
        if decision is not Answer.MORE:
            break
    passing = plain is Answer.PASS
    hidden = decision is Answer.INCONCLUSIVE and look.high(rule) < look.lost
    word = robust.passing if passing else robust.failing
    return Judged(
        outcome=decision,
        improved=decision is Answer.PASS and look.worst > t_isf(rule.alpha, look.df) * look.se,
        change=look.d,
        interval=(look.low(rule), look.high(rule)),
        limit=-bound,
        runs_used=look.k,
        runs_baseline=len(baseline),
        sd=look.sd,
        df=look.df,
        se=look.se,
        lost=look.lost,
        lost_before=look.lost_before,
        mde=_detectable(baseline, scale, rule),
        advisory=len(baseline) < GATING_RUNS,
        p=1.0 if passing else p_value,
        direction=("ok" if passing else "drop")
        if decision is Answer.PROVISIONAL or hidden  # by load: without it this would be a drop
        else None,
        robust=robust.failing.robust,
        likely=robust.failing.likely,
        robust_to=word.robust_to if plain in {Answer.PASS, Answer.FAIL} else None,
        lacks=word.lacks,
        outliers=outliers,
    )


def without_multiplicity(
    judged: Judged, baseline: Sequence[Value], direction: Direction, rule: RuleR
) -> Judged:
    """Recompute a decision's interval and detectable drop without multiplicity adjustment."""
    higher = direction is Direction.HIGHER
    gain = math.log1p(judged.change) * (1 if higher else -1)
    best = gain + judged.lost + t_isf(rule.alpha / (rule.max_runs - 1), judged.df) * judged.se
    better = math.expm1(best if higher else -best)
    proven = gain - judged.lost_before > t_isf(rule.alpha, judged.df) * judged.se
    return replace(
        judged,
        improved=judged.outcome is Answer.PASS and proven,
        interval=(judged.low, better) if higher else (better, judged.high),
        mde=minimum_detectable_change(baseline, rule=rule),
    )


def minimum_detectable_change(baseline: Sequence[Value], *, rule: RuleR) -> float:
    """Return the smallest drop, as a share, that rule R proves with probability 1 - beta."""
    if not baseline:
        raise ValueError("a baseline without runs detects nothing; record at least one run")
    return -math.expm1(-_detectable(baseline, log_scale(), rule))


def drop_final_at_once(baseline: Sequence[Value], *, rule: RuleR) -> float:
    """Return the log drop that is final against a one-session baseline with probability 1 - beta.

        D = t(α/2, ν + 1)·√(v·(ν + z²)/(ν + 1)·(1/n + 1/2 + 2·`MAX_SPREAD_RATIO`²))

    It compares two new runs with n runs of the baseline. Their variance v is moderated with ν
    degrees of freedom. z is the 1 - β/2 quantile of the normal distribution.

    Source: `Finality.robust_to`, which must reach `MAX_SPREAD_RATIO` (`robustness`).
    """
    groups = scatter(by_session(baseline, log_scale()))
    within, z = fmean(run.within_se**2 for run in baseline), NormalDist().inv_cdf(1 - rule.beta / 2)
    variance, df = rule.inside_sessions(groups.inside, groups.run_df, within)
    of_mean = 1 / len(baseline) + 1 / 2 + 2 * MAX_SPREAD_RATIO**2
    return t_isf(rule.alpha / 2, df + 1) * math.sqrt(variance * (df + z * z) / (df + 1) * of_mean)


def _robustness(
    baseline: Sequence[Value], runs: Sequence[Value], scale: Scale, bound: float, rule: RuleR
) -> Robustness:
    within = fmean(run.within_se**2 for run in (*baseline, *runs))
    share = rule.session_share
    until, today = final_until((run.day, scale(run)) for run in baseline), runs[-1].day
    sample = Sample(
        baseline=by_session(baseline, scale),
        now=[scale(run) for run in runs],
        lost=fmean(run.lost for run in runs),
        lost_before=fmean(run.lost for run in baseline),
        expected=(1 - share) * rule.prior_sd**2 + within,
        prior_df=rule.prior_df,
        ratio=share / (1 - share),
        noise=rule.session_noise,
        floor=rule.floor_sd,
        old=until is not None and today is not None and today >= until + 1,
    )
    return robustness(sample, bound=bound, alpha=rule.alpha, beta=rule.beta)


def _outliers(baseline: Sequence[Value], runs: Sequence[Value], scale: Scale, rule: RuleR) -> int:
    """Count runs worse than every baseline run and than the t prediction bound for one more run.

    Return 0 if all runs are, as rule R detects such a drop, or with fewer than 3 baseline runs.
    """
    if len(baseline) < 3:
        return 0
    x0, df = [scale(run) for run in baseline], rule.prior_df + len(baseline) - 1
    sd = moderated_sd(baseline, squares(x0), df, rule)
    far = t_isf(OUTLIER_RISK, df) * sd * math.sqrt(1 + 1 / len(baseline))
    least = min(*x0, fmean(x0) - far)
    count = sum(scale(run) + run.lost < least for run in runs)
    return count if count < len(runs) else 0


def _decide(look: _RunStatistics, bound: float, rule: RuleR) -> Answer:
    # A single run that is much too fast (a boosted clock, skipped work) would hide a real drop.
    believable = look.k > 1 or look.worst <= t_isf(_TOO_FAST, look.df) * look.se
    if look.low(rule) > bound and believable:
        return Answer.PASS
    if look.k > 1 and look.high(rule) < 0:
        return Answer.FAIL
    return Answer.MORE if look.k < rule.max_runs else Answer.INCONCLUSIVE


def interim_statistics(
    baseline: Sequence[Value], runs: Sequence[Value], scale: Scale, rule: RuleR
) -> _RunStatistics:
    """Return mean(runs) - mean(baseline) on `scale`, its se and df, and sd moderated by prior."""
    x0, x1 = [scale(run) for run in baseline], [scale(run) for run in runs]
    df = rule.prior_df + len(x0) - 1 + len(x1) - 1
    sd = moderated_sd([*baseline, *runs], squares(x0) + squares(x1), df, rule)
    se = sd * _se_factor(baseline, len(x1), rule)
    return _RunStatistics(
        k=len(x1),
        d=fmean(x1) - fmean(x0),
        sd=sd,
        df=df,
        se=se,
        lost=fmean(run.lost for run in runs),
        lost_before=fmean(run.lost for run in baseline),
    )


def _detectable(baseline: Sequence[Value], scale: Scale, rule: RuleR) -> float:
    df = rule.prior_df + len(baseline) - 1
    sd = moderated_sd(baseline, squares([scale(run) for run in baseline]), df, rule)
    last = df + rule.max_runs - 1
    quantiles = t_isf(rule.alpha / (rule.max_runs - 1), last) + t_isf(rule.beta, last)
    provable = quantiles * sd * _se_factor(baseline, rule.max_runs, rule)
    return provable + fmean(run.lost for run in baseline)  # the baseline's load may hide a drop


def moderated_sd(runs: Sequence[Value], squares: float, df: float, rule: RuleR) -> float:
    """Return the moderated standard deviation of a run, √((ν0·(s0² + within²) + squares) / df)."""
    within = fmean(run.within_se**2 for run in runs)
    variance = (rule.prior_df * (rule.prior_sd**2 + within) + squares) / df
    return max(math.sqrt(variance), rule.floor_sd)


def _se_factor(baseline: Sequence[Value], count: int, rule: RuleR) -> float:
    """Return the standard error of the mean log change of `count` runs, divided by a run's sd."""
    n0, phi = len(baseline), rule.session_share
    sessions = Counter(run.session for run in baseline).values()
    v0 = phi * sum((m / n0) ** 2 for m in sessions) + (1 - phi) / n0
    return math.sqrt(phi + (1 - phi) / count + v0)
