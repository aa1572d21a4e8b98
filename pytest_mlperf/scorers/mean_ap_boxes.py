"""Read detections and annotated boxes of all samples into arrays, for scorer map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_mlperf.core.errors import RunError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

COLUMNS = 7
"""Index, ymin, xmin, ymax, xmax, score, label."""

LARGEST = 1e9
"""No index, score or label is as large, and a box that is can be no part of an image."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Detections:
    """What was detected in all samples, one sample after the other.

    Attributes:
        samples: Position of the sample of each detection, shape (detections,).
        labels: Category of each, shape (detections,).
        scores: Score of each, float32, shape (detections,).
        boxes: Left, top, width and height in pixels, float32, shape (detections, 4).
    """

    samples: NDArray[np.int32]
    labels: NDArray[np.int32]
    scores: NDArray[np.float32]
    boxes: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Truths:
    """What was annotated in all samples, one sample after the other.

    Attributes:
        images: Id of each sample's image, shape (samples,).
        samples: Position of the sample of each box, shape (boxes,).
        labels: Category of each box, shape (boxes,).
        boxes: Left, top, width and height in pixels, shape (boxes, 4).
        areas: Square pixels, shape (boxes,).
        crowds: Whether a box is around a group, shape (boxes,).
    """

    images: NDArray[np.int64]
    samples: NDArray[np.int64]
    labels: NDArray[np.int64]
    boxes: NDArray[np.float64]
    areas: NDArray[np.float64]
    crowds: NDArray[np.bool_]


def gather(outputs: Sequence[bytes], references: Sequence[Any]) -> tuple[Detections, Truths]:
    """Go once through outputs and references, one sample at a time.

    Args:
        outputs: Rows of `COLUMNS` float32, little-endian, boxes from 0 to 1; any number of rows.
        references: Objects with `image_id`, `height`, `width`, `annotations` and, optionally,
            `index`, which must then be the first number of each row.

    Raises:
        RunError: An output is no such rows, or not finite, or of another image; a reference is not
            as expected, or an image is there twice.
    """
    import numpy as np

    rows, counts, boxes = bytearray(), [], []
    images: dict[int, int] = {}
    for sample in range(len(outputs)):
        reference = references[sample]
        identity, size, index, own = _read_reference(sample, reference)
        first = images.setdefault(identity, sample)
        if first != sample:
            raise wrong(sample, f"has the image_id {identity} of sample {first}; score it once")
        boxes += [(sample, *box) for box in own]
        found = _read_output(sample, outputs[sample], index)
        # In float32, as the reference multiplies.
        found[:, 1:5] *= np.array([*size, *size], np.float32)
        rows += found.tobytes()
        counts.append(len(found))
    detected = np.frombuffer(rows, np.float32).reshape(-1, COLUMNS)
    _, ymin, xmin, ymax, xmax, scores, labels = detected.T
    detections = Detections(
        samples=np.repeat(np.arange(len(counts), dtype=np.int32), counts),
        labels=labels.astype(np.int32),
        scores=scores.copy(),
        boxes=np.stack([xmin, ymin, xmax - xmin, ymax - ymin], axis=1),
    )
    listed = np.array(boxes, np.float64).reshape(-1, 8)
    if len(bad := np.flatnonzero(~np.isfinite(listed).all(axis=1))):
        raise wrong(int(listed[bad[0], 0]), "has an annotated box that is not finite")
    truths = Truths(
        images=np.fromiter(images, np.int64),
        samples=listed[:, 0].astype(np.int64),
        labels=listed[:, 1].astype(np.int64),
        boxes=listed[:, 2:6],
        areas=listed[:, 6],
        crowds=listed[:, 7] != 0,
    )
    return detections, truths


def _read_output(sample: int, output: bytes, index: int | None) -> NDArray[np.float32]:
    """Return rows, shape (detections, COLUMNS), writable."""
    import numpy as np

    if len(output) % (4 * COLUMNS):
        raise wrong(
            sample,
            f"has an output of {len(output)} bytes, which is no whole number of detections of "
            f"{4 * COLUMNS}; give rows of index, ymin, xmin, ymax, xmax, score, label as float32",
        )
    rows = np.frombuffer(output, "<f4").reshape(-1, COLUMNS).copy()
    bad = np.flatnonzero(~(np.abs(rows) < LARGEST).all(axis=1))
    if len(bad):
        raise wrong(
            sample,
            f"has a detection that is not finite, or beyond {LARGEST:g}: row {bad[0]} is "
            f"{rows[bad[0]].tolist()}",
        )
    if index is not None and (others := np.flatnonzero(rows[:, 0].astype(np.int64) != index)).size:
        raise wrong(
            sample,
            f"is image {index}, but row {others[0]} of its output says {rows[others[0], 0]:g}; "
            "the engine must answer each sample with its own detections",
        )
    return rows


Reference = tuple[int, tuple[float, float], int | None, list[tuple[float, ...]]]
"""Image id; height and width; index, or None; label, bbox, area and crowd of each box."""


def _read_reference(sample: int, reference: Any) -> Reference:
    try:
        boxes = [_read_box(box) for box in reference["annotations"]]
        size = float(reference["height"]), float(reference["width"])
        return int(reference["image_id"]), size, reference.get("index"), boxes
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise wrong(
            sample,
            f"has a reference that is not as expected ({type(error).__name__}: {error}); it needs "
            "image_id, height, width and annotations, each with category_id, bbox, area and "
            "iscrowd, as data set openimages gives them",
        ) from error


def _read_box(box: Mapping[str, Any]) -> tuple[float, ...]:
    left, top, width, height = box["bbox"]
    crowd = bool(box["iscrowd"])
    return int(box["category_id"]), left, top, width, height, float(box["area"]), crowd


def wrong(sample: int, what: str) -> RunError:
    """Return the error about one sample."""
    return RunError("scorer", f"scorer map: sample {sample} {what}")
