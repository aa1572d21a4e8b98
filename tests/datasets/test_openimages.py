from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from pytest_mlperf.core.errors import RunError, SuiteError, UnavailableError
from pytest_mlperf.datasets.openimages import OpenImagesDataset, stretch

Build = Callable[..., OpenImagesDataset]
Content = dict[str, Any]

FILE = "annotations/openimages-mlperf.json"


def noise(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three images in the official layout, the last of which is 6 pixels high and 8 wide."""
    made = tmp_path / "open-images"
    (made / "annotations").mkdir(parents=True)
    (made / "validation" / "data").mkdir(parents=True)
    (made / FILE).write_text(json.dumps(content()), "utf-8")
    for seed, (name, height, width) in enumerate(
        [("c.png", 4, 4), ("a.png", 4, 4), ("b.png", 6, 8)]
    ):
        Image.fromarray(noise(height, width, seed)).save(made / "validation" / "data" / name)
    return made


@pytest.fixture
def build(folder: Path) -> Build:
    """Build the data set in `folder`, 4 x 4 pixels."""

    def with_options(**options: Any) -> OpenImagesDataset:
        return OpenImagesDataset(**{"path": str(folder), "size": 4, **options})

    return with_options


def write(folder: Path, changed: Content) -> None:
    (folder / FILE).write_text(json.dumps(changed), "utf-8")


def test_a_sample_is_channels_first_rgb_from_0_to_1(build: Build) -> None:
    sample = build().input(1)

    assert sample.dtype == np.float32
    assert sample.flags.c_contiguous
    expected = noise(4, 4, 1).astype(np.float32).transpose(2, 0, 1) / np.float32(255)
    np.testing.assert_array_equal(sample, expected)


def test_a_sample_is_stretched_to_a_square_of_the_official_size(folder: Path) -> None:
    assert OpenImagesDataset(path=str(folder)).input(2).shape == (3, 800, 800)


def test_references_tell_the_image_and_its_boxes_in_the_order_of_the_file(build: Build) -> None:
    dataset = build()

    assert len(dataset) == 3
    assert dataset.reference(0) == {
        "index": 0,
        "image_id": 2,
        "height": 4,
        "width": 4,
        "annotations": [
            {"category_id": 5, "bbox": [0.5, 1.0, 2.0, 3.0], "area": 6.0, "iscrowd": 0},
            {"category_id": 0, "bbox": [0, 0, 0.0, 1], "area": 0.0, "iscrowd": 0},
        ],
    }
    assert dataset.reference(1) == {
        "index": 1,
        "image_id": 9,
        "height": 4,
        "width": 4,
        "annotations": [],
    }
    assert dataset.reference(2)["annotations"][0]["iscrowd"] == 1
    assert json.loads(json.dumps(dataset.reference(2))) == dataset.reference(2)


def test_heights_and_widths_with_a_point_are_whole_pixels(build: Build, folder: Path) -> None:
    changed = content()
    changed["images"][2].update(height=6.0, width=8.0)
    write(folder, changed)

    reference = json.dumps(build().reference(2))
    assert '"height": 6, "width": 8,' in reference


def test_count_keeps_the_first_images_and_needs_no_others(build: Build, folder: Path) -> None:
    (folder / "validation" / "data" / "b.png").unlink()
    dataset = build(count=2)

    assert [dataset.reference(index)["image_id"] for index in range(len(dataset))] == [2, 9]


def test_annotations_and_images_may_be_elsewhere(
    build: Build, folder: Path, tmp_path: Path
) -> None:
    (folder / FILE).rename(tmp_path / "mine.json")
    (folder / "validation" / "data").rename(tmp_path / "pictures")

    assert len(build(annotations="../mine.json", images=str(tmp_path / "pictures"))) == 3


SMALL = np.array(
    [
        [0, 10, 250, 90, 30],
        [200, 40, 60, 120, 7],
        [33, 255, 1, 80, 160],
        [5, 77, 140, 220, 199],
    ],
    np.uint8,
)
OPENCV = {
    2: [[43.75, 83.375], [129.25, 157.375]],
    3: [
        [27.2222003937, 218.3332977295, 49.1110992432],
        [126.8332977295, 30.5, 89.0],
        [42.0, 116.8332977295, 193.8889007568],
    ],
    4: [
        [1.25, 100.0, 150.0, 37.5],
        [180.0, 47.5, 97.5, 21.125],
        [60.75, 159.75, 50.375, 150.0],
        [14.0, 100.625, 190.0, 201.625],
    ],
    6: [
        [0.0, 7.5, 150.0, 183.3332977295, 75.0, 30.0],
        [100.0, 43.75, 100.8332977295, 134.1667022705, 83.375, 18.5],
        [172.1667022705, 99.9167022705, 60.8610992432, 76.4860992432, 93.125, 32.5],
        [60.8333015442, 179.5832977295, 97.6389007568, 42.4305992126, 98.625, 134.5],
        [19.0, 129.25, 110.2917022705, 103.625, 157.375, 179.5],
        [5.0, 59.0, 113.75, 173.3332977295, 214.75, 199.0],
    ],
}
"""cv2.resize(SMALL as float32, …, interpolation=cv2.INTER_LINEAR) of OpenCV 4.10, by new size."""


@pytest.mark.parametrize("size", OPENCV)
def test_stretching_equals_opencv(size: int) -> None:
    stretched = stretch(np.stack([SMALL, 255 - SMALL, SMALL], axis=2), size)

    assert stretched.dtype == np.float32
    np.testing.assert_allclose(stretched[:, :, 0], OPENCV[size], atol=1e-4)
    np.testing.assert_allclose(255 - stretched[:, :, 1], OPENCV[size], atol=1e-4)


@pytest.mark.parametrize(("height", "width"), [(3, 8), (8, 3), (64, 40), (1, 1)])
@pytest.mark.parametrize("size", [1, 5, 7, 20])
def test_stretching_keeps_a_flat_image_flat(height: int, width: int, size: int) -> None:
    stretched = stretch(np.full((height, width, 3), 77, np.uint8), size)

    np.testing.assert_allclose(stretched, np.full((size, size, 3), 77), rtol=1e-6)


def test_the_digest_does_not_depend_on_where_files_are_and_what_they_are_called(
    build: Build, folder: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "validation" / "data" / "b.png").rename(copy / "validation" / "data" / "z.png")
    changed = content()
    changed["images"][2]["file_name"] = "z.png"
    write(copy, changed)

    assert build(path=str(copy)).digest == build().digest


def _other_pixels(folder: Path) -> None:
    Image.fromarray(noise(4, 4, 9)).save(folder / "validation" / "data" / "c.png")


def _other_box(folder: Path) -> None:
    changed = content()
    changed["annotations"][0]["bbox"][0] = 0.25
    write(folder, changed)


def _other_order(folder: Path) -> None:
    changed = content()
    changed["images"].reverse()
    write(folder, changed)


@pytest.mark.parametrize("change", [_other_pixels, _other_box, _other_order])
def test_the_digest_changes_with_the_content(
    build: Build, folder: Path, change: Callable[[Path], None]
) -> None:
    before = build().digest
    change(folder)

    assert build().digest != before


@pytest.mark.parametrize("options", [{"size": 8}, {"count": 2}])
def test_the_digest_changes_with_the_preprocessing(build: Build, options: dict[str, Any]) -> None:
    assert build(**options).digest != build().digest


DEFECTS: dict[str, tuple[str, int, str, Any, str]] = {
    "no name": ("images", 1, "file_name", None, "images[1] lacks 'file_name', a file name;"),
    "empty name": ("images", 1, "file_name", "", "images[1] has file_name = '', not a file name;"),
    "no height": ("images", 2, "height", None, "images[2] lacks 'height', a number of pixels;"),
    "no pixels": ("images", 0, "width", 0, "images[0] has width = 0, not a number of pixels;"),
    "id is text": ("images", 0, "id", "2", "images[0] has id = '2', not a whole number;"),
    "same id": ("images", 1, "id", 2, "images[1] has the id 2 of an image before it;"),
    "no category": (
        "annotations",
        1,
        "category_id",
        None,
        "annotations[1] lacks 'category_id', a whole number;",
    ),
    "unknown category": (
        "annotations",
        1,
        "category_id",
        3,
        "annotations[1] has category_id 3, which is none of the 2 ids;",
    ),
    "unknown image": (
        "annotations",
        2,
        "image_id",
        1,
        "annotations[2] has image_id 1, which is none of the 3 ids;",
    ),
    "three lengths": (
        "annotations",
        0,
        "bbox",
        [1, 2, 3],
        "annotations[0] has bbox = [1, 2, 3], not left, top, width and height",
    ),
    "negative width": (
        "annotations",
        0,
        "bbox",
        [1, 2, -3, 4],
        "annotations[0] has bbox = [1, 2, -3, 4], not left, top, width and height",
    ),
    "no number": (
        "annotations",
        0,
        "bbox",
        [1, 2, float("nan"), 4],
        "annotations[0] has bbox = [1, 2, nan, 4], not left, top, width and height",
    ),
    "negative area": ("annotations", 0, "area", -1.0, "annotations[0] has area = -1.0, not a"),
    "no crowd": ("annotations", 0, "iscrowd", None, "annotations[0] lacks 'iscrowd', a whole"),
    "category without id": ("categories", 1, "id", None, "categories[1] lacks 'id', a whole"),
    "other size": (
        "images",
        2,
        "width",
        9,
        "images[2] is said to have 9 x 6 pixels, but b.png has 8 x 6: these are not the images",
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_of_the_annotations_is_named_with_list_record_and_key(
    build: Build, folder: Path, defect: str
) -> None:
    name, row, key, value, message = DEFECTS[defect]
    changed = content()
    changed[name][row][key] = value
    if value is None:
        del changed[name][row][key]
    write(folder, changed)

    with pytest.raises(RunError) as caught:
        build()

    assert f"{folder / FILE}: {message}" in str(caught.value)
    assert caught.value.layer == "dataset"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "this is no JSON or not all of it"),
        (json.dumps(content())[:-40], "this is no JSON or not all of it"),
        ("[" * 100_000, "this is no JSON or not all of it"),
        ("[]", "it has no list 'images', or an empty one"),
        ('{"images": []}', "it has no list 'images', or an empty one"),
        (json.dumps({**content(), "annotations": {}}), "it has no list 'annotations'"),
        (json.dumps({**content(), "categories": [4]}), r"categories\[0\] is 4, not an object"),
    ],
)
def test_a_file_of_something_else_is_an_error(
    build: Build, folder: Path, text: str, message: str
) -> None:
    (folder / FILE).write_text(text, "utf-8")

    with pytest.raises(RunError, match=message):
        build()


def test_an_image_that_exif_data_turns_may_be_annotated_either_way(
    build: Build, folder: Path
) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(noise(8, 6)).save(folder / "validation" / "data" / "b.png", exif=exif)

    sample = build().input(2)

    turned = stretch(np.rot90(noise(8, 6), k=-1), 4)
    np.testing.assert_array_equal(sample, (turned / np.float32(255)).transpose(2, 0, 1))


def test_a_damaged_image_is_named_before_any_is_asked_for(build: Build, folder: Path) -> None:
    path = folder / "validation" / "data" / "a.png"
    path.write_bytes(path.read_bytes()[:-8])

    with pytest.raises(RunError, match=r"a\.png: .*; 1 of 3 images in .* are damaged"):
        build()


def test_the_annotation_file_is_compared_with_its_checksum(build: Build, folder: Path) -> None:
    digits = hashlib.md5((folder / FILE).read_bytes()).hexdigest()

    assert len(build(checksum=f"md5:{digits}")) == 3
    with pytest.raises(RunError, match=f"md5 is {digits}, not the {'0' * 32} asked for"):
        build(checksum=f"md5:{'0' * 32}")


def _no_annotations(folder: Path) -> None:
    (folder / FILE).unlink()


def _no_images(folder: Path) -> None:
    shutil.rmtree(folder / "validation")


def _no_image(folder: Path) -> None:
    (folder / "validation" / "data" / "b.png").unlink()


MISSING: list[tuple[Callable[[Path], None], str]] = [
    (shutil.rmtree, "the folder of Open Images does not exist; put the output of tools/openimages"),
    (_no_annotations, "openimages-mlperf.json: the annotation file .* is not here; put the output"),
    (_no_images, "validation/data: the folder of images does not exist; put the output of"),
]


@pytest.mark.parametrize(
    ("change", "message"), [*MISSING, (_no_image, "1 of 3 images .* the first is 'b.png'")]
)
def test_what_is_not_here_is_unavailable(
    build: Build, folder: Path, change: Callable[[Path], None], message: str
) -> None:
    change(folder)

    with pytest.raises(UnavailableError, match=message):
        build()


@pytest.mark.parametrize(("change", "message"), MISSING)
def test_a_look_says_what_is_missing(
    folder: Path, change: Callable[[Path], None], message: str
) -> None:
    change(folder)

    with pytest.raises(UnavailableError, match=message):
        OpenImagesDataset.look(path=str(folder))


def test_annotations_and_images_that_are_missing_are_named_together(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError) as caught:
        OpenImagesDataset.look(path=str(tmp_path))

    annotations, images = str(caught.value).split("; also ")
    told = (
        "put the output of tools/openimages_mlperf.sh there (MLPerf's repository inference, folder "
        "vision/classification_and_detection), or set the option "
    )
    assert annotations == (
        f"{tmp_path}/annotations/openimages-mlperf.json: the annotation file openimages-mlperf.json"
        f" is not here; {told}annotations to its path"
    )
    assert images == (
        f"{tmp_path}/validation/data: the folder of images does not exist; {told}images to its path"
    )


def test_a_look_reads_no_file(folder: Path) -> None:
    (folder / FILE).write_bytes(b"")

    OpenImagesDataset.look(path=str(folder), checksum=f"md5:{'0' * 32}")


def test_a_look_takes_the_same_options() -> None:
    for asked in (OpenImagesDataset, OpenImagesDataset.look):
        with pytest.raises(TypeError, match="sise"):
            asked(path=".", sise=3)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("size", 0),
        ("size", 2.5),
        ("count", 0),
        ("count", True),
        ("count", 4),
        ("checksum", "md5:12"),
    ],
)
def test_an_option_out_of_range_is_named_with_its_value(
    build: Build, option: str, value: object
) -> None:
    with pytest.raises(SuiteError) as caught:
        build(**{option: value})

    assert f"{option} = {value!r}" in str(caught.value)
