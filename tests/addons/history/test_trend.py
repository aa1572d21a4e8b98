"""Test the change from one accepted baseline to the next: its interval, and when there is none."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.addons.history.trend import TrendStep, grouped, holm_adjusted, step, why_no_ratio
from pytest_mlperf.bench.policy import rule_for
from pytest_mlperf.core.baseline import BaselineRun, geometric_means
from pytest_mlperf.core.case import Case, Kind, Scenario
from pytest_mlperf.core.history import CaseHistory, CaseSeries, SessionPoint
from pytest_mlperf.core.rulings.sides import pooled
from pytest_mlperf.core.trend import TrendPoint, distinct, version_labels
from pytest_mlperf.judge.rule_r import Value
from tests.core.made import make_baseline_run, present

CASE = Case(
    workload="llama",
    scenario=Scenario.OFFLINE,
    engine="trtllm",
    precision="fp8",
    accelerator="8xH200",
)
RULE = rule_for("H200")


def runs(*values: float, name: str = "throughput", session: str = "s") -> tuple[BaselineRun, ...]:
    return tuple(
        make_baseline_run(metrics={name: value}, session=f"{session}{number // 2}")
        for number, value in enumerate(values)
    )


def point(
    *values: float, name: str = "throughput", session: str = "s", **fields: Any
) -> TrendPoint:
    made = runs(*values, name=name, session=session)
    point_fields: dict[str, Any] = {
        "date": "2026-03-02",
        "commit": "1a2b3c4",
        "reason": "",
        "case": CASE,
        "profile": "quick",
        "identity": {"gpu": "H200"},
        "fingerprint": {"engine": "trtllm", "engine.version": "1.0.0", "dataset": "5c1e" * 16},
        "rate": None,
        "means": geometric_means(made),
        "runs": made,
    }
    return TrendPoint(**{**point_fields, **fields})


values = st.lists(st.floats(min_value=50.0, max_value=200.0), min_size=1, max_size=9)


def test_the_interval_is_that_of_two_pooled_sides() -> None:
    """95 % of it, either way: one formula with `compare`."""
    old_values, new_values = [100.0, 101.0, 99.0, 100.5], [98.0, 97.0, 99.0]

    interval = step(point(*old_values), point(*new_values, session="x"), "throughput", RULE)

    sides = (
        [Value(value=x, session=str(n // 2)) for n, x in enumerate(side)]
        for side in (old_values, new_values)
    )
    same = pooled(*sides, rule=RULE)
    half = same.reach(0.025)
    expected = [math.expm1(same.change + by) for by in (-half, 0, half)]
    assert [interval.low, interval.change, interval.high] == pytest.approx(expected)
    assert interval.by_sessions
    assert interval.p == pytest.approx(2 * same.p(-1))


@settings(max_examples=40)
@given(old_values=values, new_values=values)
def test_there_and_back_again(old_values: list[float], new_values: list[float]) -> None:
    """The step back has the inverse change, with the inverse ends swapped."""
    a, b = point(*old_values), point(*new_values, session="x")
    there, back = step(a, b, "throughput", RULE), step(b, a, "throughput", RULE)

    low, change, high = present(there.low), present(there.change), present(there.high)
    inverse = [1 / (1 + x) - 1 for x in (high, change, low)]
    bounds = [present(x) for x in (back.low, back.change, back.high)]
    assert bounds == pytest.approx(inverse, rel=1e-9, abs=1e-12)
    assert low <= change <= high
    opposite = None if there.better is None else not there.better
    assert back.better is opposite


def side(rng: random.Random, sessions: int, sds: tuple[float, float], **fields: Any) -> TrendPoint:
    """Draw a baseline of eight runs in this many sessions, with these standard deviations."""
    true = fields.pop("true", 100.0)
    sample = [
        true * math.exp(session + rng.gauss(0, sds[1]))
        for session in [rng.gauss(0, sds[0]) for _ in range(sessions)]
        for _ in range(8 // sessions)
    ]
    made = point(*sample, **fields)
    if sessions == 4:
        return made
    return replace(made, runs=tuple(replace(run, session=fields["session"]) for run in made.runs))


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.nightly)])
def test_the_interval_holds_the_true_change(count: int) -> None:
    """Test simulated upgrades, also with one session a side, or with sessions that differ more."""
    for sessions in (4, 1):
        for sds in ((0.0035, 0.006), (0.01, 0.005)):
            rng, held = random.Random(7), 0
            for _ in range(count):
                old = side(rng, sessions, sds, session="a")
                new = side(rng, sessions, sds, session="b", true=104.0)
                interval = step(old, new, "throughput", RULE)
                held += present(interval.low) <= 0.04 <= present(interval.high)
            assert held / count >= (0.935 if count > 100 else 0.9)


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.nightly)])
def test_an_unchanged_trend_shows_a_step_at_most_once_in_twenty(count: int) -> None:
    """Twelve baselines, of 4 sessions each: simulated trends."""
    rng, alarms = random.Random(7), 0
    for _ in range(count):
        points = [side(rng, 4, (0.0035, 0.006), session=str(number)) for number in range(12)]
        steps = [step(a, b, "throughput", RULE) for a, b in pairwise(points)]
        alarms += any(one.better is not None for one in holm_adjusted(steps))

    assert alarms <= 0.05 * count + 2 * (0.05 * 0.95 * count) ** 0.5


def test_better_needs_proof_among_others() -> None:
    by_p = [TrendStep(change=0.1, better=True, p=p) for p in (0.03, 0.012, 0.004, 0.9)]

    assert [one.better for one in holm_adjusted(by_p)] == [None, True, True, None]
    assert [one.better for one in holm_adjusted(by_p[:1])] == [True]
    assert holm_adjusted([TrendStep(refused=("other data",)), by_p[0]])[1].better is True

    for name, value, better in (
        ("throughput", 110.0, True),
        ("throughput", 90.0, False),
        ("throughput", 100.2, None),
        ("latency_p50", 110.0, False),
        ("latency_p50", 90.0, True),
        ("tokens_per_sample", 90.0, None),
    ):
        a, b = point(*[100.0] * 8, name=name), point(*[value] * 8, name=name, session="x")
        assert step(a, b, name, RULE).better is better

    means = step(replace(point(100.0), runs=()), point(110.0, 110.0), "throughput", RULE)
    assert means.change == pytest.approx(0.1)
    assert (means.low, means.high, means.better) == (None, None, None)


BASE = point(100.0, 101.0)


def changed(**fields: Any) -> TrendPoint:
    """Return the point with other fields; `case` and `fingerprint` are added to its own."""
    case = replace(CASE, **fields.pop("case", {}))
    fingerprint = {**BASE.fingerprint, **fields.pop("fingerprint", {})}
    return replace(BASE, case=case, fingerprint=fingerprint, **fields)


def test_incomparable_baselines_are_refused_with_the_reasons() -> None:
    cases: list[tuple[TrendPoint, list[str]]] = [
        (BASE, []),
        (replace(BASE, fingerprint={}), []),
        (changed(case={"engine": "trtllm-1.3"}), []),
        (changed(case={"accelerator": "H200"}), ["number of accelerators differs: 8 → 1"]),
        (changed(case={"accelerator": "8xH100"}, identity={"gpu": "H100"}),
         ["accelerator differs: H200 → H100"]),
        (changed(fingerprint={"division": "open"}), ["division differs: closed → open"]),
        (changed(profile="official"), ["profile differs: quick → official"]),
        (changed(identity={"gpu": "H200", "power_limit_w": 500}),
         ["other hardware: power_limit_w None → 500"]),
        (changed(rate=120.0), ["offered rate differs: not known → 120/s"]),
        (changed(fingerprint={"dataset": "77ab" * 16}),
         ["data set differs: 5c1e5c1e… → 77ab77ab…"]),
        (changed(case={"workload": "bert", "scenario": "Server", "precision": "fp4"}),
         ["workload differs: llama → bert", "scenario differs: Offline → Server",
          "precision differs: fp8 → fp4"]),
        (changed(date="2026-05-01", means={"tokens_per_second": 1.0}),
         ["metric differs: the baseline of 2026-05-01 has no samples/s; it has tokens/s"]),
    ]  # fmt: skip
    for other, reasons in cases:
        ratio = step(BASE, other, "throughput", RULE)
        assert why_no_ratio(BASE, other, "throughput") == ratio.refused == tuple(reasons)
        assert (ratio.change is None) is bool(reasons)
        assert bool(why_no_ratio(other, BASE, "throughput")) is bool(reasons)


def test_metrics_never_mix_and_appended_runs_belong_to_their_baseline() -> None:
    """The points of a machine follow each other."""
    names = ("throughput", "tokens_per_second", "latency_p50")
    for a, b, metric in product(names, repeat=3):
        ratio = step(point(100.0, name=a), point(110.0, name=b), metric, RULE)
        assert (ratio.change is not None) is (a == b == metric)

    first, more = point(100.0, 101.0), point(100.0, 101.0, 102.0)
    other, elsewhere = point(100.0, 101.0, 99.0, session="x"), replace(more, identity={"gpu": "H1"})
    january, february, march = (
        point(1.0, identity={"gpu": gpu}, date=f"2026-0{month}-01")
        for gpu, month in (("a", 1), ("b", 2), ("a", 3))
    )

    assert distinct([first, first, more, first, other]) == [more, other]
    assert distinct([first, elsewhere]) == [first, elsewhere]
    assert grouped([january, february, march]) == [february, january, march]


def test_versions_are_the_distinguishing_facts_of_engines() -> None:
    same = {"engine": "ort", "engine.version": "1.20", "engine.numpy": "2.1"}
    facts = {"engine": "a:Ort", "engine.onnxruntime": "1.20", "engine.cuda": "12.9"}
    old = {"engine": "x", "engine.version": "1.0", "engine.cuda": "12.8"}
    new = {"engine": "x", "engine.version": "1.1", "engine.cuda": "12.9"}

    def versions_of(*fingerprints: dict[str, str]) -> list[str]:
        return version_labels([point(1.0, fingerprint=found) for found in fingerprints])

    assert versions_of(same, same) == ["ort 1.20", "ort 1.20"]
    assert versions_of(facts, {**facts, "engine.onnxruntime": "1.21"}) == [
        "onnxruntime 1.20",
        "onnxruntime 1.21",
    ]
    assert versions_of(old, {}, new) == ["x 1.0, cuda 12.8", "not known", "x 1.1, cuda 12.9"]
    assert versions_of({"engine": "null", "engine.latency_s": "slow"}) == ["null"]


SERIES = CaseSeries(
    case=Case(
        workload="w", scenario=Scenario.OFFLINE, engine="e", precision="fp32", accelerator="cpu"
    ),
    kind=Kind.PERFORMANCE,
    profile="quick",
    metric="throughput",
    identity={},
    conditions={},
)


def history(*points: tuple[float | None, bool]) -> CaseHistory:
    return CaseHistory(
        series=SERIES,
        points=[
            SessionPoint(
                run=f"r{number}",
                started=f"2026-11-{number + 1:02}T00:00:00+00:00",
                commit=None,
                value=1.0,
                runs=1,
                baseline=baseline,
                outcome="ok",
                failed=False,
                accepted=accepted,
                fingerprint={},
            )
            for number, (baseline, accepted) in enumerate(points)
        ],
    )


def test_a_baseline_is_marked_once_where_it_was_accepted() -> None:
    cases: list[tuple[list[tuple[float | None, bool]], list[int]]] = [
        ([(None, True), (1.0, False), (1.0, False)], [1, 0, 0]),
        ([(None, True), (1.0, True), (2.0, True), (3.0, False)], [1, 1, 1, 0]),
        ([(1.0, False), (1.0, False), (2.0, False), (2.0, False)], [0, 0, 1, 0]),
        ([(1.0, True), (2.0, False), (3.0, False)], [1, 0, 1]),
        ([(1.0, True), (1.0, False), (2.0, False)], [1, 0, 1]),
        ([(1.0, False), (None, False), (2.0, False)], [0, 0, 1]),
    ]
    for points, marks in cases:
        assert history(*points).accepted == list(map(bool, marks)), points
