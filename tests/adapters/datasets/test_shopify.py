"""Test Shopify's catalogue in Hugging Face's files.

Prompts equal the reference's, bad files are refused.
"""

from __future__ import annotations

import base64
import hashlib
import io
import struct
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from pytest_mlperf.adapters.datasets.shopify import (
    ShopifyDataset,
    schema_of,
    system_text,
    user_text,
)
from pytest_mlperf.core.errors import RunError, SuiteError, UnavailableError
from tests.adapters.datasets.refusals import not_refused

PRODUCTS: list[tuple[str, str | None, list[str]]] = [
    ("Lamp {x} ü", 'It\'s <b>new</b>\nand "bright".', ["Home & Garden > Lamps", "Home > Café's"]),
    ("Mug", None, []),
]
GOLDEN = {
    "v6.0": ("0d1878a7ddab0ca7", ["4a7c23aa7eb9aca2", "638ce77810dff72e"]),
    "v6.1": ("2ff8c5d540571408", ["1d89151e9680b3a8", "638ce77810dff72e"]),
}
"""SHA-256 of the system's and the users' texts: made by the rounds' reference code of PRODUCTS."""


def picture(kind: str = "PNG", mode: str = "RGB", **saved: Any) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (3, 2), 77).save(file, format=kind, **saved)
    return file.getvalue()


def bomb(side: int) -> bytes:
    """Return a PNG that says how large it is, and has no pixels."""
    chunks = (b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0), b"IDAT")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        for chunk in chunks
    )


Write = Callable[..., Path]


def write_products(
    folder: Path, file: str = "train-00000-of-00001.parquet", **columns: Any
) -> Path:
    """Write products as rows of a Parquet file, as the library datasets does."""
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    titles, descriptions, choices = zip(*PRODUCTS, strict=True)
    pictures = columns.pop("pictures", [picture()] * len(PRODUCTS))
    rows = {
        "product_title": titles,
        "product_description": descriptions,
        "product_image": [{"bytes": content, "path": "a.png"} for content in pictures],
        "potential_product_categories": choices,
        "ground_truth_category": ["Home & Garden > Lamps", "Kitchen"],
        "ground_truth_brand": ["Lumo", None],
        "ground_truth_is_secondhand": [False, True],
        **columns,
    }
    path = folder / file
    path.parent.mkdir(exist_ok=True)
    parquet.write_table(pa.table(rows), path)
    return path


def tiny(folder: Path) -> dict[str, Any]:
    write_products(folder)
    return {"path": str(folder)}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return partial(write_products, tmp_path)


def load(path: Path, **options: Any) -> ShopifyDataset:
    return ShopifyDataset(path=str(path), **options)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def test_texts_are_those_of_the_rounds_reference() -> None:
    for version, (system, users) in GOLDEN.items():
        assert digest(system_text(version)) == system
        assert [digest(user_text(version, *product)) for product in PRODUCTS] == users


def test_a_sample_is_a_chat_with_the_text_before_the_picture(write: Write) -> None:
    dataset = load(write())
    chat = dataset.input(0)
    (system, user) = chat["messages"]
    text, image = user["content"]

    assert (system["role"], user["role"]) == ("system", "user")
    assert system["content"] == system_text("v6.1")
    assert text == {"type": "text", "text": user_text("v6.1", *PRODUCTS[0])}
    assert image["type"] == "image_url"
    assert "response_format" not in chat
    assert [dataset.reference(index) for index in range(2)] == ["Home & Garden > Lamps", "Kitchen"]
    guided = load(write(), guided=True).input(0)["response_format"]["json_schema"]
    assert (guided["schema"], guided["strict"]) == (schema_of("v6.1"), True)


def test_a_picture_is_as_pillow_writes_it_in_its_format(write: Write) -> None:
    """Turned as its EXIF data say."""
    for kind in ("PNG", "JPEG", "WEBP", "GIF"):
        source, again = picture(kind), io.BytesIO()
        with Image.open(io.BytesIO(source)) as image:
            image.save(again, format=kind)
        sent = load(write(pictures=[source] * 2)).input(1)["messages"][1]["content"][1]
        encoded = base64.b64encode(again.getvalue()).decode()
        assert sent["image_url"]["url"] == f"data:image/{kind};base64,{encoded}"
    exif = Image.Exif()
    exif[0x0112] = 6
    dataset = load(write(pictures=[picture("JPEG", exif=exif), picture()]))

    kind, _, encoded = dataset.input(0)["messages"][1]["content"][1]["image_url"]["url"].partition(
        ";base64,"
    )
    assert kind == "data:image/JPEG"
    assert Image.open(io.BytesIO(base64.b64decode(encoded))).size == (2, 3)


