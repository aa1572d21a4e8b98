"""Rule R: did performance or efficiency drop, judged from a few runs against a pinned baseline."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean

from pytest_mlperf.core.judge.quantiles import t_isf, t_sf
from pytest_mlperf.core.metrics import Direction

GATING_RUNS = 5
"""A verdict from fewer baseline runs is advice, never a gate."""

_TOO_FAST = 0.0005
_OUTLIER = 0.01


class Decision(StrEnum):
    """What the runs so far say."""

    PASS = "pass"  # noqa: S105 -- a decision, no password
    FAIL = "fail"
    MORE = "more"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleR:
    """Settings of the rule, fixed before the first run.

    Attributes:
        alpha: How often an unchanged case may fail, over all its looks.
        beta: How often a true drop of the limit may pass, over all its looks.
        max_runs: Last look (K).
        prior_df: How many degrees of freedom the expected noise weighs (ν0).
        prior_sd: Expected relative standard deviation between runs (s0).
        session_share: Share of the variance that all runs of one session have in common (φ).
        floor_sd: Smallest relative standard deviation believed.

    Raises:
        ValueError: A setting is out of range.
    """

    alpha: float = 0.01
    beta: float = 0.05
    max_runs: int = 5
    prior_df: float = 4.0
    prior_sd: float = 0.007
    session_share: float = 0.25
    floor_sd: float = 0.001

    def __post_init__(self) -> None:
        for ok, name, valid in (
            (0 < self.alpha < 0.5, "alpha", "between 0 and 0.5"),
            (0 < self.beta < 0.5, "beta", "between 0 and 0.5"),
            (self.max_runs >= 2, "max_runs", "at least 2: one run alone never fails"),
            (1 <= self.prior_df < math.inf, "prior_df", "at least 1"),
            (0 <= self.prior_sd < math.inf, "prior_sd", "at least 0"),
            (0 <= self.session_share <= 1, "session_share", "from 0 to 1"),
            (0 < self.floor_sd < math.inf, "floor_sd", "above 0"),
        ):
            if not ok:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be {valid}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """One metric of one run.

    Attributes:
        value: In the metric's unit, above 0.
        within_se: Relative standard error inside the run by batch means, 0 when unknown.
        session: Id of the session that made the run; runs of one id share an effect.

    Raises:
        ValueError: A number is not finite, or out of range.
    """

    value: float
    within_se: float = 0.0
    session: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.value < math.inf:
            raise ValueError(f"a run's value is {self.value!r}; it must be finite and above 0")
        if not 0 <= self.within_se < math.inf:
            raise ValueError(
                f"a run's within_se is {self.within_se!r}; it must be finite and at least 0"
            )


Scale = Callable[[Value], float]
"""Gives a value on a scale where higher is better and differences count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """The decision and the numbers it rests on.

    Attributes:
        decision: What to do or to say.
        improved: Passed, and better is proven.
        change: Relative change of the raw value, e.g. -0.021, whichever way is better.
        low: Lower end of its interval; the two ends are the bounds that decided.
        high: Upper end of its interval.
        limit: The smallest change that matters, as a share.
        runs_used: Runs up to the decision.
        runs_baseline: Runs of the baseline.
        sd: Relative standard deviation of a run as estimated at the decision.
        df: Its degrees of freedom.
        mde: The smallest drop the baseline can prove, as a share.
        advisory: The baseline has too few runs to gate.
        p_value: Chance that an unchanged case looks this bad at any look; 1 after a pass.
    """

    decision: Decision
    improved: bool
    change: float
    low: float
    high: float
    limit: float
    runs_used: int
    runs_baseline: int
    sd: float
    df: float
    mde: float
    advisory: bool
    p_value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Look:
    """The statistics after k runs; `d` is a log ratio, below 0 is worse."""

    k: int
    d: float
    sd: float
    df: float
    se: float

    def low(self, rule: RuleR) -> float:
        return self.d - t_isf(rule.beta / rule.max_runs, self.df) * self.se

    def high(self, rule: RuleR) -> float:
        return self.d + t_isf(rule.alpha / (rule.max_runs - 1), self.df) * self.se


