"""Scorer category_f1 is MLPerf's script for Qwen3-VL: categories level by level."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.adapters.scorers.category_f1 import CategoryF1Scorer
from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.testing import check_scorer
from tests.adapters.scorers.refusals import differences
from tests.adapters.scorers.tokenizers_made_here import NAMES, byte_level, write


def answer(category: str, **more: Any) -> bytes:
    return json.dumps({"category": category, "brand": "b", "is_secondhand": False, **more}).encode()


def f1(*pairs: tuple[bytes, str], schema: str = "v6.1") -> float:
    outputs, targets = zip(*pairs, strict=True)
    return CategoryF1Scorer(schema=schema, dtype="text").score(outputs, targets).aggregate["f1"]


def test_f1_is_the_references() -> None:
    for pairs, expected in (
        ([("A > B > C", "A > B > D")], 2 / 3),
        ([("A > B", "A > B > C > D")], 2 / 3),
        ([("X", "A > B"), ("A > B", "A > B")], 4 / 7),
        ([("A>B", "A > B")], 0.0),
        ([("X > B", "A > B")], 0.0),  # only what agrees from the root on
        ([("A  >  B ", "A > B")], 1.0),  # levels are stripped
        ([("", "A")], 0.0),
    ):
        figure = f1(*((answer(path), target) for path, target in pairs))
        assert figure == pytest.approx(expected), pairs


def test_answers_are_read_as_pydantic_reads_them() -> None:
    """Words and numbers are true or false; a further key is refused in both rounds."""
    for yes in (True, "true", "yes", "on", "Y", 1, 1.0, "1"):
        assert f1((answer("A", is_secondhand=yes), "A")) == 1.0
    pair = answer("A", reason="looks so"), "A"
    assert [f1(pair, schema=schema) for schema in ("v6.0", "v6.1")] == [0.0, 0.0]


NONE = {
    "empty": b"",
    "no UTF-8": b"\xff\x00\x81",
    "cut": answer("A > B")[:-1],
    "in a code fence": b"```json\n" + answer("A > B") + b"\n```",
    "a list": b"[" + answer("A > B") + b"]",
    "no brand": b'{"category": "A > B", "is_secondhand": true}',
    "a number for a text": b'{"category": 1, "brand": "b", "is_secondhand": true}',
    "2 for true or false": b'{"category": "A > B", "brand": "b", "is_secondhand": 2}',
    "half of a surrogate pair": b'{"category": "\\ud800", "brand": "b", "is_secondhand": true}',
    "nested": b"[" * 200_000,
    "long": b'{"category": "' + b" > " * 1_000_000,
}


def test_an_answer_that_cannot_be_read_is_as_long_as_the_right_one_and_wrong() -> None:
    """So it lowers precision and recall alike: 2 levels of 4 on both sides."""
    right = answer("A > B"), "A > B"

    assert {name: f1((text, "A > B"), right) for name, text in NONE.items()} == dict.fromkeys(
        NONE, 0.5
    )


def test_wrong_options_are_refused() -> None:
    options: list[tuple[dict[str, Any], str]] = [
        ({"schema": "v5.0"}, r"schema = 'v5.0' is not one of v6.0, v6.1"),
        ({}, "neither its option tokenizer nor the workload's model"),
        ({"dtype": "utf8"}, "dtype = 'utf8' is not one of int32, int64, text"),
    ]

    assert differences(lambda arguments: CategoryF1Scorer(**arguments), SuiteError, options) == []


def test_token_ids_are_decoded_by_the_models_tokenizer(tmp_path: Path) -> None:
    tokenizer = byte_level()
    write(tmp_path, tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast", **NAMES})
    ids = [*tokenizer.encode(answer("A > B").decode()).ids, tokenizer.token_to_id("</s>")]

    for dtype in ("int64", "int32"):
        scorer = CategoryF1Scorer(model=str(tmp_path), dtype=dtype)
        assert scorer.score([np.array(ids, dtype).tobytes()], ["A > C"]).aggregate["f1"] == 0.5


PAIRS = [(answer("A > B > C"), "A > B > D"), (answer("X"), "A > B"), (answer("A"), "A"), (b"", "A")]


@pytest.mark.process
def test_it_keeps_the_contract_of_scorers() -> None:
    outputs, targets = zip(*PAIRS, strict=True)

    scores = check_scorer(CategoryF1Scorer, outputs, targets, options={"dtype": "text"})

    assert scores.aggregate["f1"] == pytest.approx(2 * 3 / (6 + 7))


paths = st.lists(st.sampled_from("ABC"), min_size=1, max_size=4).map(" > ".join)


@given(st.lists(st.tuples(paths, paths), min_size=1, max_size=30))
def test_pseudo_values_have_the_figure_as_their_mean(pairs: list[tuple[str, str]]) -> None:
    outputs, targets = zip(*((answer(path), target) for path, target in pairs), strict=True)

    scores = CategoryF1Scorer(dtype="text").score(outputs, targets)

    values = [value for value in scores.per_sample["f1"] if value is not None]
    assert math.fsum(values) / len(values) == pytest.approx(scores.aggregate["f1"], abs=1e-12)
