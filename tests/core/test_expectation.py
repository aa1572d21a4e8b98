"""A known failure passes until its day, and fails when it is over."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

from pytest_mlperf.core.case import Case, Kind, Scenario
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.results import KnownFailure, expect
from pytest_mlperf.core.verdict import MetricVerdict, Outcome, PairedVerdict, Verdict
from pytest_mlperf.reports.sentences import sentence

CASE = Case(
    workload="resnet50",
    scenario=Scenario.SERVER,
    engine="ort",
    precision="fp16",
    accelerator="H200",
)
UNTIL = dt.date(2027, 1, 31)
THEN, AFTER = UNTIL, UNTIL + dt.timedelta(days=1)

KNOWN = {"until": "2027-01-31", "reason": "issue 812"}


def verdict(outcome: Outcome, **metrics: Outcome | None) -> Verdict:
    outcomes_by_metric = metrics or {"latency_p99": outcome, "latency_p50": Outcome.OK}
    return Verdict(
        case=CASE,
        kind=Kind.PERFORMANCE,
        outcome=outcome,
        headline="p99 latency +21.0 %",
        metrics=tuple(
            MetricVerdict(metric=m, outcome=o, now=1.0) for m, o in outcomes_by_metric.items()
        ),
        notes=("a note",),
    )


def known_failure(**fields: Any) -> KnownFailure:
    return KnownFailure(**{"reason": "issue 812", "until": UNTIL, **fields})


DROP = verdict(Outcome.PERF_DROP)


def test_a_failure_that_is_known_passes_until_its_day_and_fails_where_it_stopped() -> None:
    for outcome in (Outcome.PERF_DROP, Outcome.ACC_DROP, Outcome.POWER_DROP, Outcome.GATE_FAIL):
        judged = expect(verdict(outcome), [known_failure()], THEN)
        assert judged.outcome is Outcome.EXPECTED
        assert judged.headline == Note.of(
            "until", outcome=outcome, headline="p99 latency +21.0 %", **KNOWN
        )
        assert not judged.outcome.fails
        assert judged.metrics == verdict(outcome).metrics

    over = Note.of("expectation_over", **KNOWN)
    assert expect(DROP, [known_failure()], AFTER) == replace(DROP, notes=(over, "a note"))
    assert expect(DROP, [], THEN) is DROP

    over = Note.of("expectation_stale", **KNOWN)
    for passed in (verdict(Outcome.OK), verdict(Outcome.IMPROVED)):
        judged = expect(passed, [known_failure()], THEN)
        assert judged.outcome is Outcome.UNEXPECTED_PASS
        headline = {"reason": "issue 812", "headline": "p99 latency +21.0 %"}
        assert judged.headline == Note.of("unexpected", **headline)
        assert expect(passed, [known_failure()], AFTER) == replace(passed, notes=("a note", over))


def test_strictness_is_about_a_failure_that_stays_away() -> None:
    missed, stale, over = (
        Note.of(key, **KNOWN)
        for key in (
            "expectation_missed",
            "expectation_stale",
            "expectation_over",
        )
    )
    for outcome, strict, today, becomes, note in (
        (Outcome.OK, True, THEN, Outcome.UNEXPECTED_PASS, None),
        (Outcome.OK, False, THEN, Outcome.OK, missed),
        (Outcome.IMPROVED, False, THEN, Outcome.IMPROVED, missed),
        (Outcome.OK, False, AFTER, Outcome.OK, stale),
        (Outcome.PERF_DROP, True, THEN, Outcome.EXPECTED, None),
        (Outcome.PERF_DROP, False, THEN, Outcome.EXPECTED, None),
        (Outcome.PERF_DROP, True, AFTER, Outcome.PERF_DROP, over),
        (Outcome.PERF_DROP, False, AFTER, Outcome.PERF_DROP, over),
    ):
        judged = expect(verdict(outcome), [known_failure(strict=strict)], today)
        assert judged.outcome is becomes
        assert [one for one in judged.notes if one != "a note"] == [note] * (note is not None)
    entries = [
        known_failure(strict=False, reason="comes and goes"),
        known_failure(strict=True, reason="issue 9"),
    ]
    judged = expect(verdict(Outcome.OK), entries, THEN)
    assert judged.outcome is Outcome.UNEXPECTED_PASS
    assert sentence(judged.headline).startswith("remove the expected failure (issue 9)")


def compared(**outcomes: Outcome | None) -> tuple[PairedVerdict, ...]:
    fields: dict[str, Any] = dict.fromkeys(("low", "high", "margin", "p"))
    fields |= {"baseline": 44.0, "now": 43.0, "change": -1.0}
    fields |= {"samples": 9, "changed": 9, "down": 9, "up": 0}
    return tuple(PairedVerdict(metric=m, outcome=o, **fields) for m, o in outcomes.items())


def test_a_score_that_fell_against_the_baseline_is_known_by_its_name() -> None:
    fell = replace(
        verdict(Outcome.ACC_DROP, rouge1=Outcome.OK, rouge2=Outcome.OK),
        paired=compared(rouge1=Outcome.ACC_DROP, rouge2=Outcome.OK, gen_len=None),
    )
    both = replace(
        verdict(Outcome.GATE_FAIL, rouge1=Outcome.GATE_FAIL),
        paired=compared(rouge1=Outcome.ACC_DROP, rouge2=Outcome.ACC_DROP),
    )
    held = replace(verdict(Outcome.OK, top1=None), paired=compared(rouge1=Outcome.OK))
    entries: list[tuple[str | None, ...]] = [
        ("rouge1",),
        ("rouge2",),
        (None,),
        ("rouge1", "rouge2"),
    ]

    judged_verdicts = [
        expect(fell, [known_failure(metric=name) for name in names], THEN) for names in entries
    ]

    words = [Outcome.EXPECTED, Outcome.ACC_DROP, Outcome.EXPECTED, Outcome.EXPECTED]
    assert [judged.outcome for judged in judged_verdicts] == words
    assert expect(both, [known_failure(metric="rouge1")], THEN) is both
    assert expect(held, [known_failure(metric="rouge1")], THEN).outcome is Outcome.UNEXPECTED_PASS
    assert expect(held, [known_failure(metric="rouge2")], THEN) is held


def test_entries_for_each_metric_that_fell_are_needed_and_none_may_be_over() -> None:
    """What was not judged is neither expected nor over."""
    for name in ("ERROR", "INVALID", "INCONCLUSIVE", "NO_BASELINE", "RECORDED"):
        failed = verdict(Outcome[name])
        assert (
            expect(failed, [known_failure()], THEN)
            is expect(failed, [known_failure()], AFTER)
            is failed
        )

    both = verdict(Outcome.PERF_DROP, latency_p99=Outcome.PERF_DROP, latency_p50=Outcome.PERF_DROP)
    p99, p50 = (
        known_failure(metric="latency_p99"),
        known_failure(metric="latency_p50", reason="issue 9"),
    )
    longer = replace(p99, until=AFTER)

    assert expect(both, [p99], THEN).outcome is Outcome.PERF_DROP
    assert expect(both, [p99, p50], THEN).outcome is Outcome.EXPECTED
    assert sentence(expect(both, [longer, p50], THEN).headline).endswith(
        "; until 2027-01-31: issue 9"
    )
    (note, *_) = expect(both, [longer, p50], AFTER).notes
    assert isinstance(note, Note)
    assert (note.key, note.values["until"]) == ("expectation_over", "2027-01-31")


def test_an_entry_matches_when_each_of_its_fields_does() -> None:
    server = {"scenario": "Server"}
    matching = [{}, server, {"engine": "ort"}, {"precision": "fp16"}, {"accelerator": "H200"}]
    matching += [{**server, "engine": "ort", "accelerator": "H200"}, {"metric": "latency_p99"}]
    others = [{"scenario": "Offline"}, {"engine": "trt"}, {"precision": "fp8"}]
    others += [{"accelerator": "2xH200"}, {**server, "engine": "trt"}]
    others += [{"metric": "latency_p50"}, {"metric": "throughput"}]

    for entries, outcome in ((matching, Outcome.EXPECTED), (others, Outcome.PERF_DROP)):
        for fields in entries:
            assert expect(DROP, [known_failure(**fields)], THEN).outcome is outcome, fields


def test_the_first_entry_that_applies_counts_through_its_last_day() -> None:
    """A failure of no single metric is known by an entry without one."""
    entries = [known_failure(), known_failure(until=dt.date(2027, 2, 28), reason="later")]
    several = [
        known_failure(engine="trt", reason="other"),
        known_failure(reason="first"),
        known_failure(reason="second"),
    ]

    assert sentence(expect(DROP, entries, THEN).headline).endswith("; until 2027-01-31: issue 812")
    assert sentence(expect(DROP, entries, AFTER).headline).endswith("; until 2027-02-28: later")
    assert sentence(expect(DROP, several, THEN).headline).endswith(": first")

    missed = verdict(Outcome.PERF_DROP, latency_p50=Outcome.OK)
    passed = verdict(Outcome.OK, latency_p50=Outcome.OK, latency_p99=None)

    assert expect(missed, [known_failure()], THEN).outcome is Outcome.EXPECTED
    assert expect(missed, [known_failure(metric="latency_p50")], THEN) is missed
    assert expect(passed, [known_failure(metric="latency_p99")], THEN) is passed
