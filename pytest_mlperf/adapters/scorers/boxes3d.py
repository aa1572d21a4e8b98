"""Score detection of boxes in space as MLPerf's script for PointPainting does: KITTI's mean AP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_mlperf import RunError, Scores
from pytest_mlperf.adapters.scorers import ModelFreeScorer, NoOptions, require_outputs, scorer_error
from pytest_mlperf.adapters.scorers.leverage import Shares, influences

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DETECTION_COLUMNS = 14
"""Width, height and length; x, y, z; rotation; four of a box in the image; label; score; image."""

CLASSES = {"Pedestrian": (0.5, "Person_sitting"), "Cyclist": (0.5, ""), "Car": (0.7, "Van")}
"""By label: the overlap beyond which a detection is right, and the name that counts neither way."""

MIN_HEIGHT_PIXELS = -1
"""A detection that is less high in the image, in pixels, counts neither as right nor as wrong."""

RECALL_STEPS = 40
READ_THRESHOLDS = slice(None, None, 4)
"""Thresholds at which KITTI reads the precision; their mean is over 11, however many there are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """One sample.

    Attributes:
        image: Its id.
        names: Name of each truth.
        easy: Whether its difficulty is 0, shape (truths,).
        labels: Of detections, shape (detections,).
        neutral: Which of them count neither way, shape (detections,).
        scores: Theirs, shape (detections,).
        overlaps: Shape (truths, detections), float32.
    """

    image: int
    names: list[str]
    easy: list[bool]
    labels: NDArray[np.int64]
    neutral: NDArray[np.bool_]
    scores: NDArray[np.float64]
    overlaps: NDArray[np.float32]


