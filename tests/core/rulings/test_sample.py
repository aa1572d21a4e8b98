"""Runs that lack a metric, have 0 of it, or too few queries for it: none is left out unsaid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.core.baseline import Record
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.reason import Sign, SignKey
from pytest_mlperf.core.rulings.ruling import Ruling, rule_on
from pytest_mlperf.core.rulings.sample import (
    countable,
    only_reported,
    partial_metric_notes,
    remedies,
    unrecordable,
)
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.judge.inputs import SessionNoise
from pytest_mlperf.judge.rule_r import RuleR
from pytest_mlperf.reports.sentences import sentence
from tests.core.rulings.test_ruling import QUIET, outcomes, record, runs

RULE = RuleR(prior_sd=0.007, session_noise=SessionNoise(ratio=0.1, df=20.0))
GOODPUT = {"goodput": 0.05}
P99 = {"latency_p99": 0.10}

ABSENT, ZERO = None, 0.0


def served(*goodput: float | None) -> list[Run]:
    served_runs = []
    for number, value in enumerate(goodput, start=1):
        run = replace(runs(1, latency_p50=0.01)[0], folder=f"run {number}")
        if value:
            run = replace(run, metrics={**run.metrics, "goodput": value})
        served_runs.append(replace(run, zero=("goodput",) if value == ZERO else ()))
    return served_runs


def note_of(ruling: Ruling) -> Note:
    """Return the note of the metric in a headline."""
    assert isinstance(ruling.headline, Note)
    note = ruling.headline.values["note"]
    assert isinstance(note, Note)
    return note


def of_metric(name: str, note: Note) -> Note:
    return Note.of("of_metric", metric=name, note=note)


def zeros(name: str, count: int, of: int) -> Note:
    return Note.of("zero", metric=name, count=count, of=of, baseline=None)


def gating(*names: str, factors: Sequence[float] = QUIET, **metrics: float) -> Record:
    return replace(
        record(*factors, **metrics), minimum_detectable_change=dict.fromkeys(names, 0.02)
    )


def test_a_run_that_does_not_know_a_gated_metric_may_not_be_judged() -> None:
    """Neither is it left out of the sample, nor is measured on: no further run would help."""
    baseline = record(goodput=10.0)
    for goodput, lacking in (
        ((ABSENT,), (1,)),
        ((10.0, ABSENT), (2,)),
        ((9.6, ABSENT, ABSENT, 10.1), (2, 3)),
        ((ZERO, ABSENT), (2,)),
    ):
        new_runs = served(*goodput)
        ruling = rule_on(new_runs, baseline, GOODPUT, RULE)
        assert (ruling.outcome, ruling.more) == (Outcome.INVALID, False)
        note = Note.of("missing", runs=lacking, of=len(goodput), buffered=False)
        assert note_of(ruling) == note
        assert remedies(new_runs, GOODPUT, baseline) == (
            Note.of("gated_missing", metric="goodput", note=note, folder=f"run {lacking[0]}"),
        )


def test_a_second_metric_gets_the_runs_it_needs_and_its_drop_decides() -> None:
    """One only reported says in how many runs it was measured."""
    new_runs, baseline = served(10.0, ABSENT), record(latency_p50=0.0099, goodput=10.0)

    ruling = rule_on(new_runs, baseline, {**GOODPUT, "latency_p50": 0.001}, RULE)
    reported = rule_on(new_runs, record(goodput=10.0), {}, RULE).metrics

    assert outcomes(ruling)["latency_p50"] is Outcome.INCONCLUSIVE
    assert (ruling.outcome, ruling.more) == (Outcome.INVALID, True)
    limits = {**GOODPUT, "latency_p50": 0.05}
    slow = [replace(run, metrics={"latency_p50": 0.05}) for run in new_runs]
    fell = rule_on(slow, baseline, limits, RULE)
    assert outcomes(fell)["goodput"] is Outcome.INVALID
    assert (fell.outcome, fell.more) == (Outcome.PERF_DROP, False)
    assert sentence(fell.headline).startswith("p50 latency +4")
    (metric,) = (m for m in reported if m.metric == "goodput")
    note = Note.of("in_some_runs", count=1, of=2)
    assert (metric.outcome, metric.runs, metric.note) == (None, 1, note)
    del baseline.runs[3].metrics["goodput"]
    assert partial_metric_notes(baseline, {**GOODPUT, "latency_p50": 0.05}) == (
        Note.of("in_part", metric="goodput", count=7, of=8),
    )


TIMES = {"ttft_p50": 0.05, "tpot_p50": 0.05}
BUFFERED = Sign(key=SignKey.ANSWERS_BUFFERED, text="100 % of the answers came in one read")


def test_times_of_answers_that_came_together_are_not_gated_with_other_known_metrics() -> None:
    """If a case has no other gate, the reason names the buffering."""
    plain = runs(2, latency_p50=0.01)
    held = [replace(run, signs=(BUFFERED,)) for run in plain]
    baseline, timed = record(latency_p50=0.01), record(latency_p50=0.01, ttft_p50=0.01)
    limits = {**TIMES, "latency_p50": 0.05}

    ruling = rule_on(held, baseline, limits, RULE)
    assert (ruling.outcome, {*outcomes(ruling)} & {*TIMES}) == (Outcome.OK, set())
    assert countable(held, limits) == {"latency_p50": 0.05}
    assert unrecordable(held, limits, None) is None
    assert remedies(held, limits, baseline) == ()
    names = ("ttft_p50", "tpot_p50")
    assert only_reported(held, limits, baseline) == (Note.of("not_gated", metrics=names),)
    assert rule_on(plain, baseline, limits, RULE).outcome is Outcome.INVALID
    fell = rule_on(held, timed, limits, RULE)
    assert (fell.outcome, {*outcomes(fell)} & {*TIMES}) == (Outcome.INVALID, {"ttft_p50"})
    buffered = Note.of("missing", runs=(1, 2), of=2, buffered=True)
    assert note_of(fell) == buffered

    alone = rule_on(held, baseline, TIMES, RULE)
    assert (alone.outcome, alone.more) == (Outcome.INVALID, False)
    assert note_of(alone) == buffered
    remedy = Note.of("gated_buffered", metrics=(*names, "tpot_p50@4"))
    assert remedies(held, {**TIMES, "tpot_p50@4": 0.05}, None) == (remedy,)
    assert unrecordable(held, TIMES, None) == of_metric("ttft_p50", buffered)


def test_no_request_in_time_is_the_worst_result_and_no_missing_one() -> None:
    for goodput, outcome, more in (
        ((ZERO,), Outcome.INCONCLUSIVE, True),
        ((ZERO, ZERO), Outcome.PERF_DROP, False),
        ((9.6, ZERO), Outcome.INCONCLUSIVE, True),
        ((9.6, ZERO, ZERO, ZERO, 10.1, 10.0), Outcome.PERF_DROP, False),
        ((8.0, ZERO, 8.0), Outcome.PERF_DROP, False),
        ((9.7, ZERO, 10.1, 9.7, 10.1), Outcome.INVALID, False),
        ((10.0, ZERO), Outcome.OK, False),
        ((10.0, ZERO, ZERO), Outcome.PERF_DROP, False),
    ):
        ruling = rule_on(served(*goodput), record(goodput=10.0), {"goodput": 0.03}, RULE)
        assert (goodput, ruling.outcome, ruling.more) == (goodput, outcome, more)


def test_two_runs_of_0_are_a_drop_in_words_a_user_understands() -> None:
    """Against few baseline runs it is advice, and one alone waits for the others of a session."""
    baseline = record(*QUIET[:3], goodput=12.3)
    ruling = rule_on(served(ZERO, ZERO), record(goodput=12.3), GOODPUT, RULE)
    few = [rule_on(served(*[ZERO] * n), baseline, GOODPUT, RULE) for n in (1, 2, 5)]
    alone = rule_on(served(ZERO), None, GOODPUT, RULE)
    once, twice = (
        rule_on(served(*[ZERO] * n), record(goodput=10.0), GOODPUT, RULE, pairs=200) for n in (1, 2)
    )

    (metric, _) = ruling.metrics
    zero = note_of(ruling)
    assert (zero.key, zero.values["count"], zero.values["of"]) == ("zero", 2, 2)
    assert zero.values["baseline"] == metric.baseline.value
    assert (metric.now, metric.change, metric.runs, metric.p) == (0.0, -1.0, 2, 0.0)
    assert metric.baseline.value == pytest.approx(12.3, rel=1e-3)
    assert {ruling.outcome for ruling in few} == {Outcome.INCONCLUSIVE}
    assert [ruling.more for ruling in few] == [True, False, False]
    assert (alone.outcome, alone.metrics[0].now) == (Outcome.NO_BASELINE, 0.0)
    assert note_of(alone) == zeros("goodput", 1, 1)
    assert (once.outcome, once.metrics[0].p, once.more) == (Outcome.INCONCLUSIVE, 1.0, True)
    assert (twice.outcome, twice.metrics[0].p) == (Outcome.PERF_DROP, 0.0)


def test_a_server_metric_that_falls_to_0_is_a_drop() -> None:
    for name in ("draft_acceptance", "draft_length@8", "prefix_hit_share"):
        new_runs = [replace(run, zero=(name,)) for run in runs(2, latency_p50=0.01)]

        ruling = rule_on(new_runs, record(**{name: 0.7}), {name: 0.05}, RULE)

        assert (ruling.outcome, note_of(ruling).key) == (Outcome.PERF_DROP, "zero")
        assert unrecordable(new_runs, {name: 0.05}, None) == of_metric(name, zeros(name, 2, 2))


GOODPUTS = st.one_of(st.just(ABSENT), st.just(ZERO), st.sampled_from([5.0, 9.5, 9.8, 10.0, 11.0]))


@settings(max_examples=50)
@given(st.lists(GOODPUTS, min_size=1, max_size=8), st.booleans())
def test_measuring_ends_at_the_last_run_even_without_metrics(
    goodput: list[float | None], few: bool
) -> None:
    new_runs = [replace(run, queries=50) if few else run for run in served(*goodput)]

    ruling = rule_on(new_runs, gating("goodput", goodput=10.0), GOODPUT, RULE)

    assert not (ruling.more and len(new_runs) >= RULE.max_runs)
    if ABSENT in goodput:
        assert ruling.outcome is Outcome.INVALID
    if few or ABSENT in goodput or goodput.count(ZERO) > 1:
        assert ruling.outcome not in {Outcome.OK, Outcome.IMPROVED}


def test_gated_metrics_of_the_record_stay_gated_with_fewer_queries() -> None:
    """A run that is bounded by time has fewer queries when it is slower: no way out of a gate."""
    for p99, drops in ((0.030, False), (0.015, False), (0.050, True)):
        baseline = gating(*P99, latency_p50=0.01, latency_p99=0.030)
        new_runs = runs(2, 781, latency_p50=0.01, latency_p99=p99)
        alone = rule_on(new_runs, baseline, P99, RULE)
        assert (alone.outcome, alone.more) == (
            Outcome.PERF_DROP if drops else Outcome.INVALID,
            False,
        )
        few = Note.of("fewer_queries", count=781, needed=1000, baseline=10_000)
        assert drops or note_of(alone) == few
        ruling = rule_on(new_runs, baseline, {**P99, "latency_p50": 0.05}, RULE)
        assert ruling.outcome is (Outcome.PERF_DROP if drops else Outcome.OK)
        assert outcomes(ruling)["latency_p99"] is (Outcome.PERF_DROP if drops else None)


CURVE_RUN = {
    "tokens_per_second": 70.0,
    "tokens_per_second@1": 30.0,
    "tokens_per_second@16": 160.0,
    "tpot_p90@16": 0.02,
}
CURVE_LIMITS = {"tokens_per_second": 0.03, "tokens_per_second@16": 0.05, "tpot_p90@16": 0.05}


def curve(count: int, factor: float = 1.0, **requests: int) -> list[Run]:
    """Return runs of a curve that is `factor` times as fast, with these requests at a point."""
    metrics = {
        name: value / factor if name == "tpot_p90@16" else value * factor
        for name, value in CURVE_RUN.items()
    }
    return [
        replace(
            run,
            serving=replace(
                run.serving, requests={name.strip("_"): number for name, number in requests.items()}
            ),
        )
        for run in runs(count, sum(requests.values()), **metrics)
    ]


def recorded_curve(**requests: int) -> Record:
    record = gating(*CURVE_LIMITS, factors=QUIET, **CURVE_RUN)
    counts = {name.strip("_"): number for name, number in requests.items()}
    return replace(record, runs=tuple(replace(run, requests=counts) for run in record.runs))


def test_a_percentile_counts_the_requests_of_its_point_and_hides_no_other_drop() -> None:
    """A server that became five times slower answers fewer requests; its verdict says so."""
    baseline, old = recorded_curve(_1=40, _16=120), recorded_curve()
    for record_ in (baseline, old):  # of an older release nobody knows how many there were
        for factor, outcome in ((1.0, Outcome.OK), (0.2, Outcome.PERF_DROP)):
            ruling = rule_on(curve(2, factor, _1=200, _16=54), record_, CURVE_LIMITS, RULE)
            assert (ruling.outcome, ruling.more) == (outcome, False)
        alike = curve(2, _1=200, _16=54)
        (left_out,) = (
            m
            for m in rule_on(alike, record_, CURVE_LIMITS, RULE).metrics
            if m.limit and not m.outcome
        )
        assert (left_out.metric, left_out.note) == ("tpot_p90@16", None)
        baseline_note = 120 if record_ is baseline else None
        few = Note.of("fewer_queries", count=54, needed=100, baseline=baseline_note)
        remedy = Note.of("left_out", metric="tpot_p90@16", note=few)
        assert remedies(alike, CURVE_LIMITS, record_) == (remedy,)

    short = curve(2, _1=200, _16=54)  # they are added to a record that does not count
    few = Note.of("fewer_queries", count=54, needed=100, baseline=120)
    assert unrecordable(short, CURVE_LIMITS, baseline) == of_metric("tpot_p90@16", few)
    assert unrecordable(short, CURVE_LIMITS, old) is None
    enough = rule_on(curve(2, _1=40, _16=100), baseline, CURVE_LIMITS, RULE)
    assert outcomes(enough)["tpot_p90@16"] is Outcome.OK
    assert "tpot_p90@16" not in countable(curve(2, _1=200, _16=99), CURVE_LIMITS)
    whole = {"ttft_p90": 0.05}
    assert not countable(curve(1, _1=99, _16=500), whole)
    assert countable(curve(1, _1=100, _16=500), whole) == whole


def test_few_queries_need_as_many_runs_and_metrics_without_a_gated_record_are_only_reported() -> (
    None
):
    baseline = gating("latency_p99", latency_p99=0.030)
    advisory = gating("latency_p99", factors=QUIET[:3], latency_p99=0.030)
    few = runs(1, 781, latency_p99=0.03)

    slow = rule_on(runs(1, 781, latency_p99=0.05), baseline, P99, RULE)
    large = rule_on([replace(run, samples=8 * 781) for run in few], baseline, P99, RULE)

    assert (slow.outcome, slow.more) == (Outcome.INCONCLUSIVE, True)
    assert note_of(large).values["baseline"] == 1250
    assert rule_on(few, advisory, P99, RULE).outcome is Outcome.INCONCLUSIVE

    few, gated = runs(1, 781, latency_p99=0.03), gating("latency_p99", latency_p99=0.03)

    assert countable(few, P99) == {}
    assert countable(few, P99, gating("latency_p50", latency_p50=1.0)) == {}
    assert countable(few, P99, gated) == P99
    assert len(only_reported(few, P99)) == 1
    assert only_reported(few, P99, gated) == ()
    assert [note.key for note in remedies(few, P99, gated)] == ["left_out"]
    assert remedies(runs(1, latency_p99=0.03), P99, gated) == ()


def test_runs_without_a_gated_metric_never_become_a_baseline() -> None:
    few, appended = runs(2, 781, latency_p99=0.03), gating("latency_p99", latency_p99=0.03)
    lacking = Note.of("missing", runs=(2,), of=2, buffered=False)
    fewer = Note.of("fewer_queries", count=781, needed=1000, baseline=10_000)

    assert unrecordable(served(10.0, ABSENT), GOODPUT, None) == of_metric("goodput", lacking)
    zero = of_metric("goodput", zeros("goodput", 1, 2))
    assert unrecordable(served(10.0, ZERO), GOODPUT, None) == zero
    assert unrecordable(served(10.0, 10.0), GOODPUT, None) is None
    assert unrecordable(few, P99, None) is None
    assert unrecordable(few, P99, appended) == of_metric("latency_p99", fewer)
