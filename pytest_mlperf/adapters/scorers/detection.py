"""Score object detection by COCO's mean AP, as MLPerf's scripts for RetinaNet and YOLO do."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_mlperf import RunError, Scores
from pytest_mlperf.adapters import scorers
from pytest_mlperf.adapters.conventions import not_installed
from pytest_mlperf.adapters.lazy import NDArray, np
from pytest_mlperf.adapters.scorers.leverage import Shares, influences, whole_scores

DETECTION_COLUMNS = 7
MAX_VALUE = 1e9
"""Upper bound of every value of a detection; valid ones are far below."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Detections:
    """Hold the detections of all samples, in sample order.

    Attributes:
        samples: Index of each detection's sample, shape (detections,).
        boxes: Left, top, width and height [pixels], float32, shape (detections, 4).
    """

    samples: NDArray[np.int32]
    labels: NDArray[np.int32]
    scores: NDArray[np.float32]
    boxes: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Truths:
    """Hold the annotated boxes of all samples, in sample order.

    Attributes:
        images: Image id of each sample, shape (samples,).
        samples: Index of each box's sample, shape (boxes,).
        labels: Category of each box, shape (boxes,).
        boxes: Left, top, width and height [pixels], shape (boxes, 4).
        areas: Annotated area of each box [square pixels], shape (boxes,).
        crowds: Whether each box encloses a group of objects, shape (boxes,).
    """

    images: NDArray[np.int64]
    samples: NDArray[np.int64]
    labels: NDArray[np.int64]
    boxes: NDArray[np.float64]
    areas: NDArray[np.float64]
    crowds: NDArray[np.bool_]


def gather(outputs: Sequence[bytes], references: Sequence[Any]) -> tuple[Detections, Truths]:
    """Parse the outputs and references of all samples, each once.

    Outputs are float32 rows of index, ymin, xmin, ymax, xmax, score, label, little-endian, in any
    order; coordinates are fractions of the image's height or width. References have `image_id`,
    `height`, `width`, and `annotations` with `category_id`, `bbox`, `area` and `iscrowd`, as in
    data set openimages. If a reference has `index`, all rows of the output must have the same
    index.
    """
    content, counts, boxes = bytearray(), [], []
    images: dict[int, int] = {}
    for sample in range(len(outputs)):
        identity, size, index, annotated = _read_reference(sample, references[sample])
        first = images.setdefault(identity, sample)
        if first != sample:
            raise sample_error(
                sample,
                f"has the same image_id, {identity}, as sample {first}; correct the data set, in "
                "which each image must be unique",
            )
        boxes += [(sample, *box) for box in annotated]
        found_rows = _read_output(sample, outputs[sample], index)
        # The reference multiplies in float32.
        found_rows[:, 1:5] *= np.array([*size, *size], np.float32)
        content += found_rows.tobytes()
        counts.append(len(found_rows))
    detected = np.frombuffer(content, np.float32).reshape(-1, DETECTION_COLUMNS)
    _, ymin, xmin, ymax, xmax, scores, labels = detected.T
    detections = Detections(
        samples=np.repeat(np.arange(len(counts), dtype=np.int32), counts),
        labels=labels.astype(np.int32),
        scores=scores.copy(),
        boxes=np.stack([xmin, ymin, xmax - xmin, ymax - ymin], axis=1),
    )
    box_rows = np.array(boxes, np.float64).reshape(-1, 8)
    if len(bad := np.flatnonzero(~np.isfinite(box_rows).all(axis=1))):
        raise sample_error(
            int(box_rows[bad[0], 0]), "has an annotated box with NaN or inf; correct the data set"
        )
    truths = Truths(
        images=np.fromiter(images, np.int64),
        samples=box_rows[:, 0].astype(np.int64),
        labels=box_rows[:, 1].astype(np.int64),
        boxes=box_rows[:, 2:6],
        areas=box_rows[:, 6],
        crowds=box_rows[:, 7] != 0,
    )
    return detections, truths


def _read_output(sample: int, output: bytes, index: int | None) -> NDArray[np.float32]:
    """Return an output's rows as a writable array, shape (detections, DETECTION_COLUMNS)."""
    if len(output) % (4 * DETECTION_COLUMNS):
        raise sample_error(
            sample,
            f"has an output of {len(output)} bytes, which is not a multiple of "
            f"{4 * DETECTION_COLUMNS}; the engine must return one float32 row of index, ymin, "
            "xmin, ymax, xmax, score, label per detection",
        )
    rows = np.frombuffer(output, "<f4").reshape(-1, DETECTION_COLUMNS).copy()
    bad = np.flatnonzero(~(np.abs(rows) < MAX_VALUE).all(axis=1))
    if len(bad):
        raise sample_error(
            sample,
            f"has a number in its output that is NaN, inf or above {MAX_VALUE:g}: row {bad[0]} is "
            f"{rows[bad[0]].tolist()}; check the engine for an overflow",
        )
    if index is not None and (others := np.flatnonzero(rows[:, 0].astype(np.int64) != index)).size:
        raise sample_error(
            sample,
            f"is image {index}, but row {others[0]} of its output is for image "
            f"{rows[others[0], 0]:g}; the engine must answer each sample with its own detections",
        )
    return rows


