"""The official captions and latents, and every way in which they can be wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_mlperf.adapters.datasets.coco_captions import CocoCaptionsDataset
from pytest_mlperf.core.errors import EnvironmentFault, RunError, SuiteError, UnavailableError
from tests.adapters.datasets.hostile import Touch
from tests.adapters.datasets.refusals import not_refused

HEADER = "id\timage_id\tcaption\theight\twidth\tfile_name\tcoco_url"
ROWS = (
    (70, "A city at night with people walking around."),
    (310, '"A sign that reads ""Cheese Shop"" on it."'),
    (392, "S&B train, black &amp; white – Zürich."),
)
CAPTIONS = [
    "A city at night with people walking around.",
    'A sign that reads "Cheese Shop" on it.',
    "S&B train, black &amp; white – Zürich.",
]
NOISE = np.random.default_rng(0).normal(size=(1, 4, 2, 3)).astype(np.float32)

TABLE = "captions/captions_source.tsv"

Build = Callable[..., CocoCaptionsDataset]


def row(identity: object, caption: str) -> str:
    return f"{identity}\t9{identity}\t{caption}\t640\t480\tCOCO.jpg\thttp://images/COCO.jpg"


def table(*rows: str, header: str = HEADER) -> str:
    return "\n".join((header, *rows)) + "\n"


def tiny(folder: Path) -> dict[str, Any]:
    """Write the official layout: three captions, and latents of images of 16 x 24 pixels."""
    (folder / "captions").mkdir()
    (folder / "latents").mkdir()
    (folder / TABLE).write_text(table(*(row(*cells) for cells in ROWS)), "utf-8")
    np.save(folder / "latents" / "latents.npy", NOISE)
    return {"path": str(folder), "size": [16, 24]}


def captions(dataset: CocoCaptionsDataset) -> list[str]:
    return [dataset.input(index)["caption"] for index in range(len(dataset))]


def test_samples_are_captions_in_the_order_of_the_table_with_their_ids(
    build: Build, folder: Path
) -> None:
    """Cells in quotation marks are read as pandas reads them; nothing else is changed."""
    dataset = build()

    assert captions(dataset) == CAPTIONS
    assert [dataset.reference(index) for index in range(3)] == [
        {"caption": caption, "id": identity}
        for caption, identity in zip(CAPTIONS, (70, 310, 392), strict=True)
    ]
    pandas = pytest.importorskip("pandas")
    assert pandas.read_csv(folder / TABLE, sep="\t")["caption"].tolist() == CAPTIONS


def test_captions_of_one_image_belong_together(build: Build, folder: Path) -> None:
    """The official table names the image; one without that column does not group."""
    (folder / TABLE).write_text("id\tcaption\timage_id\n1\tA dog.\t9\n2\tA cat.\t9\n", "utf-8")
    assert [build().group(index) for index in range(2)] == ["9", "9"]
    (folder / TABLE).write_text("id\tcaption\n1\tA dog.\n", "utf-8")
    assert build().group(0) is None


def test_latents_are_one_array_for_all_samples_that_cannot_be_written_to(
    build: Build, folder: Path
) -> None:
    """An engine that changes them in place would change every later image; or it draws its own."""
    dataset = build()

    latents = dataset.input(0)["latents"]
    assert latents.dtype == np.float32
    np.testing.assert_array_equal(latents, NOISE)
    assert dataset.input(2)["latents"] is latents
    with pytest.raises(ValueError, match="read-only"):
        latents += 1
    (folder / "latents" / "latents.npy").unlink()
    for drawn in (False, "none"):
        assert build(latents=drawn).input(0) == {"caption": CAPTIONS[0], "latents": None}


def test_the_table_that_the_reference_makes_comes_before_its_source(
    build: Build, folder: Path
) -> None:
    """The folder may be that of the tables, and path a table of any name with two columns."""
    assert captions(build(path=str(folder / "captions"))) == CAPTIONS
    (folder / "captions" / "captions.tsv").write_text(table(row(1, "A dog.")), "utf-8")
    assert captions(build()) == ["A dog."]
    dataset = build(path=str(folder / "captions"))
    assert captions(dataset) == ["A dog."]
    np.testing.assert_array_equal(dataset.input(0)["latents"], NOISE)
    table_of_reference = folder / "own.tsv"
    table_of_reference.write_text("caption\tid\nA dog.\t5\n", "utf-8-sig")
    np.save(folder / "noise.npy", NOISE.astype(np.float64) * 2)

    dataset = build(path=str(table_of_reference), latents=str(folder / "noise.npy"))
    assert dataset.reference(0) == {"caption": "A dog.", "id": 5}
    np.testing.assert_array_equal(dataset.input(0)["latents"], NOISE * 2)


def test_latents_of_torch_without_torch_name_the_package_to_install(
    build: Build, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same numbers as NumPy's file need no torch."""
    (folder / "latents" / "latents.pt").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "torch", None)

    with pytest.raises(EnvironmentFault, match=r"pip install 'pytest-mlperf\[lm\]', or set .*npy"):
        build()
    assert build(latents=str(folder / "latents" / "latents.npy")).input(0)["latents"] is not None


