"""Test tools/demo.py and tools/first_contact.py.

Their commands, and the outcomes allowed under load.
"""

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


def test_a_step_that_is_undecided_says_so(lib: Any) -> None:
    demo = lib("demo")
    titles = [title for title, *_ in demo.STEPS]
    words = {"t": ("performance", "ok"), "u": ("accuracy", "ok")}
    assert [title[0] for title in titles] == ["1", "2", "3", "4"]
    assert demo.UNCHANGED["ok"] in demo.in_words(titles[1], words, undecided=False)
    assert demo.in_words(titles[2], words, undecided=True).startswith("UNDECIDED")
    assert len({demo.in_words(title, words, undecided=False) for title in titles}) == 4


def test_the_quick_start_is_run_as_readme_prints_it(lib: Any) -> None:
    commands = lib("first_contact").commands()
    assert commands[0] == "pytest-mlperf init"
    assert commands[-1] == "pytest suites --mlperf-handicap 50%"
    assert all("#" not in one for one in commands)
    assert len(commands) == 5
