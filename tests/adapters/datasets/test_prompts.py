"""What the data sets of language models share: templates, lists of tokens, finding the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.adapters.datasets.files import encode, framed
from pytest_mlperf.adapters.datasets.prompts import SampleFile, Template, TokenLists
from pytest_mlperf.core.errors import RunError

SOURCE = SampleFile(file=Path("table.pkl"))

pieces = st.lists(st.sampled_from(["{a}", "{b}", "{{", "}}", "text ", "\n", "é"]), max_size=6)
lists_of_tokens = st.lists(
    st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=9), min_size=1, max_size=6
)


@given(pieces.map("".join), st.text(), st.text())
def test_a_template_fills_in_what_format_fills_in(text: str, a: str, b: str) -> None:
    template = Template("x", text + "{a}", ("b", "a"))

    assert template.fill({"a": a, "b": b}) == (text + "{a}").format(a=a, b=b)
    assert template.fields == {"a"} | ({"b"} if "{b}" in text.replace("{{", "") else set())


@given(lists_of_tokens, st.sampled_from([np.int32, np.int64, np.uint32, np.uint64]))
def test_lists_of_tokens_come_back_as_they_were(
    lists: list[list[int]], kind: type[np.integer]
) -> None:
    """Whatever integers they were stored as; their bytes are little-endian int32."""
    token_lists = TokenLists(SOURCE, "tokens", [np.array(one, kind) for one in lists])

    assert [token_lists.prompt(index) for index in range(len(lists))] == lists
    assert [token_lists.content(index) for index in range(len(lists))] == [
        b"".join(token.to_bytes(4, "little") for token in one) for one in lists
    ]


@pytest.mark.parametrize("kind", [np.int64, np.uint64, np.uint32])
def test_a_token_that_does_not_fit_is_refused_not_wrapped(kind: type[np.integer]) -> None:
    """2**31 would become negative."""
    with pytest.raises(RunError, match=r"row 1, column 'x': a token is negative or above 2\*\*31"):
        TokenLists(SOURCE, "x", [np.array([1]), np.array([2**31], kind)])


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_parts_of_a_digest_do_not_run_into_each_other(a: list[bytes], b: list[bytes]) -> None:
    assert (b"".join(framed(a)) == b"".join(framed(b))) == (a == b)


@given(st.text(st.characters(exclude_categories=()), max_size=9))
def test_any_text_has_bytes_of_its_own(text: str) -> None:
    assert encode(text).decode("utf-8", "surrogatepass") == text