@pytest.mark.parametrize("below", ["", "data/"])
def test_splits_and_their_files_come_in_mlperfs_order(write: Write, below: str) -> None:
    """First train, then test, each by number, as `train+test` of the library datasets."""
    names = ["train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"]
    for name in reversed(names):
        path = write(f"{below}{name}.parquet", ground_truth_category=[f"{name} A", f"{name} B"])
    folder = path.parent.parent if below else path.parent

    dataset = load(folder)

    assert [dataset.reference(index) for index in range(len(dataset))] == [
        f"{name} {row}" for name in names for row in "AB"
    ]
    assert len(load(folder, count=3)) == 3


def test_files_that_are_missing_or_of_two_downloads_are_named(write: Write) -> None:
    folder = write("train-00001-of-00003.parquet").parent
    with pytest.raises(UnavailableError, match=r"2 of 3 tables are not here.*train-00000-of-00003"):
        load(folder)

    write("train-00000-of-00002.parquet")
    with pytest.raises(UnavailableError, match="several downloads, which have 2 and 3"):
        load(folder)
    files = [write(f"all/{split}-00000-of-00001.parquet") for split in ("train", "test")]
    total = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    assert len(load(files[0].parent, checksum=f"sha256:{total}")) == 4
    with pytest.raises(RunError, match="2 files: sha256 is"):
        load(files[0].parent, checksum=f"sha256:{'0' * 64}")


def test_the_digest_knows_texts_pictures_categories_and_the_round(write: Write) -> None:
    paths = {
        "as it is": write("a/x.parquet"),
        "picture": write("b/x.parquet", pictures=[picture("GIF"), picture()]),
        "title": write("c/x.parquet", product_title=["Lamp", "Mug"]),
        "category": write("d/x.parquet", ground_truth_category=["A", "B"]),
    }
    digests = {name: load(path).digest for name, path in paths.items()}
    digests["round"] = load(paths["as it is"], prompts="v6.0").digest
    other = write("e/x.parquet", ground_truth_brand=["other", "brands"])

    assert len(set(digests.values())) == len(digests)
    assert load(other).digest == digests["as it is"]


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_invalid_pictures_are_refused_before_an_engine_loads(write: Write) -> None:
    """In one line; Pillow would start another program for PostScript."""
    unknown = r"^[^\n]*row 1, column 'product_image': .*not a picture in one of the formats[^\n]*$"
    rows = [
        (b"", unknown),
        (b"<html>not found</html>", unknown),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", unknown),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", unknown),
        (bomb(60_000), r"^[^\n]*row 1, column 'product_image': .*pixels[^\n]*$"),
        (bomb(12_000), r"^[^\n]*row 1, column 'product_image': .*pixels[^\n]*$"),
    ]

    def read(content: bytes) -> None:
        load(write(pictures=[picture(), content]))

    assert not_refused(RunError, rows, read) == []


def test_a_picture_that_is_cut_short_is_named_when_it_is_asked_for(write: Write) -> None:
    """Its header is intact; decoding all would take minutes before a run."""
    whole = picture("PNG")
    dataset = load(write(pictures=[picture(), whole[: whole.index(b"IDAT") + 6]]))

    with pytest.raises(RunError, match="row 1, column 'product_image': Pillow cannot"):
        dataset.input(1)


def test_cells_and_options_that_mean_nothing_are_refused(write: Write) -> None:
    rows: list[tuple[str, list[Any], str]] = [
        ("product_title", [1, 2], "row 0, column 'product_title': a value of type int is not text"),
        ("product_image", ["a.png", "b.png"], "it does not hold the bytes of a"),
        ("product_image", [None, None], "it does not hold the bytes of a"),
        ("potential_product_categories", ["A", "B"], "it is not a list of texts"),
        ("potential_product_categories", [["A", None], []], "it is not a list of texts"),
        ("ground_truth_category", ["", "B"], "row 0, column 'ground_truth_category': it is empty"),
        ("ground_truth_category", [None, "B"], "a value of type NoneType is not text"),
    ]
    assert not_refused(RunError, rows, lambda name, cells: load(write(**{name: cells}))) == []
    options = [
        ({"prompts": "v6.2"}, 'prompts = \'v6.2\' is not "v6.0" or "v6.1"'),
        ({"guided": "yes"}, "guided = 'yes' is not true or false"),
    ]
    path = write()
    assert not_refused(SuiteError, options, lambda options: load(path, **options)) == []