def judge(
    baseline: Sequence[Value],
    runs: Sequence[Value],
    *,
    direction: Direction,
    limit: float,
    rule: RuleR,
) -> Judged:
    """Judge runs in the order they were made; the first pass or fail is final.

    Unchanged performance fails at most a share `alpha` of the time, a drop of `limit` passes at
    most a share `beta`; in between either answer may come. Runs after the decision are ignored.

    Args:
        baseline: At least one run.
        runs: At least one run, each of a fresh process, oldest first.
        direction: Which way the metric gets better.
        limit: Smallest change that matters, as a share: a drop where higher is better (then
            below 1), a rise where lower is better.
        rule: The settings.

    Raises:
        ValueError: There is nothing to compare, or the limit is out of range.

    Source: moderated t (G. K. Smyth, 2004, doi:10.2202/1544-6115.1027) on log values, two
        one-sided bounds, error shared evenly among the looks.
    """
    if not baseline or not runs:
        raise ValueError(f"nothing to compare: {len(baseline)} baseline runs and {len(runs)} runs")
    bound = _bound(direction, limit)
    sign = 1 if direction is Direction.HIGHER else -1
    found = walk(baseline, runs, lambda run: sign * math.log(run.value), bound, rule)
    low, high = sorted((_raw(found.low, direction), _raw(found.high, direction)))
    change, mde = _raw(found.change, direction), -math.expm1(-found.mde)
    return replace(found, change=change, low=low, high=high, limit=limit, mde=mde)


def walk(
    baseline: Sequence[Value], runs: Sequence[Value], scale: Scale, bound: float, rule: RuleR
) -> Judged:
    """Look after every run until one decides; every figure returned is on the caller's scale.

    Args:
        baseline: At least one run.
        runs: At least one run, oldest first.
        scale: That of the caller.
        bound: The difference that must be excluded, below 0.
        rule: The settings; its standard deviations are on that scale too.
    """
    p_value = 1.0
    for k in range(1, min(len(runs), rule.max_runs) + 1):
        look = _look(baseline, runs[:k], scale, rule)
        if k > 1:
            p_value = min(p_value, (rule.max_runs - 1) * t_sf(-look.d / look.se, look.df))
        decision = _decide(look, bound, rule)
        if decision in (Decision.PASS, Decision.FAIL):
            break
    passed = decision is Decision.PASS
    return Judged(
        decision=decision,
        improved=passed and look.d - t_isf(rule.alpha, look.df) * look.se > 0,
        change=look.d,
        low=look.low(rule),
        high=look.high(rule),
        limit=-bound,
        runs_used=look.k,
        runs_baseline=len(baseline),
        sd=look.sd,
        df=look.df,
        mde=_detectable(baseline, scale, rule),
        advisory=len(baseline) < GATING_RUNS,
        p_value=1.0 if passed else p_value,
    )


def minimum_detectable_change(baseline: Sequence[Value], *, rule: RuleR) -> float:
    """Return the drop, as a share, that this baseline proves with probability 1 - beta.

    Args:
        baseline: At least one run.
        rule: The settings.

    Raises:
        ValueError: There is no run.
    """
    if not baseline:
        raise ValueError("a baseline without runs detects nothing; record at least one run")
    return -math.expm1(-_detectable(baseline, lambda run: math.log(run.value), rule))


