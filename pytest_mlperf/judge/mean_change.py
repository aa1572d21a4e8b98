"""The bounds of a mean change of paired scores, and the p of a drop of any size."""

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
    """How well a mean is known where groups are the independent units; `se` is infinite of one."""

    se: float
    df: float
    groups: int


def clustered(values: Sequence[float], groups: Sequence[int]) -> Clustered:
    """Return the cluster-robust standard error of a mean.

    The deviations of a group are added up before they are squared, so that what they have in common
    is not averaged away; a group that is a large share of all pulls the mean towards itself, which
    its square is divided by. Groups of unequal sizes count as fewer: (sum of sizes)² / sum of
    squares.

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
"""Below this many changed samples the normal interval of binary scores is too narrow."""


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
    """Return the paired score interval of share now - share before, method 10.

    Counts are samples right in both, right before only, right now only, wrong in both; `alpha` is
    the error of the upper bound, `beta` that of the lower one.

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


ROUNDING = 1e-12
"""Changes that are closer to their mean, relative to it, differ by how they were rounded alone."""

MAX_SEARCH_STEPS = 60
CLOSE = 1e-9
"""How near its normal deviate must come to that of the error."""


BINS = 256
"""More values than these are merged by size: 1/256 of their range decides nothing here."""


def usual_loss(losses: Mapping[float, int]) -> float:
    """Return what a sample that breaks is taken to lose: the mean, weighted by the loss itself.

    A sample cannot lose more than it had, so these are the baseline's scores, none below 0. The
    weights say that the better a sample was, the likelier it is among those that break: of right
    and wrong answers it is all that one can lose, of graded scores more than their mean.
    """
    total = math.fsum(loss * count for loss, count in losses.items())
    return math.fsum(loss * loss * count for loss, count in losses.items()) / total if total else 0


def low_of_rare(changes: Mapping[float, int], unseen: float, error: float) -> float:
    """Return the lower bound of a mean change, as if one more sample had lost `unseen`.

    The normal distribution takes the samples that it sees for all there are. This bound weighs the
    samples at random (exponential weights) and asks which mean is undercut with a probability of
    `error`; the one more sample stands for what may have stayed unseen. Where every change is a
    loss of one size it is the exact bound of Clopper and Pearson, as of the Poisson distribution:
    none of 1,000 samples broken leaves a share of 0.3 % possible at an error of 5 %.

    Args:
        changes: How many samples changed by so much; those that did not count as 0.
        unseen: Loss of the further sample, 0 or more; no change should be a larger one.
        error: How often the true change may lie below, less than a half.

    Source: N. Gaffke, "Three test statistics for a nonparametric one-sided hypothesis on the mean
        of a nonnegative variable", Mathematical Methods of Statistics 14 (2005); the tail of the
        weighted mean by O. E. Barndorff-Nielsen, "Modified signed log likelihood ratio",
        Biometrika 78 (1991).
    """
    weights = merged({**changes, -unseen: changes.get(-unseen, 0) + 1})
    count = sum(weights.values())
    mean = math.fsum(value * each for value, each in weights.items()) / count
    centred = [(value - mean, each) for value, each in weights.items()]
    least = min(value for value, _ in centred)
    if not least < -ROUNDING * abs(mean):
        return mean
    quantile = NormalDist().inv_cdf(error)
    # Regula falsi with the Illinois step: the deviate falls steadily from 0 as the tilt grows.
    near, far = (0.0, -quantile), (1.0, -math.inf)
    lowest = mean + least
    for _ in range(MAX_SEARCH_STEPS):
        if math.isinf(far[1]):
            at = (near[0] + far[0]) / 2
        else:
            at = near[0] + (far[0] - near[0]) * near[1] / (near[1] - far[1])
        bound, deviate = _tilted(centred, at / least)
        lowest, gap = mean + bound, deviate - quantile
        if abs(gap) < CLOSE:
            break
        if gap > 0:
            near, far = (at, gap), (far[0], far[1] / 2)
        else:
            near, far = (near[0], near[1] / 2), (at, gap)
    return lowest


def merged(changes: Mapping[float, int]) -> Mapping[float, int]:
    """Return not many more values than `BINS`: neighbours by their mean."""
    if len(changes) <= BINS:
        return changes
    least = min(changes)
    width = (max(changes) - least) / BINS
    counts, sums = dict[int, int](), dict[int, float]()
    for change, count in changes.items():
        place = int((change - least) / width)
        counts[place] = counts.get(place, 0) + count
        sums[place] = sums.get(place, 0.0) + change * count
    return {sums[place] / count: count for place, count in counts.items()}


def _tilted(centred: list[tuple[float, int]], tilt: float) -> tuple[float, float]:
    """Return a mean below 0, and the normal deviate of the weighted mean's being below it.

    Args:
        centred: Values and how often each is there; their mean is 0.
        tilt: Negative, above 1 / the least value: the farther from 0, the lower the mean.
    """
    shares = [(value, each, each / (1 - tilt * value)) for value, each in centred]
    mean = math.fsum(value * share for value, _, share in shares) / math.fsum(
        share for _, _, share in shares
    )
    # The saddle point of the sum of weight x (value - mean), its cumulant there and its curvature.
    point = tilt / (1 - tilt * mean)
    cumulant = curvature = 0.0
    for value, each in centred:
        excess = value - mean
        rest = 1 - point * excess
        cumulant -= each * math.log(rest)
        curvature += each * (excess / rest) ** 2
    if not cumulant < 0:
        return mean, 0.0
    root = -math.sqrt(-2 * cumulant)
    return mean, root + math.log(point * math.sqrt(curvature) / root) / root


