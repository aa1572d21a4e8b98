"""The runs of a case against its record: every metric, then the case; counters and sessions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from statistics import fmean, stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.baseline import Record
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.metrics import COUNTS, METRICS
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.rulings.ruling import (
    Ruling,
    between_sessions,
    count_outside_range,
    interim_analyses,
    is_worse,
    length_change,
    rule_on,
    rule_values,
    ruling_of,
)
from pytest_mlperf.core.verdict import MetricVerdict, Outcome
from pytest_mlperf.judge.formulas import t_sf
from pytest_mlperf.judge.inputs import Direction, SessionNoise
from pytest_mlperf.judge.rule_r import RuleR, Value, judge
from pytest_mlperf.reports.sentences import sentence
from tests.core.made import make_baseline_run, make_record, make_run, on_day

RULE = RuleR(prior_sd=0.007, session_noise=SessionNoise(ratio=0.1, df=20.0))
"""That of a machine whose sessions are known."""
QUIET = (1.0, 1.002, 0.998, 1.001, 0.999, 1.0, 1.002, 0.998)
"""Eight runs of a baseline, around 1."""

POWER_DROP = Outcome.POWER_DROP
OFFLINE = {"throughput": 0.03}
SERVER = {"latency_p50": 0.05, "latency_p99": 0.10}


def record(*factors: float, **metrics: float) -> Record:
    """Return a record whose runs are `metrics` times each factor."""
    return make_record(
        *(
            make_baseline_run(
                metrics={name: value * factor for name, value in metrics.items()},
                session=f"session {number // 2}",
                started=on_day(number // 2),
            )
            for number, factor in enumerate(factors or QUIET)
        )
    )


def runs(count: int, queries: int = 10_000, **metrics: float) -> list[Run]:
    """Return equal runs, but for a little noise."""
    return [
        make_run(
            metrics={name: value * QUIET[number] for name, value in metrics.items()},
            samples=queries,
            queries=queries,
            folder=f"run {number}",
        )
        for number in range(count)
    ]


def outcomes(ruling: Ruling) -> dict[str, Outcome | None]:
    return {metric.metric: metric.outcome for metric in ruling.metrics}


def test_a_metric_is_judged_by_rule_r() -> None:
    """A latency is worse when it rises; the word for a drop is the caller's."""
    for metric, new_value, count, outcome, more in (
        ("throughput", 100.0, 1, Outcome.OK, False),
        ("throughput", 99.0, 1, Outcome.OK, False),
        ("throughput", 90.0, 1, Outcome.INCONCLUSIVE, True),
        ("throughput", 90.0, 2, Outcome.PERF_DROP, False),
        ("throughput", 110.0, 1, Outcome.INCONCLUSIVE, True),
        ("throughput", 110.0, 2, Outcome.IMPROVED, False),
        ("throughput", 97.6, 1, Outcome.INCONCLUSIVE, True),
        ("throughput", 97.6, 5, Outcome.PERF_DROP, False),
        ("latency_p90", 100.0, 2, Outcome.OK, False),
        ("latency_p90", 120.0, 2, Outcome.PERF_DROP, False),
        ("latency_p90", 80.0, 2, Outcome.IMPROVED, False),
    ):
        fresh: dict[str, Any] = {metric: new_value}
        ruling = rule_on(runs(count, **fresh), record(**{metric: 100.0}), {metric: 0.03}, RULE)
        assert (new_value, count, ruling.outcome, ruling.more) == (new_value, count, outcome, more)
        assert outcomes(ruling) == {metric: outcome}
        assert ruling.deciding == ruling.metrics[0]
    fell = rule_on(runs(2, throughput=9.0), record(throughput=10.0), OFFLINE, RULE, POWER_DROP)
    assert fell.outcome is POWER_DROP


