"""Causes in a failure message and in `explain`: numbered, folded, strongest first."""

from __future__ import annotations

from pytest_mlperf.core.causes import Cause, Strength
from pytest_mlperf.reports.rows import likely, section

ENGINE = Cause(
    rule="engine",
    says="engine.version 1.2.0 → 1.2.1 since the baseline; nothing else that is recorded changed",
    strength=Strength.STRONG,
)
HINT = Cause(rule="siblings", says="only this case: 0 of 4 got worse", strength=Strength.HINT)
NONE = Cause(rule="none", says="no cause found: 38.7 tokens/sample", strength=Strength.NONE)


def test_several_causes_are_numbered_and_none_comes_last() -> None:
    assert likely([], 80) == []
    assert likely([ENGINE], 60) == [
        "likely    engine.version 1.2.0 → 1.2.1 since the baseline;",
        "          nothing else that is recorded changed",
    ]
    assert likely([ENGINE, HINT], 200) == [
        f"likely    1. {ENGINE.says}",
        f"          2. {HINT.says}",
    ]
    assert likely([NONE], 80) == [f"likely    {NONE.says}"]
    assert likely([HINT, NONE], 80) == [f"likely    {HINT.says}", f"          {NONE.says}"]


def test_a_section_says_how_many_other_tests_were_looked_at() -> None:
    title = "Likely causes, each with its evidence"

    assert section([], 5, 80) == []
    assert section([HINT], 0, 80) == [title, f"  {HINT.says}"]
    assert section([HINT], 7, 80)[0] == f"{title}, beside 7 other tests of the session"
