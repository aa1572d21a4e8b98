"""BFCL's files as bfcl-eval has them, the part that MLPerf asks, and how they can be wrong."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.adapters.datasets.bfcl import DATA, SUBSET_PERCENTAGES, WHEEL, BfclDataset
from pytest_mlperf.core.errors import RunError
from tests.adapters.datasets.refusals import not_refused

ROWS = {"simple_python": 50, "live_parallel": 16, "live_irrelevance": 26, "irrelevance": 40}
"""Of some subsets; the others have 10."""


def function(name: str) -> dict[str, Any]:
    """Return a function with BFCL's words for types."""
    return {
        "name": name,
        "description": "Orders a lamp.",
        "parameters": {
            "type": "dict",
            "properties": {
                "height": {"type": "float", "description": "In metres."},
                "count": {"type": "long", "description": "How many.", "optional": True},
                "colours": {"type": "ArrayList", "items": {"type": "String"}, "description": ""},
                "places": {
                    "type": "array",
                    "items": {"type": "dict", "properties": {"x": {"type": "float"}}},
                },
                "grid": {"type": "tuple", "items": {"type": "array", "items": {"type": "char"}}},
                "bulb": {"type": "dict", "properties": {"kind": {"type": "Set"}}},
                "note": {"description": "Free."},
            },
            "required": ["height"],
        },
    }


def files() -> dict[str, str]:
    """Return the content of BFCL's files by name."""
    content = {}
    for subset in SUBSET_PERCENTAGES:
        count = ROWS.get(subset, 10)
        questions = [
            {
                "id": f"{subset}_{row}",
                "question": [
                    [
                        {"role": "system", "content": None},
                        {"role": "user", "content": f"Order lamp {row} of {subset}."},
                    ]
                ],
                "function": [function(f"shop.lamps.{subset}")],
            }
            for row in range(count)
        ]
        content[f"BFCL_v4_{subset}.json"] = lines(questions)
        if not subset.endswith("irrelevance"):
            answers = [
                {"id": f"{subset}_{row}", "ground_truth": [{"shop.lamps": {"height": [row]}}]}
                for row in reversed(range(count))
            ]
            content[f"possible_answer/BFCL_v4_{subset}.json"] = lines(answers)
    return content


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An installed package's folder of data."""
    for name, content in files().items():
        path = tmp_path / DATA / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, "utf-8")
    return tmp_path / DATA


def tiny(folder: Path) -> dict[str, Any]:
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        for name, content in files().items():
            archive.writestr(f"{DATA}/{name}", content)
    return {"path": str(folder)}


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    tiny(tmp_path)
    return tmp_path / WHEEL


def load(path: Path, **options: Any) -> BfclDataset:
    return BfclDataset(path=str(path), **options)


def test_mlperf_asks_the_first_rows_of_each_subset_and_small_ones_whole(wheel: Path) -> None:
    """62 % of those that are not live, 10 % of the others; up to 25 rows are all asked."""
    dataset = load(wheel)
    references = [dataset.reference(index) for index in range(len(dataset))]
    subsets = [reference["subset"] for reference in references]

    rows_of_subset = Counter(subsets)
    assert rows_of_subset == {
        **dict.fromkeys(SUBSET_PERCENTAGES, 10),
        "simple_python": 31,
        "live_parallel": 16,
        "live_irrelevance": 2,
        "irrelevance": 4,
    }
    assert subsets == sorted(subsets)
    first = subsets.index("simple_python")
    for row in range(31):
        messages = dataset.input(first + row)["messages"]
        assert [message["content"] for message in messages] == [
            "",
            f"Order lamp {row} of simple_python.",
        ]
        assert references[first + row]["ground_truth"] == [{"shop.lamps": {"height": [row]}}]
    assert references[subsets.index("irrelevance")]["ground_truth"] == []


def test_functions_become_tools_as_openais_api_takes_them(wheel: Path) -> None:
    """Names without dots, JSON's types as deep as bfcl-eval goes; scorers get them as they are."""
    dataset = load(wheel)
    request = dataset.input(0)
    (tool,) = request["tools"]
    made = tool["function"]["parameters"]

    assert request["tool_choice"] == "auto"
    assert (tool["type"], tool["function"]["name"]) == ("function", "shop_lamps_irrelevance")
    assert made["type"] == "object"
    assert made["required"] == ["height"]
    assert made["properties"] == {
        "height": {
            "type": "number",
            "format": "float",
            "description": "In metres. This is a float type value.",
        },
        "count": {"type": "integer", "description": "How many.", "optional": True},
        "colours": {"type": "array", "items": {"type": "string"}, "description": ""},
        "places": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "x": {
                        "type": "number",
                        "format": "float",
                        "description": " This is a float type value.",
                    }
                },
            },
        },
        "grid": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}},
        "bulb": {"type": "object", "properties": {"kind": {"type": "string"}}},
        "note": {"type": "string", "description": "Free."},
    }
    assert dataset.reference(0)["func_description"] == [function("shop.lamps.irrelevance")]


def test_a_wheel_and_a_folder_hold_the_same(wheel: Path, folder: Path, tmp_path: Path) -> None:
    digests = {load(place).digest for place in (wheel, folder, tmp_path)}

    wheel.unlink()
    assert digests == {load(tmp_path).digest}
    assert load(folder, count=3).digest not in digests


def test_rows_that_cannot_be_read_are_named(folder: Path) -> None:
    file = folder / "BFCL_v4_parallel.json"
    rows = [
        ('{"id": "a", "question": []}', "row 0: the row must be a JSON object with"),
        ("{", "BFCL_v4_parallel.json: it cannot be read"),
        *(
            (
                json.dumps({"id": "a", "question": [], "function": []} | change),
                "parallel.json: row 0: the row is not a question in BFCL's format",
            )
            for change in (
                *({"id": ["a"]}, {"question": [1]}, {"question": [[{"content": "a"}]]}),
                *({"function": 1}, {"function": [{"name": "f"}]}, {"function": [None]}),
            )
        ),
    ]
    assert (
        not_refused(RunError, rows, lambda text: (file.write_text(text, "utf-8"), load(folder)))
        == []
    )
    file.unlink()
    with pytest.raises(RunError, match="it cannot be read"):
        load(folder)
