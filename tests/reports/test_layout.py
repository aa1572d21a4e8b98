"""Tables and paragraphs fit the terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.numbers import duration, plural
from pytest_mlperf.reports.terminal.layout import fold, line, paragraphs, table, unbroken


def test_durations_have_two_units_at_most() -> None:
    """One is singular."""
    expected = {
        0.0: "0 s",
        0.4: "0 s",
        1.0: "1 s",
        59.4: "59 s",
        59.6: "1 min",
        60.0: "1 min",
        61.0: "1 min 1 s",
        200.0: "3 min 20 s",
        3599.4: "59 min 59 s",
        3599.6: "1 h",
        3629.0: "1 h",
        3660.0: "1 h 1 min",
        7500.0: "2 h 5 min",
        7170.0: "2 h",
        360_000.0: "100 h",
    }
    assert {seconds: duration(seconds) for seconds in expected} == expected
    assert [plural(count, "run") for count in range(3)] == ["0 runs", "1 run", "2 runs"]


def test_text_to_copy_is_never_folded() -> None:
    """Unbroken text moves as a whole; only the first paragraph has the label."""
    command = "pytest " + "x" * 300 + " --option"
    assert line("reproduce", command) == f"reproduce {command}"
    assert fold(f"see {'x' * 300} there", 80) == ["see", "x" * 300, "there"]
    assert fold(f"a word {unbroken('two of them')} end", 20) == ["a word two of them", "end"]
    assert fold(f"some words {unbroken('two of them')}", 20) == ["some words", "two of them"]
    assert paragraphs("note", ["one two three four", "five"], 22) == [
        "note      one two",
        "          three four",
        "          five",
    ]


WORDS = st.sampled_from(["a", "longer", "−6.3 %", "100 %", "--mlperf-max-runs", "x" * 50])


@given(st.lists(WORDS, max_size=30), st.integers(20, 120))
def test_folding_loses_nothing_and_keeps_percentages_whole(words: list[str], width: int) -> None:
    lines = fold(" ".join(words), width, rest="  ")

    assert " ".join(lines).split() == " ".join(words).split()
    assert not any(one.lstrip().startswith("%") for one in lines)
    assert all(len(one) <= width or one.strip() == "x" * 50 for one in lines)


WIDE = [{"a": "x", "b": "1", "verdict": "ok"}, {"a": "yyy", "b": "100", "verdict": "PERF DROP"}]


def test_a_table_lines_up_and_has_no_trailing_blanks() -> None:
    """A narrow one leaves out the least needed columns; only outcomes are coloured."""
    lines = ["a      b  verdict", "x      1  ok", "yyy  100  PERF DROP"]
    left = ["a", "verdict"]
    assert table(WIDE, 80, left=left) == lines
    assert table(WIDE, 80, left=left, columns=["a", "b", "c", "verdict"]) == lines
    assert table(WIDE, 80, left=left, indent=" ") == [f" {one}" for one in lines]
    assert table(WIDE, 80, left=left, columns=["verdict", "a"])[1] == "ok         x"
    for width, kept in ((19, "a b verdict"), (18, "a verdict"), (5, "verdict")):
        for indent in ("", " "):
            room = width + len(indent)
            head = table(WIDE, room, left=left, spare=["b", "a"], indent=indent)[0]
            assert head.split() == kept.split()
    rows = [{"a": "ok", "verdict": "ok"}, {"a": "", "verdict": "reported"}]
    assert table(rows, 80, left=["a", "verdict"], colour=True) == [
        "a   verdict",
        "ok  \x1b[32mok\x1b[0m",
        "    reported",
    ]
