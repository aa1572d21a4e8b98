"""The file of CNN/DailyMail, for GPT-J and for Llama 3.1 8B, and how it can be wrong."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.adapters.datasets.cnn_dailymail import OFFICIAL_FILES, CnnDailyMailDataset
from pytest_mlperf.core.errors import RunError, SuiteError
from tests.adapters.datasets.refusals import not_refused
from tests.adapters.datasets.tables import write_table

INSTRUCTION = "Summarize the following news article:"
LLAMA = {"llama": "Summarize the following news article in 128 tokens. …\n\n{input}\n\nSummary:"}
GPTJ_PROMPT = """\
Below is an instruction that describes a task, paired with an input that provides further context. \
Write a response that appropriately completes the request.

### Instruction:
Summarize the following news article:

### Input:
(CNN)It rained.

### Response:"""

COLUMNS: dict[str, list[Any]] = {
    "instruction": [INSTRUCTION] * 3,
    "input": ["(CNN)It rained.", "{output} — “naïve” 😀", ""],
    "output": ["Rain .\nMore to come .", "Ça va .", ""],
}
TOKENS: list[Any] = [[128000, 9370, 5730], [128000], list(range(900))]

Write = Callable[..., Path]


def tiny(folder: Path) -> dict[str, Any]:
    write_table(folder / OFFICIAL_FILES[0], COLUMNS)
    return {"path": str(folder)}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write COLUMNS, some replaced or left out (None), as MLPerf's scripts do."""
    return lambda name="cnn_eval.json", /, **columns: write_table(
        tmp_path / name, COLUMNS, **columns
    )


def load(path: Path, **options: Any) -> CnnDailyMailDataset:
    return CnnDailyMailDataset(path=str(path), **options)


def inputs(dataset: CnnDailyMailDataset) -> list[Any]:
    return [dataset.input(index) for index in range(len(dataset))]


def test_prompts_are_the_official_text_a_template_or_tokens(write: Write) -> None:
    """Tokens are plain numbers, uncut; references are the summaries, untouched."""
    dataset = load(write())
    assert dataset.input(0) == GPTJ_PROMPT
    assert [dataset.reference(index) for index in range(3)] == [
        "Rain .\nMore to come .",
        "Ça va .",
        "",
    ]
    path = write(instruction=[LLAMA] * 3)
    assert inputs(load(path, template="{{Article}}: {input}")) == [
        "{Article}: (CNN)It rained.",
        "{Article}: {output} — “naïve” 😀",
        "{Article}: ",
    ]
    path = write(tok_input=TOKENS, instruction=[LLAMA] * 3, input=None)
    dataset = load(path, prompts="tokens")
    assert inputs(dataset) == TOKENS
    assert {type(token) for token in dataset.input(0)} == {int}
    assert dataset.reference(1) == "Ça va ."


def test_samples_beyond_count_are_not_read(write: Write) -> None:
    path = write(output=["a", "b", None])

    assert len(load(path, count=2)) == 2
    path.write_text(path.read_text("utf-8")[:-100], "utf-8")
    assert len(load(path, count=2)) == 2


def test_the_digest_is_of_prompts_as_the_engine_gets_them_and_not_of_the_file(
    write: Write,
) -> None:
    """Layout, other keys and an instruction that the prompt does not use do not count."""
    path = write(tok_input=TOKENS)
    compact = path.with_name("compact.json")
    compact.write_text(json.dumps(json.loads(path.read_text("utf-8"))), "utf-8")
    plain = {load(each).digest for each in (path, compact, write("plain.json"))}
    filled = {
        load(each, template="{input}").digest
        for each in (path, write("c.json", instruction=[LLAMA] * 3))
    }
    datasets = [
        load(path, prompts="tokens"),
        load(path, count=2),
        load(write("b.json", output=["Rain.", "Ça va .", ""])),
        load(write("d.json", input=["It rained.", "", ""])),
        load(write("e.json", tok_input=[[128000, 9370], [5730, 128000], [1]]), prompts="tokens"),
    ]

    assert (len(plain), len(filled)) == (1, 1)
    assert len({dataset.digest for dataset in datasets} | plain | filled) == 7


def test_the_digest_is_stable(write: Write) -> None:
    expected = hashlib.sha256(b"cnn_dailymail text")
    for part in ("It: (CNN)It rained.", "Rain .\nMore to come ."):
        expected.update(len(part).to_bytes(8, "little") + part.encode())

    assert load(write(), template="It: {input}", count=1).digest == expected.hexdigest()


def test_a_wrong_record_is_one_error_with_file_record_and_key(write: Write, tmp_path: Path) -> None:
    """Found when the data set is built, before an engine is loaded."""
    rows: list[Any] = [
        ({"output": None}, "text", "0, key 'output': this key is missing; the record's keys are"),
        ({"input": None}, "text", "0, key 'input': this key is missing"),
        ({"instruction": None}, "text", "0, key 'instruction': this key is missing"),
        ({}, "tokens", "0, key 'tok_input': this key is missing"),
        ({"instruction": [LLAMA] * 3}, "text", "0, key 'instruction': a value of type dict is no"),
        ({"output": ["a", "b", 3]}, "text", "2, key 'output': a value of type int is not text"),
        ({"input": ["a", ["b"], "c"]}, "text", "1, key 'input': a value of type list is no"),
        ({"tok_input": [[1], [], [3]]}, "tokens", "1, key 'tok_input': the prompt is empty"),
        (
            {"tok_input": [[1], [2, 2.5], [3]]},
            "tokens",
            "1, key 'tok_input': a list of float and int is not a list of whole numbers",
        ),
        (
            {"tok_input": [[1], [2], [10**30]]},
            "tokens",
            "2, key 'tok_input': a token is negative or above 2**31",
        ),
    ]

    def change(columns: dict[str, Any], prompts: str) -> None:
        load(write(**columns), prompts=prompts)

    start, advice = f"{write()}: record ", ["; correct the file, or get it from its source again"]
    assert not_refused(RunError, rows, change, start=start, advice=advice) == []
    (tmp_path / "cnn_eval.json").write_text("[]", "utf-8")
    with pytest.raises(RunError, match="the file has no records"):
        load(tmp_path)


def test_a_wrong_option_is_named_with_its_value(write: Write) -> None:
    rows: list[Any] = [
        ({"prompts": "ids"}, "prompts = 'ids' is not one of text, tokens"),
        (
            {"prompts": "tokens", "template": "{input}"},
            'template needs prompts = "text"; set it, or leave template out',
        ),
        ({"template": "{instruction}"}, "lacks {input}"),
        ({"template": "{input} {output}"}, "has the field 'output'"),
        ({"template": "{input!r}"}, "the only valid fields are {instruction} and {input}"),
        ({"template": "{input"}, "write {{ and }} for braces"),
        ({"template": 7}, "data set cnn_dailymail: template = 7 is not text"),
    ]
    path = str(write())
    calls: list[Any] = [
        lambda options: CnnDailyMailDataset(path=path, **options),
        lambda options: CnnDailyMailDataset.look(path=path, **options),
    ]
    assert not_refused(SuiteError, rows, *calls) == []
