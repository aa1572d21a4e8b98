"""A known failure passes until its day, and fails when it is over."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from pytest_mlperf.core.case import Case
from pytest_mlperf.core.results import Known, expect
from pytest_mlperf.core.verdict import MetricVerdict, Outcome, PairedVerdict, Verdict

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


def known(**fields: Any) -> Known:
    return Known(**{"reason": "issue 812", "until": UNTIL, **fields})


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
    over = "remove the expected failure (issue 812): its day, 2027-01-31, is over"
    assert expect(passed, [known()], AFTER) == replace(passed, notes=("a note", over))


@pytest.mark.parametrize(
    ("outcome", "strict", "today", "becomes", "note"),
    [
        (Outcome.OK, True, THEN, Outcome.UNEXPECTED_PASS, None),
        (Outcome.OK, False, THEN, Outcome.OK, "stayed away; it is not strict, so this passes"),
        (Outcome.IMPROVED, False, THEN, Outcome.IMPROVED, "stayed away"),
        (Outcome.OK, False, AFTER, Outcome.OK, "its day, 2027-01-31, is over"),
        (Outcome.PERF_DROP, True, THEN, Outcome.EXPECTED, None),
        (Outcome.PERF_DROP, False, THEN, Outcome.EXPECTED, None),
        (Outcome.PERF_DROP, True, AFTER, Outcome.PERF_DROP, "that day is over"),
        (Outcome.PERF_DROP, False, AFTER, Outcome.PERF_DROP, "that day is over"),
    ],
)
def test_strictness_is_about_a_failure_that_stays_away(
    outcome: Outcome, strict: bool, today: dt.date, becomes: Outcome, note: str | None
) -> None:
    found = expect(verdict(outcome), [known(strict=strict)], today)

    assert found.outcome is becomes
    assert [n for n in found.notes if n != "a note"] == [
        n for n in found.notes if note and note in n
    ]
    assert len(found.notes) == 1 + (note is not None)


def test_one_strict_entry_among_others_counts() -> None:
    entries = [known(strict=False, reason="comes and goes"), known(strict=True, reason="issue 9")]

    found = expect(verdict(Outcome.OK), entries, THEN)

    assert found.outcome is Outcome.UNEXPECTED_PASS
    assert found.headline.startswith("remove the expected failure (issue 9)")


def compared(**outcomes: Outcome | None) -> tuple[PairedVerdict, ...]:
    """Return what the paired rule said of some scores."""
    return tuple(
        PairedVerdict(
            metric=name,
            outcome=outcome,
            baseline=44.0,
            now=43.0,
            change=-1.0,
            low=None,
            high=None,
            margin=None,
            samples=9,
            changed=9,
            down=9,
            up=0,
            p=None,
        )
        for name, outcome in outcomes.items()
    )


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (("rouge1",), True),
        (("rouge2",), False),
        ((None,), True),
        (("rouge1", "rouge2"), True),
    ],
)
def test_a_score_that_fell_against_the_baseline_is_known_by_its_name(
    metrics: tuple[str | None, ...], expected: bool
) -> None:
    fell = replace(
        verdict(Outcome.ACC_DROP, rouge1=Outcome.OK, rouge2=Outcome.OK),
        paired=compared(rouge1=Outcome.ACC_DROP, rouge2=Outcome.OK, gen_len=None),
    )

    found = expect(fell, [known(metric=metric) for metric in metrics], THEN)

    assert found.outcome is (Outcome.EXPECTED if expected else Outcome.ACC_DROP)


def test_a_second_score_that_fell_beside_a_gate_that_is_missed_is_news() -> None:
    fell = replace(
        verdict(Outcome.GATE_FAIL, rouge1=Outcome.GATE_FAIL),
        paired=compared(rouge1=Outcome.ACC_DROP, rouge2=Outcome.ACC_DROP),
    )

    assert expect(fell, [known(metric="rouge1")], THEN) is fell


def test_a_score_that_holds_against_the_baseline_is_an_unexpected_pass() -> None:
    held = replace(verdict(Outcome.OK, top1=None), paired=compared(rouge1=Outcome.OK))

    assert expect(held, [known(metric="rouge1")], THEN).outcome is Outcome.UNEXPECTED_PASS
    assert expect(held, [known(metric="rouge2")], THEN) is held


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