def test_a_metric_verdict_holds_what_the_table_shows() -> None:
    """Means are geometric, as rule R works on logarithms."""
    (metric,) = rule_on(runs(3, throughput=90.0), record(throughput=100.0), OFFLINE, RULE).metrics
    (mean,) = rule_on(runs(1, throughput=3.0), record(2.0, 8.0, throughput=1.0), {}, RULE).metrics

    assert metric.metric == "throughput"
    assert metric.baseline.value == pytest.approx(100.0, rel=1e-3)
    assert metric.now == pytest.approx(90.1, abs=0.05)  # two runs decided; the third is not in it
    assert metric.change == pytest.approx(-0.0985, abs=0.003)
    assert (metric.low or 0.0) < -0.0985 < (metric.high or 1.0) < 0
    assert (metric.limit, metric.runs, metric.baseline.runs) == (0.03, 2, 8)
    assert 0 < (metric.baseline.detectable or 0.0) < 0.03
    assert mean.baseline.value == pytest.approx(4.0)
    assert mean.change == pytest.approx(3.0 / 4.0 - 1)


def test_a_metric_that_one_side_lacks_is_not_judged() -> None:
    """Without a record there is nothing to judge against."""
    limits = {**OFFLINE, "tokens_per_second": 0.03}
    new_runs, baseline = runs(2, throughput=100.0, tokens_per_second=5.0), record(throughput=100.0)

    alone = rule_on(runs(1, throughput=100.0), None, OFFLINE, RULE)
    ruling = rule_on(new_runs, baseline, limits, RULE)
    missing = rule_on(runs(2, throughput=100.0), baseline, {"ttft_p50": 0.05}, RULE)

    (metric,) = alone.metrics
    assert (alone.outcome, alone.more) == (Outcome.NO_BASELINE, False)
    assert sentence(alone.headline) == "samples/s: no record of this machine"
    assert metric == MetricVerdict(
        metric="throughput", outcome=Outcome.NO_BASELINE, now=metric.now, limit=0.03
    )
    assert metric.now == pytest.approx(100.0)
    words = {"throughput": Outcome.OK, "tokens_per_second": Outcome.NO_BASELINE}
    assert (ruling.outcome, outcomes(ruling)) == (Outcome.NO_BASELINE, words)
    assert ruling.metrics[1].note == Note.of("no_metric")
    assert (missing.outcome, missing.metrics[0].now) == (Outcome.INVALID, None)
    assert sentence(missing.headline) == "p50 TTFT: not measured"


def test_a_drop_against_fewer_than_five_runs_is_advice() -> None:
    for count in (1, 2, 3, 4, 5):
        baseline = record(*QUIET[:count], throughput=100.0)
        ruling = rule_on(runs(5, throughput=50.0), baseline, OFFLINE, RULE)
        note = None if count == 5 else Note.of("advisory", runs=count, needed=5)
        word = Outcome.PERF_DROP if count == 5 else Outcome.INCONCLUSIVE
        assert (ruling.outcome, ruling.metrics[0].note) == (word, note)
        assert isinstance(ruling.headline, Note)
        assert ruling.headline.values["note"] == note

    baseline = record(*QUIET[:4], throughput=100.0)
    passed = rule_on(runs(5, throughput=100.0), baseline, {"throughput": 0.3}, RULE)
    assert (passed.outcome, passed.metrics[0].note) == (
        Outcome.OK,
        Note.of("advisory", runs=4, needed=5),
    )


def test_a_99th_percentile_is_gated_from_1000_queries_a_run() -> None:
    """The run with the fewest queries counts; runs without a gated metric are not called ok."""
    reported = Note.of("few_queries", needed=1000)
    for metric in ("latency_p99", "ttft_p99", "tpot_p99"):
        baseline = record(**{"latency_p50": 0.010, metric: 0.030})
        limits = {"latency_p50": 0.05, metric: 0.1}
        for queries, outcome, note in ((999, None, reported), (1000, Outcome.PERF_DROP, None)):
            slow = runs(2, queries=queries, latency_p50=0.010, **{metric: 0.060})
            ruling = rule_on(slow, baseline, limits, RULE)
            assert ruling.outcome is (outcome or Outcome.OK)
            metric_verdict = next(m for m in ruling.metrics if m.metric == metric)
            assert (metric_verdict.outcome, metric_verdict.note) == (outcome, note)
            assert metric_verdict.change == pytest.approx(1.0, rel=0.01)

    baseline, limits = record(latency_p99=0.03), {"latency_p99": 0.1}
    mixed = [*runs(1, latency_p99=0.06), *runs(1, queries=10, latency_p99=0.06)]
    ruling = rule_on(runs(1, queries=662, latency_p99=0.03), baseline, limits, RULE)
    assert outcomes(rule_on(mixed, baseline, limits, RULE)) == {"latency_p99": None}
    assert (ruling.outcome, ruling.more) == (Outcome.INCONCLUSIVE, False)
    assert isinstance(ruling.headline, Note)
    assert ruling.headline.values["note"] == reported


