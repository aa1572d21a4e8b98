"""A session of many tests is short: notes are folded, failures grouped by their common cause."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from pytest_mlperf.addons.exports import junit
from pytest_mlperf.addons.github import comment, markdown
from pytest_mlperf.addons.html._page import render
from pytest_mlperf.addons.html.model import RunFiles
from pytest_mlperf.core.reason import Key, Reason, ranges_of
from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.reports.failures import (
    NO_DIFFERENCE,
    duplicate_failures,
    failure_groups,
    group_sentences,
)
from pytest_mlperf.reports.rows import invalid_runs
from pytest_mlperf.reports.sentences import sentence
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
    alike, message = duplicate_failures(groups), failure_message(results, 80)
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
        "19 of 19 tests regressed; likely: engine.version 1.2 → 1.3 since the baseline; "
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

    assert [(len(group.failures), group.compared) for group in groups] == [
        (5, 11),
        (4, 15),
        (3, 11),
        (1, 11),
    ]
    assert [group.is_common for group in groups] == [True, True, True, False]
    assert [re.split("[:;] ", text)[0] for text in group_sentences(groups)] == [
        "5 of 11 tests regressed",
        "4 of 15 tests",
        "3 of 11 tests regressed",
    ]
    assert "4 of 15 tests: ERROR engine: RuntimeError: CUDA out of memory" in groups[1].sentence
    assert len(duplicate_failures(groups)) == 4 + 3 + 2
    assert not duplicate_failures(groups) & {group.failures[0].result.test for group in groups}


def test_failures_without_a_recorded_difference_are_a_group_too() -> None:
    unchanged = replace(verdicts.DROP, baseline=replace(verdicts.DROP.baseline, changed=()))

    (group,) = failure_groups(session(*many(unchanged, 3), *many(verdicts.OK, 1)))

    assert group.sentence == (
        "3 of 4 tests regressed; likely: no recorded difference (engine, weights, options, data); "
        "micro-benchmark of the machine: not run"
    )


def because(number: int, *changed: str) -> CaseResult:
    """Return a drop of its own case with these changes since the baseline."""
    case = replace(verdicts.CASE, workload=f"w{number}")
    baseline = replace(verdicts.DROP.baseline, changed=changed)
    return result(replace(verdicts.DROP, case=case, baseline=baseline))


def invalid(number: int) -> CaseResult:
    case = replace(verdicts.CASE, workload=f"i{number}")
    headline = f"the machine was busy: {number}.5 of 2 cores"
    return result(replace(verdicts.INVALID, case=case, headline=headline))


def test_failures_are_grouped_by_the_cause_that_most_of_them_share() -> None:
    """The largest group is first, failures that share nothing are last."""
    driver, weights = "machine.driver 1 → 2", "files.loaded weights.bin"
    results = session(
        because(1, weights),
        because(2, driver, weights),
        *(because(number, driver) for number in (3, 4, 5)),
        because(6),
        because(7, "files.other 1 in git: a.py"),
        *map(invalid, (1, 2)),
        result(verdicts.ERROR),
    )

    groups = failure_groups(results)

    assert [
        (group.title, [failure.result.verdict.case.workload for failure in group.failures])
        for group in groups
    ] == [
        ("Likely: machine.driver 1 → 2 since the baseline", ["w2", "w3", "w4", "w5"]),
        ("INVALID the machine was busy: 1.5 to 2.5 of 2 cores", ["i1", "i2"]),
        ("Likely: files that the run loaded changed: weights.bin", ["w1"]),
        (NO_DIFFERENCE.capitalize(), ["w6"]),
        ("No cause found", ["w7"]),
        ("No common cause", ["resnet50"]),
    ]
    assert [group.is_common for group in groups] == [True, *[False] * 5]


CHANGES: list[tuple[Verdict, str]] = [
    (verdicts.DROP, "24,118 → 22,598 samples/s, 6.3 % slower"),
    (verdicts.PROVISIONAL_DROP, "24,118 → 22,598 samples/s, 6.3 % slower"),
    (verdicts.GATE_FAIL, "76.460 → 71.650 top1, −6.3 %"),
    (verdicts.ACC_DROP, "44.391 → 42.081 rouge1, 2.31 points worse"),
    (verdicts.INVALID, ""),
    (verdicts.ERROR, ""),
]


@pytest.mark.parametrize("form", ["html", "comment", "markdown", "terminal", "junit"])
@pytest.mark.parametrize(("verdict", "changes"), CHANGES, ids=lambda v: getattr(v, "outcome", ""))
def test_every_report_names_a_failure_alike(verdict: Verdict, changes: str, form: str) -> None:
    failed = result(verdict)
    results = session(failed)
    (group,) = failure_groups(results)
    (failure,) = group.failures

    page = PAGES[form](results)

    assert failure.changes == changes
    assert failure.reproduce == f'pytest "{failed.test}"'
    assert failure.reproduce in page
    assert sentence(verdict.headline).split()[0] in page
    if form in {"html", "comment", "markdown"}:
        assert changes in page
    if group.cause and form in {"html", "comment", "markdown"}:
        assert group.title in page


def page_of(results: Results) -> str:
    page = render(results, RunFiles())
    return re.sub("</?span>", "", page[page.index('id="failed"') : page.index('id="trust"')])


def unescaped(write: Callable[[Results], str]) -> Callable[[Results], str]:
    """Return a writer whose text has no Markdown or HTML escapes."""
    return lambda results: html.unescape(re.sub(r"\\(?=[^\w\s])", "", write(results)))


PAGES: dict[str, Callable[[Results], str]] = {
    "html": unescaped(page_of),
    "comment": unescaped(lambda results: comment.report(reported(results))),
    "markdown": unescaped(lambda results: markdown.report(reported(results))),
    "terminal": lambda results: failure_message(results, 200)(results.cases[0]),
    "junit": unescaped(lambda results: junit.report(reported(results))),
}


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
    assert invalid_runs(verdict) == "2 earlier runs also INVALID for the same reason"
    other = replace(again, invalid=(Reason(key=Key.TOO_SHORT, text="too short"),))
    assert "too short" in str(invalid_runs(replace(verdict, invalid_runs=(other, run))))
    whole = " ".join(summary(results, 80, colour=False))
    assert whole.count("other processes used") == 1, "no message stands above it"
    assert verdict.outcome is Outcome.INVALID
