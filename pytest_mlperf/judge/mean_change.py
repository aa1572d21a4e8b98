"""Compute bounds of a mean change of paired scores, and the p value of a drop of any size."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean

from pytest_mlperf.judge.formulas import t_isf, t_sf
from pytest_mlperf.judge.inputs import Leverage


@dataclass(frozen=True, kw_only=True, slots=True)
class Clustered:
    """Hold the cluster-robust standard error `se` of a mean; infinite for one group of samples."""

    se: float
    df: float
    groups: int


def clustered(values: Sequence[float], groups: Sequence[int]) -> Clustered:
    """Return the cluster-robust standard error of a mean.

    The deviations of a group are added before they are squared, so that a common effect does not
    average out. A large group pulls the mean towards itself; the divisor of its square corrects
    that. Unequal groups count as (sum of sizes)² / (sum of squared sizes) equal groups.

    Source: R. M. Bell, D. F. McCaffrey, "Bias reduction in standard errors for linear regression
        with multi-stage samples", Survey Methodology 28 (2002), for a mean; the number of equal
        groups as of L. Kish, Survey Sampling (1965), section 11.7.
    """
    sizes, n, mean = Counter(groups), len(values), fmean(values)
    if len(sizes) < 2:
        return Clustered(se=math.inf, df=1.0, groups=len(sizes))
    sums = dict.fromkeys(sizes, 0.0)
    for value, group in zip(values, groups, strict=True):
        sums[group] += value - mean
    squares = math.fsum(own * own / (1 - sizes[group] / n) for group, own in sums.items())
    equal = n * n / sum(size * size for size in sizes.values())
    return Clustered(se=math.sqrt(squares) / n, df=max(1.0, equal - 1), groups=len(sizes))


MIN_NORMAL_FLIPS = 25
"""Changed samples below which the normal interval of binary scores is too narrow."""


def mcnemar_mid_p(down: int, up: int) -> float:
    """Return the one-sided mid-p of McNemar's test for more worse than better samples.

    P(X > down) + P(X = down) / 2 for X ~ Bin(down + up, 1/2).

    Source: M. W. Fagerland, S. Lydersen, P. Laake, "The McNemar test for binary matched-pairs data:
        mid-p and asymptotic are better than exact conditional", BMC Med. Res. Methodol. 13 (2013).
    """
    flips = down + up
    if not flips:
        return 1.0
    # From the smaller tail, each binomial coefficient from the previous one, in whole numbers.
    ways, below = 1, 0
    for k in range(up):
        below += ways
        ways = ways * (flips - k) // (k + 1)
    return (2 * below + ways) / (2 << flips)


def newcombe(counts: tuple[int, int, int, int], alpha: float, beta: float) -> tuple[float, float]:
    """Return Newcombe's interval (method 10) of the change in the share of correct samples.

    The counts are the samples correct in both passes, only before, only now, and in neither.
    `alpha` is the error probability of the upper bound, `beta` that of the lower bound.

    Source: R. G. Newcombe, "Improved confidence intervals for the difference between binomial
        proportions based on paired data", Statistics in Medicine 17 (1998).
    """
    both, lost, won, neither = counts
    n = sum(counts)
    old, new = (both + lost) / n, (both + won) / n
    product = (both + lost) * (won + neither) * (both + won) * (lost + neither)
    phi = (both * neither - lost * won) / math.sqrt(product) if product else 0.0

    def reach(p: float, z: float) -> tuple[float, float]:
        """Return how far the Wilson bounds at `z` sd lie below and above the proportion `p`."""
        centre = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return p - (centre - half), centre + half - p

    def root(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a * a - 2 * phi * a * b + b * b))

    z_low, z_high = (NormalDist().inv_cdf(1 - error) for error in (beta, alpha))
    low = new - old - root(reach(new, z_low)[0], reach(old, z_low)[1])
    high = new - old + root(reach(new, z_high)[1], reach(old, z_high)[0])
    return low, high


ROUNDING = 1e-12
"""Relative distance from the mean below which changes differ only by rounding."""

MAX_SEARCH_STEPS = 60
CLOSE = 1e-9
"""Tolerance of the normal deviate against that of the error."""


BINS = 256
"""Values above this number are merged in bins of 1/256 of their range."""


def usual_loss(losses: Mapping[float, int]) -> float:
    """Return the expected loss of a sample that fails: Σ loss² / Σ loss over the samples.

    `losses` maps each possible loss, a baseline score of 0 or more, to its number of samples. The
    weights assume that better samples are likelier to fail.
    """
    total = math.fsum(loss * count for loss, count in losses.items())
    return math.fsum(loss * loss * count for loss, count in losses.items()) / total if total else 0


def low_of_rare(changes: Mapping[float, int], unseen: float, error: float) -> float:
    """Return Gaffke's lower bound of a mean change, with one added sample that lost `unseen`.

    The samples get random exponential weights. The bound is the `error` quantile of the weighted
    mean. The added sample stands for losses that were not observed. If every change is a loss of
    one size, this is the bound of Clopper and Pearson in the Poisson limit.

    Args:
        changes: Number of samples by change; unchanged ones count as 0.
        unseen: Loss of the added sample, 0 or more; no change should be a larger one.
        error: Probability that the true change is below the bound, less than 0.5.

    Source: N. Gaffke, "Three test statistics for a nonparametric one-sided hypothesis on the mean
        of a nonnegative variable", Mathematical Methods of Statistics 14 (2005); the tail of the
        weighted mean by O. E. Barndorff-Nielsen, "Modified signed log likelihood ratio", Biometrika
        78 (1991).
    """
    weights = merged({**changes, -unseen: changes.get(-unseen, 0) + 1})
    count = sum(weights.values())
    mean = math.fsum(value * each for value, each in weights.items()) / count
    centred = [(value - mean, each) for value, each in weights.items()]
    least = min(value for value, _ in centred)
    if not least < -ROUNDING * abs(mean):
        return mean
    quantile = NormalDist().inv_cdf(error)
    # Regula falsi with the Illinois step: the deviate falls from 0 as the tilt grows.
    near, far = (0.0, -quantile), (1.0, -math.inf)
    lowest = mean + least
    for _ in range(MAX_SEARCH_STEPS):
        if math.isinf(far[1]):
            at = (near[0] + far[0]) / 2
        else:
            at = near[0] + (far[0] - near[0]) * near[1] / (near[1] - far[1])
        bound, deviate = _saddlepoint_deviate(centred, at / least)
        lowest, gap = mean + bound, deviate - quantile
        if abs(gap) < CLOSE:
            break
        if gap > 0:
            near, far = (at, gap), (far[0], far[1] / 2)
        else:
            near, far = (near[0], near[1] / 2), (at, gap)
    return lowest


def merged(changes: Mapping[float, int]) -> Mapping[float, int]:
    """If there are over `BINS` values, merge neighbours into their mean; return counts by value."""
    if len(changes) <= BINS:
        return changes
    least = min(changes)
    width = (max(changes) - least) / BINS
    counts, sums = dict[int, int](), dict[int, float]()
    for change, count in changes.items():
        index = int((change - least) / width)
        counts[index] = counts.get(index, 0) + count
        sums[index] = sums.get(index, 0.0) + change * count
    return {sums[index] / count: count for index, count in counts.items()}


def _saddlepoint_deviate(centred: list[tuple[float, int]], tilt: float) -> tuple[float, float]:
    """Return (m, r*) with P(mean weighted by exponential variables < m) ≈ Φ(r*), at this `tilt`.

    `centred` has (deviation from the mean, number of samples). r* is Barndorff-Nielsen's
    saddlepoint approximation.
    """
    shares = [(value, number, number / (1 - tilt * value)) for value, number in centred]
    mean = math.fsum(value * share for value, _, share in shares) / math.fsum(
        share for _, _, share in shares
    )
    # Saddle point of the sum of weight x (value - mean), with its cumulant and curvature.
    point = tilt / (1 - tilt * mean)
    cumulant = curvature = 0.0
    for value, number in centred:
        excess = value - mean
        rest = 1 - point * excess
        cumulant -= number * math.log(rest)
        curvature += number * (excess / rest) ** 2
    if not cumulant < 0:
        return mean, 0.0
    root = -math.sqrt(-2 * cumulant)
    return mean, root + math.log(point * math.sqrt(curvature) / root) / root


MIN_VARIANCE_SHARE = 0.5
"""Share of the variance that pseudo-values must show for an estimate of the rest."""

MIN_GROUPS = 4
"""Groups below which their variance is unknown, and samples count as independent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorProbabilities:
    """Error rates of bounds of a mean: upper `alpha`, lower `beta`, Gaffke's lower `rare`."""

    alpha: float
    beta: float
    rare: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangeBounds:
    """Hold one-sided confidence bounds of a mean score change, and the p value of a drop.

    Below 0 is worse. `groups` is the number of groups of samples, None if samples are independent.
    `widened` is the factor by which grouping widens the standard error.
    """

    low: float
    high: float
    p: float
    groups: int | None = None
    widened: float = 1.0


