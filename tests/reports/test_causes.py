"""Causes in a failure message and in `explain`: numbered, folded, strongest first."""

from __future__ import annotations

from dataclasses import replace

from pytest_mlperf.reports.causes import Cause, Strength
from pytest_mlperf.reports.rows import cause_lines, strongest_cause, unexplained

ENGINE = Cause(
    rule="engine",
    says="engine.version 1.2.0 → 1.2.1 since the baseline; no other recorded fact changed",
    strength=Strength.STRONG,
)
HINT = Cause(rule="siblings", says="only this case: 0 of 4 got worse", strength=Strength.HINT)
NONE = Cause(rule="none", says="no cause found: 38.7 tokens/sample", strength=Strength.NONE)


def test_the_strongest_cause_is_apart_and_hints_stand_behind_that_none_was_found() -> None:
    expected: dict[tuple[Cause, ...], tuple[list[str], list[str]]] = {
        (): ([], []),
        (ENGINE,): ([ENGINE.says], []),
        (ENGINE, HINT): ([ENGINE.says], [HINT.says]),
        (NONE,): ([NONE.says], []),
        (HINT, NONE): ([NONE.says], [HINT.says]),
    }

    assert {causes: strongest_cause(causes) for causes in expected} == expected


def test_a_recorded_change_that_a_cause_names_is_not_listed_again() -> None:
    named, other = "engine.version 1.2.0 → 1.2.1", 'options {"a": 1, "b": 2} → {"a": 1, "b": 3}'
    file = "files.other 1 in git since 3f2c: README.md"

    cause = replace(ENGINE, named=(named,))
    assert unexplained([named, other, file], [cause, HINT]) == [other, file]
    assert unexplained([named], []) == [named]


def test_a_section_says_how_many_other_tests_were_looked_at() -> None:
    title = "Likely causes, each with its evidence"

    assert cause_lines([], 5, 80) == []
    assert cause_lines([HINT], 0, 80) == [title, f"  {HINT.says}"]
    assert cause_lines([HINT], 7, 80)[0] == f"{title}, compared with 7 other tests"
