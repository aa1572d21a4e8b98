"""tools/demo.py: what unchanged code may end in on somebody's machine does not end the demo."""

from __future__ import annotations

from typing import Any

from pytest_mlperf.core.verdict import Outcome

OF_NO_COMPARISON = {
    Outcome.NO_BASELINE,
    Outcome.NOT_EVALUATED,
    Outcome.RECORDED,
    Outcome.EXPECTED,
}


def test_every_answer_that_is_not_red_is_one_for_unchanged_code(lib: Any) -> None:
    compared = {str(one) for one in Outcome if not one.fails} - OF_NO_COMPARISON

    assert set(lib("demo").UNCHANGED) == compared