def change_bounds(
    baseline: Sequence[float],
    current: Sequence[float],
    groups: Sequence[int] | None,
    errors: ErrorProbabilities,
    leverage: Leverage | None = None,
) -> ChangeBounds:
    """Return bounds of the mean score change: paired t, or Newcombe's method for binary scores."""
    differences = [new - old for old, new in zip(baseline, current, strict=True)]
    bounds = paired_t_bounds(Counter(differences), errors)
    if leverage is not None and any(differences):
        n = len(differences)
        se, df = error_of(differences, leverage)
        changed = n - differences.count(0.0)
        bounds = _by_t(math.fsum(differences) / n, se, df, errors, changed=changed)
    elif len({*baseline, *current}) <= 2:
        bounds = _by_flips(baseline, current, bounds, errors)
    if groups is None or len(set(groups)) < MIN_GROUPS or not any(differences):
        return bounds
    grouped = _by_groups(differences, groups, errors)
    low, high = min(bounds.low, grouped.low), max(bounds.high, grouped.high)
    return replace(grouped, low=low, high=high, p=max(bounds.p, grouped.p))


def paired_t_bounds(changes: Mapping[float, int], errors: ErrorProbabilities) -> ChangeBounds:
    """Return paired-t bounds of the mean change; `changes` is the number of samples by change."""
    n = sum(changes.values())
    mean = math.fsum(change * count for change, count in changes.items()) / n
    squares = math.fsum((change - mean) ** 2 * count for change, count in changes.items())
    se = math.sqrt(squares / (n - 1) / n) if n > 1 else math.inf
    return _by_t(mean, se, n - 1, errors, changed=n - changes.get(0.0, 0))


