"""Task "detect": rows of boxes as MLPerf's reference makes them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.adapters.engines.onnxruntime.models import detector, photo
from tests.adapters.engines.onnxruntime.recorder import answers

PHOTOS = [photo(index) for index in range(20)]


def plain(index: int, image: NDArray[np.float32], threshold: float) -> list[list[float]]:
    """Return the rows of an image number by number, as long as scores reach the threshold."""
    rows = []
    _, height, width = image.shape
    for left, top, right, bottom, score, label in image[0, :, :6]:
        if score == 0 or score < threshold:
            break
        corners = [top / height, left / width, bottom / height, right / width]
        rows.append([index, *corners, score, int(label)])
    return rows


def rows(raw: bytes) -> list[list[float]]:
    row_list: list[list[float]] = np.frombuffer(raw, "<f4").reshape(-1, 7).tolist()
    return row_list


def test_rows_are_those_of_a_plain_computation(tmp_path: Path) -> None:
    model = detector(tmp_path)
    for threshold, least in ((None, 0.05), (0.0, 0.0), (0.12, 0.12)):
        outputs = answers(model, PHOTOS, task="detect", batch_size=1, score_threshold=threshold)
        expected = [plain(index, image, least) for index, image in enumerate(PHOTOS)]
        assert [rows(each) for each in outputs] == [
            np.array(each, np.float32).reshape(-1, 7).tolist() for each in expected
        ]
        assert min(map(len, expected)) == 0 < 5 < max(map(len, expected))


def test_a_batched_model_gives_the_same_rows(tmp_path: Path) -> None:
    """Its outputs have the batch as first dimension; rows of low score fill them up.

    Images of several sizes are divided each by its own; non-finite values are left to the scorer.
    """
    single = answers(detector(tmp_path), PHOTOS, task="detect", batch_size=1)
    model = detector(tmp_path, batched=True, batch="batch")
    for workers in (0, 2):
        assert answers(model, PHOTOS, task="detect", batch_size=6, workers=workers) == single
    mixed = [photo(index, height=8 + index % 3, width=7 + index % 2) for index in range(18)]
    expected = [plain(index, image, 0.05) for index, image in enumerate(mixed)]
    assert [rows(each) for each in answers(model, mixed, task="detect", batch_size=5)] == [
        np.array(each, np.float32).reshape(-1, 7).tolist() for each in expected
    ]
    (output,) = answers(model, [image_of((1, 1, 2, 2, math.nan, 1))], task="detect")
    assert math.isnan(rows(output)[0][5])


def image_of(*boxes: tuple[float, ...]) -> NDArray[np.float32]:
    image = np.zeros((3, 10, 20), np.float32)
    image[0, : len(boxes), :6] = boxes
    return image


FIRST, SECOND, THIRD = (2, 1, 4, 3, 0.5, 7), (0, 0, 20, 10, 0.9, 1), (6, 5, 8, 9, 0.25, 3)


def test_options_say_how_boxes_are_read_and_which_are_kept(tmp_path: Path) -> None:
    """The order stays the model's, also where scores do not fall."""
    first, second = [0.1, 0.1, 0.3, 0.2, 0.5, 7], [0, 0, 1, 1, 0.9, 1]
    cases: list[tuple[dict[str, Any], list[list[float]]]] = [
        ({}, [first, second, [0.5, 0.3, 0.9, 0.4, 0.25, 3]]),
        ({"max_detections": 2}, [first, second]),
        ({"max_detections": 1}, [second]),
        ({"score_threshold": 0.9}, [second]),
        ({"score_threshold": 1}, []),
        ({"box_order": "yxyx", "max_detections": 1}, [[0, 0, 2, 0.5, 0.9, 1]]),
        (
            {"box_unit": "image", "score_threshold": 0.5},
            [[1, 2, 3, 4, 0.5, 7], [0, 0, 10, 20, 0.9, 1]],
        ),
    ]
    model, image = detector(tmp_path), image_of(FIRST, SECOND, THIRD)
    for options, expected in cases:
        (output,) = answers(model, [image], task="detect", batch_size=1, **options)
        assert rows(output) == np.array([[0, *row] for row in expected], np.float32).tolist()
