"""COCO as YOLO takes it: MLPerf's own layout, and images framed as the reference frames them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pytest_mlperf.adapters.datasets.coco import ANNOTATIONS, IMAGES, CocoDataset, letterbox, resize
from pytest_mlperf.core.errors import SuiteError
from tests.adapters.datasets.pictures import OPENCV, coloured, noise
from tests.adapters.datasets.refusals import not_refused


def test_resizing_equals_opencv_to_the_bit() -> None:
    for size, expected in OPENCV["linear"].items():
        resized = resize(coloured(), *map(int, size.split("x")))
        assert resized.dtype == np.uint8
        assert resized[:, :, 0].tolist() == resized[:, :, 2].tolist() == expected


@pytest.mark.parametrize(
    ("old", "square", "new", "frame"),
    [
        ((480, 640), True, (640, 640), [0, 80, 1, 640, 480]),
        ((480, 640), False, (480, 640), [0, 0, 1, 640, 480]),
        ((640, 426), True, (640, 640), [107, 0, 1, 426, 640]),
        ((640, 427), True, (640, 640), [106, 0, 1, 427, 640]),  # 213 pixels: the odd one right
        ((640, 427), False, (640, 448), [10, 0, 1, 427, 640]),
        ((375, 500), False, (480, 640), [0, 0, 1.28, 500, 375]),
        ((333, 500), False, (448, 640), [0, 11, 1.28, 500, 333]),
        ((64, 64), True, (640, 640), [0, 0, 10, 64, 64]),
    ],
)
def test_a_frame_is_the_references(
    old: tuple[int, int], square: bool, new: tuple[int, int], frame: list[float]
) -> None:
    """As LetterBox of YOLO's library with its defaults, for exports and for PyTorch's own model."""
    framed, undone = letterbox(np.full((*old, 3), 200, np.uint8), 640, square=square)

    assert framed.shape == (*new, 3)
    np.testing.assert_array_equal(undone, np.array(frame, np.float32))
    inside = framed[int(undone[1]), int(undone[0])]
    assert inside.tolist() == [200] * 3
    assert {*np.unique(framed).tolist()} <= {114, 200}


@settings(max_examples=50)
@given(st.integers(1, 90), st.integers(1, 90), st.sampled_from([32, 64]), st.booleans())
def test_a_frame_says_where_the_image_is(height: int, width: int, size: int, square: bool) -> None:
    framed, (left, top, scale, old_width, old_height) = letterbox(
        np.full((height, width, 3), 7, np.uint8), size, square=square
    )

    assert (old_width, old_height) == (width, height)
    rows, columns = np.nonzero((framed == 7).all(2))
    if len(rows):
        assert (rows.min(), columns.min()) == (top, left)
        assert abs(rows.max() + 1 - top - height * scale) < 1
        assert abs(columns.max() + 1 - left - width * scale) < 1
    assert framed.shape[:2] == (size, size) or not square
    assert {side % 32 for side in framed.shape[:2]} == {0}


def tiny(folder: Path) -> dict[str, Any]:
    """Write two images as MLPerf's coco_safe has them, and annotations with all keys of COCO's."""
    sizes = {"000000000139.png": (6, 8), "000000000285.png": (9, 5)}
    content = {
        "info": {"year": 2017},
        "licenses": [{"id": 4, "name": "Attribution License", "url": "http://x/by/2.0/"}],
        "categories": [
            {"id": identity, "name": name, "supercategory": name}
            for identity, name in ((3, "car"), (90, "toothbrush"), (13, "stop sign"))
        ],
        "images": [
            {
                "id": int(name[:12]),
                "file_name": name,
                "height": height,
                "width": width,
                "license": 4,
                "coco_url": "http://x",
                "date_captured": "2013-11-14",
            }
            for name, (height, width) in sizes.items()
        ],
        "annotations": [
            {
                "id": 1,
                "image_id": 285,
                "category_id": 13,
                "iscrowd": 0,
                "area": 2.5,
                "bbox": [1.0, 1.0, 2.0, 2.0],
                "segmentation": [[1.0, 1.0, 3.0, 1.0, 3.0, 3.0]],
            },
            {
                "id": 2,
                "image_id": 285,
                "category_id": 90,
                "iscrowd": 1,
                "area": 4,
                "bbox": [0, 0, 4, 4],
                "segmentation": {"counts": [3, 4], "size": [9, 5]},
            },
        ],
    }
    (folder / ANNOTATIONS).parent.mkdir()
    (folder / ANNOTATIONS).write_text(json.dumps(content), "utf-8")
    (folder / IMAGES).mkdir()
    for name, (height, width) in sizes.items():
        Image.fromarray(noise(height, width, height)).save(folder / IMAGES / name)
    return {"path": str(folder)}


def test_a_sample_is_the_framed_image_and_what_undoes_it(folder: Path) -> None:
    """With the categories in the order of their ids, which in COCO go up to 90."""
    sample = CocoDataset(path=str(folder), size=16).input(0)
    usual = CocoDataset(path=str(folder)).input(1)

    expected, frame = letterbox(noise(6, 8, 6), 16, square=True)
    assert sample["images"].dtype == np.float32
    assert sample["images"].flags.c_contiguous
    np.testing.assert_array_equal(sample["images"], (expected / np.float32(255)).transpose(2, 0, 1))
    np.testing.assert_array_equal(sample["frame"], frame)
    assert usual["categories"].tolist() == [3, 13, 90]
    assert usual["images"].shape == (3, 640, 640)


def test_references_are_cocos_annotations_by_image(folder: Path) -> None:
    """The frame belongs to the digest."""
    dataset = CocoDataset(path=str(folder))

    assert dataset.reference(0)["annotations"] == []
    assert dataset.reference(1) == {
        "index": 1,
        "image_id": 285,
        "height": 9,
        "width": 5,
        "annotations": [
            {"category_id": 13, "bbox": [1.0, 1.0, 2.0, 2.0], "area": 2.5, "iscrowd": 0},
            {"category_id": 90, "bbox": [0, 0, 4, 4], "area": 4, "iscrowd": 1},
        ],
    }
    assert CocoDataset(path=str(folder), square=False).digest != dataset.digest


def test_a_wrong_size_is_refused(folder: Path) -> None:
    rows: list[Any] = [
        ({"size": 50, "square": False}, "size = 50 .* a multiple of 32, which square = false"),
        ({"size": 0}, "data set coco: size = 0 is not a number of pixels"),
    ]
    path = str(folder)
    assert not_refused(SuiteError, rows, lambda options: CocoDataset(path=path, **options)) == []
