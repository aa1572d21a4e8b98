"""A change from one accepted baseline to the next: its interval, and when there is no ratio."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.calibrated import rule_for
from pytest_mlperf.core.baseline import BaselineRun, geometric_means
from pytest_mlperf.core.case import Case
from pytest_mlperf.core.judge.rule_r import RuleR
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.trend import Point, distinct, grouped, step, versions, why_no_ratio

CASE = Case(
    workload="llama", scenario="Offline", engine="trtllm", precision="fp8", accelerator="8xH200"
)
RULE = rule_for("H200")


def runs(*values: float, name: str = "throughput", session: str = "s") -> tuple[BaselineRun, ...]:
    """Return runs, two of each session."""
    return tuple(
        BaselineRun(
            metrics={name: value},
            within_se={},
            session=f"{session}{number // 2}",
            started=f"2026-03-02T10:{number:02}:00+00:00",
            samples=100,
            duration_s=60.0,
            commit=None,
        )
        for number, value in enumerate(values)
    )


def point(*values: float, name: str = "throughput", session: str = "s", **fields: Any) -> Point:
    made = runs(*values, name=name, session=session)
    given: dict[str, Any] = {
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
    return Point(**{**given, **fields})


# --- the interval --------------------------------------------------------------------------------

values = st.lists(st.floats(min_value=50.0, max_value=200.0), min_size=1, max_size=9)

T975 = {4: 2.776445105, 5: 2.570581836, 6: 2.446911851, 8: 2.306004135, 10: 2.228138852}
"""Student's t at 97.5 % from a printed table, by degrees of freedom."""


