"""The official table of OpenOrca, and every way in which a table can be wrong."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_mlperf.adapters.datasets.openorca import OFFICIAL_TABLE, OpenOrcaDataset
from pytest_mlperf.core.errors import RunError, SuiteError
from tests.adapters.datasets.hostile import Touch
from tests.adapters.datasets.refusals import not_refused
from tests.adapters.datasets.tables import write_table

OLD = Path(__file__).parent / "frames"
TINY = Path(__file__).parents[3] / "suites" / "tiny" / "llama2-70b"
CHAT = "[INST] <<SYS>>\n{system_prompt}\n<</SYS>>\n\n{question} [/INST]"

ROWS: dict[str, list[Any]] = {
    "id": ["cot.1", "niv.2", "t0.3"],
    "system_prompt": ["Be brief.", "", "Be kind."],
    "question": ["1 + 1?", "Who?", "{question}"],
    "output": ["2", "Nobody.", ""],
    "tok_input": [[1, 29871, 31999], [1], list(range(2500))],
}

Write = Callable[..., Path]


def tiny(folder: Path) -> dict[str, Any]:
    write_table(folder / OFFICIAL_TABLE, ROWS)
    return {"path": str(folder)}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write ROWS, some columns replaced or left out (None), as pandas does."""
    return lambda name="table.pkl", /, **columns: write_table(tmp_path / name, ROWS, **columns)


def samples(dataset: OpenOrcaDataset) -> list[tuple[list[int] | str, str]]:
    return [(dataset.input(index), dataset.reference(index)) for index in range(len(dataset))]


@pytest.mark.parametrize("version", ["1.5.3", "2.3.3"])
def test_the_official_columns_are_read_from_files_of_older_pandas(version: str) -> None:
    """Prompts are the official tokens, references the answers, in the order of the table."""
    dataset = OpenOrcaDataset(path=str(OLD / f"pandas-{version}.pkl"))

    assert samples(dataset) == [
        (list(range(1, 3 + 400 * number)), f"It is {2 * number}.") for number in (0, 2, 3, 4)
    ]
    assert all(type(token) is int for token in dataset.input(1))


def test_a_template_gives_prompts_as_text(write: Write) -> None:
    dataset = OpenOrcaDataset(path=str(write(tok_input=None)), template="{{{question}}} " + CHAT)
    assert samples(dataset)[2] == (
        "{{question}} [INST] <<SYS>>\nBe kind.\n<</SYS>>\n\n{question} [/INST]",
        "",
    )
    assert dataset.input(1) == "{Who?} [INST] <<SYS>>\n\n<</SYS>>\n\nWho? [/INST]"
    path = write(tok_input=[[1], [2], "broken"])
    assert samples(OpenOrcaDataset(path=str(path), count=2)) == [([1], "2"), ([2], "Nobody.")]


def test_the_digest_depends_on_the_samples_and_not_on_the_file(write: Write) -> None:
    """Compression, other columns, the type of the tokens and the protocol do not count."""
    pd = pytest.importorskip("pandas")
    path = write()
    packed, old = path.with_suffix(".gz"), path.with_suffix(".old")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    old.write_bytes(pickle.dumps(pd.DataFrame(ROWS, dtype=object), protocol=2))
    tokens = [np.array(row, np.int64) for row in ROWS["tok_input"]]
    arrays = write("arrays.pkl", tok_input=tokens, more=[1, 2, 3])
    paths = [path, packed, old, arrays, write("table.parquet")]

    assert len({OpenOrcaDataset(path=str(each)).digest for each in paths}) == 1


def test_the_digest_is_of_prompts_as_the_engine_gets_them_and_of_answers(write: Write) -> None:
    path = write()
    digests = [
        OpenOrcaDataset(path=str(path), **options).digest
        for options in ({}, {"count": 2}, {"template": CHAT}, {"template": "{question}"})
    ]
    changes: list[dict[str, Any]] = [
        {"id": ["cot.1", "niv.2", "t0.4"]},
        {"output": ["2", "Nobody", ""]},
        {"output": ["Nobody.", "2", ""]},
        {"tok_input": [[1, 29871, 31999], [2], list(range(2500))]},
        {"tok_input": [[1, 29871], [31999, 1], list(range(2500))]},
    ]
    digests += [OpenOrcaDataset(path=str(write(**change))).digest for change in changes]

    assert len(set(digests)) == len(digests)


