"""Causes in a failure message and in `explain`: numbered, folded, strongest first."""

from __future__ import annotations

from pytest_mlperf.core.causes import Cause, Strength
from pytest_mlperf.reports.terminal.figures import likely, section

ENGINE = Cause(
    rule="engine",
    says="engine.version 1.2.0 → 1.2.1 since the baseline; nothing else that is recorded changed",
    strength=Strength.STRONG,
)
HINT = Cause(rule="siblings", says="only this case: 0 of 4 got worse", strength=Strength.HINT)
NONE = Cause(rule="none", says="no cause found: 38.7 tokens/sample", strength=Strength.NONE)


def test_one_cause_has_no_number() -> None:
    assert likely([ENGINE], 60) == [
        "likely    engine.version 1.2.0 → 1.2.1 since the baseline;",
        "          nothing else that is recorded changed",
    ]


def test_several_causes_are_numbered() -> None:
    assert likely([ENGINE, HINT], 200) == [
        f"likely    1. {ENGINE.says}",
        f"          2. {HINT.says}",
    ]


def test_that_no_cause_was_found_comes_last_and_is_no_cause() -> None:
    assert likely([NONE], 80) == [f"likely    {NONE.says}"]
    assert likely([HINT, NONE], 80) == [f"likely    {HINT.says}", f"          {NONE.says}"]


def test_nothing_to_explain_gives_no_line() -> None:
    assert likely([], 80) == []
    assert section([], 5, 80) == []


def test_a_section_says_how_many_other_tests_were_looked_at() -> None:
    assert section([HINT], 0, 80) == [
        "Likely causes, each with its evidence",
        f"  {HINT.says}",
    ]
    assert section([HINT], 7, 80)[0] == (
        "Likely causes, each with its evidence, beside 7 other tests of the session"
    )