OLD = {"latency_p50": 0.010, "latency_p99": 0.030}


def test_the_worst_metric_decides() -> None:
    """Also if another one is only suspect."""
    for p50, p99, outcome, deciding in (
        (0.010, 0.030, Outcome.OK, "latency_p50"),
        (0.010, 0.045, Outcome.PERF_DROP, "latency_p99"),
        (0.015, 0.045, Outcome.PERF_DROP, "latency_p50"),
        (0.005, 0.045, Outcome.PERF_DROP, "latency_p99"),
        (0.005, 0.030, Outcome.IMPROVED, "latency_p50"),
        (0.010, 0.015, Outcome.IMPROVED, "latency_p99"),
    ):
        ruling = rule_on(runs(2, latency_p50=p50, latency_p99=p99), record(**OLD), SERVER, RULE)
        assert ruling.outcome is outcome
        assert ruling.deciding is not None
        assert ruling.deciding.metric == deciding

    suspect = MetricVerdict(metric="latency_p50", outcome=Outcome.SUSPECT, now=1.0)
    drop = replace(
        suspect,
        metric="latency_p99",
        outcome=Outcome.PROVISIONAL,
        direction="drop",
        since="2026-11-20",
    )
    advice = replace(drop, since="")

    assert ruling_of([suspect, drop]).outcome is Outcome.PROVISIONAL
    assert ruling_of([suspect, drop]).deciding == drop
    assert ruling_of([suspect, advice]).outcome is Outcome.SUSPECT


def test_a_case_runs_on_until_each_metric_is_decided_and_keeps_its_first_decision() -> None:
    undecided, decided = (
        rule_on(runs(count, latency_p50=0.010, latency_p99=0.045), record(**OLD), SERVER, RULE)
        for count in (1, 2)
    )

    words = {"latency_p50": Outcome.OK, "latency_p99": Outcome.INCONCLUSIVE}
    assert (outcomes(undecided), undecided.more) == (words, True)
    p50, p99 = decided.metrics
    assert (p50.outcome, p50.runs) == (Outcome.OK, 1)
    assert (p99.outcome, p99.runs) == (Outcome.PERF_DROP, 2)


def test_reported_metrics_follow_gated_ones() -> None:
    ruling = rule_on(
        runs(2, throughput=100.0, latency_p99=0.09, latency_p50=0.01, samples_per_joule=3.0),
        record(throughput=100.0, latency_p99=0.03),
        {"latency_p50": 0.05},
        RULE,
    )

    words = {"latency_p50": Outcome.NO_BASELINE, "throughput": None, "latency_p99": None}
    assert outcomes(ruling) == words
    throughput, p99 = ruling.metrics[1:]
    assert throughput.change == pytest.approx(0.0, abs=0.01)
    assert p99.change == pytest.approx(2.0, rel=0.01)
    assert (p99.limit, p99.low, p99.high) == (None, None, None)
    old_values, new_values = (
        {**curve(10.0, 40.0), "ttft_p90@8": seconds} for seconds in (0.1, 0.2)
    )
    last = rule_on(runs(1, **new_values), record(**old_values), CURVE, RULE).metrics[-1]
    assert (last.metric, last.outcome) == ("ttft_p90@8", None)
    assert last.change == pytest.approx(1, rel=1e-3)


def test_the_headline_ends_in_the_position_of_the_interval() -> None:
    for metric, old, new_value, prior_sd, ending in (
        ("throughput", 100.0, 100.0, 0.007, "; within limit −3 %"),
        ("throughput", 100.0, 110.0, 0.007, "; within limit −3 %"),
        ("throughput", 100.0, 90.0, 0.007, "; limit −3 % exceeded"),
        ("throughput", 100.0, 97.4, 0.007, "; limit −3 % possibly exceeded"),
        ("throughput", 100.0, 99.0, 0.05, "; undecided at −3 %"),
        ("latency_p99", 0.030, 0.030, 0.02, "; within limit +10 %"),
        ("latency_p99", 0.030, 0.045, 0.02, "; limit +10 % exceeded"),
        ("latency_p99", 0.030, 0.0325, 0.02, "; limit +10 % possibly exceeded"),
    ):
        rule, limits = replace(RULE, prior_sd=prior_sd), {metric: METRICS[metric].limit}
        fresh: dict[str, Any] = {metric: new_value}
        ruling = rule_on(runs(5, **fresh), record(**{metric: old}), limits, rule)
        assert sentence(ruling.headline).startswith(f"{METRICS[metric].title} ")
        assert (sentence(ruling.headline).endswith(ending), ruling.more) == (True, False)
    ruling = rule_on(runs(1, throughput=1.0), None, {}, RULE)
    assert ruling.headline == Note.of("nothing_gated")


