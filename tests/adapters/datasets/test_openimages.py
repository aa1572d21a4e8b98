from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pytest_mlperf.adapters.datasets.openimages import OpenImagesDataset, stretch
from pytest_mlperf.core.errors import RunError, SuiteError
from tests.adapters.datasets.pictures import OPENCV, coloured, noise
from tests.adapters.datasets.refusals import not_refused

Build = Callable[..., OpenImagesDataset]
Content = dict[str, Any]

FILE = "annotations/openimages-mlperf.json"


def content() -> Content:
    """Return annotations as MLPerf's script writes them: more keys than are needed."""
    sizes = {"c.png": (4, 4), "a.png": (4, 4), "b.png": (6, 8)}
    boxes: list[tuple[int, int, list[float], int]] = [
        (2, 5, [0.5, 1.0, 2.0, 3.0], 0),
        (7, 0, [0, 0, 8, 6], 1),
        (2, 0, [0, 0, 0.0, 1], 0),
    ]
    return {
        "info": {"dataset": "openimages_mlperf", "version": "v6"},
        "licenses": [],
        "categories": [{"id": 0, "name": "Airplane"}, {"id": 5, "name": "Barrel"}],
        "images": [
            {"id": identity, "file_name": name, "height": height, "width": width, "license": None}
            for identity, (name, (height, width)) in zip((2, 9, 7), sizes.items(), strict=True)
        ],
        "annotations": [
            {
                "id": number,
                "image_id": image,
                "category_id": category,
                "bbox": box,
                "area": box[2] * box[3],
                "iscrowd": crowd,
                "IsOccluded": 0,
            }
            for number, (image, category, box, crowd) in enumerate(boxes, start=1)
        ],
    }


def tiny(folder: Path) -> dict[str, Any]:
    """Write three images in the official layout, the last 6 pixels high and 8 wide."""
    (folder / "annotations").mkdir(parents=True)
    (folder / "validation" / "data").mkdir(parents=True)
    write(folder, content())
    for seed, (name, height, width) in enumerate(
        [("c.png", 4, 4), ("a.png", 4, 4), ("b.png", 6, 8)]
    ):
        Image.fromarray(noise(height, width, seed)).save(folder / "validation" / "data" / name)
    return {"path": str(folder), "size": 4}


def write(folder: Path, changed: Content) -> None:
    (folder / FILE).write_text(json.dumps(changed), "utf-8")


def test_a_sample_is_channels_first_rgb_from_0_to_1(build: Build, folder: Path) -> None:
    """Stretched to a square, by default of the official size."""
    sample = build().input(1)

    assert sample.dtype == np.float32
    assert sample.flags.c_contiguous
    expected = noise(4, 4, 1).astype(np.float32).transpose(2, 0, 1) / np.float32(255)
    np.testing.assert_array_equal(sample, expected)
    assert OpenImagesDataset(path=str(folder)).input(2).shape == (3, 800, 800)


def test_references_tell_the_image_and_its_boxes_in_the_order_of_the_file(build: Build) -> None:
    dataset = build()
    boxes = [
        {"category_id": 5, "bbox": [0.5, 1.0, 2.0, 3.0], "area": 6.0, "iscrowd": 0},
        {"category_id": 0, "bbox": [0, 0, 0.0, 1], "area": 0.0, "iscrowd": 0},
    ]
    first = {"index": 0, "image_id": 2, "height": 4, "width": 4, "annotations": boxes}

    assert len(dataset) == 3
    assert dataset.reference(0) == first
    assert dataset.reference(1) == {**first, "index": 1, "image_id": 9, "annotations": []}
    assert dataset.reference(2)["annotations"][0]["iscrowd"] == 1
    assert json.loads(json.dumps(dataset.reference(2))) == dataset.reference(2)


def test_heights_and_widths_with_a_point_are_whole_pixels(build: Build, folder: Path) -> None:
    """Images beyond count are not needed."""
    changed = content()
    changed["images"][2].update(height=6.0, width=8.0)
    write(folder, changed)
    assert '"height": 6, "width": 8,' in json.dumps(build().reference(2))
    (folder / "validation" / "data" / "b.png").unlink()
    assert len(build(count=2)) == 2


def test_annotations_and_images_may_be_elsewhere(
    build: Build, folder: Path, tmp_path: Path
) -> None:
    (folder / FILE).rename(tmp_path / "mine.json")
    (folder / "validation" / "data").rename(tmp_path / "pictures")

    assert len(build(annotations="../mine.json", images=str(tmp_path / "pictures"))) == 3


