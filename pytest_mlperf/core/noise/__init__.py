"""Estimate the noise of unchanged code: within runs, between runs and between sessions.

Model, on log values: case, session and run effects, and noise within a run. The variance of a case
without the noise within runs has a scaled inverse chi-square distribution: ν0·s0² / χ²(ν0). Rule R
needs ν0, s0 and the session's share φ of the variance, which A/A runs estimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import NormalDist, fmean, variance

from pytest_mlperf.judge.formulas import scatter
from pytest_mlperf.judge.inputs import MAX_NOISE, SessionNoise
from pytest_mlperf.judge.rule_r import RuleR, Value, by_session, log_scale

CELLS = 100
"""Grid cells for shares from 0 to 1."""

_CELL_SHARES = tuple((cell + 0.5) / CELLS for cell in range(CELLS))

_EXPECTED = tuple(share**-0.5 for share in _CELL_SHARES)
"""Prior weight of each share for the mean: a third is expected. Intervals omit it, so that they
also hold if most of the variance belongs to the session."""

_NORMAL = NormalDist()


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionShare:
    """Hold the distribution of φ (session share of variance) over `CELLS` steps from 0 to 1."""

    weights: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Posterior mean of φ, the sessions' share of the variance, with prior density φ^-0.5."""
        weights = [w * before for w, before in zip(self.weights, _EXPECTED, strict=True)]
        total = math.fsum(weights)
        return math.fsum(w * share for w, share in zip(weights, _CELL_SHARES, strict=True)) / total

    def quantile(self, chance: float) -> float:
        """Return a quantile of φ, the sessions' share of the variance, at probability `chance`."""
        sums = accumulate(self.weights)
        return next(
            (s for s, below in zip(_CELL_SHARES, sums, strict=True) if below >= chance), 1.0
        )

    def variance(self, probability: float, inside: float, within: float, log_se: float) -> float:
        """Return the `probability` quantile of s0², the variance between runs without w².

        Args:
            inside: The part of s0² inside a session: (1 - φ)·(s0² + w²) - w²; φ: sessions' share.
            within: Variance inside a run, w².
            log_se: Standard error of the logarithm of `inside`.
        """

        def below(variance: float) -> float:
            left = ((variance + within) * (1 - share) - within for share in _CELL_SHARES)
            return math.fsum(
                w * _NORMAL.cdf(math.log(x / inside) / log_se)
                for w, x in zip(self.weights, left, strict=True)
                if x > 0
            )

        low, high = math.log(inside) - 10 * log_se - 1, math.log(inside + within) + 10 * log_se + 8
        return math.exp(_root(lambda log: probability - below(math.exp(log)), low, high))


def session_share(ratio: float, *, runs_per_session: float, df: int, run_df: float) -> SessionShare:
    """Return the distribution of the session share φ from the mean square between sessions.

    `ratio` is that mean square over the variance inside sessions. It has the distribution
    (1 + n0·φ/(1-φ)) · F(df, run_df), where df is the number of sessions less one.

    Source: the posterior of a one-way random effects model, by a grid (G. E. P. Box, G. C. Tiao,
        Bayesian Inference in Statistical Analysis, 1973, chapter 5).
    """
    logs = []
    for share in _CELL_SHARES:
        scale = 1 + runs_per_session * share / (1 - share)
        tail = (df + run_df) / 2 * math.log1p(df * ratio / (run_df * scale))
        logs.append(-df / 2 * math.log(scale) - tail)
    top = max(logs)
    likely = [math.exp(x - top) for x in logs]
    total = math.fsum(likely)
    return SessionShare(weights=tuple(x / total for x in likely))


_LARGE = 12.0
"""From this value on the asymptotic series is good to 1e-13."""


def digamma(x: float) -> float:
    """Return ψ(x), the derivative of log Γ(x), for x > 0.

    Source: recurrence and asymptotic series, https://dlmf.nist.gov/5.5#E2 and 5.11#E2
    """
    _require_positive(x)
    below = 0.0
    while x < _LARGE:
        below += 1 / x
        x += 1
    y = 1 / (x * x)
    series = y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y * (1 / 240 - y / 132))))
    return math.log(x) - 0.5 / x - series - below


def trigamma(x: float) -> float:
    """Return ψ'(x) for x > 0: it falls from infinity towards 0.

    Source: the derivative of the series of `digamma`.
    """
    _require_positive(x)
    below = 0.0
    while x < _LARGE:
        below += 1 / (x * x)
        x += 1
    y = 1 / (x * x)
    series = y * (1 / 6 - y * (1 / 30 - y * (1 / 42 - y * (1 / 30 - y * 5 / 66))))
    return below + 1 / x + y / 2 + series / x


