"""Test load as a bound: no verdict rests on speed that other processes may have taken."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.contention import MAX_SHARE, Contention, lost_change
from pytest_mlperf.core.measurement import Run, RunLoad
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.recording import baseline_run
from pytest_mlperf.core.rulings.disturbance import (
    cpu_load_notes,
    explains_gap,
    explains_miss,
    is_loaded,
    load_note,
)
from pytest_mlperf.core.rulings.ruling import rule_on, rule_values
from pytest_mlperf.core.rulings.sides import judge_sides
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.judge.rule_r import Judged, RuleR, Value, judge
from tests.core.made import make_baseline_run, make_run
from tests.core.rulings.test_ruling import OFFLINE, RULE, record

LIMIT = 0.03
NOISE = (0.002, -0.001, 0.0005, -0.002, 0.001, -0.0005, 0.0015, -0.0015)

shares = st.floats(0, 0.95)
parts = st.lists(st.floats(0, 1), min_size=8, max_size=8)


def run(share: float | None, **metrics: float) -> Run:
    seen = Contention(window_s=10.0, cores=2, foreign_s=4.0, share=share)
    return make_run(metrics=metrics or {"throughput": 100.0}, contention=seen)


def test_a_drop_gets_a_margin_for_shared_memory_and_a_pass_none() -> None:
    """Only runs whose own share counts at all get it."""
    for share, drop_share, lost in ((0.1, 0.4, 0.4), (0.1, None, 0.1), (0.04, 0.4, 0.0)):
        loaded = run(share)
        assert loaded.load.contention
        new_run = replace(
            loaded,
            load=replace(
                loaded.load, contention=replace(loaded.load.contention, drop_share=drop_share)
            ),
        )
        kept = baseline_run(new_run)
        without = rule_values([new_run], "throughput", 0.05, margin=False)
        assert without == rule_values([kept], "throughput", 0.05)
        assert rule_values([new_run], "throughput", 0.05)[0].lost == pytest.approx(
            -math.log1p(-lost)
        )
        assert rule_values([kept], "throughput", 0.05)[0].lost == pytest.approx(
            -math.log1p(-share) if lost else 0.0
        )


def slowed(true: float, metric: str, share: float, taken: list[float]) -> list[Value]:
    """Return runs of which load took part of a share, with the bound that names the share."""
    worse = 1 if METRICS[metric].direction is Direction.LOWER else -1
    lost = lost_change(metric, share)
    return [
        Value(value=true * math.exp(noise + worse * part * lost), lost=lost, session=str(i // 2))
        for i, (noise, part) in enumerate(zip(NOISE, taken, strict=True))
    ]


def decided(baseline_values: list[Value], new_values: list[Value], metric: str) -> Judged:
    direction = METRICS[metric].direction
    return judge(baseline_values, new_values[:5], direction=direction, limit=LIMIT, rule=RULE)


@pytest.mark.parametrize("metric", ["throughput", "latency_p50", "latency_p99"])
@given(share=shares, other=shares, taken=st.floats(0, 1))
def test_load_makes_no_unchanged_build_a_drop_and_no_drop_a_pass(
    metric: str, share: float, other: float, taken: float
) -> None:
    """Whatever part of its bound the load took, of the runs of now or of the baseline."""
    even, none = [taken] * 8, [0.0] * 8
    worse = 1 + 1.5 * LIMIT if METRICS[metric].direction is Direction.LOWER else 1 - 1.5 * LIMIT

    unchanged = decided(slowed(1, metric, other, none), slowed(1, metric, share, even), metric)
    dropped = decided(slowed(1, metric, other, even), slowed(worse, metric, share, none), metric)

    assert unchanged.outcome is not Answer.FAIL
    assert unchanged.direction != "drop" or unchanged.outcome is Answer.INCONCLUSIVE
    assert dropped.outcome is not Answer.PASS
    assert dropped.direction != "ok"
    assert not dropped.improved


@given(value=st.floats(0.2, 2), share=shares, more=st.floats(0, 0.04))
def test_more_load_proves_less(value: float, share: float, more: float) -> None:
    baseline_values, none = slowed(1, "throughput", 0, [0.0] * 8), [0.0] * 8
    less, most = (
        decided(baseline_values, slowed(value, "throughput", one, none), "throughput")
        for one in (share, share + more)
    )
    if most.outcome is Answer.FAIL:
        assert less.outcome is Answer.FAIL
    assert most.high >= less.high or most.runs_used != less.runs_used


def test_half_speed_is_a_drop_under_load_that_explains_less() -> None:
    baseline_values = slowed(1, "throughput", 0, [0.0] * 8)
    for share, decision in (
        (0.0, Answer.FAIL),
        (0.3, Answer.FAIL),
        (0.6, Answer.INCONCLUSIVE),
    ):
        assert (
            decided(
                baseline_values, slowed(0.5, "throughput", share, [0.0] * 8), "throughput"
            ).outcome
            is decision
        )


def test_the_bound_of_each_kind_of_metric() -> None:
    for metric, share, points, times in (
        ("throughput", 0.5, 0, 2.0),
        ("latency_p50", 0.5, 0, 2.0),
        ("tpot_p90", 0.1, 0, 1 + (1 / 9) / 0.1),
        ("ttft_p99", 0.1, 0, 1 + (1 / 9) / 0.01),
        ("tps_per_user", 0.1, 0, 1 + (1 / 9) / 0.1),
        ("time_mean", 0.5, 0, 2.0),
        ("peak_host_memory", 0.5, 0, 1.0),
        ("goodput", 0.01, 0, 1 / (1 - MAX_SHARE)),
        ("throughput", 1.0, 0, 1 / (1 - MAX_SHARE)),
        ("throughput@16", 0.1, 3, 1 / 0.7),
        ("ttft_p50@16", 0.1, 3, 1 / 0.7),
    ):
        assert math.exp(lost_change(metric, share, points=points)) == pytest.approx(times), metric
    assert lost_change("goodput", 0.0) == 0


def test_runs_of_now_and_of_the_baseline_bring_their_own_bounds() -> None:
    """A tolerated or unknown share counts as zero."""
    for share, lost in ((None, 0.0), (0.05, 0.0), (0.0501, -math.log1p(-0.0501))):
        for busy_run in (run(share), make_baseline_run(busy=share)):
            assert rule_values([busy_run], "throughput", 0.05)[0].lost == pytest.approx(lost), share
            assert rule_values([busy_run], "throughput")[0].lost == 0
    late = replace(
        run(0.0, ttft_p99=1.0, tpot_p99=1.0),
        load=RunLoad(client={"issue_p99": 0.1, "loop_p99": 0.4}),
    )
    for kept in (late, baseline_run(late)):
        losses = [rule_values([kept], name, 0.05)[0].lost for name in ("ttft_p99", "tpot_p99")]
        assert losses == [pytest.approx(math.log(2)), 0.0]
    assert rule_values([late], "ttft_p99")[0].lost == 0
    curve = run(0.1, **{"throughput@1": 10.0, "throughput@4": 30.0})
    assert rule_values([curve], "throughput@4", 0.05)[0].lost == pytest.approx(-math.log1p(-0.2))


def test_a_ruling_under_load_names_the_deciding_bound_and_the_unloaded_verdict() -> None:
    rule, baseline = replace(RULE, tolerated=0.05), record(throughput=100.0)
    for share, value, outcome, leans in (
        (0.04, 70.0, Outcome.PERF_DROP, None),
        (0.5, 70.0, Outcome.INCONCLUSIVE, "drop"),
        (0.5, 99.8, Outcome.OK, None),
    ):
        new_runs = [run(share, throughput=value + 0.5 * (i % 2)) for i in range(5)]
        ruling = rule_on(new_runs, baseline, OFFLINE, rule)
        assert (ruling.outcome, ruling.metrics[0].direction) == (outcome, leans), (share, value)
        hidden = Note.of("load_explains", now=0.5, before=0.0)
        assert (ruling.metrics[0].note == hidden) is (outcome is Outcome.INCONCLUSIVE)


def test_two_sides_of_a_comparison_have_the_same_bounds() -> None:
    def side(value: float, share: float) -> list[Run]:
        runs = [run(share, throughput=value + 0.1 * i) for i in range(8)]
        return [replace(one, session=f"{value}-{i // 2}") for i, one in enumerate(runs)]

    rule = RuleR(tolerated=0.05)
    for a, b, outcome in (
        (side(100, 0.0), side(50, 0.0), Outcome.PERF_DROP),
        (side(100, 0.0), side(50, 0.3), Outcome.PERF_DROP),
        (side(100, 0.0), side(50, 0.6), Outcome.INCONCLUSIVE),
        (side(100, 0.6), side(100.3, 0.0), Outcome.INCONCLUSIVE),
        (side(100, 0.0), side(100.3, 0.6), Outcome.OK),
        (side(100, 0.6), side(50, 0.0), Outcome.PERF_DROP),
    ):
        (metric,) = judge_sides(a, b, OFFLINE, rule)
        assert metric.outcome is outcome, (a[0].load.contention, b[0].load.contention)
        key = metric.note.key if isinstance(metric.note, Note) else None
        assert (key == "load_explains_sides") is (outcome is Outcome.INCONCLUSIVE)


def test_a_limit_that_load_can_have_broken_is_not_missed() -> None:
    limits = {"latency_p99": 0.1, "ttft_p99": 1.0}
    for busy_run, explained in (
        (run(0.1, latency_p99=0.15), True),
        (run(0.1, latency_p99=1.5), False),
        (run(0.1, latency_p99=0.15, ttft_p99=20.0), False),
        (run(0.04, latency_p99=0.101), False),
        (run(None, latency_p99=0.101), False),
        (run(0.1, latency_p99=0.05), True),
        (replace(run(0.0, latency_p99=0.15), load=RunLoad(client={"loop_p99": 0.07})), True),
        (replace(run(0.0, latency_p99=0.15), load=RunLoad(client={"loop_p99": 0.04})), False),
    ):
        assert explains_miss(busy_run, limits, 0.05) is explained, busy_run.metrics
    assert is_loaded([run(0.01), make_baseline_run(busy=0.06)], 0.05)
    assert not is_loaded([run(None), make_baseline_run(busy=0.05)], 0.05)
    note = load_note([run(0.1), run(0.2)])
    assert (note.key, note.values["share"]) == ("busy", 0.2)
    assert isinstance(note.values["load"], Note)
    assert note.values["load"].values["used"] == 0.4


def test_load_explains_a_gap_whose_worse_side_has_more_of_it() -> None:
    """Metrics of either direction, whichever side comes first, if both sides have them."""
    fast, slow = {"throughput": 100.0, "latency_p99": 0.1}, {"throughput": 90.0, "latency_p99": 0.2}
    for a, b, explained in (
        (run(0.0, **fast), run(0.3, **slow), True),
        (run(0.3, **fast), run(0.0, **slow), False),
        (run(0.3, **fast), run(0.34, **slow), False),
        (run(None, **fast), run(0.3, **slow), True),
        (run(None, **fast), run(None, **slow), False),
        (run(0.0, **fast), run(0.3, power=1.0), False),
        (run(0.0, **fast), run(0.3, **{**fast, "latency_p99": 0.11}), True),
    ):
        assert explains_gap(a, b, fast, 0.05) is explained, (a.load.contention, b.load.contention)
        assert explains_gap(b, a, fast, 0.05) is explained
        assert not explains_gap(a, b, fast, math.inf)
    assert explains_gap(run(0.3, **fast), run(0.0, **slow), ["throughput"], 0.05, least=1.2)
    assert not explains_gap(run(0.3, **fast), run(0.0, **slow), ["throughput"], 0.05, least=1.1)


def test_unknown_load_is_noted() -> None:
    known_run, kept = run(0.01), make_baseline_run(busy=0.0)
    seen = Contention(window_s=9.0, cores=2, serves=False, share=0.0)
    elsewhere = replace(known_run, load=replace(known_run.load, contention=seen))
    for runs, baseline_runs, messages in (
        ([known_run], [kept], []),
        ([known_run, run(0.3)], [kept], [("not_idle", None, 2)]),
        ([known_run, run(None)], [], [("load_unknown", 1, 2)]),
        ([elsewhere, make_run()], [kept], [("load_unknown", 2, 2)]),
        ([known_run], [kept, make_baseline_run()], [("load_not_recorded", 1, 2)]),
    ):
        notes = cpu_load_notes(runs, baseline_runs, 0.05)
        facts = [(note.key, note.values.get("count"), note.values["of"]) for note in notes]
        assert facts == messages
        assert cpu_load_notes(runs, baseline_runs, math.inf) == ()
