"""Rule A: did accuracy drop, judged sample by sample against the baseline's own scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean

from pytest_mlperf.core.judge.quantiles import t_isf, t_sf
from pytest_mlperf.core.judge.rule_r import Decision

LOOKS = (1024, 3072, 8192, 16384)
"""Samples after which a sequential pass may stop; the last look is the whole data set."""

FEW_FLIPS = 25
"""Below this many changed samples the normal interval of binary scores is too narrow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleA:
    """Error rates of the rule, over all its looks.

    Attributes:
        alpha: How often an unchanged case may fail.
        beta: How often a true drop of the margin may pass.
    """

    alpha: float = 0.01
    beta: float = 0.05


DEFAULT = RuleA()


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairs:
    """One metric's scores of the same samples, in the order in which they were measured.

    Attributes:
        before: The baseline's scores; None where the metric does not apply to the sample.
        now: Those of this build, None for the same samples.
        margin: Largest drop that does not matter, in the score's own points, above 0.

    Raises:
        ValueError: The two differ in length, there are none, or the margin is not positive.
    """

    before: Sequence[float | None]
    now: Sequence[float | None]
    margin: float

    def __post_init__(self) -> None:
        if len(self.before) != len(self.now) or not self.before:
            raise ValueError(f"{len(self.before)} and {len(self.now)} scores are no pairs")
        if not 0 < self.margin < math.inf:
            raise ValueError(f"margin={self.margin!r}; it must be positive and finite")


@dataclass(frozen=True, kw_only=True, slots=True)
class Paired:
    """What the pairs of one metric say.

    Attributes:
        decision: PASS, FAIL, MORE, or INCONCLUSIVE after the last look.
        before, now: Mean scores of the samples that were judged.
        change: Mean difference, points; negative is worse.
        low, high: The bounds that decide, points.
        p: One-sided p of the plain paired test for a drop of any size.
        samples: Samples judged: those that the metric applies to.
        changed: Samples whose score is another one.
        down, up: Samples that got worse, better.
        correlation: Of the two runs' scores; None where one of them does not vary.
        binary: Every score is the lowest or the highest of two values.
    """

    decision: Decision
    before: float
    now: float
    change: float
    low: float
    high: float
    p: float
    samples: int
    changed: int
    down: int
    up: int
    correlation: float | None
    binary: bool


def looks(samples: int, *, sequential: bool) -> tuple[int, ...]:
    """Return after how many samples the rule looks at the scores; the last look is all of them."""
    return (*(look for look in LOOKS if sequential and look < samples), samples)


def judge_pairs(
    metrics: Mapping[str, Pairs], at: Sequence[int], rule: RuleA = DEFAULT
) -> dict[str, Paired]:
    """Judge the metrics of one case, look after look; each verdict freezes when it is reached.

    A metric passes when its lower bound clears the margin: all must. One fails when a drop is
    proven and the margin is not excluded; Holm's step-down keeps alpha over the metrics.

    Args:
        metrics: By name, all of the same samples.
        at: The planned looks, see `looks`; those beyond the samples that are there are still due.
        rule: Error rates.

    Returns:
        One entry per metric, at the look that decided, else at the last one.
    """
    there = min(len(pairs.now) for pairs in metrics.values())
    alpha, beta = rule.alpha / len(at), rule.beta / len(at)
    decided: dict[str, Paired] = {}
    for look in (look for look in at if look <= there):
        open_ = {
            name: _weigh(pairs, look, alpha, beta)
            for name, pairs in metrics.items()
            if name not in decided or decided[name].decision is not Decision.PASS
        }
        # A metric that passed stays in the family: to leave it would hand its alpha to the others.
        p_values = {name: open_[name].p if name in open_ else 1.0 for name in metrics}
        failed = holm(p_values, alpha)
        last = look == at[-1]
        for name, found in open_.items():
            decided[name] = _decide(found, metrics[name].margin, name in failed, last=last)
        if all(found.decision is not Decision.MORE for found in decided.values()):
            break
        if any(found.decision is Decision.FAIL for found in decided.values()):
            break
    return decided


def holm(p_values: Mapping[str, float], alpha: float) -> set[str]:
    """Return the hypotheses that Holm's step-down procedure rejects.

    Source: S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian
        Journal of Statistics 6 (1979).
    """
    rejected: set[str] = set()
    ordered = sorted(p_values, key=lambda name: p_values[name])
    for position, name in enumerate(ordered):
        if p_values[name] > alpha / (len(ordered) - position):
            break
        rejected.add(name)
    return rejected


def mcnemar_mid_p(down: int, up: int) -> float:
    """Return the one-sided mid-p of McNemar's test that more samples got worse than better.

    P(X > down) + P(X = down) / 2 for X ~ Bin(down + up, 1/2).

    Source: M. W. Fagerland, S. Lydersen, P. Laake, "The McNemar test for binary matched-pairs
        data: mid-p and asymptotic are better than exact conditional", BMC Med. Res. Methodol. 13
        (2013).
    """
    flips = down + up
    if not flips:
        return 1.0
    # From the smaller tail, each binomial coefficient from the one before it: whole numbers.
    ways, below = 1, 0
    for k in range(up):
        below += ways
        ways = ways * (flips - k) // (k + 1)
    return (2 * below + ways) / (2 << flips)


