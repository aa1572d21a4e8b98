"""The failure message, as a user reads it in a terminal of 80 and of 140 columns."""

from __future__ import annotations

from dataclasses import replace

from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.reports.causes import causes
from pytest_mlperf.reports.terminal.text import failure
from tests.reports import verdicts
from tests.reports.verdicts import result, texts_of


def test_failures_read_as_designed() -> None:
    expected = texts_of("failure")
    texts = {}
    for title in expected:
        name, width = title.split()
        verdict = getattr(verdicts, name)
        likely = causes(verdict, None, ())
        texts[title] = failure(result(verdict), int(width), likely)

    assert len(expected) == 13
    assert texts == expected


COPIED = ("case ", "reproduce ", "accept ", "record ", "baseline ", "log ", "files ")
"""How the lines begin that hold a path or a command."""


def test_only_text_to_copy_is_wider_than_the_terminal() -> None:
    wrong = [
        line
        for verdict in verdicts.ALL
        for width in (60, 72, 80, 100, 140)
        for line in failure(result(verdict), width).split("\n")
        if (len(line) > width and not line.startswith(COPIED))
        or line.endswith(" ")
        or "\x1b" in line
    ]

    assert wrong == []


def test_the_first_line_is_the_word_and_the_headline() -> None:
    """A percentage is never parted from its sign."""
    firsts = [failure(result(one), 200).split("\n")[0] for one in verdicts.ALL]
    assert firsts == [f"{one.outcome} {one.headline}" for one in verdicts.ALL]
    assert {one.outcome for one in verdicts.ALL} == set(Outcome)
    headline = "x" * 70 + " −6.3 % (−6.9 to −5.7 %); limit −3 % exceeded"

    for width in range(72, 110):
        text = failure(result(replace(verdicts.DROP, headline=headline)), width)
        for line in text.split("\n"):
            assert not line.lstrip().startswith("%")


def test_a_slowed_or_pretended_run_is_never_accepted() -> None:
    slowed = replace(verdicts.DROP, handicap=0.5)
    text = failure(result(slowed, handicap=0.5), 80, causes(slowed, None, []))
    assert "the handicap of 50 %: work was slowed on purpose\n" in text
    assert "accept" not in text
    for verdict in (verdicts.DROP, verdicts.NO_BASELINE):
        text = failure(result(verdict, pretended=True), 80)
        assert "reproduce pytest" in text
        assert "--mlperf-update" not in text


def test_commands_carry_the_options_of_the_session_quoted_for_a_shell() -> None:
    case_result = result(verdicts.DROP, arguments=("--mlperf-baselines", "my baselines"))

    text = failure(case_result, 80)

    assert f"""reproduce pytest "{case_result.test}" --mlperf-baselines 'my baselines'\n""" in text
    assert (
        f"""accept    pytest "{case_result.test}" --mlperf-baselines 'my baselines' --mlperf-up"""
        in text
    )


def test_an_unmeasured_metric_has_no_figure_and_its_note_is_printed_once() -> None:
    """The first line has the note of the metric that decided."""
    first = verdicts.unset("latency_p50", Outcome.INVALID, None, limit=0.05, note="in 1 of 2 runs")
    missing = verdicts.unset("ttft_p50", Outcome.INVALID, None, limit=0.05, note="not measured")
    verdict = replace(verdicts.INVALID, headline="p50 latency: in 1 of 2 runs")

    text = failure(result(replace(verdict, metrics=(first, missing))), 80)

    assert "\nmetric       limit  verdict\np50 latency   +5 %  INVALID\np50 TTFT      +5 %" in text
    assert "\nnote      latencies" in text
    assert text.endswith("\n          p50 TTFT: not measured")
    assert text.count("in 1 of 2 runs") == 1


def test_unchanged_and_unjudged_metrics_are_listed_too() -> None:
    (judged, *others), note = verdicts.DROP.metrics, verdicts.FEW_QUERIES.metrics[0]
    unchanged = "no recorded difference (engine, weights, options, data)"
    behind = "weights: unknown, the server at the url"
    baseline = verdicts.DROP.baseline
    expected = {
        f"changed   {unchanged}": {"baseline": replace(baseline, changed=())},
        f"changed   nothing that is recorded for both builds\nunknown   {behind}\n": {
            "baseline": replace(baseline, changed=(), unknown=(behind,)),
        },
        f"changed   a 1 → 2\nunknown   {behind}\n": {
            "baseline": replace(baseline, changed=("a 1 → 2",), unknown=(behind,))
        },
        f"note      p99 latency: {note.note}": {"metrics": (judged, *others, note)},
        "rule      1 run now, 8 in the baseline;": {"metrics": (replace(judged, runs=1),)},
    }

    for text, fields in expected.items():
        changed = replace(verdicts.DROP, **fields)  # type: ignore[arg-type]
        assert f"\n{text}" in failure(result(changed), 100)