def test_a_headline_fits_80_columns() -> None:
    longest = max(METRICS.keys() - COUNTS, key=lambda name: len(METRICS[name].title))
    baseline, limits = record(**{longest: 100.0}), {longest: METRICS[longest].limit}
    for factor, count in ((0.5, 2), (0.9, 5), (1.0, 1), (1.1, 5), (2.0, 1), (2.0, 5)):
        fresh: dict[str, Any] = {longest: 100.0 * factor}
        ruling = rule_on(runs(count, **fresh), baseline, limits, RULE)
        assert len(f"{ruling.outcome} {sentence(ruling.headline)}") <= 80


def test_values_are_those_of_runs_with_the_metric_and_keep_their_sessions() -> None:
    """Worse is against the metric's direction."""
    baseline_runs = record(throughput=100.0).runs

    (value,) = rule_values([*runs(1, throughput=5.0), *runs(1, latency_p50=1.0)], "throughput")
    sessions = [value.session for value in rule_values(baseline_runs, "throughput")[:3]]
    worse = [
        [is_worse(name, *pair) for pair in ((9.0, 10.0), (10.0, 9.0), (9.0, 9.0))]
        for name in ("throughput", "latency_p99", "samples_per_joule")
    ]

    assert (value.value, value.within_se, value.session) == (5.0, 0.0, "now")
    assert sessions == ["session 0", "session 0", "session 1"]
    assert rule_values(baseline_runs, "latency_p50") == []
    assert worse == [[False, True, False], [True, False, False], [False, True, False]]


def test_among_many_a_pair_is_measured_longer_and_shown_as_if_alone() -> None:
    """A drop that would do alone asks for more runs among many; its interval is the same."""
    for metric, new_value in (("throughput", 97.5), ("latency_p90", 102.5)):
        fresh: dict[str, Any] = {metric: new_value}
        new_runs, baseline, limits = runs(2, **fresh), record(**{metric: 100.0}), {metric: 0.03}
        alone = rule_on(new_runs, baseline, limits, RULE)
        many = rule_on(new_runs, baseline, limits, RULE, pairs=2000)
        assert rule_on(new_runs, baseline, limits, RULE, pairs=20) == alone
        assert (alone.outcome, alone.more) == (Outcome.PERF_DROP, False)
        assert (many.outcome, many.more) == (Outcome.INCONCLUSIVE, True)
        (metric_verdict,), (other,) = alone.metrics, many.metrics
        assert (other.low, other.high) == pytest.approx((metric_verdict.low, metric_verdict.high))
        assert (other.baseline.detectable, other.p) == (
            metric_verdict.baseline.detectable,
            metric_verdict.p,
        )
        assert 0.05 / 2000 < (metric_verdict.p or 0.0) < 0.01

    new_runs, baseline = runs(2, throughput=110.0), record(throughput=100.0)

    (metric_verdict,) = rule_on(new_runs, baseline, OFFLINE, RULE).metrics
    (other,) = rule_on(new_runs, baseline, OFFLINE, RULE, pairs=2000).metrics
    fell = rule_on(runs(2, throughput=80.0), baseline, OFFLINE, RULE, pairs=25)

    assert (other.outcome, other.p) == (Outcome.IMPROVED, 1.0)
    assert (other.low, other.high) == pytest.approx((metric_verdict.low, metric_verdict.high))
    assert (fell.outcome, fell.more) == (Outcome.PERF_DROP, False)
    assert "; a drop, whatever the verdicts on the other 24 pairs, p=" in sentence(fell.headline)