def test_stretching_equals_opencv() -> None:
    """A flat image stays flat."""
    for size, expected in OPENCV["linear float"].items():
        stretched = stretch(coloured(), int(size))
        assert stretched.dtype == np.float32
        np.testing.assert_allclose(stretched[:, :, 0], expected, atol=1e-4)
        np.testing.assert_allclose(255 - stretched[:, :, 1], expected, atol=1e-4)
    for height, width in ((3, 8), (8, 3), (64, 40), (1, 1)):
        for size in (1, 5, 7, 20):
            stretched = stretch(np.full((height, width, 3), 77, np.uint8), size)
            np.testing.assert_allclose(stretched, np.full((size, size, 3), 77), rtol=1e-6)


def test_the_digest_changes_with_content_and_preprocessing(
    build: Build, folder: Path, tmp_path: Path
) -> None:
    """It does not depend on the location or the names of files."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "validation" / "data" / "b.png").rename(copy / "validation" / "data" / "z.png")
    changed = content()
    changed["images"][2]["file_name"] = "z.png"
    write(copy, changed)
    assert build(path=str(copy)).digest == build().digest
    other_box, other_order = content(), content()
    other_box["annotations"][0]["bbox"][0] = 0.25
    other_order["images"].reverse()
    digests = [build().digest, build(size=8).digest]
    for changed in (other_box, other_order):
        write(folder, changed)
        digests.append(build().digest)
    Image.fromarray(noise(4, 4, 9)).save(folder / "validation" / "data" / "c.png")
    digests.append(build().digest)
    assert len(set(digests)) == len(digests)


BOX = "not [left, top, width, height]"
NAN = float("nan")
DEFECTS: list[tuple[str, int, str, Any, str]] = [
    ("images", 1, "file_name", None, "lacks 'file_name', a file name;"),
    ("images", 1, "file_name", "", "has file_name = '', not a file name;"),
    ("images", 2, "height", None, "lacks 'height', a number of pixels;"),
    ("images", 0, "width", 0, "has width = 0, not a number of pixels;"),
    ("images", 0, "id", "2", "has id = '2', not a whole number;"),
    ("images", 1, "id", 2, "has the id 2 of an earlier image;"),
    ("images", 2, "width", 9, "has 9 x 6 pixels, but b.png has 8 x 6; set the options images"),
    ("annotations", 1, "category_id", None, "lacks 'category_id', a whole number;"),
    ("annotations", 1, "category_id", 3, "has category_id 3, but none of the 2 categories"),
    ("annotations", 2, "image_id", 1, "has image_id 1, but none of the 3 images in"),
    ("annotations", 0, "bbox", [1, 2, 3], f"has bbox = [1, 2, 3], {BOX}"),
    ("annotations", 0, "bbox", [1, 2, -3, 4], f"has bbox = [1, 2, -3, 4], {BOX}"),
    ("annotations", 0, "bbox", [1, 2, NAN, 4], f"has bbox = [1, 2, nan, 4], {BOX}"),
    ("annotations", 0, "area", -1.0, "has area = -1.0, not a"),
    ("annotations", 0, "iscrowd", None, "lacks 'iscrowd', a whole"),
    ("categories", 1, "id", None, "lacks 'id', a whole"),
]


def test_defects_of_the_annotations_are_named_with_list_record_and_key(
    build: Build, folder: Path
) -> None:
    def read(name: str, row: int, key: str, value: Any) -> None:
        changed = content()
        changed[name][row][key] = value
        if value is None:
            del changed[name][row][key]
        write(folder, changed)
        build()

    rows = [(*defect, f"{defect[0]}[{defect[1]}] {part}") for *defect, part in DEFECTS]
    assert not_refused(RunError, rows, read, start=f"{folder / FILE}: ") == []
    sizes = [(size, f"size = {size}") for size in (0, 2.5)]
    assert not_refused(SuiteError, sizes, lambda size: build(size=size)) == []


def test_a_file_of_something_else_is_an_error(build: Build, folder: Path) -> None:
    rows = [
        ("", "this is not JSON, or it"),
        (json.dumps(content())[:-40], "this is not JSON, or it"),
        ("[" * 100_000, "this is not JSON, or it"),
        ("[]", "its list 'images' is missing or empty"),
        ('{"images": []}', "its list 'images' is missing or empty"),
        (json.dumps({**content(), "annotations": {}}), "its list 'annotations' is missing"),
        (json.dumps({**content(), "categories": [4]}), r"categories\[0\] is 4, not an object"),
    ]

    def read(text: str) -> None:
        (folder / FILE).write_text(text, "utf-8")
        build()

    assert not_refused(RunError, rows, read) == []


def test_an_image_that_exif_data_turns_may_be_annotated_either_way(
    build: Build, folder: Path
) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(noise(8, 6)).save(folder / "validation" / "data" / "b.png", exif=exif)

    sample = build().input(2)

    turned = stretch(np.rot90(noise(8, 6), k=-1), 4)
    np.testing.assert_array_equal(sample, (turned / np.float32(255)).transpose(2, 0, 1))