WRONG: list[tuple[dict[str, Any], str | None, str]] = [
    ({"output": None}, None, "no column 'output', the nearest is"),
    (
        {"tok_input": None, "tok_inputs": ["a", "b", "c"]},
        None,
        "no column 'tok_input', the nearest is 'tok_inputs'; it needs 'id', 'tok_input', "
        "'output', and has 'id', 'system_prompt'",
    ),
    ({"id": None}, None, "no column 'id'"),
    ({"question": None}, CHAT, "it needs 'id', 'system_prompt', 'question', 'output'"),
    (dict.fromkeys(ROWS, ()), None, "the table has no rows"),
    ({"output": ["a", 2, "c"]}, None, "row 1, column 'output': a value of type int is not text"),
    ({"output": ["a", "b", None]}, None, "row 2, column 'output': a value of type NoneType"),
    ({"question": ["a", "", "c"]}, CHAT, "row 1, column 'question': the prompt is empty"),
    ({"system_prompt": ["a", 1.0, "c"]}, CHAT, "row 1, column 'system_prompt': a value of type f"),
    (
        {"id": ["a", "b", "a"], "tok_input": [[1], [1], [1]]},
        None,
        "row 2, column 'id': 'a' is also the id of row 0",
    ),
    (
        {"id": ["a", "a", "b"], "question": ["q"] * 3, "system_prompt": [""] * 3},
        CHAT,
        "row 1, column 'id': 'a' is also the id of row 0",
    ),
    *(
        ({"tok_input": [[1], tokens, [3]]}, None, f"row 1, column 'tok_input': {message}")
        for tokens, message in (
            ([], "the prompt is empty"),
            (np.array([], np.int64), "the prompt is empty"),
            ("[1, 2]", "a value of type str is not a list of whole numbers"),
            (None, "a value of type NoneType"),
            (["3"], "a list of str is"),
            ([True], "a list of bool is"),
            ([1.5], "a list of float is"),
            (np.array([1.0]), "an array of float64 is not a list of whole numbers"),
            ([2, -1], "a token is negative"),
            ([2**31], "a token is negative"),
        )
    ),
]


ADVICE = ("correct the table", "Rename", "get it")


def test_a_wrong_table_is_one_error_with_file_row_and_column(write: Write, tmp_path: Path) -> None:
    """A hostile one is not executed."""

    def load(changed: dict[str, Any], template: str | None) -> None:
        OpenOrcaDataset(path=str(write(**changed)), template=template)

    assert not_refused(RunError, WRONG, load, start=f"{write()}: ", advice=ADVICE) == []
    path = write(output=["a", "b", Touch(tmp_path / "canary")])
    with pytest.raises(
        RunError, match=r"tries to call posix\.system; such a file is never executed"
    ):
        OpenOrcaDataset(path=str(path))
    assert not (tmp_path / "canary").exists()


def test_a_wrong_template_is_refused(write: Write) -> None:
    rows = [
        ("{system_prompt}", "lacks {question}"),
        ("{question} {answer}", "has the field 'answer'"),
        ("{question.__class__}", "has the field 'question.__class__'"),
        ("{question!r}", "the only valid fields are {system_prompt} and {question}"),
        ("{question:>9}", "the only valid fields are {system_prompt} and {question}"),
        ("{}", "has the field ''"),
        ("{question", "write {{ and }} for braces"),
    ]
    path = str(write())
    calls: list[Any] = [
        lambda text: OpenOrcaDataset(path=path, template=text),
        lambda text: OpenOrcaDataset.look(path=path, template=text),
    ]
    assert not_refused(SuiteError, rows, *calls) == []


@pytest.mark.parametrize("tokenized", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_the_tiny_table_has_its_samples_in_the_official_shape(*, tokenized: bool) -> None:
    """512 prompts of Llama 2's chat form; with a tokenizer, its tokens are those of the texts."""
    path = str(TINY / "data" / "open_orca")
    tokens, texts = OpenOrcaDataset(path=path), OpenOrcaDataset(path=path, template=CHAT)

    assert len(tokens) == len(texts) == 512
    assert all(isinstance(tokens.input(index), list) for index in range(512))
    assert len({str(texts.input(index)) for index in range(512)}) == 512
    if tokenized:
        transformers = pytest.importorskip("transformers")
        tokenizer = transformers.AutoTokenizer.from_pretrained(TINY / "model")
        for index in range(0, 512, 64):
            assert tokenizer(texts.input(index))["input_ids"] == tokens.input(index)
