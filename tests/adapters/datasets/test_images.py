from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pytest_mlperf.adapters.datasets.files import images
from pytest_mlperf.adapters.datasets.files.images import check_images, decode
from pytest_mlperf.core.errors import RunError, UnavailableError
from tests.adapters.datasets import pictures
from tests.adapters.datasets.refusals import not_refused

MAP = Path("map.txt")


def noise(height: int, width: int) -> Image.Image:
    return Image.fromarray(pictures.noise(height, width))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with intact images of 40 x 30 pixels, in JPEG, PNG and BMP."""
    for ending in ("jpg", "png", "bmp"):
        noise(30, 40).save(tmp_path / f"good.{ending}")
    return tmp_path


def jpeg(folder: Path) -> bytes:
    return (folder / "good.jpg").read_bytes()


def test_the_sizes_of_intact_images_are_returned_in_order(folder: Path) -> None:
    """An oddity that decoders accept is not damage."""
    noise(7, 5).save(folder / "small.jpeg")

    names = ["small.jpeg", "good.png", "good.bmp", "good.jpg"]
    assert check_images(folder, names, MAP) == [(5, 7), *[(40, 30)] * 3]
    assert check_images(folder, [], MAP) == []
    for end in (b"", bytes(3), b"\r\n", b"written by a camera"):
        (folder / "odd.jpg").write_bytes(jpeg(folder) + end)
        assert check_images(folder, ["odd.jpg"], MAP) == [(40, 30)]


TRUNCATED = "image file is truncated"
DAMAGED: list[tuple[Callable[[bytes], bytes], str]] = [
    (lambda _: b"", "this file is empty"),
    (lambda whole: bytes(len(whole)), "this file is no image: its first"),
    (lambda _: b"\n<!DOCTYPE html><html>403</html>", "this is text, such as a web page"),
    (lambda _: b'{"error": "denied"}', "this is text, such as a web page"),
    (lambda _: b"PAR1" * 50, "this is not an image that Pillow knows"),
    (lambda whole: whole[: len(whole) // 2], TRUNCATED),
    (lambda whole: whole[:-40], TRUNCATED),
    (lambda whole: whole[:-1], TRUNCATED),
    (lambda whole: whole[:60], "this image is incomplete or damaged"),
    (lambda whole: whole[: len(whole) // 2] + bytes(len(whole) // 2), "zero bytes"),
]


def test_a_damaged_image_is_named_with_its_defect(folder: Path) -> None:
    whole, images = jpeg(folder), ["good.jpg", "bad.jpg", "good.png"]

    def read(change: Callable[[bytes], bytes]) -> None:
        (folder / "bad.jpg").write_bytes(change(whole))
        check_images(folder, images, MAP)

    start, advice = (
        f"{folder / 'bad.jpg'}: ",
        [f"; 1 of 3 images in {folder} are damaged: get them"],
    )
    assert not_refused(RunError, DAMAGED, read, start=start, advice=advice) == []
    for name in ("good.png", "good.bmp"):
        whole = (folder / name).read_bytes()
        for kept in (0.3, 0.9):
            (folder / name).write_bytes(whole[: int(kept * len(whole))])
            with pytest.raises(RunError, match=f"{name}: this image is incomplete or damaged"):
                check_images(folder, [name], MAP)


def test_of_many_damaged_files_the_first_in_the_list_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all are damaged, not all are read."""
    monkeypatch.setattr(images, "BATCH_FILES", 3)
    for number in range(40):
        content = b"" if number in {17, 25, 39} else jpeg(folder)
        (folder / f"{number}.jpg").write_bytes(content)
    with pytest.raises(RunError, match=r"/17\.jpg: .*; 3 of 40 images"):
        check_images(folder, [f"{number}.jpg" for number in range(40)], MAP)

    monkeypatch.setattr(images, "MAX_DAMAGED", 4)
    with pytest.raises(RunError, match="at least 4 of 9 images"):
        check_images(folder, ["17.jpg"] * 9, MAP)


def test_a_flipped_bit_inside_is_found_when_the_image_is_decoded(folder: Path) -> None:
    """An absurd size is found before it fills the memory."""
    path = folder / "good.png"
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(whole)
    assert check_images(folder, ["good.png"], MAP) == [(40, 30)]
    with pytest.raises(RunError, match=r"good\.png: Pillow cannot decode this image") as caught:
        decode(path)
    assert caught.value.layer == "dataset"
    header = b"IHDR" + struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    (folder / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk + images.END_BYTES["PNG"])
    with pytest.raises(RunError, match=r"bomb\.png: this image is incomplete or damaged"):
        check_images(folder, ["bomb.png"], MAP)


def test_every_kind_of_image_becomes_rgb_of_8_bits(tmp_path: Path) -> None:
    """Of 16 bits the upper 8, as by OpenCV; pixels without a scale are refused."""
    for mode in ("L", "RGBA", "P", "CMYK"):
        Image.new("RGB", (4, 3), (255, 255, 255)).convert(mode).save(tmp_path / "image.tif")
        pixels = decode(tmp_path / "image.tif")
        assert pixels.dtype == np.uint8
        np.testing.assert_array_equal(pixels, np.full((3, 4, 3), 255))
    grey = np.array([[0, 255, 256, 0x7FFF, 0x8000, 0xFEFF, 0xFF00, 0xFFFF]], dtype=np.uint16)
    for name in ("grey.png", "grey.tif"):
        Image.fromarray(grey).save(tmp_path / name)
        expected = [[[value >> 8] * 3 for value in grey[0].tolist()]]
        assert decode(tmp_path / name).tolist() == expected
    path = tmp_path / "wide.tif"
    for dtype in (np.int32, np.float32):
        Image.fromarray(np.array([[0, 70_000]], dtype=dtype)).save(path)
        with pytest.raises(RunError, match=r"wide\.tif: .*32-bit numbers .*save it with 8 bits"):
            decode(path)


def test_missing_images_are_counted_and_the_first_is_named(folder: Path) -> None:
    names = ["good.jpg", "b.jpg", "a.jpg"]

    with pytest.raises(
        UnavailableError,
        match=r"2 of 3 images listed in map\.txt are not here, the first is 'b\.jpg'; add",
    ):
        check_images(folder, names, MAP)
