"""Match detections with annotated boxes, one class at a time, by pycocotools."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_mlperf.core.errors import EnvironmentFault
from pytest_mlperf.scorers.mean_ap_boxes import Detections, Truths

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

THRESHOLDS = 10
"""Overlaps 0.5, 0.55 ... 0.95 from which on a detection is right."""

MOST = 100
"""Detections of a class that count in one image: those with the best scores."""

LARGEST = 1e10
"""Square pixels up to which boxes and detections count in COCO's range of all areas."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Matched:
    """The detections of one class, best score first.

    Attributes:
        label: The class.
        samples: Position of the sample of each detection, shape (detections,).
        right: Whether it found a box, shape (THRESHOLDS, detections).
        ignored: Whether it counts neither as right nor as wrong, shape (THRESHOLDS, detections).
        boxes: How many boxes there are to be found in each sample, shape (samples,).
    """

    label: int
    samples: NDArray[np.int64]
    right: NDArray[np.bool_]
    ignored: NDArray[np.bool_]
    boxes: NDArray[np.int64]


def match_classes(detections: Detections, truths: Truths) -> Iterator[Matched]:
    """Yield every class that has boxes to be found; detections of other classes never count.

    Which detection finds which box, and which are ignored, is decided by COCOeval, in those images
    that have both; any other detection is wrong. Equal scores are ranked by image id, then by
    their order in the output, as COCOeval does.

    Raises:
        EnvironmentFault: pycocotools is not installed.
    """
    import numpy as np

    counts = ~truths.crowds & (truths.areas >= 0) & (truths.areas <= LARGEST)
    images = np.argsort(np.argsort(truths.images))
    order = np.lexsort((-detections.scores, images[detections.samples], detections.labels))
    labels = detections.labels[order]
    for label in np.unique(truths.labels[counts]).tolist():
        first, last = np.searchsorted(labels, [label, label + 1])
        chosen = _best(order[first:last], detections.samples)
        own = np.flatnonzero(truths.labels == label)
        right, ignored = _evaluate(detections, truths, chosen, own)
        ranked = np.argsort(-detections.scores[chosen], kind="stable")
        yield Matched(
            label=label,
            samples=detections.samples[chosen[ranked]].astype(np.int64),
            right=right[:, ranked],
            ignored=ignored[:, ranked],
            boxes=np.bincount(truths.samples[own][counts[own]], minlength=len(images)),
        )


def _best(chosen: NDArray[np.int64], samples: NDArray[np.int32]) -> NDArray[np.int64]:
    """Keep the first `MOST` detections of each image."""
    import numpy as np

    own = samples[chosen]
    starts = np.flatnonzero(np.diff(own, prepend=-1))
    lengths = np.diff(starts, append=len(own))
    place = np.arange(len(own)) - np.repeat(starts, lengths)
    return chosen[place < MOST]


def _evaluate(
    detections: Detections,
    truths: Truths,
    chosen: NDArray[np.int64],
    own: NDArray[np.int64],
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which detections are right, and which ignored, shapes (THRESHOLDS, chosen)."""
    import numpy as np

    boxes = detections.boxes[chosen].astype(np.float64)
    areas = boxes[:, 2] * boxes[:, 3]
    outside = (areas < 0) | (areas > LARGEST)
    matched = np.zeros((THRESHOLDS, len(chosen)), np.bool_)
    ignored = np.repeat(outside[None], THRESHOLDS, axis=0)
    samples = detections.samples[chosen]
    both = np.intersect1d(samples, truths.samples[own])
    some = np.flatnonzero(np.isin(samples, both))
    annotated = own[np.isin(truths.samples[own], both)]
    found = _listed(samples[some], boxes[some], areas[some], np.zeros(len(some), np.bool_))
    scores = detections.scores[chosen[some]].tolist()
    there = _listed(
        truths.samples[annotated],
        truths.boxes[annotated],
        truths.areas[annotated],
        truths.crowds[annotated],
    )
    found = [{**each, "score": score} for each, score in zip(found, scores, strict=True)]
    for one in _run(there, found, both.tolist()):
        places = some[np.array(one["dtIds"], np.int64) - 1]
        matched[:, places] = one["dtMatches"] > 0
        ignored[:, places] = one["dtIgnore"]
    return matched & ~ignored, ignored


def _listed(
    samples: NDArray[Any], boxes: NDArray[Any], areas: NDArray[Any], crowds: NDArray[np.bool_]
) -> list[dict[str, Any]]:
    """Return boxes as COCO has them, with ids from 1: COCOeval takes a match with id 0 for none."""
    columns = (samples.tolist(), boxes.tolist(), areas.tolist(), crowds.astype(int).tolist())
    return [
        {
            "id": number,
            "image_id": sample,
            "category_id": 1,
            "bbox": box,
            "area": area,
            "iscrowd": crowd,
        }
        for number, (sample, box, area, crowd) in enumerate(zip(*columns, strict=True), start=1)
    ]


def _run(
    truths: list[dict[str, Any]], found: list[dict[str, Any]], images: list[int]
) -> list[dict[str, Any]]:
    """Return COCOeval's matches in each image; all boxes are of one class."""
    if not images:
        return []
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError as error:
        raise EnvironmentFault(
            "scorer map matches boxes with pycocotools, which is not installed; "
            "try: pip install 'pytest-mlperf[vision]'"
        ) from error
    # It tells its progress by print.
    with contextlib.redirect_stdout(io.StringIO()):
        sides = []
        for boxes in (truths, found):
            side = COCO()
            side.dataset = {
                "images": [{"id": image} for image in images],
                "categories": [{"id": 1}],
                "annotations": boxes,
            }
            side.createIndex()
            sides.append(side)
        evaluation = COCOeval(*sides, iouType="bbox")
        evaluation.params.areaRng = [[0, LARGEST]]
        evaluation.params.areaRngLbl = ["all"]
        evaluation.params.maxDets = [MOST]
        evaluation.evaluate()
    return [one for one in evaluation.evalImgs if one is not None]
