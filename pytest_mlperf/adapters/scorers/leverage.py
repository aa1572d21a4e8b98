"""Compute the leverage of samples in scores that are means over parts of the data set."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_mlperf import Leverage, Scores
from pytest_mlperf.adapters.lazy import NDArray, np

MIN_VARIANCE_SHARE = 1e-9
"""Visible share of a part's variance below which one sample determines the part's score."""


def whole_scores(metric: str, value: float, pseudo: Sequence[float], leverage: Leverage) -> Scores:
    """Return a data set's score with the samples' jackknife pseudo-values and their leverage."""
    return Scores(
        per_sample={metric: pseudo},
        aggregate={metric: value},
        whole=frozenset({metric}),
        leverage={metric: leverage},
    )


class Shares:
    """Compute the `Leverage` of samples in a score that is the mean over parts, such as classes.

    All parts weigh the same. If independent samples have the weights h in a part (sum 1), the
    part's mean has the variance s² sum h². The sum of the samples' squared deviations from the
    mean, weighted by h², has the expectation s² (sum h² - 2 sum h³ + (sum h²)²), which is 1 - 1/m
    of the variance for m equal samples. The degrees of freedom are those of a sum of independent
    squares of unequal size.

    Sources: J. G. MacKinnon, H. White, "Some heteroskedasticity-consistent covariance matrix
    estimators with improved finite sample properties", Journal of Econometrics 29 (1985), for a
    mean; F. E. Satterthwaite, "An approximate distribution of estimates of variance components",
    Biometrics Bulletin 2 (1946).
    """

    def __init__(self, samples: int) -> None:
        self._parts = 0
        self._alone = False
        self._variance = 0.0
        self._of_samples = np.zeros(samples)

    def add(self, weights: NDArray[np.int64] | NDArray[np.float64]) -> None:
        """Add a component of the score, such as a class, by its samples' weights (not all 0)."""
        shares = weights / weights.sum()
        squares = shares**2
        total = float(squares.sum())
        visible = squares * (1 - 2 * shares + total)
        self._parts += 1
        self._alone |= bool(visible.sum() < MIN_VARIANCE_SHARE)
        self._variance += total
        self._of_samples += visible

    def leverage(self, max_change: float) -> Leverage:
        """Return the samples' leverage; one sample changes a component by at most `max_change`."""
        visible, squares = float(self._of_samples.sum()), float(np.square(self._of_samples).sum())
        return Leverage(
            seen=min(1.0, max(0.0, visible / self._variance)),
            df=max(1.0, visible**2 / squares - 1) if squares else 1.0,
            hidden=max_change / self._parts if self._alone else 0.0,
        )


def ratio_scores(
    counted: NDArray[np.float64], weights: NDArray[np.float64], scale: float = 1.0
) -> tuple[list[float], Leverage]:
    """Return the jackknife pseudo-values and the leverage of a ratio of sums.

    The ratio is sum of `counted` / sum of `weights`, for example right words / words. A sample's
    pseudo-value is the ratio plus the number of samples times its influence, (counted - ratio x
    weight) / sum of weights. Both arrays have shape (samples,); weights are 0 or more, not all 0.
    `scale` is 100 for per cent.
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
    """Return the influence of each image on average precision, shape (samples,); the sum is 0.

    With weights w of the images, average precision without interpolation is the mean, over boxes,
    of the precision at the detection that matched the box (0 for an undetected box):

        AP(w) = sum over right detections k of w[image of k] T_k / N_k / sum of w x boxes,

    T_k and N_k are the summed weights of right detections, and of all detections, down to k. The
    influence is the derivative with respect to an image's weight at w = 1, the infinitesimal
    jackknife of B. Efron, The Jackknife, the Bootstrap and Other Resampling Plans (1982), chapter
    6.

    `right`, whether each detection is right, and `samples`, the indices of their images, have shape
    (detections,), highest score first. `boxes`, shape (samples,), is the number of boxes per image,
    at least 1 in total.
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
