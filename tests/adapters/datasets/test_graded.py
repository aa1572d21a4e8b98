"""The tables of Llama 3.1 405B, DeepSeek-R1 and gpt-oss, and ways in which they can be wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.adapters.datasets.graded import GradedDataset
from pytest_mlperf.core.errors import RunError, SuiteError
from tests.adapters.datasets.refusals import not_refused
from tests.adapters.datasets.tables import write_table

LLAMA: dict[str, list[Any]] = {
    "input": ["Find it.", "Who?", "Sum up."],
    "tok_input": [[128000, 1], [2, 3, 4], [5]],
    "tok_input_len": [2, 3, 1],
    "gt_output": ["0-1", "Paris|France", "Zwei Wörter."],
    "metric": ["niah_em", "qa_em", "rouge"],
    "dataset": ["ruler", "longbench", "govreport"],
    "ref_output": ["r"] * 3,
}
DEEPSEEK: dict[str, list[Any]] = {
    "text_input": ["1 + 1?", "A or {B}?", "Write."],
    "ground_truth": [2, "B", "1873_A"],
    "dataset": ["aime", "gpqa", "livecodebench"],
    "question": ["q"] * 3,
}
GPT_OSS: dict[str, list[Any]] = {
    "input_tokens": [[7, 8], [7, 8], [9]],
    "dataset": ["aime25", "aime25", "gpqa_diamond"],
    "ground_truth": ["70", "70", "C"],
}
LABELS = {
    "llama": [("niah_em", "0-1"), ("qa_em", "Paris|France"), ("rouge", "Zwei Wörter.")],
    "deepseek": [("aime", "2"), ("gpqa", "B"), ("livecodebench", "1873_A")],
    "gpt-oss": [("aime25", "70"), ("aime25", "70"), ("gpqa_diamond", "C")],
}
TABLES = {"llama": LLAMA, "deepseek": DEEPSEEK, "gpt-oss": GPT_OSS}
TINY = "mlperf_deepseek_r1_dataset_4388_fp8_eval.pkl"

Write = Callable[..., Path]


def tiny(folder: Path) -> dict[str, Any]:
    write_table(folder / TINY, LLAMA)
    return {"path": str(folder)}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a table, some columns replaced or left out (None), as pandas does."""
    return lambda name, /, file="table.pkl", **columns: write_table(
        tmp_path / file, TABLES[name], **columns
    )


def load(path: Path, **options: Any) -> GradedDataset:
    return GradedDataset(path=str(path), **options)


def test_a_reference_has_the_data_to_grade_an_answer(write: Write) -> None:
    """The metric, else the data set; a whole number becomes text; one prompt makes a group."""
    for name, labels in LABELS.items():
        dataset = load(write(name), template="{text_input}" if name == "deepseek" else None)
        assert [dataset.reference(index) for index in range(3)] == [
            {"metric": metric, "target": target} for metric, target in labels
        ]
    dataset = load(write("deepseek"), template="<User>{text_input}<Assistant>")
    assert dataset.input(1) == "<User>A or {B}?<Assistant>"
    assert [load(write("gpt-oss")).group(index) for index in range(3)] == [0, 0, None]
    assert [load(write("llama")).group(index) for index in range(3)] == [None] * 3


@pytest.mark.parametrize("file", ["table.pkl", "table.parquet"])
def test_prompts_are_the_tokens_of_the_table(write: Write, file: str) -> None:
    """Plain numbers, never behind a template again, by either name of the column."""
    for name, column in (("llama", "tok_input"), ("gpt-oss", "input_tokens")):
        dataset = load(write(name, file))
        assert [dataset.input(index) for index in range(3)] == TABLES[name][column]
        assert {type(token) for token in dataset.input(0)} == {int}


def test_the_digest_is_of_the_samples_alone(write: Write) -> None:
    digest = load(write("llama")).digest

    assert load(write("llama", "table.parquet", ref_output=None)).digest == digest
    assert load(write("llama", gt_output=["0-1", "Paris", "Zwei"])).digest != digest
    assert load(write("llama", metric=["rouge"] * 3)).digest != digest
    assert load(write("llama", tok_input=[[1], [2, 3, 4], [5]])).digest != digest


def test_a_wrong_table_is_one_error_with_file_row_and_column(write: Write) -> None:
    rows: list[Any] = [
        ("deepseek", {}, "the table has no column 'tok_input'"),
        ("llama", {"metric": None, "dataset": None}, "the table has no column 'metric'"),
        ("llama", {"gt_output": None}, "the table has no column 'gt_output'"),
        ("llama", {"tok_input": [[1], [], [2]]}, "row 1, column 'tok_input': the prompt is empty"),
        ("llama", {"tok_input": ["1", "2", "3"]}, "a value of type str is not a list of whole"),
        ("llama", {"metric": ["rouge", None, "x"]}, "row 1, column 'metric': a value of type"),
        ("gpt-oss", {"ground_truth": [1.5, 2.5, 3.5]}, "column 'gt_output': a value of type float"),
    ]

    def change(name: str, changed: dict[str, Any]) -> None:
        load(write(name, **changed))

    assert not_refused(RunError, rows, change, start=f"{write('llama')}: ") == []
    rows = [("{question}", "valid fields are {text_input}"), ("Hello", "lacks {text_input}")]
    path = write("llama")
    assert not_refused(SuiteError, rows, lambda text: load(path, template=text)) == []
