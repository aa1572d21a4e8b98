"""A session of many tests is short: notes are folded, failures grouped by their common cause."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

import pytest

from pytest_mlperf.core.reason import Key, Reason, ranges_of
from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.reports.failures import failure_groups, group_sentences, repeated
from pytest_mlperf.reports.rows import invalid_runs
from pytest_mlperf.reports.terminal.text import failure_message, report, summary
from tests.reports import verdicts
from tests.reports.verdicts import reported, result, session

RECORDED_LINES, FAILED_LINES = 60, 80
"""Most lines of a session: 40 recorded cases, 19 failures with one cause."""

PYTEST_LINES = 10
"""Of pytest's own header and last line."""


def many(verdict: Verdict, count: int) -> list[CaseResult]:
    return [
        result(replace(verdict, case=replace(verdict.case, workload=f"w{number}")))
        for number in range(count)
    ]


def dropped(changed: str, count: int, first: int = 0) -> list[CaseResult]:
    about = replace(verdicts.DROP.baseline, changed=(changed,))
    return many(replace(verdicts.DROP, baseline=about), first + count)[first:]


def recorded(number: int) -> CaseResult:
    file = f"baselines/H200/quick/w{number}/Offline.ort.fp16.json"
    notes = (
        f"8 runs in {file}; smallest detectable regression 2.{number} % in samples/s; commit it",
        "1 of 4 days: run the same build with --mlperf-update=missing on 3 more days",
        f"today a change of −{20 + number}.1 % in samples/s fails; a smaller one needs 4 days",
    )
    about = replace(verdicts.RECORDED.baseline, file=file)
    case = replace(verdicts.CASE, workload=f"w{number}")
    return result(replace(verdicts.RECORDED, case=case, baseline=about, notes=notes))


def printed(results: Results) -> list[str]:
    """Return all that a session prints of its tests, with pytest's own lines."""
    groups = failure_groups(results)
    alike, message = repeated(groups), failure_message(results, 80)
    failed = [one for one in results.cases if one.failed]
    messages = [
        line for one in failed if one.test not in alike for line in message(one).split("\n")
    ]
    short = [f"FAILED {one.test}" for one in failed]
    lines = summary(results, 80, colour=False, failures_shown=True, precisions=False)
    return [*group_sentences(groups), *messages, *lines, *short]


def test_forty_recorded_cases_have_each_note_once() -> None:
    results = session(*map(recorded, range(40)))

    lines = printed(results)

    assert len(lines) + PYTEST_LINES <= RECORDED_LINES
    text = " ".join(" ".join(lines).split())
    assert text.count("note ") == 3
    assert "40 cases: 8 runs in baselines; smallest detectable regression 2.0 to 2.9 % in" in text
    assert "40 cases: today a change of −59.1 to −20.1 % in samples/s fails" in text
    assert "and 36 recorded: " in text
    few = summary(session(*map(recorded, range(3))), 200, colour=False)
    assert sum("1 of 4 days" in line for line in few) == 3


def test_nineteen_failures_of_one_cause_are_one_message() -> None:
    results = session(*dropped("engine.version 1.2 → 1.3", 19))

    lines = printed(results)

    assert len(lines) + PYTEST_LINES <= FAILED_LINES
    assert lines[0].startswith(
        "19 of 19 cases regressed; likely: engine.version 1.2 → 1.3 since the baseline; "
    )
    assert sum(line.startswith("reproduce ") for line in lines) == 1
    assert "and 15 PERF DROP: " in "\n".join(lines)
    whole = report(reported(results, columns=200))
    assert " ".join(whole.split()).startswith(lines[0])


def test_groups_have_one_cause_and_one_outcome_each_the_largest_first() -> None:
    broken = many(verdicts.ERROR, 4)
    results = session(
        *many(verdicts.OK, 2),
        *dropped("engine.version 1.2 → 1.3", 3),
        *dropped("machine.driver 580 → 590", 5, first=10),
        *broken,
        *dropped("dataset a → b", 1, first=20),
    )

    groups = failure_groups(results)

    assert [(len(one.results), one.compared) for one in groups] == [
        (5, 11),
        (4, 15),
        (3, 11),
        (1, 11),
    ]
    assert [one.is_common for one in groups] == [True, True, True, False]
    assert [re.split("[:;] ", text)[0] for text in group_sentences(groups)] == [
        "5 of 11 cases regressed",
        "4 of 15 cases",
        "3 of 11 cases regressed",
    ]
    assert "4 of 15 cases: ERROR engine: RuntimeError: CUDA out of memory" in groups[1].sentence
    assert len(repeated(groups)) == 4 + 3 + 2
    assert not repeated(groups) & {one.results[0].test for one in groups}


def test_failures_without_a_recorded_difference_are_a_group_too() -> None:
    unchanged = replace(verdicts.DROP, baseline=replace(verdicts.DROP.baseline, changed=()))

    (group,) = failure_groups(session(*many(unchanged, 3), *many(verdicts.OK, 1)))

    assert group.sentence == (
        "3 of 4 cases regressed; likely: no recorded difference (engine, weights, options, data); "
        "machine self-check: not run"
    )


@pytest.mark.parametrize(
    ("texts", "merged"),
    [
        (["−16.9 % lost", "−18.9 % lost"], ["−18.9 to −16.9 % lost"]),
        (["1,148 samples", "998.2 samples"], ["998.2 to 1,148 samples"]),
        (["engine 1.2.0", "engine 1.2.1"], ["engine 1.2.0", "engine 1.2.1"]),
        (["w01: 5 runs", "w01: 5 runs"], ["w01: 5 runs"]),
        (["GPU 3: 5%", "GPU 3: 7%."], ["GPU 3: 5%", "GPU 3: 7%."]),
    ],
)
def test_texts_that_differ_in_figures_are_merged_and_versions_never(
    texts: Iterable[str], merged: list[str]
) -> None:
    named = [(str(number), text) for number, text in enumerate(texts)]

    assert [text for _, text in ranges_of(named)] == merged


BUSY = Reason(key=Key.MACHINE_BUSY, text="other processes used 1.9 of 2 cores (pip 0.59)")


def test_the_reason_of_an_invalid_test_is_printed_once() -> None:
    run = replace(verdicts.run(case=verdicts.SERVER), invalid=(BUSY,))
    again = replace(run, invalid=(replace(BUSY, text="other processes used 1.2 of 2 cores"),))
    verdict = replace(
        verdicts.INVALID,
        headline=BUSY.text,
        invalid_runs=(again, again, run),
        reasons=run.invalid,
        notes=(),
    )
    results = session(result(verdict))

    lines = printed(results)

    assert sum("other processes used" in line for line in lines) == 1
    assert "  performance  INVALID" in lines
    assert invalid_runs(verdict) == "2 runs before it INVALID for the same reason"
    other = replace(again, invalid=(Reason(key=Key.TOO_SHORT, text="too short"),))
    assert "too short" in str(invalid_runs(replace(verdict, invalid_runs=(other, run))))
    whole = " ".join(summary(results, 80, colour=False))
    assert whole.count("other processes used") == 1, "no message stands above it"
    assert verdict.outcome is Outcome.INVALID
