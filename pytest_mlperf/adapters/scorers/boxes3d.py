"""Score 3D object detection by KITTI's mean AP, as MLPerf's script for PointPainting does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_mlperf import RunError, Scores
from pytest_mlperf.adapters import scorers
from pytest_mlperf.adapters.lazy import NDArray, np
from pytest_mlperf.adapters.scorers.leverage import Shares, influences, whole_scores

DETECTION_COLUMNS = 14
"""Width, height, length; x, y, z; rotation; a box in the image (4); label; score; image."""

CLASSES = {"Pedestrian": (0.5, "Person_sitting"), "Cyclist": (0.5, ""), "Car": (0.7, "Van")}
"""Minimum overlap of a match, and the name of neutral boxes, by class; label 1 comes first."""

MIN_HEIGHT_PIXELS = -1
"""Detections with a lower box in the image are neutral: neither right nor wrong."""

RECALL_STEPS = 40
READ_THRESHOLDS = slice(None, None, 4)
"""Thresholds at which KITTI reads the precision; the sum is always divided by 11."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """Hold the boxes and detections of one sample.

    Attributes:
        names: Class of each annotated box.
        easy: Whether each annotated box has difficulty 0.
        labels: Label of each detection, shape (detections,).
        neutral: Whether each detection is neither right nor wrong, as its box is too small in the
            image.
        overlaps: Intersection over union, shape (boxes, detections), float32.
    """

    image: int
    names: list[str]
    easy: list[bool]
    labels: NDArray[np.int64]
    neutral: NDArray[np.bool_]
    scores: NDArray[np.float64]
    overlaps: NDArray[np.float32]


def overlaps_of(truths: NDArray[np.float32], detected: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the intersection over union of 3D boxes, shape (truths, detections).

    A box is (x, y, z, width, height, length, rotation), as in the references.
    """
    left, right = truths[:, None], detected[None]
    bottom = np.maximum(left[..., 1] - left[..., 4], right[..., 1] - right[..., 4])
    height = np.maximum(np.minimum(left[..., 1], right[..., 1]) - bottom, np.float32(0))
    corners = [
        np.concatenate([box[..., [0, 2]] + s * box[..., [3, 5]] / 2 for s in (-1, 1)], -1)
        for box in (left, right)
    ]
    radii = [np.hypot(box[..., 3], box[..., 5]) / 2 for box in (left, right)]
    distances = np.hypot(left[..., 0] - right[..., 0], left[..., 2] - right[..., 2])
    is_near = (height > 0) & (distances <= (radii[0] + radii[1]) * 1.001 + 1e-3)
    i, j = np.nonzero(is_near)
    ground = np.zeros(is_near.shape, np.float32)
    ground[i, j] = _common_area(corners[0][i, 0], truths[i, 6], corners[1][0, j], detected[j, 6])
    common_volumes = height * ground
    volumes = [box[..., 3] * box[..., 4] * box[..., 5] for box in (left, right)]
    union = volumes[0] + volumes[1] - common_volumes + np.float32(1e-8)
    return np.asarray(common_volumes / union, np.float32)


def _common_area(
    left: NDArray[np.float32],
    left_turn: NDArray[np.float32],
    right: NDArray[np.float32],
    right_turn: NDArray[np.float32],
) -> NDArray[np.float64]:
    """Return the intersection area of each pair of rotated rectangles, shape (pairs,).

    The first rectangle is clipped to the sides of the second, in the second's coordinates: where an
    edge crosses a side, a corner is added; then corners beyond the side move onto it. Edges that
    coincide on a side enclose no area.
    """
    a, b = left.astype(np.float64), right.astype(np.float64)
    half = np.abs(a[:, 2:] - a[:, :2]) / 2
    limits = np.abs(b[:, 2:] - b[:, :2]) / 2
    offset = (a[:, :2] + a[:, 2:]) / 2 - (b[:, :2] + b[:, 2:]) / 2
    corners = half[:, None] * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    corners = _turned(corners, -left_turn.astype(np.float64)) + offset[:, None]
    corners = _turned(corners, right_turn.astype(np.float64))
    for axis in (0, 1):
        for sign in (-1, 1):
            limit = sign * limits[:, axis, None]
            start, end = corners, np.roll(corners, -1, axis=1)
            length = end[..., axis] - start[..., axis]
            fractions = np.divide(
                limit - start[..., axis], length, where=length != 0, out=np.zeros_like(length)
            ).clip(0, 1)
            crossing = start + fractions[..., None] * (end - start)
            corners = np.stack([start, crossing], axis=2).reshape(len(a), 2 * corners.shape[1], 2)
            side = corners[..., axis]
            corners[..., axis] = np.maximum(side, limit) if sign < 0 else np.minimum(side, limit)
    x, y = corners[..., 0], corners[..., 1]
    twice = x * np.roll(y, -1, axis=1) - np.roll(x, -1, axis=1) * y
    return np.asarray(np.abs(twice.sum(axis=1)) / 2, np.float64)