CURVE = {"throughput": 0.03, "throughput@1": 0.05, "throughput@8": 0.05}


def curve(single: float, eight: float) -> dict[str, Any]:
    return {"throughput": (single * eight) ** 0.5, "throughput@1": single, "throughput@8": eight}


def test_a_curve_falls_by_its_mean_or_by_any_point_which_share_its_false_alarms() -> None:
    """The mean has one half, and each of two points a quarter: their intervals are wider."""
    baseline = record(**curve(10.0, 40.0))
    for single, eight, outcome, deciding in (
        (10.0, 40.0, Outcome.OK, "throughput"),
        (9.6, 38.4, Outcome.PERF_DROP, "throughput"),
        (10.0, 36.0, Outcome.PERF_DROP, "throughput"),
        (11.1, 36.0, Outcome.PERF_DROP, "throughput@8"),
        (10.6, 42.4, Outcome.IMPROVED, "throughput"),
    ):
        ruling = rule_on(runs(3, **curve(single, eight)), baseline, CURVE, RULE)
        assert ruling.outcome is outcome
        assert ruling.deciding
        assert ruling.deciding.metric == deciding

    baseline, new_runs = record(**curve(10.0, 40.0)), runs(2, **curve(9.9, 39.6))

    shared = {m.metric: m for m in rule_on(new_runs, baseline, CURVE, RULE).metrics}

    for name, share in (("throughput", 2), ("throughput@1", 4), ("throughput@8", 4)):
        alone, mean = replace(RULE, alpha=RULE.alpha / share), curve(10.0, 40.0)[name]
        of_one = runs(2, throughput=curve(9.9, 39.6)[name])
        judged = rule_on(of_one, record(throughput=mean), OFFLINE, alone).metrics[0]
        assert shared[name].high == pytest.approx(judged.high)


def of_lengths(*values: float) -> list[Run]:
    """Return runs whose answers have these mean numbers of tokens, with eight in flight."""
    (run,) = runs(1)
    return [replace(run, metrics={"tokens_per_sample@8": value}) for value in values]


def test_another_length_of_answers_is_one_that_chance_does_not_explain() -> None:
    """Older results do not record how answers differ: for them a tenth is a change."""
    alike, wide = [40.0] * 4, [39.4, 40.6, 40.0, 41.0]
    for old_lengths, new_lengths, low in (
        (alike, [39.1], None),
        (alike, [44.1], 36.0),
        ([40.0], [35.9], 36.0),
        (wide, [34.0], 36.2),
    ):
        note = length_change(of_lengths(*new_lengths), of_lengths(*old_lengths))
        assert (note is None) is (low is None)
        if note is not None:
            assert note.values["metric"] == "tokens_per_sample@8"
            assert (note.values["value"], note.values["low"]) == pytest.approx(
                (*new_lengths, low), abs=0.1
            )
    chance = Random(20261123)
    drawn = [
        of_lengths(*(40 * math.exp(chance.gauss(0, 0.03)) for _ in range(5))) for _ in alike * 50
    ]
    assert sum(length_change(found[:1], found[1:]) is not None for found in drawn) <= 2


def windows(lengths: Sequence[int], *requests: int) -> list[Run]:
    """Return runs whose windows have this many of the first answers."""
    (run,) = runs(1)
    name = "tokens_per_sample@8"
    return [
        replace(
            run,
            metrics={name: fmean(lengths[:count])},
            within_se={name: stdev(lengths[:count]) / fmean(lengths[:count]) / math.sqrt(count)},
        )
        for count in requests
    ]


def test_fewer_answers_in_a_slower_servers_window_are_not_a_change() -> None:
    """Half as fast, it comes half as far in the same order of samples, whose lengths differ."""
    chance = Random(20261127)
    alarms = 0
    for _ in range(100):
        lengths = [chance.randint(40, 120) for _ in range(400)]
        baseline_runs = windows(lengths, *([400] * 4))
        new_runs = windows(lengths, 200)
        alarms += length_change(new_runs, baseline_runs) is not None

    assert alarms / 100 <= 0.01

    chance = Random(20261127)
    many = [chance.randint(40, 120) for _ in range(2_000)]
    shorter = windows([round(0.92 * length) for length in many], 1_080)
    baseline_runs = windows(many, *([1_000] * 4))
    unknown = [replace(run, within_se={}) for run in baseline_runs]

    assert length_change(shorter, baseline_runs)
    assert length_change(shorter, unknown)  # an older release kept less: taken for one like it