@pytest.mark.parametrize("sizes", [(1, 1), (1, 2), (2, 2), (3, 3), (4, 4)])
def test_the_interval_is_rule_rs_noise_with_all_runs(sizes: tuple[int, int]) -> None:
    """Transcribed from the formula with Student's t from a printed table."""
    rng = random.Random(1)
    before, now = ([100 * math.exp(rng.gauss(0, 0.01)) for _ in range(n)] for n in sizes)
    rule = RuleR(prior_df=4, prior_sd=0.007, session_share=0.25)

    found = step(point(*before), point(*now, session="x"), "throughput", rule)

    logs = [[math.log(x) for x in side] for side in (before, now)]
    df = 4 + sizes[0] - 1 + sizes[1] - 1
    squares = sum((x - fmean(side)) ** 2 for side in logs for x in side)
    s2 = (4 * 0.007**2 + squares) / df
    spread = 0.0
    for n in sizes:
        sessions = [2] * (n // 2) + [1] * (n % 2)
        spread += 0.25 * sum((m / n) ** 2 for m in sessions) + 0.75 / n
    half = T975[df] * math.sqrt(s2 * spread)
    d = fmean(logs[1]) - fmean(logs[0])
    assert found.change == pytest.approx(math.exp(d) - 1)
    assert found.low == pytest.approx(math.exp(d - half) - 1, rel=1e-6)
    assert found.high == pytest.approx(math.exp(d + half) - 1, rel=1e-6)


@given(before=values, now=values)
def test_there_and_back_again(before: list[float], now: list[float]) -> None:
    """The step back has the inverse change, with the inverse ends swapped."""
    a, b = point(*before), point(*now, session="x")
    there, back = step(a, b, "throughput", RULE), step(b, a, "throughput", RULE)

    assert there.change is not None
    assert there.low is not None
    assert there.high is not None
    assert back.change == pytest.approx(1 / (1 + there.change) - 1, rel=1e-9, abs=1e-12)
    assert back.low == pytest.approx(1 / (1 + there.high) - 1, rel=1e-9, abs=1e-12)
    assert back.high == pytest.approx(1 / (1 + there.low) - 1, rel=1e-9, abs=1e-12)
    assert there.low <= there.change <= there.high
    opposite = None if there.better is None else not there.better
    assert back.better is opposite


def test_the_interval_holds_the_true_change() -> None:
    """Of 2,000 simulated upgrades, runs of a session sharing a quarter of the variance."""
    rng, sd, held = random.Random(7), 0.007, 0

    def side(true: float, name: str) -> Point:
        sample = []
        for _ in range(4):
            session = rng.gauss(0, sd * 0.5)
            sample += [true * math.exp(session + rng.gauss(0, sd * 0.75**0.5)) for _ in "ab"]
        return point(*sample, session=name)

    for _ in range(2000):
        found = step(side(100.0, "a"), side(104.0, "b"), "throughput", RULE)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0.04 <= found.high

    assert 0.935 <= held / 2000 <= 0.985


@pytest.mark.parametrize(
    ("name", "now", "better"),
    [
        ("throughput", 110.0, True),
        ("throughput", 90.0, False),
        ("throughput", 100.2, None),
        ("latency_p50", 110.0, False),
        ("latency_p50", 90.0, True),
        ("tokens_per_sample", 90.0, None),
    ],
)
def test_better_is_said_only_where_it_is_proven(name: str, now: float, better: bool | None) -> None:
    a, b = point(*[100.0] * 4, name=name), point(*[now] * 4, name=name, session="x")

    assert step(a, b, name, RULE).better is better


def test_means_alone_give_a_change_without_an_interval() -> None:
    a, b = replace(point(100.0), runs=()), point(110.0, 110.0)

    found = step(a, b, "throughput", RULE)

    assert found.change == pytest.approx(0.1)
    assert (found.low, found.high, found.better) == (None, None, None)


# --- no ratio ------------------------------------------------------------------------------------

BASE = point(100.0, 101.0)


@pytest.mark.parametrize(
    ("other", "reasons"),
    [
        (BASE, ()),
        (replace(BASE, fingerprint={}), ()),
        (replace(BASE, case=replace(CASE, engine="trtllm-1.3")), ()),
        (
            replace(BASE, case=replace(CASE, accelerator="H200"), identity={"gpu": "H200"}),
            ("another number of accelerators: 8 → 1",),
        ),
        (
            replace(BASE, case=replace(CASE, accelerator="8xH100"), identity={"gpu": "H100"}),
            ("another accelerator: H200 → H100",),
        ),
        (
            replace(BASE, fingerprint={**BASE.fingerprint, "division": "open"}),
            ("another division: closed → open",),
        ),
        (replace(BASE, profile="official"), ("another profile: quick → official",)),
        (replace(BASE, identity={"gpu": "H200", "power_limit_w": 500}),
         ("other hardware: power_limit_w None → 500",)),
        (replace(BASE, rate=120.0), ("offered rate differs: not known → 120/s",)),
        (replace(BASE, fingerprint={**BASE.fingerprint, "dataset": "77ab" * 16}),
         ("other data: dataset 5c1e5c1e… → 77ab77ab…",)),
        (
            replace(BASE, case=replace(CASE, workload="bert", scenario="Server", precision="fp4")),
            (
                "another workload: llama → bert",
                "another scenario: Offline → Server",
                "another precision: fp8 → fp4",
            ),
        ),
        (
            replace(BASE, date="2026-05-01", means={"tokens_per_second": 1.0}),
            ("another metric: samples/s is not in the baseline of 2026-05-01, which has tokens/s",),
        ),
    ],
    ids=["same", "no fingerprint", "engine entry", "count", "class", "division", "profile",
         "hardware", "rate", "data", "several", "metric"],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused_with_the_reasons(
    other: Point, reasons: tuple[str, ...]
) -> None:
    assert why_no_ratio(BASE, other, "throughput") == reasons
    found = step(BASE, other, "throughput", RULE)
    assert found.refused == reasons
    assert (found.change is None) is bool(reasons)
    assert bool(why_no_ratio(other, BASE, "throughput")) is bool(reasons)


@given(
    a=st.sampled_from(sorted(METRICS)),
    b=st.sampled_from(sorted(METRICS)),
    metric=st.sampled_from(sorted(METRICS)),
)
def test_metrics_never_mix(a: str, b: str, metric: str) -> None:
    found = step(point(100.0, name=a), point(110.0, name=b), metric, RULE)

    assert (found.change is not None) is (a == b == metric)


# --- points --------------------------------------------------------------------------------------


def test_appended_runs_belong_to_what_they_extend() -> None:
    first, more = point(100.0, 101.0), point(100.0, 101.0, 102.0)
    other = point(100.0, 101.0, 99.0, session="x")

    assert distinct([first, first, more, first, other]) == [more, other]
    assert distinct([first, replace(more, identity={"gpu": "H100"})]) == [
        first,
        replace(more, identity={"gpu": "H100"}),
    ]


def test_the_points_of_a_machine_follow_each_other() -> None:
    def on(gpu: str, date: str) -> Point:
        return point(1.0, identity={"gpu": gpu}, date=date)

    points = [on("a", "2026-01-01"), on("b", "2026-02-01"), on("a", "2026-03-01")]

    assert [(p.identity["gpu"], p.date[5:7]) for p in grouped(points)] == [
        ("b", "02"),
        ("a", "01"),
        ("a", "03"),
    ]


@pytest.mark.parametrize(
    ("fingerprints", "expected"),
    [
        (
            [{"engine": "ort", "engine.version": "1.20", "engine.numpy": "2.1"}] * 2,
            ["ort 1.20", "ort 1.20"],
        ),
        (
            [
                {"engine": "a:Ort", "engine.onnxruntime": "1.20", "engine.cuda": "12.9"},
                {"engine": "a:Ort", "engine.onnxruntime": "1.21", "engine.cuda": "12.9"},
            ],
            ["onnxruntime 1.20", "onnxruntime 1.21"],
        ),
        (
            [
                {"engine": "x", "engine.version": "1.0", "engine.cuda": "12.8"},
                {},
                {"engine": "x", "engine.version": "1.1", "engine.cuda": "12.9"},
            ],
            ["x 1.0, cuda 12.8", "not known", "x 1.1, cuda 12.9"],
        ),
        ([{"engine": "null", "engine.latency_s": "slow"}], ["null"]),
    ],
)
def test_versions_are_what_tells_engines_apart(
    fingerprints: list[dict[str, str]], expected: list[str]
) -> None:
    assert versions([point(1.0, fingerprint=found) for found in fingerprints]) == expected