Reference = tuple[int, tuple[float, float], int | None, list[tuple[float, ...]]]
"""Image id; height and width; index or None; label, bbox, area and crowd of each box."""


def _read_reference(sample: int, reference: Any) -> Reference:
    form = (
        "a table with image_id, height, width and annotations, each with category_id, bbox, area "
        "and iscrowd, as of data set openimages"
    )
    with scorers.reading_reference("map", sample, form):
        boxes = [_read_box(box) for box in reference["annotations"]]
        size = float(reference["height"]), float(reference["width"])
        return int(reference["image_id"]), size, reference.get("index"), boxes


def _read_box(box: Mapping[str, Any]) -> tuple[float, ...]:
    left, top, width, height = map(float, box["bbox"])
    crowd = bool(box["iscrowd"])
    return int(box["category_id"]), left, top, width, height, float(box["area"]), crowd


def sample_error(sample: int, defect: str) -> RunError:
    """Return an error about a sample; `defect` is a clause that follows "sample N"."""
    return scorers.scorer_error(f"scorer map: sample {sample} {defect}")


THRESHOLDS = 10
"""Number of overlaps 0.5, 0.55 ... 0.95 at or above which a detection is right."""

MAX_DETECTIONS = 100
"""Maximum detections of a class in an image; those with the best scores count."""

MAX_AREA_PIXELS = 1e10
"""Maximum area of boxes and detections in COCO's range "all" [square pixels]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Matched:
    """Hold the detections of one class, highest score first.

    Attributes:
        samples: Index of each detection's sample, shape (detections,).
        right: Whether each detection matches a box, shape (THRESHOLDS, detections).
        ignored: Whether each detection counts neither as right nor as wrong, same shape.
        boxes: Number of boxes to be detected in each sample, shape (samples,).
    """

    samples: NDArray[np.int64]
    right: NDArray[np.bool_]
    ignored: NDArray[np.bool_]
    boxes: NDArray[np.int64]


def match_classes(detections: Detections, truths: Truths) -> Iterator[Matched]:
    """Yield the matched detections of each class that has boxes; other classes are ignored.

    COCOeval matches the images that have both boxes and detections of a class; the detections in
    other images are wrong. As in COCOeval, detections with equal scores are ranked by image id,
    then by order in the output.
    """
    counted = ~truths.crowds & (truths.areas >= 0) & (truths.areas <= MAX_AREA_PIXELS)
    images = np.argsort(np.argsort(truths.images))
    order = np.lexsort((-detections.scores, images[detections.samples], detections.labels))
    labels = detections.labels[order]
    for label in np.unique(truths.labels[counted]).tolist():
        first, last = np.searchsorted(labels, [label, label + 1])
        best = _limit_per_image(order[first:last], detections.samples)
        of_class = np.flatnonzero(truths.labels == label)
        right, ignored = _evaluate(detections, truths, best, of_class)
        ranked = np.argsort(-detections.scores[best], kind="stable")
        yield Matched(
            samples=detections.samples[best[ranked]].astype(np.int64),
            right=right[:, ranked],
            ignored=ignored[:, ranked],
            boxes=np.bincount(truths.samples[of_class][counted[of_class]], minlength=len(images)),
        )


def _limit_per_image(order: NDArray[np.int64], samples: NDArray[np.int32]) -> NDArray[np.int64]:
    images = samples[order]
    starts = np.flatnonzero(np.diff(images, prepend=-1))
    ranks = np.arange(len(images)) - np.repeat(starts, np.diff(starts, append=len(images)))
    return order[ranks < MAX_DETECTIONS]


def _evaluate(
    detections: Detections, truths: Truths, chosen: NDArray[np.int64], of_class: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Match the detections `chosen` with boxes of one class, given by indices `of_class`.

    Returns which detections are right and which are ignored, shapes (THRESHOLDS, chosen).
    """
    boxes = detections.boxes[chosen].astype(np.float64)
    areas = boxes[:, 2] * boxes[:, 3]
    outside = (areas < 0) | (areas > MAX_AREA_PIXELS)
    matched = np.zeros((THRESHOLDS, len(chosen)), np.bool_)
    ignored = np.repeat(outside[None], THRESHOLDS, axis=0)
    samples = detections.samples[chosen]
    both = np.intersect1d(samples, truths.samples[of_class])
    order = np.flatnonzero(np.isin(samples, both))
    annotated = of_class[np.isin(truths.samples[of_class], both)]
    detected = _as_coco(samples[order], boxes[order], areas[order], np.zeros(len(order), np.bool_))
    scores = detections.scores[chosen[order]].tolist()
    truth_boxes = _as_coco(
        truths.samples[annotated],
        truths.boxes[annotated],
        truths.areas[annotated],
        truths.crowds[annotated],
    )
    detected = [{**box, "score": score} for box, score in zip(detected, scores, strict=True)]
    for result in _run(truth_boxes, detected, both.tolist()):
        columns = order[np.array(result["dtIds"], np.int64) - 1]
        matched[:, columns] = result["dtMatches"] > 0
        ignored[:, columns] = result["dtIgnore"]
    return matched & ~ignored, ignored