def outlier(baseline: Sequence[Value], *, rule: RuleR) -> int | None:
    """Return the index of the one run that does not belong to the others, or None.

    A single bad baseline run hides every later drop, so it is refused when it is recorded: each
    run is compared with the mean of the others. Below three runs nothing can be told.

    Args:
        baseline: The runs about to be recorded.
        rule: The settings.
    """
    n0 = len(baseline)
    if n0 < 3:
        return None
    logs = [math.log(run.value) for run in baseline]
    df = rule.prior_df + n0 - 2
    scores = []
    for i, x in enumerate(logs):
        others = logs[:i] + logs[i + 1 :]
        sd = _moderated_sd([*baseline[:i], *baseline[i + 1 :]], _squares(others), df, rule)
        scores.append(abs(x - fmean(others)) / (sd * math.sqrt(1 + 1 / (n0 - 1))))
    worst = max(range(n0), key=scores.__getitem__)
    return worst if scores[worst] > t_isf(_OUTLIER / (2 * n0), df) else None


def _decide(look: _Look, bound: float, rule: RuleR) -> Decision:
    # A single run that is much too fast (a boosted clock, skipped work) would hide a real drop.
    believable = look.k > 1 or look.d <= t_isf(_TOO_FAST, look.df) * look.se
    if look.low(rule) > bound and believable:
        return Decision.PASS
    if look.k > 1 and look.high(rule) < 0:
        return Decision.FAIL
    return Decision.MORE if look.k < rule.max_runs else Decision.INCONCLUSIVE


def _look(baseline: Sequence[Value], runs: Sequence[Value], scale: Scale, rule: RuleR) -> _Look:
    x0, x1 = [scale(run) for run in baseline], [scale(run) for run in runs]
    df = rule.prior_df + len(x0) - 1 + len(x1) - 1
    sd = _moderated_sd([*baseline, *runs], _squares(x0) + _squares(x1), df, rule)
    se = sd * _se_factor(baseline, len(x1), rule)
    return _Look(k=len(x1), d=fmean(x1) - fmean(x0), sd=sd, df=df, se=se)


def _detectable(baseline: Sequence[Value], scale: Scale, rule: RuleR) -> float:
    df = rule.prior_df + len(baseline) - 1
    sd = _moderated_sd(baseline, _squares([scale(run) for run in baseline]), df, rule)
    last = df + rule.max_runs - 1
    quantiles = t_isf(rule.alpha / (rule.max_runs - 1), last) + t_isf(rule.beta, last)
    return quantiles * sd * _se_factor(baseline, rule.max_runs, rule)


def _moderated_sd(runs: Sequence[Value], squares: float, df: float, rule: RuleR) -> float:
    """Return the standard deviation of a run, drawn towards the expected one; never 0."""
    within = fmean(run.within_se**2 for run in runs)
    variance = (rule.prior_df * (rule.prior_sd**2 + within) + squares) / df
    return max(math.sqrt(variance), rule.floor_sd)


def _se_factor(baseline: Sequence[Value], k: int, rule: RuleR) -> float:
    """Return the standard error of d over the standard deviation of a run.

    The k runs share one session effect; a baseline from several sessions averages theirs out.
    """
    n0, phi = len(baseline), rule.session_share
    sessions = Counter(run.session for run in baseline).values()
    v0 = phi * sum((m / n0) ** 2 for m in sessions) + (1 - phi) / n0
    return math.sqrt(phi + (1 - phi) / k + v0)


def _squares(xs: Sequence[float]) -> float:
    mean = fmean(xs)
    return math.fsum((x - mean) ** 2 for x in xs)


def _bound(direction: Direction, limit: float) -> float:
    if direction is Direction.HIGHER:
        if not 0 < limit < 1:
            raise ValueError(f"the largest drop is {limit!r}; it must lie between 0 and 1")
        return math.log1p(-limit)
    if not 0 < limit < math.inf:
        raise ValueError(f"the largest rise is {limit!r}; it must be finite and above 0")
    return -math.log1p(limit)


def _raw(x: float, direction: Direction) -> float:
    """Return the relative change of the raw value for a log ratio where below 0 is worse."""
    # exp overflows above 709; a bound that far out says nothing but "huge".
    return math.expm1(min(x if direction is Direction.HIGHER else -x, 700.0))
