"""Task "detect": rows of boxes as MLPerf's reference makes them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from pytest_mlperf.core.errors import RunError, SuiteError
from tests.engines.onnxruntime.models import detector, photo, recommender
from tests.engines.onnxruntime.recorder import answers, engine

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
    found: list[list[float]] = np.frombuffer(raw, "<f4").reshape(-1, 7).tolist()
    return found


@pytest.mark.parametrize("threshold", [None, 0.0, 0.12])
def test_rows_are_those_of_a_plain_computation(tmp_path: Path, threshold: float | None) -> None:
    found = answers(
        detector(tmp_path), PHOTOS, task="detect", batch_size=1, score_threshold=threshold
    )

    least = 0.05 if threshold is None else threshold
    expected = [plain(index, image, least) for index, image in enumerate(PHOTOS)]
    assert [rows(each) for each in found] == [
        np.array(each, np.float32).reshape(-1, 7).tolist() for each in expected
    ]
    assert min(map(len, expected)) == 0 < 5 < max(map(len, expected))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batched_model_gives_the_same_rows(tmp_path: Path, workers: int) -> None:
    """Its outputs have the batch as first dimension; rows of low score fill them up."""
    single = answers(detector(tmp_path), PHOTOS, task="detect", batch_size=1)

    model = detector(tmp_path, batched=True, batch="batch")
    assert answers(model, PHOTOS, task="detect", batch_size=6, workers=workers) == single


def test_images_of_several_sizes_are_divided_each_by_its_own(tmp_path: Path) -> None:
    mixed = [photo(index, height=8 + index % 3, width=7 + index % 2) for index in range(18)]
    model = detector(tmp_path, batched=True, batch="batch")

    found = answers(model, mixed, task="detect", batch_size=5)

    assert [rows(each) for each in found] == [
        np.array(plain(index, image, 0.05), np.float32).reshape(-1, 7).tolist()
        for index, image in enumerate(mixed)
    ]


def image_of(*boxes: tuple[float, ...]) -> NDArray[np.float32]:
    image = np.zeros((3, 10, 20), np.float32)
    image[0, : len(boxes), :6] = boxes
    return image


FIRST, SECOND, THIRD = (2, 1, 4, 3, 0.5, 7), (0, 0, 20, 10, 0.9, 1), (6, 5, 8, 9, 0.25, 3)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [[0.1, 0.1, 0.3, 0.2, 0.5, 7], [0, 0, 1, 1, 0.9, 1], [0.5, 0.3, 0.9, 0.4, 0.25, 3]]),
        ({"max_detections": 2}, [[0.1, 0.1, 0.3, 0.2, 0.5, 7], [0, 0, 1, 1, 0.9, 1]]),
        ({"max_detections": 1}, [[0, 0, 1, 1, 0.9, 1]]),
        ({"score_threshold": 0.9}, [[0, 0, 1, 1, 0.9, 1]]),
        ({"score_threshold": 1}, []),
        ({"box_order": "yxyx", "max_detections": 1}, [[0, 0, 2, 0.5, 0.9, 1]]),
        (
            {"box_unit": "image", "score_threshold": 0.5},
            [[1, 2, 3, 4, 0.5, 7], [0, 0, 10, 20, 0.9, 1]],
        ),
    ],
)
def test_options_say_how_boxes_are_read_and_which_are_kept(
    tmp_path: Path, options: dict[str, Any], expected: list[list[float]]
) -> None:
    """The order stays the model's, also where scores do not fall."""
    image = image_of(FIRST, SECOND, THIRD)

    (found,) = answers(detector(tmp_path), [image], task="detect", batch_size=1, **options)

    assert rows(found) == np.array([[0, *row] for row in expected], np.float32).tolist()


def test_a_score_that_is_not_finite_is_left_to_the_scorer(tmp_path: Path) -> None:
    model = detector(tmp_path, batched=True, batch="batch")

    (found,) = answers(model, [image_of((1, 1, 2, 2, math.nan, 1))], task="detect")

    assert math.isnan(rows(found)[0][5])


def test_a_model_for_one_image_needs_batch_size_1(tmp_path: Path) -> None:
    """Also where its input has a dynamic batch: its boxes would be mixed."""
    model = detector(tmp_path, batch="batch")

    with pytest.raises(
        RunError, match=r"'boxes' has no batch dimension\), but batch_size = 8; set"
    ):
        engine(model, PHOTOS, task="detect").__enter__()


def test_a_model_without_boxes_is_refused(tmp_path: Path) -> None:
    path = Path(detector(tmp_path))
    model = onnx.load(path)
    del model.graph.output[0]
    onnx.save_model(model, path)

    with pytest.raises(RunError, match="gives labels, scores, and no boxes"):
        engine(str(path), PHOTOS, task="detect", batch_size=1).__enter__()


def test_a_model_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no input of shape \(batch, channels, height, width\)"):
        engine(recommender(tmp_path), [], task="detect").__enter__()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("box_order", "xywh"),
        ("box_unit", "metre"),
        ("max_detections", 0),
    ],
)
def test_an_option_out_of_range_is_named(tmp_path: Path, option: str, value: Any) -> None:
    with pytest.raises(SuiteError, match=f"{option} = {value!r} is not "):
        engine(detector(tmp_path), [], task="detect", **{option: value})