def answers(*tokens: int, first: int = 0, requests: tuple[tuple[int, int], ...] = ()) -> list[Run]:
    """Return a run whose answers to samples from `first` on have these numbers of tokens."""
    counts = [*enumerate(tokens, start=first), *requests]
    only = [count for _, count in counts]
    (run,) = windows(only, len(only))
    return [
        replace(
            run,
            serving=replace(
                run.serving, lengths={"8": " ".join(f"{n}:{count}" for n, count in counts)}
            ),
        )
    ]


def test_answers_to_the_same_samples_are_compared_one_by_one() -> None:
    """Other samples in the window are not a change, and shorter answers are detected at once."""
    chance = Random(20261129)
    lengths = [chance.choice([8, 16, 32, 64, 128]) for _ in range(64)]
    baseline_runs = answers(*lengths[:20])

    assert length_change(answers(*lengths[:20]), baseline_runs) is None
    # The first ones are the same, one of the others is long: 17 requests of unlike lengths.
    more = answers(*lengths[:17], requests=((40, 600), (41, 500)))
    assert length_change(more, baseline_runs) is None
    shorter = [round(0.9 * length) for length in lengths]
    message = length_change(answers(*shorter[:20]), baseline_runs)
    assert message
    assert message.values["metric"] == "tokens_per_sample@8"
    assert length_change(answers(*lengths[:19], 0), baseline_runs) is None  # one that chance cut
    # Below ten samples in common all answers are compared, as far as their number tells.
    assert length_change(answers(*lengths[20:37], first=20), baseline_runs) is None
    assert length_change(answers(*[5] * 17, first=40), baseline_runs)


def test_how_many_requests_there_were_decides_how_far_means_may_lie_apart() -> None:
    """As at a slow point with one request in flight: 37.23 against 41.49, from 17 requests."""
    (few,) = windows([20, 54] * 9, 17)
    for mean, requests, differs in (
        (37.23, 17, False),
        (37.23, 2_000, True),
        (12.0, 17, True),
    ):
        sides = [
            replace(
                few,
                metrics={"tokens_per_sample@8": value},
                within_se={"tokens_per_sample@8": 0.6 / math.sqrt(requests)},
            )
            for value in (mean, 41.49)
        ]
        assert bool(length_change(sides[:1], sides[1:])) is differs


counts = st.lists(st.integers(0, 10**9).map(float), min_size=1, max_size=8)


def test_any_difference_beyond_the_tolerance_is_reported() -> None:
    for baseline_values, new_values, tolerance, bounds in (
        ([512.0] * 8, [512.0], 0.0, None),
        ([512.0] * 8, [511.0], 0.0, (511.0, 512.0, 512.0)),
        ([512.0] * 8, [512.0, 513.0], 0.0, (513.0, 512.0, 512.0)),
        ([500.0, 512.0], [505.0], 0.0, None),
        ([294.1, 294.6], [250.0, 400.0], 0.0, (250.0, 294.1, 294.6)),
        ([1000.0], [990.0], 0.01, None),
        ([1000.0], [989.0], 0.01, (989.0, 990.0, 1010.0)),
        ([0.0], [0.0], 0.0, None),
        ([0.0], [1.0], 0.5, (1.0, 0.0, 0.0)),
    ):
        difference = count_outside_range(
            "tokens_per_sample", baseline_values, new_values, tolerance=tolerance
        )
        values = difference and tuple(difference.values[name] for name in ("value", "low", "high"))
        assert values == bounds
    for baseline_values, new_values, tolerance, message in (
        ([], [1.0], 0.0, "0 baseline values and 1 now"),
        ([1.0], [], 0.0, "1 baseline values and 0 now"),
        ([1.0], [math.nan], 0.0, "must be finite"),
        ([math.inf], [1.0], 0.0, "must be finite"),
        ([1.0], [1.0], -0.1, "must be finite"),
    ):
        with pytest.raises(ValueError, match=message):
            count_outside_range("tokens", baseline_values, new_values, tolerance=tolerance)


