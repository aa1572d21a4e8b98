"""A known failure passes until its day, and fails when it is over."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from pytest_mlperf.core.case import Case
from pytest_mlperf.core.expectation import expect
from pytest_mlperf.core.verdict import MetricVerdict, Outcome, Verdict

CASE = Case(
    workload="resnet50", scenario="Server", engine="ort", precision="fp16", accelerator="H200"
)
UNTIL = dt.date(2027, 1, 31)
THEN, AFTER = UNTIL, UNTIL + dt.timedelta(days=1)


def verdict(outcome: Outcome, **metrics: Outcome | None) -> Verdict:
    found = metrics or {"latency_p99": outcome, "latency_p50": Outcome.OK}
    return Verdict(
        case=CASE,
        kind="performance",
        outcome=outcome,
        headline="p99 latency +21.0 %",
        metrics=tuple(MetricVerdict(metric=m, outcome=o, now=1.0) for m, o in found.items()),
        notes=("a note",),
    )


def known(**fields: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(("scenario", "engine", "precision", "accelerator", "metric"))
    return {**nothing, "reason": "issue 812", "until": UNTIL, **fields}


DROP = verdict(Outcome.PERF_DROP)


@pytest.mark.parametrize(
    "outcome",
    [Outcome.PERF_DROP, Outcome.ACC_DROP, Outcome.POWER_DROP, Outcome.GATE_FAIL],
)
def test_a_failure_that_is_known_passes_until_its_day(outcome: Outcome) -> None:
    found = expect(verdict(outcome), [known()], THEN)

    assert found.outcome is Outcome.EXPECTED
    assert found.headline == f"{outcome} p99 latency +21.0 %; until 2027-01-31: issue 812"
    assert not found.outcome.fails
    assert found.metrics == verdict(outcome).metrics


def test_after_its_day_it_fails_again_and_says_so() -> None:
    found = expect(DROP, [known()], AFTER)

    assert found == replace(
        DROP, notes=("was expected until 2027-01-31 (issue 812); that day is over", "a note")
    )


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.IMPROVED])
def test_a_failure_that_stopped_failing_fails(outcome: Outcome) -> None:
    passed = verdict(outcome)

    found = expect(passed, [known()], THEN)

    assert found.outcome is Outcome.UNEXPECTED_PASS
    assert found.headline == "remove the expected failure (issue 812): p99 latency +21.0 %"
    assert expect(passed, [known()], AFTER) is passed


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome.ERROR,
        Outcome.INVALID,
        Outcome.INCONCLUSIVE,
        Outcome.NO_BASELINE,
        Outcome.RECORDED,
    ],
)
@pytest.mark.parametrize("today", [THEN, AFTER])
def test_what_was_not_judged_is_neither_expected_nor_over(outcome: Outcome, today: dt.date) -> None:
    found = verdict(outcome)

    assert expect(found, [known()], today) is found


@pytest.mark.parametrize(
    ("fields", "matches"),
    [
        ({"scenario": "Server"}, True),
        ({"scenario": "Offline"}, False),
        ({"engine": "ort"}, True),
        ({"engine": "trt"}, False),
        ({"precision": "fp16"}, True),
        ({"precision": "fp8"}, False),
        ({"accelerator": "H200"}, True),
        ({"accelerator": "2xH200"}, False),
        ({"scenario": "Server", "engine": "ort", "accelerator": "H200"}, True),
        ({"scenario": "Server", "engine": "trt"}, False),
        ({"metric": "latency_p99"}, True),
        ({"metric": "latency_p50"}, False),
        ({"metric": "throughput"}, False),
    ],
)
def test_an_entry_matches_when_each_of_its_fields_does(
    fields: dict[str, str], matches: bool
) -> None:
    found = expect(DROP, [known(**fields)], THEN)

    assert (found.outcome is Outcome.EXPECTED) is matches


def test_a_drop_of_another_metric_is_not_the_known_one() -> None:
    both = verdict(Outcome.PERF_DROP, latency_p99=Outcome.PERF_DROP, latency_p50=Outcome.PERF_DROP)

    found = expect(both, [known(metric="latency_p99")], THEN)

    assert found.outcome is Outcome.PERF_DROP


def test_entries_for_each_metric_that_fell_expect_them_all() -> None:
    both = verdict(Outcome.PERF_DROP, latency_p99=Outcome.PERF_DROP, latency_p50=Outcome.PERF_DROP)

    found = expect(both, [known(metric="latency_p99"), known(metric="latency_p50")], THEN)

    assert found.outcome is Outcome.EXPECTED


def test_one_entry_that_is_over_among_several_that_are_needed_fails_the_test() -> None:
    both = verdict(Outcome.PERF_DROP, latency_p99=Outcome.PERF_DROP, latency_p50=Outcome.PERF_DROP)
    entries = [
        known(metric="latency_p99", until=AFTER),
        known(metric="latency_p50", reason="issue 9"),
    ]

    assert expect(both, entries, THEN).headline.endswith("; until 2027-01-31: issue 9")
    assert expect(both, entries, AFTER).notes[0].startswith("was expected until 2027-01-31")


def test_an_entry_that_was_prolonged_by_a_second_one_still_holds() -> None:
    entries = [known(), known(until=dt.date(2027, 2, 28), reason="still issue 812")]

    found = expect(DROP, entries, AFTER)

    assert found.headline.endswith("; until 2027-02-28: still issue 812")


def test_an_entry_holds_through_its_last_day() -> None:
    entries = [known(), known(until=dt.date(2027, 2, 28), reason="a later one")]

    assert expect(DROP, entries, THEN).headline.endswith("; until 2027-01-31: issue 812")


def test_a_failure_of_no_single_metric_is_known_by_an_entry_without_one() -> None:
    missed = verdict(Outcome.PERF_DROP, latency_p50=Outcome.OK)

    assert expect(missed, [known()], THEN).outcome is Outcome.EXPECTED
    assert expect(missed, [known(metric="latency_p50")], THEN) is missed


def test_the_first_entry_that_applies_counts() -> None:
    entries = [known(engine="trt", reason="other"), known(reason="first"), known(reason="second")]

    assert expect(DROP, entries, THEN).headline.endswith(": first")


def test_a_metric_that_was_only_reported_was_not_expected_to_fail() -> None:
    passed = verdict(Outcome.OK, latency_p50=Outcome.OK, latency_p99=None)

    assert expect(passed, [known(metric="latency_p99")], THEN) is passed


def test_without_entries_a_verdict_stays_as_it_is() -> None:
    assert expect(DROP, [], THEN) is DROP
