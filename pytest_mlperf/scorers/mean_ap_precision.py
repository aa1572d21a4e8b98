"""Average precision of one class at one threshold, and what each image adds to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RECALLS = 101
"""Points 0, 0.01 ... 1 of recall at which COCO reads the precision."""


def interpolated(right: NDArray[np.bool_], boxes: int) -> float:
    """Return COCO's average precision: the best one at or beyond each of 101 recalls, averaged.

    Equals pycocotools' COCOeval.accumulate, also in its rounding.

    Args:
        right: Whether each detection is right, best score first, shape (detections,).
        boxes: How many annotated boxes there are to be found, at least 1.
    """
    import numpy as np

    ranks = np.flatnonzero(right) + 1.0
    hits = np.arange(1.0, len(ranks) + 1)
    precision = hits / (ranks + np.spacing(1))
    best = np.maximum.accumulate(precision[::-1])[::-1]
    places = np.searchsorted(hits / boxes, np.linspace(0, 1, RECALLS), side="left")
    return float(np.append(best, 0.0)[places.clip(max=len(best))].sum() / RECALLS)


def influences(
    right: NDArray[np.bool_], samples: NDArray[np.int64], boxes: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return how much average precision changes with the weight of each image.

    With weights w of the images, average precision without interpolation is the mean, over boxes,
    of the precision at the detection that found one, 0 for a box not found:

        AP(w) = sum over right detections k of w[image of k] T_k / N_k / sum of w x boxes,

    T_k and N_k being the weights of right ones and of all down to k. This is its derivative by each
    w at w = 1, by sums from the last detection upwards: the infinitesimal jackknife of B. Efron,
    The Jackknife, the Bootstrap and Other Resampling Plans (1982), chapter 6.

    Args:
        right: Whether each detection is right, best score first, shape (detections,).
        samples: Position of the sample of each detection, shape (detections,).
        boxes: How many boxes there are to be found in each sample, at least 1 in all, shape
            (samples,).

    Returns:
        Shape (samples,); their sum is 0.
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
    found: NDArray[np.float64] = (of_images - boxes * (precision.sum() / total)) / total
    return found
