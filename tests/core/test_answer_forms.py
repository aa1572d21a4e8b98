"""Answers in the form of LoadGen's log are the engine's, or an error says why they cannot be."""

from __future__ import annotations

from array import array
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.answer_forms import (
    TIMED_RANKED_ROWS,
    TOKEN_CODES,
    candidates,
    converted,
)


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_token_ids_keep_their_values_in_the_other_type_and_back(ids: list[int]) -> None:
    for forms in permutations(TOKEN_CODES):
        source, target = (array(TOKEN_CODES[form], ids).tobytes() for form in forms)
        assert converted(source, forms) == target
        assert converted(target, forms[::-1]) == source


def test_answers_without_another_form_are_an_error_with_a_reason() -> None:
    for output, forms, reason in (
        (b"1234567", ("int64", "int32"), "7 bytes is not a whole number of int64 token ids"),
        (b"12345", ("int32", "int64"), "5 bytes is not a whole number of int32 token ids"),
        (array("q", [2**31]).tobytes(), ("int64", "int32"), "does not fit into int32"),
        (b"", ("int64", "text"), "answers cannot be converted between the forms int64, text"),
        (b"", ("int64",), "answers cannot be converted between the forms int64"),
    ):
        with pytest.raises(ValueError, match=reason):
            converted(output, forms)


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=9), st.binary(max_size=40))
def test_a_ranked_row_loses_labels_weights_and_count_and_nothing_else(
    predictions: list[float], other: bytes
) -> None:
    timed = array("f", [4, 7, *predictions]).tobytes()
    count = len(predictions)
    row = timed + array("f", [*[1] * count, *[0.5] * count, count]).tobytes()

    assert candidates(row) == count
    assert converted(row, TIMED_RANKED_ROWS) == timed
    for answer in (row[:-1], row[:-4], row + other, other):
        if not candidates(answer):
            assert converted(answer, TIMED_RANKED_ROWS) == answer
