"""What the samples of a whole data set weigh in a score that is a mean over parts of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_mlperf import Leverage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MIN_VARIANCE_SHARE = 1e-9
"""A part whose samples show less of its variance lies in one sample."""


class Shares:
    """Adds up what the samples weigh, part after part; parts count alike.

    Where independent samples have the shares h of a part, its mean has the variance s² sum h², and
    their squared deviations from the mean, h² each, add up to s² (sum h² - 2 sum h³ + (sum h²)²) on
    average: of m equal samples 1 - 1/m of it. The degrees of freedom are those that the sum of
    independent squares of unequal size has.

    Source: J. G. MacKinnon, H. White, "Some heteroskedasticity-consistent covariance matrix
        estimators with improved finite sample properties", Journal of Econometrics 29 (1985), for a
        mean; F. E. Satterthwaite, "An approximate distribution of estimates of variance
        components", Biometrics Bulletin 2 (1946).
    """

    def __init__(self, samples: int) -> None:
        import numpy as np

        self._parts = 0
        self._alone = False
        self._variance = 0.0
        self._of_samples = np.zeros(samples)

    def add(self, weights: NDArray[np.int64] | NDArray[np.float64]) -> None:
        """Add a part, such as a class, in which the samples have these weights, not all 0."""
        shares = weights / weights.sum()
        squares = shares**2
        total = float(squares.sum())
        shown = squares * (1 - 2 * shares + total)
        self._parts += 1
        self._alone |= bool(shown.sum() < MIN_VARIANCE_SHARE)
        self._variance += total
        self._of_samples += shown

    def leverage(self, largest: float) -> Leverage:
        """Return the leverage of all parts; `largest` is the most that one part changes, points."""
        import numpy as np

        shown, squares = float(self._of_samples.sum()), float(np.square(self._of_samples).sum())
        return Leverage(
            seen=min(1.0, max(0.0, shown / self._variance)),
            df=max(1.0, shown**2 / squares - 1) if squares else 1.0,
            hidden=largest / self._parts if self._alone else 0.0,
        )


def ratio_scores(
    counted: NDArray[np.float64], weights: NDArray[np.float64], scale: float = 1.0
) -> tuple[list[float], Leverage]:
    """Return the samples' pseudo-values of a quotient of sums, and their leverage.

    For example right words by words: the quotient plus the number of samples times each one's
    influence on it, (counted - quotient x weight) / sum of weights. Both have shape (samples,);
    weights are 0 or more, not all 0. `scale` is 100 for per cent.
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
    """Return how average precision changes with the weight of each image, (samples,), sum 0.

    With weights w of the images, average precision without interpolation is the mean, over boxes,
    of the precision at the detection that found one, 0 for a box not found:

        AP(w) = sum over right detections k of w[image of k] T_k / N_k / sum of w x boxes,

    T_k and N_k being the weights of right ones and of all down to k. This is its derivative by each
    w at w = 1, by sums from the last detection upwards: the infinitesimal jackknife of B. Efron,
    The Jackknife, the Bootstrap and Other Resampling Plans (1982), chapter 6.

    `right` (best score first) and the positions `samples` have shape (detections,); `boxes`, the
    boxes to be found in each sample, shape (samples,), at least 1 in all.
    """
    import numpy as np

    total = boxes.sum()
    ranks = np.flatnonzero(right) + 1.0
    hits = np.arange(1.0, len(ranks) + 1)
    precision = hits / ranks
    # What one more right or wrong detection changes in T / N of all right ones from there on.
    more_right = np.append(np.cumsum((1 / ranks)[::-1])[::-1], 0.0)
    more_in_all = np.append(np.cumsum((hits / ranks**2)[::-1])[::-1], 0.0)
    first: NDArray[np.int64] = np.cumsum(right) - right
    each = right * more_right[first] - more_in_all[first]
    each[right] += precision
    of_images = np.bincount(samples, each, minlength=len(boxes))
    influence: NDArray[np.float64] = (of_images - boxes * (precision.sum() / total)) / total
    return influence