def trigamma_inverse(value: float) -> float:
    """Return the x > 0 with ψ'(x) = value, for value > 0.

    Source: bisection, because 1/x + 1/(2x²) < ψ'(x) < 1/x + 1/x².
    """
    _require_positive(value)
    return _root(lambda x: trigamma(x) - value, 1 / value, 1 / value + 1 / math.sqrt(value))


def _require_positive(x: float) -> None:
    if not 0 < x < math.inf:
        raise ValueError(f"must be positive and finite, not {x!r}")


DEFAULT_CASES = 10
"""Weight of the default ν0 in cases: a few cases do not show how cases differ."""

DEFAULT_FACTOR = 2.0
"""Uncertainty of the default s0: one standard deviation is this factor."""

FLOOR_SD = RuleR().floor_sd
MIN_DF, MAX_DF = 1.0, 30.0
"""Bounds of ν0: the upper one if the cases' variances differ by no more than chance."""


@dataclass(frozen=True, slots=True)
class SeriesVariance:
    """Hold log values' variance between runs, its degrees of freedom, and variance within runs."""

    variance: float
    df: int
    within: float


@dataclass(frozen=True, slots=True)
class Fit:
    """Hold a fit of the noise prior: ν0 (`df`) and s0² (`variance`).

    `log_se` is the standard error of log s0². `df_weight` and `weight` are the shares of the data
    in the estimates of ν0 and log s0², from 0 to 1; the rest is the default.
    """

    df: float
    variance: float
    log_se: float
    weight: float
    df_weight: float


def fit(
    units: Sequence[SeriesVariance], default_df: float, default_variance: float, cases: int
) -> Fit:
    """Fit rule R's prior, V / (s0² + w²) ~ F(d, ν0), by the moments of log V; return s0² and ν0.

    A unit has variance V between runs, df d, and variance w² inside a run. Estimates are shrunk
    towards the defaults; the number of `cases`, whose metrics share runs, weights the data.

    Source: G. K. Smyth, 2004, section 6.2, with an expected variance per case; the shrinkage is
        ours.
    """

    def at(log_variance: float) -> tuple[float, float]:
        expected = math.exp(log_variance)
        logs = [_centred(unit, expected) for unit in units]
        excess = 0.0
        if len(units) > 1:
            excess = variance(logs) - fmean(trigamma(unit.df / 2) for unit in units)
        weighed = DEFAULT_CASES * trigamma(default_df / 2) + (cases - 1) * excess
        df, weighed = MAX_DF, weighed / (DEFAULT_CASES + cases - 1)
        if weighed > trigamma(MAX_DF / 2):  # else the variances differ by no more than chance
            df = max(MIN_DF, 2 * trigamma_inverse(weighed))
        return fmean(logs) + digamma(df / 2) - math.log(df / 2), df

    low, high = 2 * math.log(FLOOR_SD), math.log(1e4)
    root = _root(lambda x: at(x)[0], low, high)
    df, estimate = at(root)[1], math.exp(root)
    share = fmean(estimate / (estimate + unit.within) for unit in units)
    error = (trigamma(df / 2) + fmean(trigamma(unit.df / 2) for unit in units)) / cases / share**2
    guess = (2 * math.log(DEFAULT_FACTOR)) ** 2
    weight = guess / (guess + error)
    mixed = math.exp(weight * root + (1 - weight) * math.log(default_variance))
    return Fit(
        df=df,
        variance=max(mixed, FLOOR_SD**2),
        log_se=math.sqrt(guess * error / (guess + error)),
        weight=weight,
        df_weight=(cases - 1) / (DEFAULT_CASES + cases - 1),
    )


def _centred(unit: SeriesVariance, expected: float) -> float:
    """Return ln(variance / (`expected` + within)) of a series, less its expectation E ln(χ²/df)."""
    ratio = max(unit.variance, FLOOR_SD**2) / (expected + unit.within)
    return math.log(ratio) - digamma(unit.df / 2) + math.log(unit.df / 2)


def _root(falling: Callable[[float], float], low: float, high: float) -> float:
    if falling(low) <= 0:
        return low
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return low


