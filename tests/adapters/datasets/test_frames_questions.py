"""FRAMES' questions, and the pages that the store of MLPerf's end-to-end RAG is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.adapters.datasets.frames import OFFICIAL_FILE, FramesDataset, PagesDataset
from pytest_mlperf.core.errors import RunError
from tests.adapters.datasets.refusals import not_refused

HEADER = (
    "Unnamed: 0\tPrompt\tAnswer\twikipedia_link_1\twikipedia_link_2\twikipedia_link_11+\twiki_links"
)
ROWS = (
    "0\tWho was older?\tJane Ballou\thttps://a\thttps://b\t\t['https://a']",
    '1\t"What did she say of ""it"",\nand when?"\t"87\tyears"\thttps://c\t\thttps://d\t[]',
)
PAGES = {"Zebra.html": b"<p>z</p>", "apple.html": b"<p>a</p>", "b c.html": b""}


def tiny(folder: Path) -> dict[str, Any]:
    (folder / OFFICIAL_FILE).write_text("\n".join((HEADER, *ROWS, "")), "utf-8")
    return {"path": str(folder)}


def tiny_pages(folder: Path) -> dict[str, Any]:
    for name, content in PAGES.items():
        (folder / name).write_bytes(content)
    (folder / "notes.txt").write_text("no page")
    return {"path": str(folder)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny(tmp_path)
    (tmp_path / "doc_html").mkdir()
    tiny_pages(tmp_path / "doc_html")
    return tmp_path


def test_questions_are_rows_with_their_answers_and_links(folder: Path) -> None:
    """As pandas reads them, and with it the reference."""
    dataset = FramesDataset(path=str(folder))
    questions = ["Who was older?", 'What did she say of "it",\nand when?']
    answers = ["Jane Ballou", "87\tyears"]

    assert [dataset.input(index) for index in range(len(dataset))] == questions
    assert [dataset.reference(index)["answer"] for index in range(2)] == answers
    assert dataset.reference(1)["question"] == questions[1]
    assert dataset.reference(1)["links"] == ["https://c", "https://d"]
    pandas = pytest.importorskip("pandas")
    table = pandas.read_csv(folder / OFFICIAL_FILE, sep="\t")
    assert (table["Prompt"].tolist(), table["Answer"].tolist()) == (questions, answers)


def test_pages_are_in_the_order_of_their_names(folder: Path) -> None:
    dataset = PagesDataset(path=str(folder / "doc_html"))

    assert [dataset.reference(index) for index in range(3)] == [
        "Zebra.html",
        "apple.html",
        "b c.html",
    ]
    assert Path(dataset.input(1)["path"]).read_bytes() == PAGES["apple.html"]


def test_digests_know_contents_and_order(folder: Path) -> None:
    pages = folder / "doc_html"
    digests = {
        FramesDataset(path=str(folder)).digest,
        PagesDataset(path=str(pages)).digest,
    }
    (pages / "apple.html").rename(pages / "apples.html")
    digests.add(PagesDataset(path=str(pages)).digest)
    (pages / "apples.html").write_bytes(b"other")
    digests.add(PagesDataset(path=str(pages)).digest)
    (folder / OFFICIAL_FILE).write_text(
        "\n".join((HEADER, ROWS[0].replace("https://b", ""))), "utf-8"
    )
    digests.add(FramesDataset(path=str(folder)).digest)

    assert len(digests) == 5


def test_a_table_that_is_not_as_it_should_be_is_refused(tmp_path: Path) -> None:
    rows = [
        ("", "the file has no lines"),
        ("Prompt\tAnswer\n", "there are no questions"),
        ("Prompt\tResponse\nq\ta\n", "no column 'Answer'"),
        ("Prompt\tAnswer\nq\n", "line 2: it has 1 cells, but the header has 2"),
        ("Prompt\tAnswer\n\ta\n", "line 2: its question is empty"),
        ('Prompt\tAnswer\n"q\ta\n', "line 2: it is not CSV: unexpected end of data"),
        ("Prompt\tAnswer\nq\x00\ta\n\udcff", "it is not UTF-8"),
    ]
    file = tmp_path / OFFICIAL_FILE

    def read(text: str) -> None:
        file.write_bytes(text.encode("utf-8", "surrogateescape"))
        FramesDataset(path=str(tmp_path))

    assert not_refused(RunError, rows, read) == []