def _as_coco(
    samples: NDArray[Any], boxes: NDArray[Any], areas: NDArray[Any], crowds: NDArray[np.bool_]
) -> list[dict[str, Any]]:
    """Convert boxes to COCO's format; ids start at 1, since COCOeval uses 0 for no match."""
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
    truths: list[dict[str, Any]], detections: list[dict[str, Any]], images: list[int]
) -> list[dict[str, Any]]:
    if not images:
        return []
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError as error:
        raise not_installed("scorer map", "pycocotools", "vision") from error
    # pycocotools prints its progress.
    with contextlib.redirect_stdout(io.StringIO()):
        cocos = []
        for boxes in (truths, detections):
            coco = COCO()
            coco.dataset = {
                "images": [{"id": image} for image in images],
                "categories": [{"id": 1}],
                "annotations": boxes,
            }
            coco.createIndex()
            cocos.append(coco)
        evaluation = COCOeval(*cocos, iouType="bbox")
        evaluation.params.areaRng = [[0, MAX_AREA_PIXELS]]
        evaluation.params.areaRngLbl = ["all"]
        evaluation.params.maxDets = [MAX_DETECTIONS]
        evaluation.evaluate()
    return [result for result in evaluation.evalImgs if result is not None]


RECALLS = 101
"""Number of recalls 0, 0.01 ... 1 at which COCO reads the precision."""


def interpolated(right: NDArray[np.bool_], boxes: int) -> float:
    """Return COCO's average precision, interpolated at 101 recall values.

    It is the mean, over the recall values, of the best precision at that recall or a higher one. It
    equals the result of pycocotools' COCOeval.accumulate, including rounding. `right` has shape
    (detections,), highest score first; `boxes`, at least 1, is the number of boxes to be detected.
    """
    ranks = np.flatnonzero(right) + 1.0
    hits = np.arange(1.0, len(ranks) + 1)
    precision = hits / (ranks + np.spacing(1))
    best = np.maximum.accumulate(precision[::-1])[::-1]
    places = np.searchsorted(hits / boxes, np.linspace(0, 1, RECALLS), side="left")
    return float(np.append(best, 0.0)[places.clip(max=len(best))].sum() / RECALLS)


class MeanApScorer(scorers.ScorerBase[scorers.NoOptions]):
    """Compare detected boxes with annotated ones, on the images that were answered.

    Average precision is COCO's: interpolated at 101 recall values, and averaged over overlap
    thresholds from 0.5 to 0.95 and over the classes annotated in these images. At most 100
    detections of a class count in an image; boxes around groups are ignored. pycocotools matches
    detections and boxes; object sizes, and pairs of class and image without boxes, are skipped, as
    they do not affect the score.
    Source: vision/classification_and_detection/tools/accuracy-openimages.py, and accuracy-coco.py
    of YOLO, of https://github.com/mlcommons/inference, without `--use-inv-map`: MLPerf's labels are
    category ids. As in these scripts, detections of a label without boxes never count, labels are
    truncated to integers, and only the order of scores matters.
    """

    metrics = ("map",)
    libraries = ("pycocotools",)

    def score(self, outputs: Sequence[bytes], references: Sequence[Any]) -> Scores:
        """Score detections against annotations in one pass; return "map", in per cent.

        Outputs and references have the format of `gather`. A sample's score is its jackknife
        pseudo-value: map + number of samples x influence. The influence is that on average
        precision without interpolation, as the interpolated one has steps and no derivative. In
        simulations the standard error of paired differences is 0.9 to 1.25 times that of a
        bootstrap over images.
        """
        scorers.require_outputs("map", outputs, references)
        detections, truths = gather(outputs, references)
        precisions: list[float] = []
        influence, shares = np.zeros(len(outputs)), Shares(len(outputs))
        for matched in match_classes(detections, truths):
            shares.add(matched.boxes)
            for right, ignored in zip(matched.right, matched.ignored, strict=True):
                counted = right[~ignored]
                precisions.append(interpolated(counted, int(matched.boxes.sum())))
                influence += influences(counted, matched.samples[~ignored], matched.boxes)
        if not precisions:
            raise scorers.scorer_error(
                f"scorer map: none of the {len(outputs)} samples has a box, so there is no "
                "average precision; score more samples, or correct the data set",
            )
        value = 100.0 * math.fsum(precisions) / len(precisions)
        pseudo = 100.0 * len(outputs) * influence / len(precisions)
        # Influences add up to 0 except for rounding.
        scores = (value + pseudo - pseudo.mean()).tolist()
        return whole_scores("map", value, scores, shares.leverage(100.0))
