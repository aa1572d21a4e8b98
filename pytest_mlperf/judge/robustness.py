"""Check whether a decision is robust to between-session variance.

Rule R attributes a fixed share of the noise to sessions. If sessions differ more, false alarms and
misses exceed alpha and beta, and a few sessions cannot show that. So a decision is final only if it
is the same with the session variance of the baseline. With too few sessions, their standard
deviation is assumed to be `MAX_SPREAD_RATIO` times that of runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import correlation, fmean
from typing import Literal

from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.formulas import scatter, squares, t_isf, t_sf
from pytest_mlperf.judge.inputs import DAYS, SessionNoise

KNOWN_DF = 8.0
"""Degrees of freedom from which the session variance is estimated for a drop as well. Four similar
sessions do not exclude that one in five is 3 % slower: two of five such baselines contain only fast
ones, and the next session then looks like a drop."""

MAX_SPREAD_RATIO = 4.0
"""Assumed upper bound of the standard deviation of sessions over that of runs: 3 was measured on a
shared virtual machine, nothing is published for rented GPUs."""

KEEPS_DAYS, KEEPS_SPANS, TREND = 7.0, 2.0, 0.05
"""Longest validity of a baseline, in days and in spans of its days, and the p below which its days
show a trend; see `final_until`."""

MIN_DAY_CHANCE = 0.065
"""p value of one day, by the variance of the baseline's days, below which a provisional drop fails
on the second day in a row: 2 instead of 3 % of unchanged sessions that differ by four times the
deviation of runs fail. At typical noise it misses 0.2 % of the drops of the limit."""

BEARS_AGE = 2.0
"""Ratio of session to run deviation to which a drop against an old baseline must be robust. A
machine that drifts by 0.5 % a day then fails in less than 1 % after 14 days."""

ASSUMED_DF = 0.5
"""Degrees of freedom of the expected session share, next to observed sessions."""

CANDIDATE_DF = 1.0
"""Degrees of freedom of the baseline's scatter in that of the new runs, which may be noisier: with
the scatter of two runs alone hardly any decision would be final."""

ADDED_VARIANCES = (0.0, *(0.02 * 1.05**step for step in range(123)))
"""Additional session variances that `proves` tries, in multiples of the whole variance. With two
degrees of freedom the best multiple is three or less."""

Why = Literal["few sessions", "old"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """Hold baseline and new runs on an additive, usually logarithmic scale; higher is better.

    Attributes:
        baseline: Values by session, each of at least one run.
        lost, lost_before: Largest mean slowdown by other processes, in `now` and in `baseline`.
        expected, prior_df: Prior variance of a run in its session, and its degrees of freedom.
        ratio: Prior ratio of between-session variance to run variance.
        noise: Between-session noise, estimated from other runs too; None uses the baseline only.
        floor: Smallest standard deviation that is assumed for a run.
        old: Whether the baseline's sessions are too old to show today's session variance.
    """

    baseline: Sequence[Sequence[float]]
    now: Sequence[float]
    lost: float = 0.0
    lost_before: float = 0.0
    expected: float
    prior_df: float
    ratio: float
    noise: SessionNoise | None
    floor: float
    old: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Finality:
    """State whether a decision stays the same although results differ between sessions.

    Attributes:
        robust: Whether it stays the same for the between-session variance to be expected.
        robust_to: Largest between-session standard deviation [log] at which it stays the same.
        lacks: Why `robust_to` is unknown: too few or only old sessions; None if it is known.
        likely: Whether the same drop on a second day fails the test.
    """

    robust: bool
    robust_to: float
    lacks: Why | None
    likely: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Robustness:
    """Hold whether a pass and a fail would be final, given the between-session variance."""

    passing: Finality
    failing: Finality


def robustness(sample: Sample, *, bound: float, alpha: float, beta: float) -> Robustness:
    """Return whether a pass and a fail of present runs against a baseline's sessions are final.

    The check spends half of `alpha` and of `beta`, at the analysis that decided. A pass excludes a
    difference of `bound`, which is below 0.

    Source: one-way random effects; variance between sessions by their mean square, that of runs by
        the scatter inside sessions, both moderated (G. K. Smyth, 2004, doi:10.2202/1544-6115.1027);
        degrees of freedom of their sum by F. E. Satterthwaite, Biometrics Bulletin 2 (1946).
    """
    parts = _parts(sample)
    df = max(len(sample.baseline) - 1.0, sample.noise.df if sample.noise else 0.0)

    def word(distance: float, error: float, needed_df: float) -> Finality:
        # Age is reported first, because further old sessions would not help.
        old: Why | None = "old" if sample.old and df >= DAYS - 1 else None
        lacks = old or ("few sessions" if df < needed_df else None)
        robust_to = parts.critical_session_sd(distance, error)
        bears = lacks is None or robust_to >= MAX_SPREAD_RATIO * math.sqrt(parts.run)
        # One session shows no between-session variance.
        seen = df < 1 or parts.proves(distance, error)
        young = old is None or robust_to >= BEARS_AGE * math.sqrt(parts.run)
        likely = len(sample.baseline) >= DAYS and young and parts.exceeds_day_variance(distance)
        return Finality(robust=seen and bears, robust_to=robust_to, lacks=lacks, likely=likely)

    return Robustness(
        passing=word(parts.change - sample.lost_before - bound, beta / 2, DAYS - 1),
        failing=word(-parts.change - sample.lost, alpha / 2, KNOWN_DF),
    )


def final_until(runs: Iterable[tuple[float | None, float]]) -> float | None:
    """Return the last day (since 1970) on which verdicts against a baseline can be final.

    `runs` has the day and log value of each run. Machines drift: sessions are valid for twice the
    span of their days, but at most for the longer of `KEEPS_DAYS` and the span. With a linear trend
    they are valid for twice the mean time between their days. A baseline of a single day is never
    final: the result is the day before. None if no day is known.

    Source: least squares and Student's t for the trend; without it a random walk of 0.5 % a day
        passes a drop of the limit as final in 12 to 16 % after 14 days (simulated).
    """
    by_day: dict[int, list[float]] = {}
    for day, value in runs:
        if day is not None:
            by_day.setdefault(math.floor(day), []).append(value)
    if not by_day:
        return None
    last, span, means = max(by_day), max(by_day) - min(by_day), [*map(fmean, by_day.values())]
    if not span:
        return last - 1.0
    keeps, df = min(KEEPS_SPANS * span, max(KEEPS_DAYS, span)), len(means) - 2
    if df > 0 and max(means) > min(means):
        t = t_isf(TREND / 2, df)
        if correlation([*by_day], means) ** 2 * (t * t + df) > t * t:
            keeps = min(span, KEEPS_SPANS * span / (df + 1))
    return last + keeps


@dataclass(frozen=True, kw_only=True, slots=True)
class _ChangeVariance:
    """Hold a mean log change, its variance, and the terms of that variance as (value, df)."""

    change: float
    variance: float
    parts: tuple[tuple[float, float], ...]
    run: float
    run_df: float
    of_runs: float
    of_sessions: float

    def proves(self, distance: float, p: float) -> bool:
        """Check whether a mean difference of `distance` is significant at `p` (one-sided t test).

        It tries larger session variances too, because a smaller one must not prove less.
        """
        (between, between_df), *others = self.parts
        if distance <= 0:
            return False
        for more in (self.variance * times for times in ADDED_VARIANCES):
            variance, parts = self.variance + more, ((between + more, between_df), *others)
            df = variance**2 / math.fsum(part**2 / its_df for part, its_df in parts)
            df = min(max(df, 1.0), self.run_df + between_df)
            if t_sf(distance / math.sqrt(variance), df) < p:
                return True
        return False

    def exceeds_day_variance(self, distance: float) -> bool:
        """Check by a one-sided t test if a log drop of `distance` exceeds the variance of days."""
        between, df = self.parts[0]
        return t_sf(distance / math.sqrt(between), df) < MIN_DAY_CHANCE

    def critical_session_sd(self, distance: float, p: float) -> float:
        """Return the between-session sd at which `distance` has the one-sided p value `p`."""
        error = max(0.0, distance) / t_isf(p, self.run_df)
        return math.sqrt(max(0.0, error**2 - self.run * self.of_runs) / self.of_sessions)


def _parts(sample: Sample) -> _ChangeVariance:
    sizes = [len(xs) for xs in sample.baseline]
    n0, k = sum(sizes), len(sample.now)
    mean = fmean(x for xs in sample.baseline for x in xs)
    spread, inside_now = scatter(sample.baseline), squares(sample.now)
    run_df = sample.prior_df + spread.run_df + (k - 1)
    run = (sample.prior_df * sample.expected + spread.inside + inside_now) / run_df
    run = max(run, sample.floor**2)
    new, new_df = _present_run_variance(sample, spread.inside, inside_now, run, run_df)
    # Factor of the session variance in the variance of the mean difference.
    of_sessions = 1 + math.fsum(size**2 for size in sizes) / n0**2
    size = spread.size
    between, between_df = _between(sample, run, spread.across, size)
    session = max((between - run) / size, sample.ratio * run)
    variance = session * of_sessions + run / n0 + new / k
    share = of_sessions / size
    parts = ((share * between, between_df), ((1 / n0 - share) * run, run_df), (new / k, new_df))
    return _ChangeVariance(
        change=fmean(sample.now) - mean,
        variance=variance,
        parts=parts,
        run=run,
        run_df=run_df,
        of_runs=1 / n0 + 1 / k,
        of_sessions=of_sessions,
    )


def _present_run_variance(
    sample: Sample,
    baseline_squares: float,
    squares_now: float,
    pooled_variance: float,
    pooled_df: float,
) -> tuple[float, float]:
    """Return a current run's (variance, df) from both sums of squares; at least the pooled one."""
    if len(sample.now) == 1:
        return pooled_variance, pooled_df
    base_df = pooled_df - (len(sample.now) - 1)
    baseline = (sample.prior_df * sample.expected + baseline_squares) / base_df
    df = CANDIDATE_DF + len(sample.now) - 1
    return max((CANDIDATE_DF * baseline + squares_now) / df, pooled_variance), df


def _between(sample: Sample, run: float, across: float, size: float) -> tuple[float, float]:
    expected = ASSUMED_DF * run * (1 + size * sample.ratio)
    if sample.noise and sample.noise.df >= len(sample.baseline) - 1:
        df = ASSUMED_DF + sample.noise.df
        return (expected + sample.noise.df * run * (1 + size * sample.noise.ratio)) / df, df
    df = ASSUMED_DF + len(sample.baseline) - 1
    return (expected + across) / df, df


def robust_answer(answer: Answer, robust: Robustness, *, last: bool) -> Answer:
    """Replace an answer that session variance may reverse: PROVISIONAL, or MORE if runs remain."""
    if answer is Answer.PASS:
        return Answer.PASS if robust.passing.robust else Answer.PROVISIONAL
    if answer is not Answer.FAIL or robust.failing.robust:
        return answer
    # More runs help only if the baseline shows the between-session variance.
    more = robust.failing.lacks is None and not last
    return Answer.MORE if more else Answer.PROVISIONAL