MIN_VARIANCE_SHARE = 0.5
"""Share of the variance that contributions must show: from less, the rest is not estimated."""

MIN_GROUPS = 4
"""Fewer say nothing of what groups differ by: their samples are taken as independent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Errors:
    """What one look may err by.

    Attributes:
        alpha: Of the upper bound.
        beta: Of the lower bound, by the spread of the changes.
        rare: Of the lower bound, by losses that few samples have, or none that was seen.
    """

    alpha: float
    beta: float
    rare: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangeBounds:
    """What the changes of some samples say of their mean; negative is worse.

    Attributes:
        p: One-sided p of a drop of any size.
        groups: Groups that the samples are of; None where they are taken as independent.
        widened: The standard error by groups / that of independent samples.
    """

    low: float
    high: float
    p: float
    groups: int | None = None
    widened: float = 1.0


def bounds_of(
    before: Sequence[float],
    now: Sequence[float],
    groups: Sequence[int] | None,
    errors: Errors,
    leverage: Leverage | None = None,
) -> ChangeBounds:
    """Return what pairs say of the mean change, by the spread of what changed; higher is better.

    Without groups samples are independent; without leverage all of chance is seen.
    """
    differences = [new - old for old, new in zip(before, now, strict=True)]
    bounds = by_spread(Counter(differences), errors)
    if leverage is not None and any(differences):
        n = len(differences)
        se, df = error_of(differences, leverage)
        changed = n - differences.count(0.0)
        bounds = _by_t(math.fsum(differences) / n, se, df, errors, changed=changed)
    elif len({*before, *now}) <= 2:
        bounds = _by_flips(before, now, bounds, errors)
    if groups is None or len(set(groups)) < MIN_GROUPS or not any(differences):
        return bounds
    grouped = _by_groups(differences, groups, errors)
    low, high = min(bounds.low, grouped.low), max(bounds.high, grouped.high)
    return replace(grouped, low=low, high=high, p=max(bounds.p, grouped.p))


def by_spread(changes: Mapping[float, int], errors: Errors) -> ChangeBounds:
    """Return the bounds of the paired t."""
    n = sum(changes.values())
    mean = math.fsum(change * count for change, count in changes.items()) / n
    squares = math.fsum((change - mean) ** 2 * count for change, count in changes.items())
    se = math.sqrt(squares / (n - 1) / n) if n > 1 else math.inf
    return _by_t(mean, se, n - 1, errors, changed=n - changes.get(0.0, 0))


def error_of(differences: Sequence[float], leverage: Leverage) -> tuple[float, float]:
    """Return the standard error of the mean change of pseudo-values, and its degrees of freedom.

    These are the fewer ones of what the samples weigh and of what changed: where few samples
    changed, their squares say little of the variance. The error is infinite where the changes show
    less than `MIN_VARIANCE_SHARE` of it. What may stay hidden counts as one change for the worse or
    better in every second comparison.
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


def with_rare(
    low: float,
    changes: Mapping[float, int],
    possible: Mapping[float, int],
    errors: Errors,
    *,
    all_seen: bool,
) -> float:
    """Return a lower bound that losses of few samples do not deceive.

    What samples could lose are their scores before. Where these are all samples of the data set, a
    loss that none of them has is no loss of it. Else there may be losses as large as the usual one,
    or as the largest that was seen.
    """
    seen = max(0.0, -min(changes))
    unseen = seen if all_seen else max(seen, usual_loss(possible))
    return min(low, low_of_rare(changes, unseen, errors.rare))


def _by_t(
    mean: float, se: float, df: float, errors: Errors, *, changed: int | None = None
) -> ChangeBounds:
    """Return mean - t se and mean + t se, and p.

    Where so many samples changed: were each as likely to rise as to fall, all would fall by chance
    with a probability of 2 to the power of -changed, however alike their changes are.
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
    before: Sequence[float], now: Sequence[float], spread: ChangeBounds, errors: Errors
) -> ChangeBounds:
    """Return the p of right-or-wrong answers; of few flips also their interval."""
    down = sum(new < old for old, new in zip(before, now, strict=True))
    up = sum(new > old for old, new in zip(before, now, strict=True))
    if not down + up:
        return spread
    p = mcnemar_mid_p(down, up)
    if down + up >= MIN_NORMAL_FLIPS:
        return replace(spread, p=p)
    least, most = min(*before, *now), max(*before, *now)
    both = sum(a == b == most for a, b in zip(before, now, strict=True))
    counts = (both, down, up, len(before) - both - down - up)
    low, high = newcombe(counts, errors.alpha, errors.beta)
    return ChangeBounds(low=low * (most - least), high=high * (most - least), p=p)


def _by_groups(differences: Sequence[float], groups: Sequence[int], errors: Errors) -> ChangeBounds:
    cluster = clustered(differences, groups)
    mean = math.fsum(differences) / len(differences)
    bounds = _by_t(mean, cluster.se, cluster.df, errors)
    alone = clustered(differences, range(len(differences))).se
    widened = cluster.se / alone if alone else 1.0
    return replace(bounds, groups=cluster.groups, widened=widened)