def _turned(points: NDArray[np.float64], angle: NDArray[np.float64]) -> NDArray[np.float64]:
    cosine, sine = np.cos(angle)[:, None], np.sin(angle)[:, None]
    x, y = points[..., 0], points[..., 1]
    return np.stack([x * cosine - y * sine, x * sine + y * cosine], axis=-1)


def thresholds_of(scores: Sequence[float], boxes: int) -> list[float]:
    """Return the scores at which recall is nearest to each multiple of 1/40, as KITTI does.

    `scores` are those of correct detections; `boxes` is the number of annotated boxes.
    """
    thresholds: list[float] = []
    ranked = sorted(scores, reverse=True)
    for rank, score in enumerate(ranked, start=1):
        halfway = (rank / boxes + (rank + 1) / boxes) / 2
        if rank == len(ranked) or halfway >= len(thresholds) / RECALL_STEPS:
            thresholds.append(score)
    return thresholds


@dataclass(slots=True)
class ClassFrame:
    """Hold the boxes and detections of one class in one sample.

    An entry of `truths` is (whether a box must be found, [(index of detection, overlap), ...]);
    `boxes` counts those to be found. `scores` and `neutral` have an entry per detection of the
    sample; `valid` has the indices of the class's detections that are not neutral.
    """

    truths: list[tuple[bool, list[tuple[int, float]]]]
    neutral: list[bool]
    scores: list[float]
    valid: NDArray[np.int64]
    boxes: int


def select_class(frame: Frame, label: int, name: str) -> ClassFrame:
    """Select the boxes and detections of a class."""
    min_overlap, neutral_name = CLASSES[name]
    is_candidate = frame.neutral | (frame.labels == label)
    truths = []
    boxes = 0
    for row, (box_name, easy) in enumerate(zip(frame.names, frame.easy, strict=True)):
        if box_name not in (name, neutral_name):
            continue
        counts = box_name == name and easy
        boxes += counts
        candidates = np.flatnonzero(is_candidate & (frame.overlaps[row] > np.float32(min_overlap)))
        if len(candidates):
            overlaps = frame.overlaps[row][candidates].tolist()
            truths.append((counts, list(zip(candidates.tolist(), overlaps, strict=True))))
    return ClassFrame(
        truths,
        frame.neutral.tolist(),
        frame.scores.tolist(),
        np.flatnonzero(is_candidate & ~frame.neutral),
        boxes,
    )


def first_match(frame: ClassFrame) -> tuple[set[int], set[int]]:
    """Match each box to its best-scored free detection; return indices (correct, all matched)."""
    right: set[int] = set()
    matched: set[int] = set()
    for counts, candidates in frame.truths:
        best, best_score = -1, -1.0
        for detection, _ in candidates:
            if detection not in matched and frame.scores[detection] > best_score:
                best, best_score = detection, frame.scores[detection]
        if best >= 0:
            matched.add(best)
            if counts and not frame.neutral[best]:
                right.add(best)
    return right, matched


def count(frame: ClassFrame, threshold: float) -> tuple[int, int]:
    """Match each box with the detection of the largest overlap, among scores >= `threshold`.

    Returns the numbers of correct and of matched detections; too small (neutral) ones do not count.
    """
    right = 0
    matched: set[int] = set()
    for counts, candidates in frame.truths:
        best, best_overlap = -1, -1.0
        for detection, overlap in candidates:
            if detection in matched or frame.scores[detection] < threshold:
                continue
            if frame.neutral[detection]:
                best = detection if best_overlap == -1 else best
            elif overlap > best_overlap:
                best, best_overlap = detection, overlap
        if best >= 0:
            matched.add(best)
            right += counts and not frame.neutral[best]
    return right, sum(not frame.neutral[detection] for detection in matched)


def average_precision(frames: Sequence[ClassFrame]) -> float:
    """Return KITTI's average precision of one class, 0 to 1."""
    scores = [frame.scores[each] for frame in frames for each in first_match(frame)[0]]
    thresholds = thresholds_of(scores, sum(frame.boxes for frame in frames))
    valid = np.sort(np.concatenate([np.array(each.scores)[each.valid] for each in frames]))
    matched = [frame for frame in frames if frame.truths]
    precision = []
    for threshold in thresholds:
        right = matches = 0
        for frame in matched:
            frame_right, frame_matched = count(frame, threshold)
            right, matches = right + frame_right, matches + frame_matched
        errors = len(valid) - int(np.searchsorted(valid, threshold)) - matches
        precision.append(right / (right + errors) if right + errors else float("nan"))
    best = np.maximum.accumulate(np.array(precision, np.float64)[::-1])[::-1]
    return float(sum(best[READ_THRESHOLDS].tolist()) / 11)


def sample_error(sample: int, defect: str) -> RunError:
    """Return a RunError on a sample; `defect` is a predicate, such as "has no boxes"."""
    return scorers.scorer_error(f"scorer pointpainting: sample {sample} {defect}")


