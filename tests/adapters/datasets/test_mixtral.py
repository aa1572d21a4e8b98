"""The table of Mixtral's mix, and every way in which it can be wrong."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_mlperf.adapters.datasets.mixtral import OFFICIAL_TABLES, MixtralDataset
from pytest_mlperf.core.errors import RunError
from tests.adapters.datasets.refusals import not_refused
from tests.adapters.datasets.tables import write_table

FENCE = [13, 13940, 28832, 13]
TEST = "\nassert f(1) == 2\n"

ROWS: dict[str, list[Any]] = {
    "dataset": ["GSM8K", "OpenOrca", "MBXP", "MBXP"],
    "id": ["train.548", "flan.1662985", "python_add_one", "typescript_f"],
    "question": ["q"] * 4,
    "input": ["<s> [INST] 1 + 1? [/INST]", "<s>[INST] Who? [/INST]", "Write.", "Écris."],
    "ref_output": ["r"] * 4,
    "gt_output": ["14000", "Nobody.", TEST, "x"],
    "tok_input": [[1, 1, 28705, 31999], [1, 733], list(range(1000)), [1]],
    "tok_ref_output": [[2]] * 4,
    "stop_sequence": ["</s>", "</s>", "\n```\n", "\n```\n"],
    "tok_stop_sequence": [[2], [2], FENCE, FENCE],
    "tok_input_len": [4, 2, 1000, 1],
    "tok_ref_output_len": [1] * 4,
}

Write = Callable[..., Path]


def tiny(folder: Path) -> dict[str, Any]:
    write_table(folder / OFFICIAL_TABLES[0], ROWS)
    return {"path": str(folder)}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write ROWS, some columns replaced or left out (None), as pandas does."""
    return lambda name="table.pkl", /, **columns: write_table(tmp_path / name, ROWS, **columns)


def among(column: str, row: int, value: Any) -> dict[str, Any]:
    """Return a column of ROWS with another value in one row."""
    return {column: [*ROWS[column][:row], value, *ROWS[column][row + 1 :]]}


def load(path: Path, **options: Any) -> MixtralDataset:
    return MixtralDataset(path=str(path), **options)


def parts_of(dataset: MixtralDataset) -> Counter[str]:
    return Counter(dataset.reference(index)["dataset"] for index in range(len(dataset)))


def test_prompts_are_the_official_tokens_in_the_order_of_the_table(write: Write) -> None:
    dataset = load(write())
    assert [dataset.input(index) for index in range(4)] == ROWS["tok_input"]
    assert [dataset.stop(index) for index in range(4)] == ROWS["tok_stop_sequence"]
    assert {type(token) for token in dataset.input(0) + dataset.stop(0)} == {int}
    assert parts_of(dataset) == {"GSM8K": 1, "OpenOrca": 1, "MBXP": 2}
    dataset = load(write(dataset=["GSM8K", "OpenOrca", "?", "?"]), count=2)
    assert (len(dataset), parts_of(dataset)) == (2, {"GSM8K": 1, "OpenOrca": 1})


def test_a_reference_has_what_the_scorer_of_its_part_needs(write: Write) -> None:
    """As text that JSON can hold; the target of a sum may be a number or any text."""
    dataset = load(write())
    assert [dataset.reference(index) for index in range(3)] == [
        {"dataset": "GSM8K", "target": "14000"},
        {"dataset": "OpenOrca", "target": "Nobody."},
        {
            "dataset": "MBXP",
            "id": "python_add_one",
            "language": "python",
            "entry_point": "add_one",
            "prompt": "Write.",
            "target": TEST,
        },
    ]
    assert json.loads(json.dumps(dataset.reference(3))) == dataset.reference(3)
    dataset.reference(0)["target"] = "15000"
    assert dataset.reference(0)["target"] == "14000"
    for number, text in ((14000, "14000"), (0.5, "0.5"), (np.int64(7), "7"), ("1,000", "1,000")):
        dataset = load(write(gt_output=[number, "a", "b", "c"]))
        assert dataset.reference(0)["target"] == text


def test_the_digest_depends_on_the_samples_and_not_on_the_file(write: Write) -> None:
    """Name, compression, columns that are not used and the type of the tokens do not count."""
    path = write()
    packed = path.with_suffix(".gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    arrays = [np.array(row, np.int64) for row in ROWS["tok_input"]]
    other = write("other.pkl", tok_input=arrays, question=None, ref_output=["s"] * 4)
    paths = [path, packed, other, write("table.parquet")]
    assert len({load(each).digest for each in paths}) == 1
    changes: list[dict[str, Any]] = [
        {},
        among("gt_output", 0, "14001"),
        among("dataset", 0, "OpenOrca"),
        among("input", 2, "Write!"),
        among("id", 2, "python_add_two"),
        {"tok_input": [[1, 1, 28705], [31999, 1, 733], list(range(1000)), [1]]},
        among("tok_stop_sequence", 3, [2]),
    ]

    assert len({load(write(**change)).digest for change in changes}) == len(changes)


def test_the_digest_is_stable(write: Write) -> None:
    expected = hashlib.sha256(b"mixtral")
    for part in (b"\1\0\0\0", b"\2\0\0\0", b'{"dataset": "GSM8K", "target": "14000"}'):
        expected.update(len(part).to_bytes(8, "little") + part)

    digest = load(write(tok_input=[[1], [1], [1], [1]]), count=1).digest

    assert digest == expected.hexdigest()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"gt_output": None, "output": ["a"] * 4}, "no column 'gt_output', the nearest is"),
    ({"dataset": None}, "no column 'dataset'"),
    ({"tok_stop_sequence": None}, "no column 'tok_stop_sequence', the nearest is"),
    (dict.fromkeys(ROWS, ()), "the table has no rows"),
    (
        among("dataset", 3, "HumanEval"),
        "row 3, column 'dataset': 'HumanEval' is not one of the parts",
    ),
    (among("dataset", 1, None), "row 1, column 'dataset': None is not one of"),
    (among("gt_output", 1, 2), "row 1, column 'gt_output': a value of type int is no"),
    (among("gt_output", 0, True), "row 0, column 'gt_output': a value of type bool"),
    (among("gt_output", 3, None), "row 3, column 'gt_output': a value of type None"),
    (among("input", 2, 5), "row 2, column 'input': a value of type int is not text"),
    (among("id", 2, "python"), "row 2, column 'id': 'python' must be \"LANGUAGE_NAME\""),
    (among("id", 2, "_f"), "row 2, column 'id': '_f' must be"),
    (among("id", 3, "php_"), "row 3, column 'id': 'php_' must be"),
    (among("tok_input", 1, []), "row 1, column 'tok_input': the prompt is empty"),
    (among("tok_input", 3, [-4]), "row 3, column 'tok_input': a token is negative"),
    (among("tok_stop_sequence", 1, []), "'tok_stop_sequence': the stop sequence is empty"),
    (among("tok_stop_sequence", 1, None), "'tok_stop_sequence': a value of type NoneType is no"),
]


def test_a_wrong_table_is_one_error_with_file_row_and_column(write: Write) -> None:
    advice = ("correct the table", "Rename", "get it")

    def change(changed: dict[str, Any]) -> None:
        load(write(**changed))

    assert not_refused(RunError, WRONG, change, start=f"{write()}: ", advice=advice) == []
