"""Compute the weights of samples in a score that is a mean over parts of the data set."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_mlperf import Leverage, Scores
from pytest_mlperf.adapters.lazy import NDArray, np

MIN_VARIANCE_SHARE = 1e-9
"""Visible share of a part's variance below which one sample determines the part's score."""


def whole_scores(metric: str, value: float, pseudo: Sequence[float], leverage: Leverage) -> Scores:
    """Return a data set's score, with pseudo-values as the samples' scores."""
    return Scores(
        per_sample={metric: pseudo},
        aggregate={metric: value},
        whole=frozenset({metric}),
        leverage={metric: leverage},
    )


class Shares:
    """Accumulate the shares of samples in a mean of parts, part by part; parts weigh the same.

    If independent samples have the shares h of a part, its mean has the variance s² sum h², and
    their squared deviations from the mean, h² each, add up to s² (sum h² - 2 sum h³ + (sum h²)²) on
    average: the share 1 - 1/m of the variance for m equal samples. The degrees of freedom are those
    of a sum of independent squares of unequal size. Source: J. G. MacKinnon, H. White, "Some
    heteroskedasticity-consistent covariance matrix estimators with improved finite sample
    properties", Journal of Econometrics 29 (1985), for a mean; F. E. Satterthwaite, "An approximate
    distribution of estimates of variance components", Biometrics Bulletin 2 (1946).
    """

    def __init__(self, samples: int) -> None:
        self._parts = 0
        self._alone = False
        self._variance = 0.0
        self._of_samples = np.zeros(samples)

    def add(self, weights: NDArray[np.int64] | NDArray[np.float64]) -> None:
        """Add a part of the mean, e.g. a class, by the weights of samples in it, not all 0."""
        shares = weights / weights.sum()
        squares = shares**2
        total = float(squares.sum())
        visible = squares * (1 - 2 * shares + total)
        self._parts += 1
        self._alone |= bool(visible.sum() < MIN_VARIANCE_SHARE)
        self._variance += total
        self._of_samples += visible

    def leverage(self, largest: float) -> Leverage:
        """Return the leverage of all parts; `largest` is the maximum change of a part [points]."""
        visible, squares = float(self._of_samples.sum()), float(np.square(self._of_samples).sum())
        return Leverage(
            seen=min(1.0, max(0.0, visible / self._variance)),
            df=max(1.0, visible**2 / squares - 1) if squares else 1.0,
            hidden=largest / self._parts if self._alone else 0.0,
        )


def ratio_scores(
    counted: NDArray[np.float64], weights: NDArray[np.float64], scale: float = 1.0
) -> tuple[list[float], Leverage]:
    """Return the samples' pseudo-values of a quotient of sums, and their leverage.

    The pseudo-value, for example of right words by words, is the quotient plus the number of
    samples times the influence, (counted - quotient x weight) / sum of weights. Both arrays have
    shape (samples,); weights are 0 or more, not all 0. `scale` is 100 for per cent.
    """
    total = weights.sum()
    quotient = counted.sum() / total
    shares = Shares(len(weights))
    shares.add(weights)
    pseudo = scale * (quotient + len(weights) * (counted - quotient * weights) / total)
    return pseudo.tolist(), shares.leverage(scale)


def influences(
    right: NDArray[np.bool_], samples: NDArray[np.int64], boxes: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return average precision's derivative by each image's weight, (samples,), sum 0.

    With weights w of the images, average precision without interpolation is the mean, over boxes,
    of the precision at the detection that matched the box, 0 for an undetected box:

        AP(w) = sum over right detections k of w[image of k] T_k / N_k / sum of w x boxes,

    T_k and N_k are the weights of right detections and of all detections down to k. The derivative
    is taken at w = 1, by sums from the last detection upwards. It is the infinitesimal jackknife of
    B. Efron, The Jackknife, the Bootstrap and Other Resampling Plans (1982), chapter 6.

    `right` (best score first) and the positions `samples` have shape (detections,); `boxes`, the
    number of boxes in each sample, shape (samples,), at least 1 in all.
    """
    total = boxes.sum()
    ranks = np.flatnonzero(right) + 1.0
    hits = np.arange(1.0, len(ranks) + 1)
    precision = hits / ranks
    # Change of T / N, summed over all later right detections, by one more right or wrong one.
    more_right = np.append(np.cumsum((1 / ranks)[::-1])[::-1], 0.0)
    more_in_all = np.append(np.cumsum((hits / ranks**2)[::-1])[::-1], 0.0)
    starts: NDArray[np.int64] = np.cumsum(right) - right
    terms = right * more_right[starts] - more_in_all[starts]
    terms[right] += precision
    sums = np.bincount(samples, terms, minlength=len(boxes))
    influence: NDArray[np.float64] = (sums - boxes * (precision.sum() / total)) / total
    return influence