def read_frame(sample: int, output: bytes, reference: Mapping[str, Any]) -> Frame:
    """Read a sample's detections and annotated boxes, and compute their overlaps."""
    form = (
        "a table with image_id, and with one entry per box in names, difficulty and boxes (x, y, "
        "z, width, height, length, rotation)"
    )
    with scorers.reading_reference("pointpainting", sample, form):
        image = int(reference["image_id"])
        names = [str(name) for name in reference["names"]]
        is_easy = [int(difficulty) == 0 for difficulty in reference["difficulty"]]
        truths = np.array(reference["boxes"], np.float32).reshape(len(names), 7)
    if len(is_easy) != len(names) or not np.isfinite(truths).all():
        raise sample_error(
            sample,
            "has a box with NaN or inf, or its lists names and difficulty differ in length; "
            "correct the data set",
        )
    rows = _read_rows(sample, output, image)
    return Frame(
        image=image,
        names=names,
        easy=is_easy,
        labels=rows[:, 11].astype(np.int64),
        neutral=rows[:, 10].astype(np.float64) - rows[:, 8] < MIN_HEIGHT_PIXELS,
        scores=rows[:, 12].astype(np.float64),
        overlaps=overlaps_of(truths, rows[:, [3, 4, 5, 0, 1, 2, 6]]),
    )


def _read_rows(sample: int, output: bytes, image: int) -> NDArray[np.float32]:
    if not output or len(output) % (4 * DETECTION_COLUMNS):
        raise sample_error(
            sample,
            f"has an output of {len(output)} bytes, not one or more rows of "
            f"{4 * DETECTION_COLUMNS} bytes; if nothing is detected, give one row whose first "
            "number is 0 and whose last is image_id",
        )
    rows = np.frombuffer(output, "<f4").reshape(-1, DETECTION_COLUMNS)
    if len(bad := np.flatnonzero(~np.isfinite(rows).all(axis=1))):
        raise sample_error(
            sample,
            f"has NaN or inf in row {bad[0]} of its output; check the engine for an overflow",
        )
    if len(bad := np.flatnonzero(rows[:, 13].astype(np.int64) != image)):
        raise sample_error(
            sample,
            f"is image {image}, but row {bad[0]} of its output says {rows[bad[0], 13]:.0f}; the "
            "engine must answer each sample with its own detections",
        )
    rows = rows[rows[:, 0] > 0]
    if len(bad := np.flatnonzero(~np.isin(rows[:, 11].astype(np.int64), range(len(CLASSES))))):
        raise sample_error(
            sample,
            f"has a detection of label {rows[bad[0], 11]:g}; labels are 0 (Pedestrian), 1 "
            "(Cyclist) and 2 (Car)",
        )
    return rows


class PointPaintingScorer(scorers.ScorerBase[scorers.NoOptions]):
    """Compare detected 3D boxes with annotated ones, on the samples that were answered.

    The score is the mean, over Pedestrian, Cyclist and Car, of KITTI's average precision at 11 of
    41 thresholds, for boxes of difficulty 0. A match needs an overlap (intersection over union) of
    more than 0.5, or 0.7 for Car.
    Source: automotive/3d-object-detection/accuracy_waymo.py and tools/evaluate.py of
    https://github.com/mlcommons/inference. As in these scripts, a class without boxes counts as 0,
    rows whose first number is not above 0 are ignored, and labels are truncated to integers.
    """

    metrics = ("map",)

    def score(self, outputs: Sequence[bytes], references: Sequence[Any]) -> Scores:
        """Score detections against annotations; return "map" over all samples, in per cent.

        Outputs are at least one row of DETECTION_COLUMNS float32, little-endian. References have
        `image_id`, and for each annotated box `names`, `difficulty` and `boxes`: x, y, z, width,
        height, length, rotation, in camera coordinates. A sample's score is its jackknife
        pseudo-value, as in scorer map.
        """
        scorers.require_outputs("pointpainting", outputs, references)
        frames = [
            read_frame(sample, output, references[sample]) for sample, output in enumerate(outputs)
        ]
        value, influence, shares = 0.0, np.zeros(len(frames)), Shares(len(frames))
        any_boxes = False
        for label, name in enumerate(CLASSES):
            parts = [select_class(frame, label, name) for frame in frames]
            boxes = np.array([part.boxes for part in parts])
            if not boxes.any():
                continue
            any_boxes = True
            value += average_precision(parts)
            shares.add(boxes)
            influence += influences(*_ranked(parts, [frame.image for frame in frames]), boxes)
        if not any_boxes or np.isnan(value):
            raise scorers.scorer_error(
                f"scorer pointpainting: the {len(outputs)} samples give no average precision: they "
                "have no boxes, or all detections at a threshold are ignored; score more samples",
            )
        pseudo = 100.0 * len(outputs) * influence / len(CLASSES)
        value *= 100.0 / len(CLASSES)
        scores = (value + pseudo - pseudo.mean()).tolist()
        return whole_scores("map", value, scores, shares.leverage(100.0))


def _ranked(
    parts: Sequence[ClassFrame], images: Sequence[int]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    rows = []
    for sample, part in enumerate(parts):
        right, matched = first_match(part)
        for index in part.valid.tolist():
            if index in right or index not in matched:
                rows.append((-part.scores[index], images[sample], index, sample, index in right))
    rows.sort()
    return (
        np.array([row[4] for row in rows], np.bool_),
        np.array([row[3] for row in rows], np.int64),
    )