def error_of(differences: Sequence[float], leverage: Leverage) -> tuple[float, float]:
    """Return (standard error, degrees of freedom) of the mean of paired pseudo-value differences.

    The observed variance is divided by `leverage.seen`; the error is infinite if that is below
    `MIN_VARIANCE_SHARE`. Half of `leverage.hidden` squared is added, as if every second comparison
    had a change that no pseudo-value shows. The degrees of freedom are the smallest of those of the
    t test, `leverage.df`, and 3 (Σd²)² / Σd⁴ for deviations d from the mean difference.
    """
    n = len(differences)
    if n < 2 or leverage.seen < MIN_VARIANCE_SHARE:
        return math.inf, 1.0
    mean = math.fsum(differences) / n
    squares = [(each - mean) ** 2 for each in differences]
    total, fourth = math.fsum(squares), math.fsum(own * own for own in squares)
    variance = total / (n - 1) / n / leverage.seen + leverage.hidden**2 / 2
    changed = max(1.0, 3 * total**2 / fourth) if fourth else leverage.df
    return math.sqrt(variance), min(n - 1, leverage.df, changed)


def with_rare_losses(
    low: float,
    changes: Mapping[float, int],
    possible: Mapping[float, int],
    errors: ErrorProbabilities,
    *,
    all_seen: bool,
) -> float:
    """Return the lower of `low`, a bound of the mean change, and Gaffke's bound for rare losses.

    Gaffke's bound assumes one more loss: the largest in `changes`, and if samples are missing (not
    `all_seen`), at least `usual_loss(possible)`. Both count samples, by change and by loss.
    """
    seen = max(0.0, -min(changes))
    unseen = seen if all_seen else max(seen, usual_loss(possible))
    return min(low, low_of_rare(changes, unseen, errors.rare))


def _by_t(
    mean: float, se: float, df: float, errors: ErrorProbabilities, *, changed: int | None = None
) -> ChangeBounds:
    """Return the bounds mean ± t·se by Student's t with `df`, and the p value of a drop.

    With few `changed` samples p is at least 0.5^changed: all may have the same sign by chance.
    """
    if math.isinf(se):
        return ChangeBounds(low=-math.inf, high=math.inf, p=1.0)
    t = mean / se if se else math.copysign(math.inf, mean) if mean else 0.0
    p = t_sf(-t, df) if changed is None else max(t_sf(-t, df), 0.5**changed)
    high = mean + t_isf(errors.alpha, df) * se
    return ChangeBounds(
        low=mean - t_isf(errors.beta, df) * se,
        high=max(high, 0.0) if p > errors.alpha else high,
        p=p,
    )


def _by_flips(
    baseline: Sequence[float],
    current: Sequence[float],
    spread: ChangeBounds,
    errors: ErrorProbabilities,
) -> ChangeBounds:
    down = sum(new < old for old, new in zip(baseline, current, strict=True))
    up = sum(new > old for old, new in zip(baseline, current, strict=True))
    if not down + up:
        return spread
    p = mcnemar_mid_p(down, up)
    if down + up >= MIN_NORMAL_FLIPS:
        return replace(spread, p=p)
    least, most = min(*baseline, *current), max(*baseline, *current)
    both = sum(a == b == most for a, b in zip(baseline, current, strict=True))
    counts = (both, down, up, len(baseline) - both - down - up)
    low, high = newcombe(counts, errors.alpha, errors.beta)
    return ChangeBounds(low=low * (most - least), high=high * (most - least), p=p)


def _by_groups(
    differences: Sequence[float], groups: Sequence[int], errors: ErrorProbabilities
) -> ChangeBounds:
    cluster = clustered(differences, groups)
    mean = math.fsum(differences) / len(differences)
    bounds = _by_t(mean, cluster.se, cluster.df, errors)
    alone = clustered(differences, range(len(differences))).se
    widened = cluster.se / alone if alone else 1.0
    return replace(bounds, groups=cluster.groups, widened=widened)