ENDS = (0.05, 0.95)
"""Ends of a 90 % interval."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """Hold the prior for the noise of an accelerator, used by rule R (the regression test).

    Attributes:
        prior_df: Degrees of freedom of the prior (ν0).
        prior_sd: Relative standard deviation between runs, without the noise within them (s0).
        session_share: Share of the variance that the runs of a session have in common (φ).
        session_df: Degrees of freedom of φ: sessions less one; 0 if φ is not measured.
    """

    prior_df: float
    prior_sd: float
    session_share: float
    session_df: int = 0

    def rule(self, max_runs: int) -> RuleR:
        """Return rule R with this noise as its prior and at most `max_runs` runs."""
        return RuleR(
            prior_df=self.prior_df,
            prior_sd=self.prior_sd,
            session_share=self.session_share,
            session_noise=self._of_sessions,
            max_runs=max_runs,
        )

    @property
    def _of_sessions(self) -> SessionNoise | None:
        if self.session_df < 1 or self.session_share >= 1:
            return None
        ratio = self.session_share / (1 - self.session_share)
        return SessionNoise(ratio=min(ratio, MAX_NOISE), df=min(float(self.session_df), MAX_NOISE))


def uncalibrated(accelerator: str) -> Noise:
    """Return the default noise prior for an accelerator without calibration."""
    plain = RuleR()
    noisy = "cpu" in accelerator.split("-vs-")  # a pair names both of its machines
    return Noise(
        prior_df=plain.prior_df,
        prior_sd=0.05 if noisy else plain.prior_sd,
        session_share=plain.session_share,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """Hold one metric of the A/A runs of one case, in the order of the runs."""

    case: str
    metric: str
    runs: tuple[Value, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesSpread:
    """Hold the relative variances of a series: one metric in all runs of one case.

    Attributes:
        within: Mean squared standard error inside a run; 0 if unknown.
        run: Mean square between runs of one session, including the noise inside runs.
        between: Mean square between sessions; None for a single session.
        runs_per_session: n0, the factor of the session variance in the mean square `between`.
    """

    within: float
    run: float
    run_df: int
    between: float | None
    between_df: int
    runs_per_session: float

    @property
    def session(self) -> float | None:
        """Variance between sessions by the method of moments, at least 0; None for one session."""
        if self.between is None:
            return None
        return max(0.0, (self.between - self.run) / self.runs_per_session)


@dataclass(frozen=True, kw_only=True, slots=True)
class Learnt:
    """Hold the estimated noise of an accelerator and the amount of data.

    Attributes:
        sd, share: 90 % intervals of run sd (s0) and session share (φ); None for one session.
        cases: Number of cases with at least two runs in one session.
        weights: Weights (0 to 1) of the data in the estimates of ν0 (prior df) and of s0.
    """

    noise: Noise
    sd: tuple[float, float] | None
    share: tuple[float, float] | None
    cases: int
    runs: int
    sessions: int
    weights: tuple[float, float]


def spread(runs: Sequence[Value]) -> SeriesSpread | None:
    """Return log variances in runs, between runs, between sessions; None without repeated runs."""
    groups = scatter(by_session(runs, log_scale()))
    if groups.run_df < 1:
        return None
    return SeriesSpread(
        within=fmean(run.within_se**2 for run in runs),
        run=groups.inside / groups.run_df,
        run_df=groups.run_df,
        between=groups.across / groups.between_df if groups.between_df else None,
        between_df=groups.between_df,
        runs_per_session=groups.size if groups.between_df else 0.0,
    )


def learn(series: Sequence[Series], default: Noise) -> Learnt:
    """Estimate the noise from A/A runs, shrunk towards the default if there are few.

    Noise is `prior_df` (ν0), `prior_sd` (s0) and `session_share` (φ). The first step estimates ν0
    and the variance between runs of one session. Divided by it, mean squares between sessions give
    φ's distribution; both mean squares give ν0 and s0. The interval of s0 includes φ's uncertainty.
    With one session φ stays the default, and s0 is the deviation between runs / √(1 - φ).
    """
    usable = [(one, variances) for one in series if (variances := spread(one.runs)) is not None]
    if not usable:
        raise ValueError(
            "noise needs at least two runs of one case in one session; repeat with --runs 2 or more"
        )
    spreads = [variances for _, variances in usable]
    cases = len({one.case for one, _ in usable})
    sessions = len({run.session for one, _ in usable for run in one.runs})
    inside = (1 - default.session_share) * default.prior_sd**2
    units = [
        SeriesVariance(variances.run, variances.run_df, variances.within) for variances in spreads
    ]
    first = fit(units, default.prior_df, inside, cases)
    shares, session_df = _session_share(usable, first)
    share = shares.mean if shares else default.session_share
    units = [
        SeriesVariance(total_variance(s, share), s.run_df + s.between_df, s.within) for s in spreads
    ]
    last = fit(units, default.prior_df, default.prior_sd**2, cases)
    sd = math.sqrt(last.variance)
    return Learnt(
        noise=Noise(prior_df=last.df, prior_sd=sd, session_share=share, session_df=session_df),
        sd=_sd_between(shares, first, fmean(s.within for s in spreads), sd) if shares else None,
        share=(shares.quantile(ENDS[0]), shares.quantile(ENDS[1])) if shares else None,
        cases=cases,
        runs=sum({one.case: len(one.runs) for one, _ in usable}.values()),
        sessions=sessions,
        weights=(last.df_weight, last.weight),
    )


def _sd_between(shares: SessionShare, inside: Fit, within: float, sd: float) -> tuple[float, float]:
    low, high = (shares.variance(end, inside.variance, within, inside.log_se) for end in ENDS)
    return min(math.sqrt(low), sd), max(math.sqrt(high), sd)


def total_variance(spread: SeriesSpread, share: float) -> float:
    """Estimate a run's total variance from the mean squares between sessions and between runs.

    `share` is the share of the total variance that lies between sessions.
    """
    squares = spread.run_df * spread.run
    if spread.between is not None:
        scale = 1 + spread.runs_per_session * share / (1 - share)
        squares += spread.between_df * spread.between / scale
    return squares / (spread.run_df + spread.between_df) / (1 - share)


def moderated(spread: SeriesSpread, noise: Noise) -> float:
    """Return the variance of a series, moderated by the noise prior (ν0 df, variance s0²).

    It is (ν0·(s0² + variance inside a run) + ν·s²) / (ν0 + ν). Source: G. K. Smyth (2004).
    """
    df = spread.run_df + spread.between_df
    variance = total_variance(spread, noise.session_share)
    expected = noise.prior_sd**2 + spread.within
    return (noise.prior_df * expected + df * variance) / (noise.prior_df + df)


def _session_share(
    spreads: Sequence[tuple[Series, SeriesSpread]], run_prior: Fit
) -> tuple[SessionShare | None, int]:
    """Return (distribution of φ, the sessions' share of variance; its df); (None, 0) if unknown.

    A case's mean square between S sessions over its moderated run variance (prior and observed df:
    ν0, f) is (1 + n0·φ/(1-φ)) · F(S-1, ν0+f), for n0 runs per session. All cases count as one.
    """
    squares = weight = run_df = 0.0
    between_df, names = 0, set()
    for series, spread in spreads:
        if spread.between is None:
            continue
        df = run_prior.df + spread.run_df
        expected = run_prior.df * (run_prior.variance + spread.within) + spread.run_df * spread.run
        squares += spread.between_df * spread.between * df / max(expected, df * FLOOR_SD**2)
        weight += spread.between_df * spread.runs_per_session
        run_df += df
        between_df += spread.between_df
        names |= {run.session for run in series.runs}
    if not between_df:
        return None, 0
    shares = session_share(
        squares / between_df, runs_per_session=weight / between_df, df=len(names) - 1, run_df=run_df
    )
    return shares, len(names) - 1


OTHERS_WEIGHT = 0.25
"""Weight of a session of the machine's other cases against one of the case itself."""


