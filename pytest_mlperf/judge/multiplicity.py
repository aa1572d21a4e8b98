"""Judge many pairs (case, metric) of a session together: which need more runs, and which fail.

Up to `MAX_LONE_PAIRS` pairs are each judged alone by rule R, the sequential test of `rule_r`; with
more, an unchanged pair would fail in most sessions. So a pair gets runs until it passes or fails
even after adjustment for their number; at the end of the session, Benjamini and Hochberg's
procedure keeps the false discovery rate of the failed pairs below `FALSE_SHARE`.

The machine's session variance is estimated from the baselines' sessions, and the scatter of the
present runs from those pairs whose first run dropped least. Both only widen intervals. A common
change of all pairs is attributed to the machine if its earlier sessions differ as much. It is never
subtracted, because that would hide a regression of everything.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeVar

from pytest_mlperf.judge.decision import Answer, Decision
from pytest_mlperf.judge.formulas import t_isf, t_sf
from pytest_mlperf.judge.inputs import DAYS
from pytest_mlperf.judge.rule_r import RuleR

MAX_LONE_PAIRS = 20
FALSE_SHARE = 0.05
"""Expected share of false alarms among the pairs that fail together, at most."""

EARLY_END_SHARE = 0.1
"""Share of the significance level among all pairs at which the runs of a pair end: the final
analysis may widen intervals."""

Pair = TypeVar("Pair", bound=Hashable)


def rule_among(rule: RuleR, pairs: int) -> RuleR:
    """Return rule R with a smaller alpha for more than `MAX_LONE_PAIRS` (case, metric) pairs.

    With this rule `judge` asks for more runs until the pair passes, its p value is far below 5 % /
    `pairs`, or the maximum is reached. Reported intervals and detectable changes use the original
    rule.

    Source: C. E. Bonferroni's inequality over interim analyses and pairs. `judge_jointly` rejects a
        pair with p below 5 % / `pairs` for any result of the other pairs, so it needs no more runs.
    """
    if pairs < 1:
        raise ValueError(f"pairs is {pairs}; it must be at least 1")
    return (
        rule
        if pairs <= MAX_LONE_PAIRS
        else replace(rule, alpha=min(rule.alpha, EARLY_END_SHARE * FALSE_SHARE / pairs))
    )


def repeat_level(rule: RuleR, pairs: int) -> float:
    """Return the p value below which a pair that was SUSPECT in an earlier session is a drop.

    It is 1 / `pairs`, at most `alpha`: with a common baseline a pair may be SUSPECT repeatedly.
    """
    return min(rule.alpha, 1 / pairs)


def judge_jointly(p_values: Mapping[Pair, float], rule: RuleR) -> dict[Pair, Decision]:
    """Judge pairs by p value: up to MAX_LONE_PAIRS each at alpha, more by Benjamini-Hochberg."""
    alone = {pair for pair, p in p_values.items() if p < rule.alpha}
    many = len(p_values) > MAX_LONE_PAIRS
    _check(p_values)
    failed = benjamini_hochberg(p_values, FALSE_SHARE) if many else alone
    answers = {
        **dict.fromkeys(p_values, Answer.INCONCLUSIVE),
        **dict.fromkeys(alone, Answer.SUSPECT),
        **dict.fromkeys(failed, Answer.FAIL),
    }
    return {pair: Decision(outcome=answers[pair], p=p) for pair, p in p_values.items()}


def benjamini_hochberg(p_values: Mapping[Pair, float], share: float) -> set[Pair]:
    """Return the hypotheses that Benjamini and Hochberg's step-up procedure rejects.

    The false discovery rate is at most `share` for p values that are independent or positively
    dependent.

    Source: Y. Benjamini, Y. Hochberg, "Controlling the false discovery rate", Journal of the Royal
        Statistical Society B 57 (1995).
    """
    if not 0 < share < 1:
        raise ValueError(f"the share is {share!r}; it must lie between 0 and 1")
    _check(p_values)
    count, cut = len(p_values), -1.0
    for rank, p in enumerate(sorted(p_values.values()), start=1):
        if p <= share * rank / count:
            cut = p
    return {pair for pair, p in p_values.items() if p <= cut}


def _check(p_values: Mapping[Pair, float]) -> None:
    for pair, p in p_values.items():
        if not 0 <= p <= 1:
            raise ValueError(f"the p value of {pair!r} is {p!r}; it must lie from 0 to 1")


Compared = tuple[float, float, float]
"""A logarithmic change (below 0 is worse), its standard error, and its degrees of freedom."""

COMMON_SHIFT_RISK = 0.01
"""Probability that a machine's common shift of all pairs is attributed to the code."""

COMPARED_QUANTILES = (0.84, 0.99)
"""Quantiles at which observed changes are compared with rule R's expectation."""

HEAVY_TAIL_RATIO = 1.08
"""Tails are heavy if the 99th percentile of unchanged pairs, relative to the median, exceeds that
of Student's t by this factor."""

OUTLIER_RATIO = 1.5
"""Factor by which a lone drop must exceed all unchanged pairs if tails are heavy: Student's t with
3 degrees of freedom exceeds it in one of twelve sessions."""

MAX_JOINT_DROPS = 3
"""Metrics of a case change together: up to this number of drops count as one."""


