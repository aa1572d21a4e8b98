from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from pytest_mlperf.core.errors import RunError, SuiteError
from pytest_mlperf.datasets.imagenet import VGG_MEAN, ImageNetDataset, resize_shorter_side

DIGITS = Path(__file__).parents[2] / "suites" / "tiny" / "resnet50" / "data" / "imagenet"

Pixels = NDArray[np.uint8]
Build = Callable[..., ImageNetDataset]


def noise(height: int, width: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def tiny(folder: Path) -> dict[str, Any]:
    """Write three images of 4 x 4 pixels with labels 2, 0 and 1."""
    for seed, name in enumerate(("a.png", "b.png", "c.png")):
        Image.fromarray(noise(4, 4, seed)).save(folder / name)
    (folder / "val_map.txt").write_text("a.png 2\nb.png 0\n\nc.png 1\n", "utf-8")
    return {"path": str(folder), "size": 4, "crop": 1.0, "classes": 3}


def test_a_sample_is_channels_first_rgb_minus_the_means_of_the_reference(build: Build) -> None:
    sample = build().input(1)

    expected = noise(4, 4, 1).transpose(2, 0, 1) - np.array(VGG_MEAN, np.float32).reshape(3, 1, 1)
    assert sample.dtype == np.float32
    assert sample.flags.c_contiguous
    np.testing.assert_array_equal(sample, expected)


def test_a_sample_is_divided_by_the_deviations_after_the_means(build: Build) -> None:
    sample = build(mean=(1, 2, 3), std=(2, 4, 8)).input(0)

    np.testing.assert_array_equal(sample[2], (noise(4, 4)[:, :, 2].astype(np.float32) - 3) / 8)


def test_references_are_the_labels_in_the_order_of_the_map(build: Build) -> None:
    dataset = build()

    assert [dataset.reference(index) for index in range(len(dataset))] == [2, 0, 1]


def test_images_beyond_count_are_not_read(build: Build, folder: Path) -> None:
    (folder / "c.png").write_bytes(b"")
    dataset = build(count=2)

    assert [dataset.reference(index) for index in range(len(dataset))] == [2, 0]
    (folder / "c.png").unlink()
    assert len(build(count=2)) == 2


def test_the_map_may_be_elsewhere(build: Build, folder: Path) -> None:
    """It is also found beside the folder."""
    source = folder / "val_map.txt"
    for place in ("labels/mine.txt", "../far/away.txt", "../val_map.txt"):
        (folder / place).parent.mkdir(exist_ok=True)
        source = source.rename(folder / place)
        assert len(build(map=place)) == 3
        assert len(build(map=str(source.resolve()))) == 3
    assert len(build()) == 3


def test_grey_images_and_jpeg_files_become_rgb(build: Build, folder: Path) -> None:
    Image.new("L", (4, 4), 100).save(folder / "a.jpg")
    (folder / "val_map.txt").write_text("a.jpg 0\n", "utf-8")

    sample = build(mean=(0, 0, 0)).input(0)

    np.testing.assert_array_equal(sample, np.full((3, 4, 4), 100, np.float32))


def test_an_image_is_turned_as_its_exif_data_says(build: Build, folder: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(noise(4, 4)).save(folder / "a.png", exif=exif)

    sample = build(mean=(0, 0, 0)).input(0)

    np.testing.assert_array_equal(sample[0], np.rot90(noise(4, 4)[:, :, 0], k=-1))


@pytest.mark.parametrize(("height", "width", "top", "left"), [(4, 9, 0, 2), (10, 4, 3, 0)])
def test_the_crop_is_taken_at_the_centre(
    build: Build, folder: Path, height: int, width: int, top: int, left: int
) -> None:
    Image.fromarray(noise(height, width)).save(folder / "a.png")

    sample = build(mean=(0, 0, 0)).input(0)

    kept = noise(height, width)[top : top + 4, left : left + 4]
    np.testing.assert_array_equal(sample, kept.transpose(2, 0, 1))


def test_the_official_options_resize_to_256_and_crop_to_224(build: Build, folder: Path) -> None:
    pixels = noise(300, 400)
    Image.fromarray(pixels).save(folder / "a.png")

    sample = build(size=224, crop=0.875, mean=(0, 0, 0)).input(0)

    resized = resize_shorter_side(pixels, 256)
    assert resized.shape == (256, 341, 3)
    np.testing.assert_array_equal(sample, resized[16:240, 58:282].transpose(2, 0, 1))


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
    2: [[81, 80], [88, 146]],
    3: [[37, 144, 54], [129, 68, 90], [56, 124, 188]],
    4: SMALL.tolist(),
    5: [
        [0, 8, 154, 186, 78, 30],
        [150, 56, 78, 109, 92, 13],
        [117, 141, 77, 58, 97, 84],
        [26, 173, 105, 67, 126, 170],
        [5, 63, 115, 172, 216, 199],
    ],
    6: [
        [0, 6, 58, 250, 122, 66, 30],
        [100, 55, 51, 155, 115, 70, 19],
        [200, 104, 44, 60, 108, 75, 7],
        [33, 166, 204, 1, 64, 112, 160],
        [19, 107, 147, 71, 134, 162, 180],
        [5, 48, 90, 140, 204, 212, 199],
    ],
    8: np.repeat(np.repeat(SMALL, 2, axis=0), 2, axis=1).tolist(),
}
"""cv2.resize(SMALL, …, interpolation=cv2.INTER_AREA) of OpenCV 5.0, by the new shorter side."""


def test_resizing_equals_opencv_up_to_one_grey_level() -> None:
    for target, rows in OPENCV.items():
        resized = resize_shorter_side(np.stack([SMALL, 255 - SMALL, SMALL], axis=2), target)
        expected = np.array(rows)
        assert resized.shape == (*expected.shape, 3)
        np.testing.assert_allclose(resized[:, :, 0].astype(int), expected, atol=1)
        np.testing.assert_allclose(resized[:, :, 1].astype(int), 255 - expected, atol=1)


def test_resizing_keeps_a_flat_image_flat() -> None:
    for height, width in ((3, 8), (8, 3), (64, 40), (7, 7)):
        for target in (3, 5, 7, 20):
            resized = resize_shorter_side(np.full((height, width, 3), 77, np.uint8), target)
            assert min(resized.shape[:2]) == target
            assert (resized == 77).all()


def test_the_digest_does_not_depend_on_where_files_are_and_what_they_are_called(
    build: Build, folder: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "b.png").rename(copy / "z.png")
    (copy / "val_map.txt").write_text("a.png 2\nz.png 0\nc.png 1", "utf-8")

    assert build(path=str(copy)).digest == build().digest


def _swap_pixels(folder: Path) -> None:
    Image.fromarray(noise(4, 4, 9)).save(folder / "c.png")


def _relabel(folder: Path) -> None:
    (folder / "val_map.txt").write_text("a.png 2\nb.png 0\nc.png 0\n", "utf-8")


def _reorder(folder: Path) -> None:
    (folder / "val_map.txt").write_text("b.png 0\na.png 2\nc.png 1\n", "utf-8")


def test_the_digest_changes_with_content_and_preprocessing(build: Build, folder: Path) -> None:
    options: list[dict[str, Any]] = [
        {},
        {"size": 3},
        {"crop": 0.5},
        {"mean": (0, 0, 0)},
        {"std": (1, 1, 2)},
    ]
    digests = [build(**option).digest for option in options]
    for content in ("a.png 2\nb.png 0\nc.png 0\n", "b.png 0\na.png 2\nc.png 1\n"):
        (folder / "val_map.txt").write_text(content, "utf-8")
        digests.append(build().digest)
    Image.fromarray(noise(4, 4, 9)).save(folder / "c.png")
    digests.append(build().digest)

    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("line", ["", " 1 2", " one", " -1", " ²"])
def test_a_malformed_line_is_named_with_file_and_number(
    build: Build, folder: Path, line: str
) -> None:
    (folder / "val_map.txt").write_text(f"a.png 2\nb.png 0\n\nc.png{line}\n", "utf-8")

    with pytest.raises(RunError) as caught:
        build()

    assert f"val_map.txt:4: 'c.png{line}' is not \"FILE LABEL\"" in str(caught.value)
    assert caught.value.layer == "dataset"


def test_a_map_without_images_or_with_other_labels_is_refused(build: Build, folder: Path) -> None:
    for content, message in (
        ("a.png 2\nb.png 3\n", r"val_map\.txt:2: label 3 is out of range, valid are 0 to 2"),
        ("\n", "lists no image"),
    ):
        (folder / "val_map.txt").write_text(content, "utf-8")
        with pytest.raises(RunError, match=message):
            build()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("size", 0),
        ("crop", 0.0),
        ("crop", 1.5),
        ("mean", (1, 2)),
        ("std", (1, 0, 1)),
        ("std", (1, 1)),
        ("classes", 0),
    ],
)
def test_an_option_out_of_range_is_named_with_its_value(
    build: Build, option: str, value: object
) -> None:
    for ask in (build, ImageNetDataset.look):
        with pytest.raises(SuiteError) as caught:
            ask(**{"path": ".", option: value})
        assert f"{option} = {value!r}" in str(caught.value)


def test_the_digits_come_in_the_official_layout_with_all_ten_classes() -> None:
    dataset = ImageNetDataset(path=str(DIGITS), size=32, crop=1.0, classes=10)

    labels = Counter(dataset.reference(index) for index in range(len(dataset)))
    assert len(dataset) == 500
    assert sorted(labels) == list(range(10))
    assert min(labels.values()) >= 40
    assert dataset.input(499).shape == (3, 32, 32)