def newcombe(counts: tuple[int, int, int, int], alpha: float, beta: float) -> tuple[float, float]:
    """Return the paired score interval of the difference of two shares, method 10.

    Args:
        counts: Samples right in both, right before only, right now only, wrong in both.
        alpha: Error of the upper bound.
        beta: Error of the lower bound.

    Returns:
        Bounds of share now - share before.

    Source: R. G. Newcombe, "Improved confidence intervals for the difference between binomial
        proportions based on paired data", Statistics in Medicine 17 (1998).
    """
    both, lost, won, neither = counts
    n = sum(counts)
    before, now = (both + lost) / n, (both + won) / n
    product = (both + lost) * (won + neither) * (both + won) * (lost + neither)
    phi = (both * neither - lost * won) / math.sqrt(product) if product else 0.0

    def reach(p: float, z: float) -> tuple[float, float]:
        """Return how far Wilson's interval reaches below and above a share."""
        centre = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return p - (centre - half), centre + half - p

    def root(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a * a - 2 * phi * a * b + b * b))

    z_low, z_high = (NormalDist().inv_cdf(1 - error) for error in (beta, alpha))
    low = now - before - root(reach(now, z_low)[0], reach(before, z_low)[1])
    high = now - before + root(reach(now, z_high)[1], reach(before, z_high)[0])
    return low, high


def correlated(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return the correlation of two passes' scores; None where one of them does not vary."""
    mean_1, mean_2 = fmean(first), fmean(second)
    spread_1 = math.fsum((a - mean_1) ** 2 for a in first)
    spread_2 = math.fsum((b - mean_2) ** 2 for b in second)
    if not spread_1 or not spread_2:
        return None
    shared = math.fsum((a - mean_1) * (b - mean_2) for a, b in zip(first, second, strict=True))
    return shared / math.sqrt(spread_1 * spread_2)


def _weigh(pairs: Pairs, look: int, alpha: float, beta: float) -> Paired:
    """Return bounds and p of the first `look` pairs; nothing is decided yet."""
    both_there = [
        (a, b)
        for a, b in zip(pairs.before[:look], pairs.now[:look], strict=True)
        if a is not None and b is not None
    ]
    if not both_there:
        return _nothing()
    before, now = [a for a, _ in both_there], [b for _, b in both_there]
    count = len(both_there)
    differences = [b - a for a, b in zip(before, now, strict=True)]
    down, up = sum(d < 0 for d in differences), sum(d > 0 for d in differences)
    values = sorted({*before, *now})
    binary = len(values) <= 2
    mean = fmean(differences)
    low, high, p = _graded(differences, mean, alpha, beta)
    if binary and down + up:
        p = mcnemar_mid_p(down, up)
        if down + up < FEW_FLIPS:
            step = values[-1] - values[0]
            both = sum(a == b == values[-1] for a, b in zip(before, now, strict=True))
            bounds = newcombe((both, down, up, count - both - down - up), alpha, beta)
            low, high = (bound * step for bound in bounds)
    return Paired(
        decision=Decision.MORE,
        before=fmean(before),
        now=fmean(now),
        change=mean,
        low=low,
        high=high,
        p=p,
        samples=count,
        changed=down + up,
        down=down,
        up=up,
        correlation=correlated(before, now),
        binary=binary,
    )


def _nothing() -> Paired:
    """Return what is known of a metric that applies to no sample so far."""
    return Paired(
        decision=Decision.MORE,
        before=0.0,
        now=0.0,
        change=0.0,
        low=-math.inf,
        high=math.inf,
        p=1.0,
        samples=0,
        changed=0,
        down=0,
        up=0,
        correlation=None,
        binary=False,
    )


def _graded(
    differences: Sequence[float], mean: float, alpha: float, beta: float
) -> tuple[float, float, float]:
    """Return the bounds of the mean difference and the p of a drop, by the paired t."""
    n = len(differences)
    if n < 2:
        return -math.inf, math.inf, 1.0
    sd = math.sqrt(math.fsum((d - mean) ** 2 for d in differences) / (n - 1))
    if not sd:  # every sample changed by the same amount, by none above all
        return mean, mean, 0.0 if mean < 0 else 1.0
    se, df = sd / math.sqrt(n), n - 1
    return mean - t_isf(beta, df) * se, mean + t_isf(alpha, df) * se, t_sf(-mean / se, df)


def _decide(found: Paired, margin: float, failed: bool, *, last: bool) -> Paired:
    if found.low > -margin:
        decision = Decision.PASS
    elif failed and found.change < 0:
        decision = Decision.FAIL
    else:
        decision = Decision.INCONCLUSIVE if last else Decision.MORE
    return replace(found, decision=decision)