def test_pickled_code_in_latents_is_refused_and_never_run(build: Build, folder: Path) -> None:
    """Neither in a file of torch nor in one of NumPy."""
    torch = pytest.importorskip("torch")
    torch.save(Touch(folder / "run", shell=False), folder / "a.pt")
    np.save(
        folder / "a.npy", np.array([Touch(folder / "run", shell=False)], object), allow_pickle=True
    )

    for name in ("a.pt", "a.npy"):
        with pytest.raises(RunError, match=rf"{name}: cannot be read \("):
            build(latents=str(folder / name))
    assert not (folder / "run").exists()


INFINITE = NOISE.copy()
INFINITE[0, 1, 1, 1] = np.inf


def test_other_latents_are_refused(build: Build, folder: Path) -> None:
    rows: list[Any] = [
        (NOISE[0], r"has shape \(4, 2, 3\), but size requires \(1, 4, 2, 3\)"),
        (np.zeros((3, 4, 2, 3)), r"has shape \(3, 4, 2, 3\), but size requires"),
        (NOISE.astype(np.int32), "holds int32, not an array of floats"),
        (INFINITE, "has numbers that are not finite"),
        (np.full((1, 4, 2, 3), 1e300), "has numbers that are not finite"),
        (np.full((1, 4, 2, 3), np.nan), "has numbers that are not finite"),
    ]

    def read(content: Any) -> None:
        np.save(folder / "latents" / "latents.npy", content)
        build()

    named = [(content, f"latents.npy.*{part}") for content, part in rows]
    assert not_refused(RunError, named, read) == []


def test_latents_of_torch_are_read_before_those_of_numpy(build: Build, folder: Path) -> None:
    """As by the reference's default. Numbers become float32.

    Model weights are refused as latents.
    """
    torch = pytest.importorskip("torch")
    for kind in (torch.float32, torch.float16, torch.bfloat16):
        torch.save(torch.full((1, 4, 2, 3), 0.5).to(kind), folder / "latents" / "latents.pt")
        latents = build().input(0)["latents"]
        assert latents.dtype == np.float32
        np.testing.assert_array_equal(latents, np.full((1, 4, 2, 3), 0.5))
    torch.save({"a": torch.zeros(2)}, folder / "latents" / "latents.pt")
    with pytest.raises(RunError, match=r"latents\.pt: holds dict, not an array of floats"):
        build()