def session_noise(
    ours: Iterable[Sequence[Value]], others: Iterable[Sequence[Value]] = (), *, rule: RuleR
) -> SessionNoise | None:
    """Estimate the ratio of session to run variance; None if no unchanged build has two sessions.

    The ratio of a build's mean square between sessions to its moderated run variance is 1 +
    n0·ratio on average. All cases of a session share its machine, so other cases (`others`)
    together count as a quarter of a case. Each group of runs is of one metric and one build.

    Source: one-way random effects, mean squares and n0 for sessions of unequal size (S. R. Searle,
        G. Casella, C. E. McCulloch, Variance Components, 1992, 3.6).
    """
    mine = [excess for runs in ours if (excess := _excess(runs, rule))]
    related = [excess for runs in others if (excess := _excess(runs, rule))]
    df = float(sum(df for _, _, df in mine))
    squares = df * _ratio(mine)
    if related:
        further = OTHERS_WEIGHT * max(df for _, _, df in related)
        squares += further * _ratio(related)
        df += further
    return SessionNoise(ratio=min(max(0.0, squares / df), MAX_NOISE), df=df) if df else None


def _ratio(excesses: Sequence[tuple[float, float, int]]) -> float:
    weight = math.fsum(weight for _, weight, _ in excesses)
    return math.fsum(excess for excess, _, _ in excesses) / weight if weight else 0.0


def _excess(runs: Sequence[Value], rule: RuleR) -> tuple[float, float, int] | None:
    """Return a build's terms for estimating session variance / run variance; None for one session.

    The terms are (df · (mean square between sessions / run variance - 1), df · runs per session,
    df), with df = sessions - 1. The estimate is Σfirst / Σsecond over all builds.
    """
    sessions = by_session(runs, log_scale())
    if len(sessions) < 2:
        return None
    groups = scatter(sessions)
    within = fmean(run.within_se**2 for run in runs)
    variance, run_df = rule.inside_sessions(groups.inside, groups.run_df, within)
    # First-order correction: 1/variance is biased upwards by its own scatter.
    fair = 1 / (1 + 2 * groups.run_df / run_df**2)
    df = groups.between_df
    return groups.across / variance * fair - df, df * groups.size, df
