from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pytest_mlperf.adapters.datasets.imagenet import VGG_MEAN, ImageNetDataset, resize_shorter_side
from pytest_mlperf.core.errors import RunError, SuiteError
from tests.adapters.datasets.pictures import OPENCV, coloured, noise
from tests.adapters.datasets.refusals import not_refused

DIGITS = Path(__file__).parents[3] / "suites" / "tiny" / "resnet50" / "data" / "imagenet"

Build = Callable[..., ImageNetDataset]


def tiny(folder: Path) -> dict[str, Any]:
    """Write three images of 4 x 4 pixels with labels 2, 0 and 1."""
    for seed, name in enumerate(("a.png", "b.png", "c.png")):
        Image.fromarray(noise(4, 4, seed)).save(folder / name)
    (folder / "val_map.txt").write_text("a.png 2\nb.png 0\n\nc.png 1\n", "utf-8")
    return {"path": str(folder), "size": 4, "crop": 1.0, "classes": 3}


def test_a_sample_is_channels_first_rgb_minus_the_means_of_the_reference(build: Build) -> None:
    """Divided by the deviations after the means; references are the labels of the map."""
    dataset = build()
    sample, scaled = dataset.input(1), build(mean=(1, 2, 3), std=(2, 4, 8)).input(0)

    expected = noise(4, 4, 1).transpose(2, 0, 1) - np.array(VGG_MEAN, np.float32).reshape(3, 1, 1)
    assert sample.dtype == np.float32
    assert sample.flags.c_contiguous
    np.testing.assert_array_equal(sample, expected)
    np.testing.assert_array_equal(scaled[2], (noise(4, 4)[:, :, 2].astype(np.float32) - 3) / 8)
    assert [dataset.reference(index) for index in range(len(dataset))] == [2, 0, 1]


def test_the_map_may_be_elsewhere(build: Build, folder: Path) -> None:
    """It is also found next to the folder; images beyond `count` are not read."""
    source = folder / "val_map.txt"
    for map_file in ("labels/mine.txt", "../far/away.txt", "../val_map.txt"):
        (folder / map_file).parent.mkdir(exist_ok=True)
        source = source.rename(folder / map_file)
        assert len(build(map=map_file)) == 3
        assert len(build(map=str(source.resolve()))) == 3
    assert len(build()) == 3
    (folder / "c.png").write_bytes(b"")
    dataset = build(count=2)
    assert [dataset.reference(index) for index in range(len(dataset))] == [2, 0]
    (folder / "c.png").unlink()
    assert len(build(count=2)) == 2


def test_images_become_rgb_turned_and_cropped(build: Build, folder: Path) -> None:
    """Grey JPEG files, EXIF data, and the centre of images that are wide or high."""
    exif = Image.Exif()
    exif[0x0112] = 6
    cases: list[tuple[Image.Image, dict[str, Any], dict[str, Any], Any]] = [
        (Image.fromarray(noise(4, 4)), {"exif": exif}, {}, np.rot90(noise(4, 4), k=-1)),
        (Image.fromarray(noise(4, 9)), {}, {}, noise(4, 9)[:, 2:6]),
        (Image.fromarray(noise(10, 4)), {}, {}, noise(10, 4)[3:7]),
        (
            Image.fromarray(noise(300, 400)),
            {},
            {"size": 224, "crop": 0.875},
            resize_shorter_side(noise(300, 400), 256)[16:240, 58:282],
        ),
    ]
    for image, saved, options, expected in cases:
        image.save(folder / "a.png", **saved)
        sample = build(mean=(0, 0, 0), **options).input(0)
        np.testing.assert_array_equal(sample, expected.transpose(2, 0, 1))
    assert resize_shorter_side(noise(300, 400), 256).shape == (256, 341, 3)
    Image.new("L", (4, 4), 100).save(folder / "a.jpg")
    (folder / "val_map.txt").write_text("a.jpg 0\n", "utf-8")
    sample = build(mean=(0, 0, 0)).input(0)
    np.testing.assert_array_equal(sample, np.full((3, 4, 4), 100, np.float32))


def test_resizing_equals_opencv_up_to_one_grey_level() -> None:
    """A flat image stays flat."""
    for target, rows in OPENCV["area"].items():
        resized = resize_shorter_side(coloured(), int(target))
        expected = np.array(rows)
        assert resized.shape == (*expected.shape, 3)
        np.testing.assert_allclose(resized[:, :, 0].astype(int), expected, atol=1)
        np.testing.assert_allclose(resized[:, :, 1].astype(int), 255 - expected, atol=1)
    for height, width in ((3, 8), (8, 3), (64, 40), (7, 7)):
        for target in (3, 5, 7, 20):
            resized = resize_shorter_side(np.full((height, width, 3), 77, np.uint8), target)
            assert min(resized.shape[:2]) == target
            assert (resized == 77).all()


def test_the_digest_changes_with_content_and_preprocessing(
    build: Build, folder: Path, tmp_path: Path
) -> None:
    """It does not depend on the location or the names of files."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "b.png").rename(copy / "z.png")
    (copy / "val_map.txt").write_text("a.png 2\nz.png 0\nc.png 1", "utf-8")
    assert build(path=str(copy)).digest == build().digest
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


def test_a_wrong_map_is_named_with_the_number_of_its_line(build: Build, folder: Path) -> None:
    rows = [
        ("a.png 2\nb.png 3\n", "val_map.txt:2: label 3 is out of range, valid are 0 to 2"),
        ("\n", "there are no images"),
        *(
            (f"a.png 2\nb.png 0\n\nc.png{line}\n", f"val_map.txt:4: 'c.png{line}' is not \"FILE L")
            for line in ("", " 1 2", " one", " -1", " ²")
        ),
        (f"a.png {'1' * 5000}\n", "val_map.txt:1: 'a.png 11111"),
        ("a.png 2\n\udcff.png 0\n", "val_map.txt: line 2: it is not UTF-8"),
    ]

    def read(content: str) -> None:
        (folder / "val_map.txt").write_bytes(content.encode("utf-8", "surrogateescape"))
        build()

    assert not_refused(RunError, rows, read) == []


def test_an_option_out_of_range_is_named_with_its_value(build: Build) -> None:
    rows: list[tuple[str, object]] = [
        *(("size", 0), ("classes", 0), ("crop", 0.0), ("crop", 1.5)),
        *(("mean", (1, 2)), ("std", (1, 0, 1)), ("std", (1, 1))),
    ]
    named = [({option: value}, f"{option} = {value!r}") for option, value in rows]
    calls: list[Any] = [
        lambda options: build(**options),
        lambda options: ImageNetDataset.look(path=".", **options),
    ]
    assert not_refused(SuiteError, named, *calls) == []


def test_the_digits_come_in_the_official_layout_with_all_ten_classes() -> None:
    dataset = ImageNetDataset(path=str(DIGITS), size=32, crop=1.0, classes=10)

    labels = Counter(dataset.reference(index) for index in range(len(dataset)))
    assert len(dataset) == 500
    assert sorted(labels) == list(range(10))
    assert min(labels.values()) >= 40
    assert dataset.input(499).shape == (3, 32, 32)
