"""Data set windows: each token of a document is scored once, after tokens of its own document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.adapters.datasets.windows import WindowsDataset, token_windows
from pytest_mlperf.core.errors import RunError, SuiteError, UnavailableError
from pytest_mlperf.testing import check_dataset

TOKENIZER = Path(__file__).resolve().parents[3] / "suites" / "tiny" / "llama2-70b" / "model"
DOCUMENTS = [[1, *range(10, 19)], [1, 20, 21], [1]]


def write(folder: Path, *records: Any, name: str = "documents.jsonl") -> str:
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    (folder / name).write_text("\n".join(lines) + "\n", "utf-8")
    return str(folder / name)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return write(tmp_path, *({"tokens": tokens} for tokens in DOCUMENTS))


@given(st.integers(0, 60), st.integers(2, 12), st.data())
def test_every_token_but_those_without_context_is_scored_once(
    tokens: int, length: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, length))
    windows = list(token_windows(0, tokens, length, stride))
    scored = [place for each in windows for place in range(each.end - each.scored, each.end)]

    assert scored == sorted(set(scored))
    lost = {*range(tokens)} - {*scored}
    assert lost == ({*range(0, tokens, length)} if stride == length else {*range(min(1, tokens))})
    assert all(each.end - each.start <= length for each in windows)
    # After the first window, a token has the tokens of the overlap before it at least.
    least = [each.end - each.start - each.scored for each in windows[1:]]
    assert all(before >= max(1, length - stride) for before in least)


def test_windows_have_tokens_a_document_and_what_is_scored(path: str) -> None:
    dataset = WindowsDataset(path=path, length=6, stride=4)

    rows = [(dataset.input(i), dataset.reference(i), dataset.group(i)) for i in range(len(dataset))]
    assert rows == [
        ([1, *range(10, 15)], {"tokens": [1, *range(10, 15)], "scored": 5}, 0),
        ([*range(13, 19)], {"tokens": [*range(13, 19)], "scored": 4}, 0),
        ([1, 20, 21], {"tokens": [1, 20, 21], "scored": 2}, 1),
    ]
    assert dataset.sizes([0, 2]) == {"input_tokens": 4.5}
    assert len(WindowsDataset(path=path, length=6, stride=4, count=2)) == 2


def test_the_digest_knows_tokens_documents_and_what_is_scored(tmp_path: Path, path: str) -> None:
    joined = write(tmp_path, {"tokens": [1, 10]}, {"tokens": [11, 12]}, name="joined.jsonl")
    digests = {
        WindowsDataset(path=path).digest,
        WindowsDataset(path=path, length=6).digest,
        WindowsDataset(path=path, length=6, stride=5).digest,
        WindowsDataset(path=joined).digest,
        WindowsDataset(path=write(tmp_path, {"tokens": [1, 10, 11, 12]}), length=2).digest,
    }

    assert len(digests) == 5


def test_articles_of_wikitext_are_documents_and_other_text_is_one(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    text = " \n = A tree = \n \n It grows . \n = = Roots = = \n Deep . \n = A town = \n Small . \n"
    write(tmp_path, text, name="wiki.test.raw")
    write(tmp_path, "One text.\n\nOf two lines.", name="notes.txt")
    options = {"tokenizer": str(TOKENIZER), "length": 256}

    articles = WindowsDataset(path=str(tmp_path / "wiki.test.raw"), **options)
    notes = WindowsDataset(path=str(tmp_path / "notes.txt"), **options)

    assert [articles.group(index) for index in range(len(articles))] == [0, 1]
    assert len(notes) == 1
    assert notes.input(0)[0] == 1  # as before every text
    lines = WindowsDataset(path=write(tmp_path, {"text": "One text."}), **options)
    assert lines.input(0) == notes.input(0)[: len(lines.input(0))]


def test_defects_are_named(tmp_path: Path, path: str) -> None:
    folder = str(tmp_path / "none")
    options: list[tuple[dict[str, Any], str]] = [
        ({"length": 1}, "length = 1 leaves nothing to score"),
        ({"length": 0}, "length = 0 is not a number of tokens, at least 1"),
        ({"stride": 0}, "stride = 0 is not a number of tokens, at least 1"),
        ({"length": 8, "stride": 9}, "stride = 9 is above length = 8, so that the tokens"),
        ({"count": 3}, "count = 3, but there are 2 windows; lower count"),
        ({"path": write(tmp_path, {"text": "a"}, name="text.jsonl")}, "set tokenizer to the model"),
    ]
    contents: list[tuple[list[Any], str]] = [
        ([{"tokens": [1]}], "no document has two or more tokens"),
        ([{"tokens": [1, -1]}], "line 1, column 'tokens': a token is negative"),
        ([{"tokens": [1, 2]}, {"tokens": []}], "line 2, column 'tokens': the document is empty"),
        ([{"tokens": "1 2"}], "a value of type str is not a list of whole numbers"),
        ([{"words": "a"}], "line 1, column 'text': the line has neither this key nor 'tokens'"),
        (["[1]"], "line 1: it is of type list, not a JSON object"),
        (["{"], "line 1: it is not JSON"),
    ]

    def build(**changes: Any) -> None:
        WindowsDataset(**{"path": path, **changes})

    for changes, message in options:
        with pytest.raises(SuiteError) as refused:
            build(**changes)
        assert message in str(refused.value)
    for records, message in contents:
        with pytest.raises(RunError) as broken:
            build(path=write(tmp_path, *records, name="broken.jsonl"))
        assert message in str(broken.value), records
    for changes in ({"path": folder}, {"tokenizer": folder}):
        with pytest.raises(UnavailableError, match="does not exist; set the data set's"):
            build(**changes)


@pytest.mark.process
def test_it_keeps_the_contract_of_data_sets(path: str) -> None:
    check_dataset(WindowsDataset, options={"path": path, "length": 6}, samples=2)
