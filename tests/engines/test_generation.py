"""An answer ends at its first end token; what decides it is described."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.engines.llm.generation import Generation

TOKENS = st.integers(0, 9)


def generation(**changes: Any) -> Generation:
    given = {"max_new_tokens": 8, "min_new_tokens": 1, "num_beams": 1, "ignore_eos": False}
    return Generation(**{**given, **changes})


@given(row=st.lists(TOKENS), eos=st.sets(TOKENS, max_size=3))
def test_a_row_is_cut_behind_its_first_end_token_unless_ends_are_ignored(
    row: list[int], eos: set[int]
) -> None:
    cut = generation(eos=tuple(eos)).cut(row)

    assert cut == row[: len(cut)]
    assert not eos & set(cut[:-1])
    assert len(cut) == len(row) or cut[-1] in eos
    assert generation(eos=tuple(eos), ignore_eos=True).cut(row) == row


def test_the_model_keeps_its_end_tokens_in_the_description_when_they_are_ignored() -> None:
    first = generation(eos=(2, 7)).describe()
    second = generation(eos=(2, 7), ignore_eos=True).describe()

    assert first["generation.eos"] == second["generation.eos"] == "2,7"
    assert set(first.items()) - set(second.items()) == {("generation.ignore_eos", "false")}
    assert all(key.startswith("generation.") for key in first)