@given(baseline_values=counts, new_values=counts)
def test_counters_are_the_same_exactly_when_each_was_seen_before(
    baseline_values: list[float], new_values: list[float]
) -> None:
    note = count_outside_range("tokens", baseline_values, new_values)

    inside = all(min(baseline_values) <= value <= max(baseline_values) for value in new_values)
    assert (note is None) is inside
    assert count_outside_range("tokens", baseline_values, baseline_values) is None
    assert note is None or note.values["value"] in new_values


PLAIN = RuleR()


def session_runs(**sessions: list[float]) -> list[Value]:
    return [
        Value(value=value, session=name) for name, values in sessions.items() for value in values
    ]


def test_a_session_is_compared_as_runs_of_now_are() -> None:
    """Below zero is worse whichever way is better, and one session shows nothing."""
    higher, lower = Direction.HIGHER, Direction.LOWER
    baseline = session_runs(a=[100, 101], b=[99, 100.5], c=[97, 96.5])
    better, single_session = session_runs(a=[100, 100], b=[110, 110]), session_runs(a=[1, 2, 3])

    *_, last = between_sessions(baseline, direction=higher, rule=PLAIN)
    first, second = interim_analyses(baseline[:4], baseline[4:], direction=higher, rule=PLAIN)
    signs = [
        [look.change > 0 for look in between_sessions(better, direction=direction, rule=PLAIN)]
        for direction in (higher, lower)
    ]

    assert last == replace(second, session="c")
    assert last.change == pytest.approx(
        math.log(97 * 96.5) / 2 - sum(math.log(run.value) for run in baseline[:4]) / 4
    )
    assert (first.df, first.se > second.se) == (second.df - 1, True)
    assert signs == [[False, True], [True, False]]
    assert between_sessions(single_session, direction=higher, rule=PLAIN) == ()


def test_the_last_look_is_the_one_that_rule_r_decided_by() -> None:
    baseline, new_values = (
        session_runs(a=[100, 101, 99], b=[100, 100]),
        session_runs(now=[80, 81, 82]),
    )

    judged = judge(baseline, new_values, direction=Direction.HIGHER, limit=0.05, rule=PLAIN)
    *_, look = looks = interim_analyses(
        baseline, new_values[:2], direction=Direction.HIGHER, rule=PLAIN
    )

    assert judged.runs_used == len(looks) == 2
    assert (math.expm1(look.change), look.df) == pytest.approx((judged.change, judged.df))
    p = (PLAIN.max_runs - 1) * t_sf(-look.change / look.se, look.df)
    assert p == pytest.approx(judged.p)


def test_sessions_count_by_their_days_and_machines() -> None:
    """Those of one day make no drop likely, nor does noise that was learnt of them."""
    baseline, fresh = record(throughput=100.0), runs(2, throughput=95.0)
    learnt = SessionNoise(ratio=0.3, df=9.0)

    def of(
        *starts: str, machines: str = "    ", noise: SessionNoise | None = None
    ) -> MetricVerdict:
        kept = tuple(
            replace(run, started=starts[n // 2 % len(starts)], machine=machines[n // 2].strip())
            for n, run in enumerate(baseline.runs)
        )
        record_of_days = replace(
            baseline, runs=kept, session_noise={"throughput": noise} if noise else {}
        )
        (judged,) = rule_on(fresh, record_of_days, {"throughput": 0.03}, RuleR()).metrics
        return judged

    days = [on_day(number) for number in range(4)]
    for judged, count, likely, lacking in (
        (of(*days), 4, True, "few sessions"),
        (of(days[0]), 1, False, "few sessions"),
        (of(*days[:2]), 2, False, "few sessions"),
        (of(days[0], machines="abcd"), 4, True, "old"),
        (of(days[0], machines="ab b"), 2, False, "few sessions"),
        (of(*days, noise=learnt), 4, True, None),
        (of(days[0], noise=learnt), 1, False, "few sessions"),
        (of(days[0], noise=replace(learnt, by_days=True)), 1, False, "old"),
        (of(""), 1, False, "few sessions"),
        (of("", "yesterday", "2026-02-30", days[0]), 1, False, "few sessions"),
    ):
        assert (judged.baseline.days, judged.baseline.lacks) == (count, lacking)
        assert judged.likely is likely
        assert judged.outcome is (Outcome.PERF_DROP if lacking is None else Outcome.PROVISIONAL)
