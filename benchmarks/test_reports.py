"""What reports of 5,000 cases cost beside those of 1,000: nothing may grow faster than they do."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import pytest

from pytest_mlperf.core.results import CaseResult, Results, merge
from pytest_mlperf.core.verdict import Verdict
from pytest_mlperf.reports.formats import make_report
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.reports.terminal import text
from tests.reports import verdicts

FEW, MANY = 1_000, 5_000

MOST = 8.0
"""Times as long for 5 times as many cases; a quadratic one takes 25."""

ROUNDS = 3


def report(form: str, results: Results) -> str:
    """Return a report; a failed test is told in its first line, as its causes cost more."""
    with mock.patch.object(text, "failure_message", return_value=headline):
        return make_report(form, verdicts.reported(results))


def headline(result: CaseResult) -> str:
    """Return the first line of a failure message."""
    return sentence(result.verdict.headline)


FORMS: dict[str, Callable[[Results], object]] = {
    "text": lambda results: text.summary(results, 100, colour=False),
    **{
        form: partial(report, form)
        for form in ("markdown", "comment", "annotations", "csv", "prometheus", "junit")
    },
    "merge": lambda results: merge(
        {"part": results}, run="merged", pairs=0, today=dt.date(2026, 11, 20), fail_on=()
    ),
}


def session(cases: int) -> Results:
    """Return a session of so many cases with two tests each: one in four got slower."""
    return verdicts.session(*(test for number in range(cases) for test in both_tests(number)))


def both_tests(number: int) -> tuple[CaseResult, CaseResult]:
    """Return accuracy and performance of one case."""
    case = replace(verdicts.CASE, workload=f"workload-{number}")
    speeds: tuple[Verdict, ...] = (verdicts.OK, verdicts.DROP, verdicts.NO_BASELINE, verdicts.OK)
    return (
        verdicts.result(replace(verdicts.UNGATED, case=case)),
        verdicts.result(replace(speeds[number % len(speeds)], case=case)),
    )


def best(work: Callable[[], object]) -> float:
    """Return the shortest processor time of a few."""
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


@pytest.mark.benchmark(group="reports")
@pytest.mark.parametrize("form", FORMS)
def test_a_report_grows_as_its_cases_do(form: str, benchmark: Any) -> None:
    """Target: at most 8 x the time for 5 x the cases."""
    make = FORMS[form]
    few, many = session(FEW), session(MANY)

    few_s = best(lambda: make(few))
    many_s = best(lambda: make(many))
    benchmark.pedantic(lambda: make(many), rounds=1)

    ratio = many_s / few_s
    print(f"\n{form} of {MANY:,} cases: {many_s:.2f} s, of {FEW:,}: {few_s:.2f} s = {ratio:.1f} x")
    benchmark.extra_info.update({"few_s": few_s, "many_s": many_s, "ratio": ratio})
    assert ratio < MOST
