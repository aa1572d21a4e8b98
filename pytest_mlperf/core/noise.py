"""What runs of unchanged code vary by: within a run, from run to run, from session to session.

Model, on log values: a run's value is that of its case, plus what its session has in common, plus
what the run has in common, plus what varies inside of it. The variance of case c, the last part
left out, is drawn from a scaled inverse chi-square: ν0·s0² / χ²(ν0). Rule R needs ν0, s0 and the
share φ of the variance that belongs to the session; here they are learnt from A/A runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from pytest_mlperf.core.judge.rule_r import RuleR, Value
from pytest_mlperf.core.noise_fit import FLOOR_SD, Fit, Unit, fit

DEFAULT_SESSIONS = 4
"""As many differences between sessions the default φ weighs."""

LARGEST_SHARE = 0.9

_Z90 = 1.6449


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """What rule R expects of an accelerator.

    Attributes:
        prior_df: Degrees of freedom that the expectation weighs (ν0).
        prior_sd: Relative standard deviation between runs, beyond what varies inside (s0).
        session_share: Share of the variance that the runs of a session have in common (φ).
    """

    prior_df: float
    prior_sd: float
    session_share: float

    def rule(self, max_runs: int) -> RuleR:
        """Return rule R with this noise.

        Args:
            max_runs: Most runs of a case.
        """
        return RuleR(
            prior_df=self.prior_df,
            prior_sd=self.prior_sd,
            session_share=self.session_share,
            max_runs=max_runs,
        )


def uncalibrated(accelerator: str) -> Noise:
    """Return the expected noise of an accelerator that nobody calibrated."""
    plain = RuleR()
    noisy = "cpu" in accelerator.split("-vs-")  # a pair names both of its machines
    return Noise(
        prior_df=plain.prior_df,
        prior_sd=0.05 if noisy else plain.prior_sd,
        session_share=plain.session_share,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One metric of the A/A runs of one case.

    Attributes:
        case: The case's id.
        metric: The metric's name.
        runs: Its runs in the order they were made.
    """

    case: str
    metric: str
    runs: tuple[Value, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """What one series varies by; variances are relative.

    Attributes:
        within: Mean squared standard error inside a run; 0 where it is unknown.
        run: Mean square between runs of one session; what varies inside a run is part of it.
        run_df: Its degrees of freedom.
        between: Mean square between sessions; None of a single session.
        between_df: Its degrees of freedom.
        runs_per_session: The factor of the session's variance in the mean square `between`.
    """

    within: float
    run: float
    run_df: int
    between: float | None
    between_df: int
    runs_per_session: float

    @property
    def session(self) -> float | None:
        """Variance between sessions by the method of moments, at least 0; None of one session."""
        if self.between is None:
            return None
        return max(0.0, (self.between - self.run) / self.runs_per_session)


@dataclass(frozen=True, kw_only=True, slots=True)
class Learnt:
    """The noise of an accelerator and what it rests on.

    Attributes:
        noise: What rule R shall expect.
        low: Lower end of a 90 % interval of `noise.prior_sd`.
        high: Its upper end.
        cases: Cases with at least two runs in one session.
        runs: Their runs.
        sessions: Their sessions.
        weights: Share of the data in ν0, s0 and φ; the defaults have the rest.
    """

    noise: Noise
    low: float
    high: float
    cases: int
    runs: int
    sessions: int
    weights: tuple[float, float, float]


def spread(runs: Sequence[Value]) -> Spread | None:
    """Return what a series varies by, or None where no session has two runs.

    Source: one-way random effects, mean squares and n0 for sessions of unequal size
        (S. R. Searle, G. Casella, C. E. McCulloch, Variance Components, 1992, 3.6).
    """
    sessions: dict[str, list[float]] = {}
    for run in runs:
        sessions.setdefault(run.session, []).append(math.log(run.value))
    groups, total = list(sessions.values()), len(runs)
    run_df, between_df = total - len(groups), len(groups) - 1
    if run_df < 1:
        return None
    inside = math.fsum((x - fmean(xs)) ** 2 for xs in groups for x in xs)
    mean = fmean(x for xs in groups for x in xs)
    across = math.fsum(len(xs) * (fmean(xs) - mean) ** 2 for xs in groups)
    share = math.fsum(len(xs) ** 2 for xs in groups) / total
    return Spread(
        within=fmean(run.within_se**2 for run in runs),
        run=inside / run_df,
        run_df=run_df,
        between=across / between_df if between_df else None,
        between_df=between_df,
        runs_per_session=(total - share) / between_df if between_df else 0.0,
    )


def learn(series: Sequence[Series], default: Noise) -> Learnt:
    """Return the noise that A/A runs show, drawn towards the default as far as they are few.

    First ν0 and the variance between runs of one session; by it the sessions' mean squares are
    scaled, and their mean excess over 1 gives φ; then ν0 and s0 from both mean squares. With one
    session φ stays the default, and s0 is the runs' own figure divided by √(1 - φ).

    Args:
        series: The runs.
        default: What is expected without any.

    Raises:
        ValueError: No session has two runs of one case.
    """
    known = [(one, found) for one in series if (found := spread(one.runs)) is not None]
    if not known:
        raise ValueError("noise needs two runs of one case in one session")
    spreads = [found for _, found in known]
    cases = len({one.case for one, _ in known})
    sessions = len({run.session for one, _ in known for run in one.runs})
    inside = (1 - default.session_share) * default.prior_sd**2
    units = [Unit(found.run, found.run_df, found.within) for found in spreads]
    first = fit(units, default.prior_df, inside, cases)
    share, share_weight = _session_share(spreads, first, sessions, default.session_share)
    units = [Unit(total_variance(s, share), s.run_df + s.between_df, s.within) for s in spreads]
    last = fit(units, default.prior_df, default.prior_sd**2, cases)
    wide = math.exp(_Z90 * last.log_se / 2)
    sd = math.sqrt(last.variance)
    return Learnt(
        noise=Noise(prior_df=last.df, prior_sd=sd, session_share=share),
        low=sd / wide,
        high=sd * wide,
        cases=cases,
        runs=sum({one.case: len(one.runs) for one, _ in known}.values()),
        sessions=sessions,
        weights=(last.df_weight, last.weight, share_weight),
    )


def total_variance(found: Spread, share: float) -> float:
    """Return the variance of a run, session and inside included, from both mean squares.

    Args:
        found: What a series varies by.
        share: The session's share of the variance, below 1.
    """
    squares = found.run_df * found.run
    if found.between is not None:
        scale = 1 + found.runs_per_session * share / (1 - share)
        squares += found.between_df * found.between / scale
    return squares / (found.run_df + found.between_df) / (1 - share)


def moderated(found: Spread, noise: Noise) -> float:
    """Return the variance of a run of one series, drawn towards what is expected.

    Source: G. K. Smyth, 2004, doi:10.2202/1544-6115.1027, as rule R does it.
    """
    df = found.run_df + found.between_df
    own = total_variance(found, noise.session_share)
    expected = noise.prior_sd**2 + found.within
    return (noise.prior_df * expected + df * own) / (noise.prior_df + df)


def _session_share(
    spreads: Sequence[Spread], inside: Fit, sessions: int, default: float
) -> tuple[float, float]:
    """Return φ and the share of the data in it.

    The mean square between a case's sessions over its moderated variance between runs is
    (1 + n0·φ/(1-φ)) times F(S-1, ν0+f), whose mean is (ν0+f)/(ν0+f-2). All cases of a session share
    its machine, so however many there are, the data weigh as one difference per further session.
    """
    excess = weight = 0.0
    for found in spreads:
        df = inside.df + found.run_df
        if found.between is None or df <= 2:
            continue
        expected = inside.df * (inside.variance + found.within) + found.run_df * found.run
        ratio = found.between * df / max(expected, df * FLOOR_SD**2)
        excess += found.between_df * (ratio * (df - 2) / df - 1)
        weight += found.between_df * found.runs_per_session
    if not weight:
        return default, 0.0
    odds = max(0.0, excess / weight)
    own = min(LARGEST_SHARE, odds / (1 + odds))
    data = sessions - 1
    share = (DEFAULT_SESSIONS * default + data * own) / (DEFAULT_SESSIONS + data)
    return share, data / (DEFAULT_SESSIONS + data)