def overlaps_of(truths: NDArray[np.float32], detected: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return intersection over union, shape (truths, detections).

    Boxes are x, y, z of the middle of the bottom, y downwards; width, height, length; rotation.
    """
    import numpy as np

    one, two = truths[:, None], detected[None]
    bottom = np.maximum(one[..., 1] - one[..., 4], two[..., 1] - two[..., 4])
    height = np.maximum(np.minimum(one[..., 1], two[..., 1]) - bottom, np.float32(0))
    sides = [
        np.concatenate([each[..., [0, 2]] + s * each[..., [3, 5]] / 2 for s in (-1, 1)], -1)
        for each in (one, two)
    ]
    reach = [np.hypot(each[..., 3], each[..., 5]) / 2 for each in (one, two)]
    apart = np.hypot(one[..., 0] - two[..., 0], one[..., 2] - two[..., 2])
    near = (height > 0) & (apart <= (reach[0] + reach[1]) * 1.001 + 1e-3)
    i, j = np.nonzero(near)
    ground = np.zeros(near.shape, np.float32)
    ground[i, j] = _common_area(sides[0][i, 0], truths[i, 6], sides[1][0, j], detected[j, 6])
    common = height * ground
    volumes = [each[..., 3] * each[..., 4] * each[..., 5] for each in (one, two)]
    union = volumes[0] + volumes[1] - common + np.float32(1e-8)
    return np.asarray(common / union, np.float32)


def _common_area(
    one: NDArray[np.float32],
    turn: NDArray[np.float32],
    two: NDArray[np.float32],
    other_turn: NDArray[np.float32],
) -> NDArray[np.float64]:
    """Return the area that rectangles have in common, pair by pair, shape (pairs,).

    Corners of the first are cut at the sides of the second: along each axis of the second, where an
    edge crosses a side a corner is added, and what is beyond the side moves onto it. What runs to
    and fro on a side encloses nothing.
    """
    import numpy as np

    a, b = one.astype(np.float64), two.astype(np.float64)
    half = np.abs(a[:, 2:] - a[:, :2]) / 2
    limits = np.abs(b[:, 2:] - b[:, :2]) / 2
    offset = (a[:, :2] + a[:, 2:]) / 2 - (b[:, :2] + b[:, 2:]) / 2
    corners = half[:, None] * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    corners = _turned(corners, -turn.astype(np.float64)) + offset[:, None]
    corners = _turned(corners, other_turn.astype(np.float64))
    for axis in (0, 1):
        for sign in (-1, 1):
            limit = sign * limits[:, axis, None]
            start, end = corners, np.roll(corners, -1, axis=1)
            length = end[..., axis] - start[..., axis]
            way = np.divide(
                limit - start[..., axis], length, where=length != 0, out=np.zeros_like(length)
            ).clip(0, 1)
            crossing = start + way[..., None] * (end - start)
            corners = np.stack([start, crossing], axis=2).reshape(len(a), 2 * corners.shape[1], 2)
            side = corners[..., axis]
            corners[..., axis] = np.maximum(side, limit) if sign < 0 else np.minimum(side, limit)
    x, y = corners[..., 0], corners[..., 1]
    twice = x * np.roll(y, -1, axis=1) - np.roll(x, -1, axis=1) * y
    return np.asarray(np.abs(twice.sum(axis=1)) / 2, np.float64)


def _turned(points: NDArray[np.float64], angle: NDArray[np.float64]) -> NDArray[np.float64]:
    import numpy as np

    cosine, sine = np.cos(angle)[:, None], np.sin(angle)[:, None]
    x, y = points[..., 0], points[..., 1]
    return np.stack([x * cosine - y * sine, x * sine + y * cosine], axis=-1)


def thresholds_of(scores: Sequence[float], boxes: int) -> list[float]:
    """Return the scores of right detections at which recall comes nearest to each 40th."""
    chosen: list[float] = []
    ranked = sorted(scores, reverse=True)
    for rank, score in enumerate(ranked, start=1):
        halfway = (rank / boxes + (rank + 1) / boxes) / 2
        if rank == len(ranked) or halfway >= len(chosen) / RECALL_STEPS:
            chosen.append(score)
    return chosen


@dataclass(slots=True)
class ClassFrame:
    """What of a frame concerns one class: (truth counts, its candidates' (detection, overlap))."""

    truths: list[tuple[bool, list[tuple[int, float]]]]
    neutral: list[bool]
    scores: list[float]
    valid: NDArray[np.int64]
    boxes: int


def of_class(frame: Frame, label: int, name: str) -> ClassFrame:
    """Return what concerns a class."""
    import numpy as np

    least, like = CLASSES[name]
    takes = frame.neutral | (frame.labels == label)
    truths = []
    boxes = 0
    for row, (called, easy) in enumerate(zip(frame.names, frame.easy, strict=True)):
        if called not in (name, like):
            continue
        counts = called == name and easy
        boxes += counts
        candidates = np.flatnonzero(takes & (frame.overlaps[row] > np.float32(least)))
        if len(candidates):
            near = frame.overlaps[row][candidates].tolist()
            truths.append((counts, list(zip(candidates.tolist(), near, strict=True))))
    return ClassFrame(
        truths,
        frame.neutral.tolist(),
        frame.scores.tolist(),
        np.flatnonzero(takes & ~frame.neutral),
        boxes,
    )


def first_match(frame: ClassFrame) -> tuple[set[int], set[int]]:
    """Give each truth the best score; return the detections that are right, and all given away."""
    right: set[int] = set()
    taken: set[int] = set()
    for counts, candidates in frame.truths:
        best, best_score = -1, -1.0
        for each, _ in candidates:
            if each not in taken and frame.scores[each] > best_score:
                best, best_score = each, frame.scores[each]
        if best >= 0:
            taken.add(best)
            if counts and not frame.neutral[best]:
                right.add(best)
    return right, taken


def count(frame: ClassFrame, threshold: float) -> tuple[int, int]:
    """Give each truth the largest overlap; return how many detections are right, and given away."""
    right = 0
    taken: set[int] = set()
    for counts, candidates in frame.truths:
        best, most = -1, -1.0
        for each, overlap in candidates:
            if each in taken or frame.scores[each] < threshold:
                continue
            if frame.neutral[each]:
                best = each if most == -1 else best
            elif overlap > most:
                best, most = each, overlap
        if best >= 0:
            taken.add(best)
            right += counts and not frame.neutral[best]
    return right, sum(not frame.neutral[each] for each in taken)


def average_precision(frames: Sequence[ClassFrame]) -> float:
    """Return KITTI's, from 0 to 1."""
    import numpy as np

    scores = [frame.scores[each] for frame in frames for each in first_match(frame)[0]]
    thresholds = thresholds_of(scores, sum(frame.boxes for frame in frames))
    valid = np.sort(np.concatenate([np.array(each.scores)[each.valid] for each in frames]))
    matched = [frame for frame in frames if frame.truths]
    precision = []
    for threshold in thresholds:
        right = taken = 0
        for frame in matched:
            one, other = count(frame, threshold)
            right, taken = right + one, taken + other
        wrong_ones = len(valid) - int(np.searchsorted(valid, threshold)) - taken
        precision.append(right / (right + wrong_ones) if right + wrong_ones else float("nan"))
    best = np.maximum.accumulate(np.array(precision, np.float64)[::-1])[::-1]
    return float(sum(best[READ_THRESHOLDS].tolist()) / 11)


def wrong(sample: int, defect: str) -> RunError:
    """Return the error about one sample."""
    return scorer_error(f"scorer pointpainting: sample {sample} {defect}")


def read_frame(sample: int, output: bytes, reference: Mapping[str, Any]) -> Frame:
    """Return a sample's detections and truths, and how they overlap."""
    import numpy as np

    try:
        image = int(reference["image_id"])
        names = [str(name) for name in reference["names"]]
        easy = [int(each) == 0 for each in reference["difficulty"]]
        truths = np.array(reference["boxes"], np.float32).reshape(len(names), 7)
    except (KeyError, TypeError, ValueError) as error:
        raise wrong(
            sample,
            f"has a reference that is not as expected ({type(error).__name__}: {error}); it needs "
            "image_id, and of each box names, difficulty and boxes: x, y, z, width, height, "
            "length, rotation",
        ) from error
    if len(easy) != len(names) or not np.isfinite(truths).all():
        raise wrong(sample, "has boxes that are not finite, or not one difficulty for each box")
    rows = _read_rows(sample, output, image)
    return Frame(
        image=image,
        names=names,
        easy=easy,
        labels=rows[:, 11].astype(np.int64),
        neutral=rows[:, 10].astype(np.float64) - rows[:, 8] < MIN_HEIGHT_PIXELS,
        scores=rows[:, 12].astype(np.float64),
        overlaps=overlaps_of(truths, rows[:, [3, 4, 5, 0, 1, 2, 6]]),
    )


def _read_rows(sample: int, output: bytes, image: int) -> NDArray[np.float32]:
    import numpy as np

    if not output or len(output) % (4 * DETECTION_COLUMNS):
        raise wrong(
            sample,
            f"has an output of {len(output)} bytes, not one or more rows of "
            f"{4 * DETECTION_COLUMNS}; without "
            "a detection give one row whose first number is 0 and whose last is the image",
        )
    rows = np.frombuffer(output, "<f4").reshape(-1, DETECTION_COLUMNS)
    if len(bad := np.flatnonzero(~np.isfinite(rows).all(axis=1))):
        raise wrong(sample, f"has a detection that is not finite: row {bad[0]}")
    if len(bad := np.flatnonzero(rows[:, 13].astype(np.int64) != image)):
        raise wrong(
            sample,
            f"is image {image}, but row {bad[0]} of its output says {rows[bad[0], 13]:.0f}; the "
            "engine must answer each sample with its own detections",
        )
    rows = rows[rows[:, 0] > 0]
    if len(bad := np.flatnonzero(~np.isin(rows[:, 11].astype(np.int64), range(len(CLASSES))))):
        raise wrong(
            sample,
            f"has a detection of label {rows[bad[0], 11]:g}; labels are 0 (Pedestrian), 1 "
            "(Cyclist) and 2 (Car)",
        )
    return rows


class PointPaintingScorer(ModelFreeScorer[NoOptions]):
    """Compares detected with annotated boxes in space, over the frames that were answered.

    The figure is the mean, over Pedestrian, Cyclist and Car, of KITTI's average precision of boxes
    with difficulty 0 at 11 of 41 thresholds, with rotated boxes' overlap beyond 0.5, or 0.7 of Car.
    Source: automotive/3d-object-detection/accuracy_waymo.py and tools/evaluate.py of
    https://github.com/mlcommons/inference. As there, a class without boxes counts as 0, rows whose
    first number is not above 0 are no detections, and fractions of labels are cut off.
    """

    metrics = ("map",)

    def score(self, outputs: Sequence[bytes], references: Sequence[Any]) -> Scores:
        """Score detections against annotations; return "map", in per cent, of all samples.

        Outputs are float32 rows, little-endian, of width, height, length, x, y, z, rotation, four
        of a box in the image, label, score and image: at least one of each sample. References are
        objects with `image_id`, and of each annotated box `names`, `difficulty` and `boxes`: x, y,
        z, width, height, length, rotation, in the camera's frame.

        A sample's score is its pseudo-value, by the influence on average precision without
        interpolation, as of scorer map.
        """
        import numpy as np

        require_outputs("pointpainting", outputs, references)
        frames = [
            read_frame(sample, output, references[sample]) for sample, output in enumerate(outputs)
        ]
        value, influence, shares = 0.0, np.zeros(len(frames)), Shares(len(frames))
        any_boxes = False
        for label, name in enumerate(CLASSES):
            parts = [of_class(frame, label, name) for frame in frames]
            boxes = np.array([part.boxes for part in parts])
            if not boxes.any():
                continue
            any_boxes = True
            value += average_precision(parts)
            shares.add(boxes)
            influence += influences(*_ranked(parts, [frame.image for frame in frames]), boxes)
        if not any_boxes or np.isnan(value):
            raise scorer_error(
                f"scorer pointpainting: the {len(outputs)} samples give no average precision: they "
                "have no box to be found, or all detections at a threshold count neither way; "
                "score more samples",
            )
        pseudo = 100.0 * len(outputs) * influence / len(CLASSES)
        value *= 100.0 / len(CLASSES)
        return Scores(
            per_sample={"map": (value + pseudo - pseudo.mean()).tolist()},
            aggregate={"map": value},
            whole=frozenset({"map"}),
            leverage={"map": shares.leverage(100.0)},
        )


def _ranked(
    parts: Sequence[ClassFrame], images: Sequence[int]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    import numpy as np

    listed = []
    for sample, part in enumerate(parts):
        right, taken = first_match(part)
        for each in part.valid.tolist():
            if each in right or each not in taken:
                listed.append((-part.scores[each], images[sample], each, sample, each in right))
    listed.sort()
    return (
        np.array([one[4] for one in listed], np.bool_),
        np.array([one[3] for one in listed], np.int64),
    )
