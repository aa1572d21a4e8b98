"""Task "yolo": from an export's boxes to the rows that MLPerf's reference answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.adapters.engines.onnxruntime.models import FLOAT, node, write
from tests.adapters.engines.onnxruntime.recorder import answers
from tests.adapters.engines.onnxruntime.test_detect import rows

CATEGORIES = np.array([1, 3, 90])


def model(folder: Path) -> str:
    """Write a model whose output is the first channel of its image."""
    return write(
        folder,
        [node("Gather", ["images", "first"], ["output0"], axis=1)],
        {"images": (FLOAT, ["batch", 3, "height", "width"])},
        {"output0": (FLOAT, ["batch", "height", "width"])},
        {"first": np.array(0)},
    )


def sample(output: Any, frame: tuple[float, ...] = (0, 0, 1, 100, 100)) -> dict[str, NDArray[Any]]:
    """Return an image that the model gives back as this output."""
    array = np.asarray(output, np.float32)
    return {
        "images": np.stack([array, array, array]),
        "frame": np.array(frame, np.float32),
        "categories": CATEGORIES,
    }


def raw(boxes: int, seed: int) -> NDArray[np.float32]:
    """Return centre, sides and three scores of boxes that often overlap, shape (7, boxes)."""
    rng = np.random.default_rng(seed)
    centres, sides = rng.integers(30, 50, (2, boxes)), rng.integers(8, 24, (2, boxes))
    scores = rng.choice([0.0, 0.0005, 0.1, 0.3, 0.31, 0.8], (3, boxes))
    return np.vstack([centres, sides, scores]).astype(np.float32)


def plain(output: NDArray[np.float32], index: int) -> list[list[float]]:
    """Return the boxes to keep, one by one, as MLPerf's reference does."""
    chosen: list[tuple[float, int, list[float]]] = []
    for x, y, wide, high, *scores in output.T.tolist():
        best = max(scores)
        if best > 0.001:
            corners = [x - wide / 2, y - high / 2, x + wide / 2, y + high / 2]
            chosen.append((best, scores.index(best), corners))
    chosen.sort(key=lambda row: -row[0])
    kept: list[tuple[float, int, list[float]]] = []
    for box in chosen:
        if all(other[1] != box[1] or overlap(other[2], box[2]) <= 0.7 for other in kept):
            kept.append(box)
    return [
        [index, *(corners[axis] / 100 for axis in (1, 0, 3, 2)), score, int(CATEGORIES[kind])]
        for score, kind, corners in kept[:300]
    ]


def overlap(box: list[float], other: list[float]) -> float:
    wide = min(box[2], other[2]) - max(box[0], other[0])
    high = min(box[3], other[3]) - max(box[1], other[1])
    common = max(wide, 0) * max(high, 0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (box, other)]
    return common / (sum(areas) - common)


def test_rows_are_those_of_a_plain_computation(tmp_path: Path) -> None:
    """Best first, no two of a class that overlap by more than 0.7, and 300 at most."""
    outputs = [raw(boxes, boxes) for boxes in (9, 9, 40, 300, 900)]
    expected = [plain(each, index) for index, each in enumerate(outputs)]
    assert len(expected[2]) < 40
    assert len(expected[4]) == 300
    samples = [sample(each) for each in outputs]
    for batch_size, workers in ((1, 0), (6, 0), (4, 2)):
        sizes = {"batch_size": batch_size, "workers": workers}
        output_rows = answers(model(tmp_path), samples, task="yolo", **sizes)
        assert [rows(each) for each in output_rows] == [
            np.array(each, np.float32).tolist() for each in expected
        ]
    (some,) = answers(model(tmp_path), samples[-1:], task="yolo", max_detections=7)
    kept = [[0, *row[1:]] for row in expected[-1][:7]]
    assert rows(some) == np.array(kept, np.float32).tolist()


def test_a_model_that_suppresses_itself_is_believed(tmp_path: Path) -> None:
    """Its output is padded with zeros; boxes are cut at the image's edges.

    The frame is taken off: it is twice as large as the image, which is 10 wide and 20 high, 6 from
    the left, 4 from above. What is not finite is not hidden.
    """
    chosen = [
        [10, 20, 30, 40, 0.0, 0],
        [10, 20, 30, 40, 0.5, 2],
        [11, 20, 30, 40, 0.9, 2],
        [0, 0, 0, 0, 0, 0],
        [-9, 5, 30, 200, 0.001, 1],
        [-9, 5, 30, 200, 0.2, 1],
    ]
    framed = sample([[8, 14, 26, 44, 0.5, 0], [0, 0, 100, 100, 0.25, 0]], (6, 4, 2, 10, 20))
    samples = (sample(chosen), framed, sample([[1, 2, 3, 4, np.nan, 0]]))
    (kept,), (inner,), (odd,) = (answers(model(tmp_path), [one], task="yolo") for one in samples)
    expected = [
        [0, 0.2, 0.11, 0.4, 0.3, 0.9, 90],
        [0, 0.2, 0.1, 0.4, 0.3, 0.5, 90],
        [0, 0.05, 0, 1, 0.3, 0.2, 3],
    ]
    assert rows(kept) == np.array(expected, np.float32).tolist()
    expected = [[0, 5 / 20, 1 / 10, 1, 1, 0.5, 1], [0, 0, 0, 1, 1, 0.25, 1]]
    assert rows(inner) == np.array(expected, np.float32).tolist()
    assert np.isnan(rows(odd)).any()
    assert answers(model(tmp_path), [sample(np.zeros((7, 5)))], task="yolo") == [b""]