def test_a_table_that_is_wrong_says_where(build: Build, folder: Path) -> None:
    rows: list[Any] = [
        ("", "tsv: the file has no lines; get it from its source again"),
        ("\n", "tsv: the table has no column 'id'; it needs 'id', 'caption', and has none"),
        (table(), "tsv: there are no captions; get it from its source again"),
        (table(row(1, "A."), header="a\tb"), "tsv: the table has no column 'id', the nearest is"),
        ("id\ttext\n1\tA.\n", "tsv: the table has no column 'caption', the nearest is"),
        ("id\tid\tcaption\n", "tsv: the table has more than one column 'id'"),
        ("id,caption\n1,A.\n", "tsv: the table has no column 'id', the nearest is 'id,caption'"),
        (table(row(1, "A."), "2\t92"), "tsv: line 3: it has 2 cells, but the header has 7"),
        (table(row(1, "A.\tB.")), "tsv: line 2: it has 8 cells, but the header has 7"),
        (table(row(1, "A."), row(2, "")), "tsv: line 3: the caption is empty"),
        (table(row(1, " ")), "tsv: line 2: the caption is empty"),
        (table(row("x", "A.")), "tsv: line 2: id 'x' is not a number"),
        (table(row("-1", "A.")), "tsv: line 2: id '-1' is not a number"),
        (table(row("1" * 5000, "A.")), "tsv: line 2: id '11111"),
        (table(row(1, "A."), "", row(1, "B.")), "tsv: line 4: id 1 already occurs in line 2"),
        (table(row(1, '"A.')), "tsv: line 2: it is not CSV: unexpected end of data"),
        (table(row(1, "A")).encode() + b"2\t\xff", "tsv: line 3: it is not UTF-8"),
    ]

    def read(content: str | bytes) -> None:
        data = content.encode() if isinstance(content, str) else content
        (folder / TABLE).write_bytes(data)
        build()

    assert not_refused(RunError, rows, read, advice=["data set's path", "source again"]) == []


def test_a_wrong_option_is_refused_by_look_too(build: Build, folder: Path) -> None:
    rows: list[Any] = [
        ({"size": 100}, "size = 100 must be a multiple of 8 pixels, or"),
        ({"size": 0}, "size = 0 must be"),
        ({"size": True}, "size = True must be a multiple of 8 pixels, or"),
        ({"size": [16, 24, 8]}, r"size = \[16, 24, 8\] must be a multiple of 8"),
        ({"size": "16"}, "size = '16' must be a multiple of 8 pixels, or"),
        ({"latents": True}, "latents = True is not the path of a file, or false"),
        ({"latents": ""}, "latents = '' is not the path"),
    ]

    def look(options: dict[str, Any]) -> None:
        CocoCaptionsDataset.look(**{"path": str(folder), **options})

    assert not_refused(SuiteError, rows, lambda options: build(**options), look) == []
    files = [
        ({"latents": "/no/x.pt"}, r"/no/x\.pt: this file of latents does not exist.*mlcommons/inf"),
        ({"path": "/no/folder"}, "/no/folder: no folder or file of.*repository mlcommons/infer"),
    ]
    assert not_refused(UnavailableError, files, lambda options: build(**options), look) == []


def test_the_digest_covers_inputs_of_the_engine_and_the_scorer(build: Build, folder: Path) -> None:
    """Other columns and file names do not count; captions, ids, their order and latents do."""
    first = build().digest
    rows = [row(*each) for each in ROWS]

    changed = table(*(row.replace("640", "641") for row in rows)).replace("\n", "\r\n")
    (folder / TABLE).write_text(changed, "utf-8", newline="")
    assert build().digest == first
    np.save(folder / "x.npy", NOISE)
    assert build(latents=str(folder / "x.npy")).digest == first

    np.save(folder / "x.npy", -NOISE)
    others = [build(latents=str(folder / "x.npy")).digest, build(latents=False).digest]
    others.append(build(count=2).digest)
    for other in ([rows[1], rows[0], rows[2]], [rows[0].replace("70", "71"), *rows[1:]]):
        (folder / TABLE).write_text(table(*other), "utf-8")
        others.append(build().digest)
    assert len({first, *others}) == 6