@dataclass(frozen=True, kw_only=True)
class Null:
    """Hold the empirical null of a machine: changes of (case, metric) pairs without a regression.

    Attributes:
        pairs: Number of (case, metric) pairs in the estimate; 0 if they are too few.
        sessions: Number of baseline sessions, each compared with the other sessions.
        shift: Median log change of the pairs' first runs from their baselines; below 0 is worse.
        spread: Standard deviation of the log effect that all pairs of a session have in common.
        allowed: Largest worsening of all pairs that the machine's `spread` explains.
        excess: Session variance beyond rule R's, relative to the rule's variance after one run.
        scale: Factor by which the present runs scatter more than expected; at least 1.
        seen: Changes between the baselines' sessions, in standard errors, ascending.
        beyond: Factor by which a single pair's drop must exceed all changes in `seen`.
    """

    pairs: int = 0
    sessions: int = 0
    shift: float = 0.0
    spread: float = 0.0
    allowed: float = math.inf
    excess: float = 0.0
    scale: float = 1.0
    seen: Sequence[float] = ()
    beyond: float = 1.0

    @property
    def shows_sessions(self) -> bool:
        """Whether there are enough sessions to estimate the between-session variance."""
        return self.sessions >= DAYS

    @property
    def machine_explains_shift(self) -> bool:
        """Whether the machine's between-session variance explains a common shift of all metrics."""
        return self.shift > -self.allowed

    def p_value(self, analyses: Sequence[Compared], rule: RuleR) -> float:
        """Return the one-sided p value of a pair's drop, by all interim analyses but the first.

        It is Bonferroni's p value of Student's t tests, or the empirical one in `seen` if larger.
        """
        shift = self.shift if self.machine_explains_shift else 0.0
        p, farthest = 1.0, 0.0
        for change, se, df in analyses[1:]:
            variance = self.scale**2 * (se**2 + self.excess * analyses[0][1] ** 2) + shift**2
            away = -change / math.sqrt(variance)
            p = min(p, (rule.max_runs - 1) * t_sf(away, df))
            farthest = max(farthest, away)
        return max(p, self._empirical_p_value(farthest))

    def _empirical_p_value(self, away: float) -> float:
        """Return the one-sided p value: half the share of `seen` changes that reach `away`."""
        if not self.seen:
            return 0.0
        farther = len(self.seen) - bisect_left(self.seen, away)
        least = MAX_JOINT_DROPS if self.seen[-1] > away / self.beyond else 0
        return max(farther, least) / (2 * len(self.seen))


def estimate(
    firsts: Sequence[Compared], sessions: Mapping[str, Sequence[Compared]], rule: RuleR
) -> Null:
    """Estimate a machine's null distribution; return `Null()` for `MAX_LONE_PAIRS` pairs or fewer.

    Args:
        firsts: First comparison of each pair (case, metric): log change, standard error and df.
        sessions: By baseline session: its comparisons with the other sessions of the same pairs.

    Source: B. Efron, "Large-scale simultaneous hypothesis testing: the choice of a null
        hypothesis", JASA 99 (2004).
    """
    if len(firsts) <= MAX_LONE_PAIRS:
        return Null()
    shift = median(change for change, _, _ in firsts)
    unit = median(se for _, se, _ in firsts)
    common = {name: looks for name, looks in sessions.items() if len(looks) > MAX_LONE_PAIRS}
    spread, allowed = _session_spread(
        [median(c for c, _, _ in s) for s in common.values()], unit, rule
    )
    # A shift that the machine does not explain is a drop: the better half is above 0.
    middle = shift if shift > -allowed else max(shift, 0.0)
    first = _quantile_ratio([(c - middle, se, df) for c, se, df in firsts], two_sided=False)
    apart = []
    for looks in common.values():
        middle = median(change for change, _, _ in looks)
        apart += [(change - middle, se, df) for change, se, df in looks]
    null = Null(pairs=len(firsts), shift=shift, spread=spread, allowed=allowed)
    if not apart:  # without other sessions all excess is attributed to them
        return replace(null, excess=first**2 - 1)
    between = _quantile_ratio(apart, two_sided=True)
    excess = (between**2 - 1) * (median(se for _, se, _ in apart) / unit) ** 2
    seen = sorted(abs(change) / se / between for change, se, _ in apart)
    df = median(df for _, _, df in apart)
    heavy = HEAVY_TAIL_RATIO * (t_isf(0.005, df) / t_isf(0.25, df)) * _quantile(seen, 0.5)
    return replace(
        null,
        sessions=len(common),
        excess=excess,
        scale=max(1.0, first / math.sqrt(1 + excess)),
        seen=seen,
        beyond=OUTLIER_RATIO if _quantile(seen, 0.99) > heavy else 1.0,
    )


def _session_spread(medians: Sequence[float], unit: float, rule: RuleR) -> tuple[float, float]:
    """Return (sd of session effects, one-sided t bound of a new one at COMMON_SHIFT_RISK).

    `medians` are the sessions' median log changes. The prior is one session with the variance
    session share · `unit`².
    """
    count = len(medians)
    df = max(count, 1)
    # A session against the mean of the others has count / (count - 1) times its own variance.
    squares = math.fsum(x**2 for x in medians) * ((count - 1) / count) ** 2 if count else 0.0
    spread = math.sqrt((rule.session_share * unit**2 + squares) / df)
    return spread, t_isf(COMMON_SHIFT_RISK, df) * spread * math.sqrt(1 + 1 / df)


def _quantile_ratio(compared: Iterable[Compared], *, two_sided: bool) -> float:
    """Return the largest ratio, at least 1, of quantiles of change / se to those of Student's t."""
    changes = list(compared)
    df = median(df for _, _, df in changes)
    away = sorted((abs(c) if two_sided else c) / se for c, se, _ in changes)
    shares = [(q, 2 * q - 1 if two_sided else q) for q in COMPARED_QUANTILES]
    return max(1.0, *(_quantile(away, share) / t_isf(1 - q, df) for q, share in shares))


def _quantile(ascending: Sequence[float], share: float) -> float:
    return ascending[min(int(share * len(ascending)), len(ascending) - 1)]
