"""The summary, as a user reads it below the test run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.rulings.ruling import of_load
from pytest_mlperf.core.verdict import BaselineReference, Outcome, Verdict
from pytest_mlperf.reports.rows import effect
from pytest_mlperf.reports.terminal.advice import what_decides
from pytest_mlperf.reports.terminal.text import summary
from tests.reports import verdicts
from tests.reports.verdicts import metric, result, session, texts_of

SMALL = session(result(verdicts.UNGATED), result(verdicts.OK))

EVERY = session(
    *(
        result(replace(verdict, case=replace(verdict.case, engine=f"e{number}")))
        for number, verdict in enumerate(verdicts.ALL)
    ),
    seconds=4000,
)


def test_summaries_read_as_designed() -> None:
    texts = {
        f"{name} {width}": "\n".join(summary(results, width, colour=False))
        for name, results, width in (
            ("SMALL", SMALL, 80),
            ("EVERY", EVERY, 80),
            ("EVERY", EVERY, 140),
        )
    }

    assert texts == texts_of("summary")


def test_only_case_ids_and_commands_are_wider_than_the_terminal() -> None:
    wrong = [
        line
        for width in (60, 72, 80, 100, 140)
        for line in summary(EVERY, width, colour=False)
        if (len(line) > width and not line.startswith(("record ", "resnet50-")))
        or line.endswith(" ")
    ]

    assert wrong == []


def test_every_outcome_has_its_word_in_the_table_and_in_the_counts() -> None:
    lines = summary(EVERY, 140, colour=False)
    table = "\n".join(line for line in lines if line.startswith("  "))
    first = next(n for n, line in enumerate(lines) if line.startswith("22 tests: "))
    counts = " ".join(lines[first:])

    for outcome in Outcome:
        assert re.search(rf"  {outcome}\b", table)
    assert "3 PROVISIONAL, 2 towards a drop, 1 failed," in counts
    assert counts.startswith("22 tests: 1 ERROR, 1 INVALID, 1 GATE FAIL, 1 ACC DROP, 1 PERF DROP")


def test_the_last_line_lists_waiting_times_separately() -> None:
    lines = {}
    for waited_s in (None, 4.0, 6.0, 90.0):
        runs = (
            replace(verdicts.OK.runs[0], load=replace(verdicts.OK.runs[0].load, waited_s=waited_s)),
        )
        results = session(result(replace(verdicts.OK, runs=runs)), seconds=41.0)
        lines[waited_s] = summary(results, 140, colour=False)[-2].partition("; ")[2]
    shared = "1 run, 41 s, {} s of it waiting, profile quick"
    assert lines == {
        None: "1 run, 41 s, profile quick",
        4.0: "1 run, 41 s, profile quick",
        6.0: shared.format(6),
        90.0: shared.format(41),  # workers of xdist wait side by side
    }


GREEN = (verdicts.OK, verdicts.IMPROVED, verdicts.RECORDED)
YELLOW = (
    *(verdicts.INCONCLUSIVE, verdicts.PROVISIONAL_OK, verdicts.PROVISIONAL_WARNING),
    *(verdicts.NO_BASELINE, verdicts.EXPECTED),
)
RED = (verdicts.PROVISIONAL_DROP, verdicts.DROP, verdicts.ERROR, verdicts.GATE_FAIL)


def test_words_are_coloured_where_the_terminal_has_colours() -> None:
    by_code = {32: GREEN, 33: YELLOW, 31: (*RED, verdicts.UNEXPECTED_PASS)}
    for code, verdict in ((code, one) for code, group in by_code.items() for one in group):
        plain = summary(session(result(verdict)), 80, colour=False)
        coloured = summary(session(result(verdict)), 80, colour=True)

        assert "\x1b" not in "\n".join(plain)
        assert f"\x1b[{code}m{verdict.outcome}\x1b[0m" in "\n".join(coloured)
        assert [re.sub(r"\x1b\[\d*m", "", line) for line in coloured] == plain


def test_several_metrics_of_a_test_have_a_line_and_a_word_each() -> None:
    """A word that belongs to the whole test is not broken down."""
    dropped = replace(
        verdicts.DROP,
        metrics=(
            metric("latency_p50", Outcome.OK, now=0.0125, limit=0.05),
            metric("latency_p99", Outcome.PERF_DROP, now=0.0211, change=0.21, limit=0.1),
        ),
    )
    assert summary(session(result(dropped)), 72, colour=False)[:6] == [
        "  test         verdict    metric           now  vs base  limit",
        "resnet50-Offline-ort-fp16-H200",
        "  official: 23.5 % of the best official result per GPU (v4.1, Dell):",
        "    96,029 samples/s in XE9680_H200_SXM_141GBx8_TRT, 8 GPUs",
        "  performance  ok         p50 latency  12.5 ms   −6.3 %   +5 %",
        "               PERF DROP  p99 latency  21.1 ms  +21.0 %  +10 %",
    ]
    (row,) = [
        line
        for line in summary(session(result(verdicts.EXPECTED)), 80, colour=False)
        if line.startswith("  performance")
    ]
    assert (
        row.split()
        == [
            *("performance", "expected", "failure", "samples/s"),
            *("22,598", "−6.3", "%", "−3", "%"),
        ]
        or "−6.9 to −5.7 %" in row
    )


def changed(verdict: Verdict, *texts: str) -> Verdict:
    return replace(verdict, baseline=replace(verdict.baseline, changed=texts))


def test_changes_are_listed_with_a_standing_verdict_the_machine_first() -> None:
    texts = ("engine.version 1.0 → 1.1", "a 1 → 2", "b 1 → 2", "c 1 → 2", "machine.driver 1 → 2")
    (line,) = [
        line
        for line in summary(session(result(changed(verdicts.OK, *texts))), 200, colour=False)
        if line.startswith("changed")
    ]
    failed = summary(session(result(changed(verdicts.DROP, *texts))), 200, colour=False)

    assert line == (
        f"changed   {verdicts.CASE.id}: machine.driver 1 → 2, engine.version 1.0 → 1.1, a 1 → 2, "
        "b 1 → 2 and 1 more since the baseline"
    )
    assert not [line for line in failed if line.startswith("changed")]


def test_changes_since_two_baselines_of_a_case_are_separated() -> None:
    """A change since both is listed once, files that no run loaded not at all."""

    def lines(scores: tuple[str, ...], speed: tuple[str, ...] | None) -> list[str]:
        about = BaselineReference(source="set", changed=scores)
        scored = replace(verdicts.ACC_DROP, outcome=Outcome.OK, baseline=about)
        accuracy = replace(scored, case=verdicts.CASE)
        source = None if speed is None else "set"
        about = BaselineReference(source=source, changed=speed or ())
        timed = replace(verdicts.OK, outcome=Outcome.OK, baseline=about)
        lines_of_summary = summary(session(result(accuracy), result(timed)), 200, colour=False)
        head = f"changed   {verdicts.CASE.id}: "
        return [line.removeprefix(head) for line in lines_of_summary if line.startswith("changed")]

    threads, other = "options.threads 1 → 2", "files.other 1 in git since 3f2c: README.md"
    assert lines((threads,), ()) == [f"{threads} since the accuracy baseline"]
    assert lines((), (threads,)) == [f"{threads} since the performance baseline"]
    assert lines((threads,), (threads,)) == [f"{threads} since the baseline"]
    assert lines((threads,), None) == [f"{threads} since the baseline"]
    assert lines((other, threads), (other, threads)) == [f"{threads} since the baseline"]
    assert lines((other,), (other,)) == []


def test_suites_without_baseline_are_named_once_each() -> None:
    """What may not be recorded is not proposed."""

    def missing(suite: str) -> CaseResult:
        return result(verdicts.NO_BASELINE, suite=suite)

    lines = summary(
        session(missing("b.mlperf.toml"), missing("a.mlperf.toml"), missing("b.mlperf.toml")),
        80,
        colour=False,
    )
    assert "record    pytest a.mlperf.toml b.mlperf.toml --mlperf-update=missing" in lines
    rows: list[Any] = [{"handicap": 0.5}, {"pretended": True}]
    for fields in rows:
        lines = summary(session(result(verdicts.NO_BASELINE, **fields)), 80, colour=False)
        assert not [line for line in lines if "--mlperf-update" in line]


def test_runs_are_counted_once_and_profiles_named() -> None:
    """Two tests share the same runs; a common note is printed once."""
    of_both = session(result(verdicts.OK, profile="official"), result(verdicts.OK))
    assert summary(of_both, 80, colour=False)[-2:] == [
        "2 tests: 2 ok; 2 runs, 3 min 20 s, profile official and quick",
        "Result not verified by MLCommons Association.",
    ]
    slowed = ("work was slowed by --mlperf-handicap 10%",)
    results = [
        result(replace(verdict, notes=slowed)) for verdict in (verdicts.UNGATED, verdicts.OK)
    ]

    lines = summary(session(*results), 140, colour=False)
    assert sum("work was slowed" in line for line in lines) == 1


def test_a_claim_that_stays_open_names_the_deciding_measurement() -> None:
    undecided = replace(
        verdicts.PAIR_FAIL,
        outcome=Outcome.INCONCLUSIVE,
        headline="samples/s 1.10x (1.03x to 1.24x); >= 1.1x undecided",
    )

    lines = summary(session(result(undecided)), 80, colour=False)

    assert lines[4:7] == [
        "undecided sdxl-Offline-cached-vs-plain-fp16-H200: samples/s 1.10x (1.03x to",
        "          1.24x); >= 1.1x undecided after 2 runs of each. Use longer runs",
        "          (min_duration), more runs (--mlperf-max-runs) or an idle machine.",
    ]


def test_load_is_no_reason_for_a_longer_baseline() -> None:
    for note, runs, advised in (
        (of_load(0.7, 0.0), 8, False),
        ("advisory: 2 of 5 baseline runs", 2, True),
    ):
        undecided = replace(
            verdicts.OK.metrics[0],
            outcome=Outcome.INCONCLUSIVE,
            note=note,
            baseline=replace(verdicts.OK.metrics[0].baseline, runs=runs),
        )
        verdict = replace(verdicts.OK, outcome=Outcome.INCONCLUSIVE, metrics=(undecided,))
        assert ("--mlperf-update=append" in what_decides(verdict)) is advised


class Counted(tuple[CaseResult, ...]):
    """Results that count how often they are iterated."""

    passes = 0

    def __iter__(self) -> Iterator[CaseResult]:
        """Count, and go through them."""
        self.passes += 1
        return super().__iter__()


def test_more_cases_are_not_compared_with_each_other() -> None:
    def passes(cases: int) -> int:
        counted = Counted(
            result(replace(verdicts.OK, case=replace(verdicts.CASE, engine=f"e{number}")))
            for number in range(cases)
        )
        summary(replace(session(), cases=counted), 80, colour=False)
        return counted.passes

    assert passes(200) == passes(20)


def test_a_change_is_written_in_one_direction_whatever_its_metric() -> None:
    rows = [
        ("latency_p99", 3.41, "4.41x slower"),
        ("latency_p99", -0.8, "5.00x faster"),
        ("throughput", -0.741, "3.86x slower"),
        ("throughput", 1.0, "2.00x faster"),
        ("tokens_per_second@8", -0.08, "8.0 % slower"),
        ("latency_p99", 0.08, "8.0 % slower"),
        ("peak_device_memory", 0.1, "10.0 % worse"),
        ("samples_per_joule", 0.1, "10.0 % better"),
        ("throughput", -0.0002, "0.0 %"),
        ("tokens_per_sample", -0.5, "−50.0 %"),
        ("throughput", -1.0, "−100 %"),
        ("a_metric_of_another_release", 0.2, "+20.0 %"),
    ]
    for name, share, words in rows:
        assert effect(name, share) == words
