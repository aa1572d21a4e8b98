"""What the figures show, as rows; a plot and its table are made of these."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.addons.html._figures import (
    accuracy,
    cost,
    duration_plot,
    energy,
    forest,
    heat_map,
    relative,
    spread,
    strip,
)
from pytest_mlperf.addons.html.model import Grouped, Row, RunFiles, grouped, rounded, tone
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.roofline.gpu import GpuPrice, PerDollar
from pytest_mlperf.core.verdict import Confirmation, InterleavedRuns, Outcome, Verdict
from tests.addons.html.made import record
from tests.reports import verdicts
from tests.reports.verdicts import CASE, metric, result, run, verdict


def cells(row: Row, *fields: str) -> tuple[Any, ...]:
    return tuple(row[field] for field in fields)


def cases(*verdicts: Verdict) -> list[Grouped]:
    return grouped([result(one) for one in verdicts])


def on(accelerator: str, workload: str = "resnet50", **fields: object) -> Verdict:
    case = replace(CASE, accelerator=accelerator, workload=workload)
    return replace(verdicts.OK, case=case, **fields)  # type: ignore[arg-type]


def test_a_label_has_what_tells_a_case_apart() -> None:
    rows: list[Any] = [
        ([{}], ["resnet50 Offline"]),
        ([{}, {"scenario": "Server"}], ["resnet50 Offline", "resnet50 Server"]),
        ([{}, {"engine": "trt"}], ["resnet50 Offline ort", "resnet50 Offline trt"]),
        (
            [{}, {"precision": "fp8"}, {"workload": "bert", "engine": "trt"}],
            ["resnet50 Offline fp16", "resnet50 Offline fp8", "bert Offline"],
        ),
        ([{}, {"accelerator": "cpu"}], ["resnet50 Offline H200", "resnet50 Offline cpu"]),
    ]
    for changes, labels in rows:
        made = [replace(verdicts.OK, case=replace(CASE, **change)) for change in changes]
        assert [one.label for one in cases(*made)] == labels


def test_what_failed_comes_first_and_tests_of_a_case_stand_together() -> None:
    other = replace(CASE, workload="bert")
    grouped_cases = cases(
        verdicts.OK,
        replace(verdicts.INCONCLUSIVE, case=other),
        verdicts.GATE_FAIL,
        replace(verdicts.ERROR, case=replace(CASE, workload="gptj")),
    )

    assert [one.case.workload for one in grouped_cases] == ["gptj", "resnet50", "bert"]
    assert [len(one.results) for one in grouped_cases] == [1, 2, 1]
    other_suite = result(verdicts.OK, suite="suites/b.toml", test="b")
    assert len(grouped([result(verdicts.OK), other_suite])) == 2
    assert grouped_cases[1].worst.verdict.outcome is Outcome.GATE_FAIL
    (strict,) = grouped([result(verdicts.INCONCLUSIVE, failed=True)])
    assert (strict.tone, tone(Outcome.INCONCLUSIVE)) == ("fail", "open")


@given(st.floats(min_value=1e-9, max_value=1e12))
def test_a_rounded_value_is_as_near_as_its_table_shows(value: float) -> None:
    assert rounded(value) == pytest.approx(value, rel=5.1e-4)


def test_changes_are_shares_of_their_limits_and_better_to_the_right() -> None:
    """A score is drawn by its points; without a baseline nothing is drawn."""
    rows: list[Any] = [
        (
            metric(outcome=Outcome.PERF_DROP),
            (-2.1, -2.3, -1.9, "−6.3 %", "6.3 % slower", "−3 %", "fail"),
        ),
        (
            metric("latency_p99", Outcome.PERF_DROP, change=0.2, low=0.15, high=0.25, limit=0.1),
            (-2.0, -2.5, -1.5, "+20.0 %", "20.0 % slower", "+10 %", "fail"),
        ),
        (
            metric("latency_p99", Outcome.OK, change=-0.02, low=-0.03, high=0.0, limit=0.1),
            (0.2, 0.0, 0.3, "−2.0 %", "2.0 % faster", "+10 %", "good"),
        ),
    ]
    fields = ("used", "low", "high", "change", "effect", "allowed", "tone")
    for judged, expected in rows:
        (row,) = forest(cases(verdict(judged.outcome, "", judged))).rows
        assert cells(row, *fields) == expected
    (row,) = forest(cases(verdicts.ACC_DROP)).rows
    paired = verdicts.ACC_DROP.paired[0]
    assert paired.margin is not None
    assert row["used"] == pytest.approx(paired.change / paired.margin, abs=0.0006)
    assert cells(row, "row", "change", "effect", "outcome") == (
        "rouge1",
        "−2.31 points",
        "2.31 points worse",
        "ACC DROP",
    )
    figure = forest(cases(verdicts.NO_BASELINE, verdicts.ERROR, verdicts.NOT_EVALUATED))
    assert figure.rows == []
    assert "--mlperf-update=missing" in figure.without


@given(
    st.sampled_from(["throughput", "latency_p99", "samples_per_joule"]),
    st.floats(min_value=-0.99, max_value=100),
)
def test_worse_is_drawn_to_the_left_and_written_as_worse(name: str, share: float) -> None:
    judged = metric(name, Outcome.OK, change=share, low=share - 0.01, high=share + 0.01, limit=0.1)
    (row,) = forest(cases(verdict(Outcome.OK, "", judged))).rows

    assert row["low"] <= row["used"] <= row["high"]
    if abs(share) > 0.001:
        assert row["effect"].endswith(("slower", "worse")) is (row["used"] < 0)


def test_the_nearest_to_its_limit_is_drawn_first() -> None:
    small = on("A", metrics=(metric(outcome=Outcome.OK, change=-0.02, limit=0.03),))
    wide = on("B", metrics=(metric(outcome=Outcome.OK, change=-0.05, limit=0.4),))
    grouped_cases = cases(
        on("C"), wide, small, replace(verdicts.DROP, case=replace(CASE, engine="x"))
    )

    order = [grouped_cases[int(str(row["case"]))].case for row in forest(grouped_cases).rows]
    assert [one.accelerator for one in order] == ["H200", "A", "B", "C"]


def test_a_cell_has_the_worst_change_for_its_limit() -> None:
    """One without speed has what failed or its verdict."""
    grouped_cases = cases(
        verdicts.DROP,
        replace(verdicts.OK, case=replace(CASE, engine="other")),
        on("cpu"),
        replace(verdicts.NO_BASELINE, case=replace(CASE, accelerator="B200")),
    )

    cells_by_accelerator = {
        row["accelerator"]: cells(row, "used", "text", "outcome")
        for row in heat_map(grouped_cases).rows
    }
    assert cells_by_accelerator == {
        "H200": (-1.0, "6.3 % slower PERF DROP", "PERF DROP"),
        "cpu": (0.03, "0.1 % faster", "ok"),
        "B200": (None, "NO BASELINE", "NO BASELINE"),
    }
    rows = [
        (verdicts.ACC_DROP, "2.31 points worse ACC DROP"),
        (replace(verdicts.ACC_DROP, outcome=Outcome.OK, paired=()), "ok"),
        (verdicts.ERROR, "ERROR"),
    ]
    for case_verdict, text in rows:
        (row,) = heat_map(cases(case_verdict)).rows
        assert row["text"] == text


def test_accelerators_are_compared_where_a_workload_ran_on_two() -> None:
    fast, slow = (on(a, runs=(run(throughput=v),)) for a, v in (("H200", 200.0), ("H100", 150.0)))
    alone = on("cpu", "bert", runs=(run(throughput=9.0),))

    bars = [
        cells(row, "accelerator", "share", "text")
        for row in relative(cases(fast, slow, alone)).rows
    ]
    assert bars == [("H200", 100.0, "100 %"), ("H100", 75.0, "75 %")]


def test_a_score_stands_beside_its_reference_and_gate() -> None:
    """Without a reference it is not drawn."""
    (row,) = accuracy(cases(verdicts.GATE_FAIL, verdicts.UNGATED, verdicts.NOT_EVALUATED)).rows

    assert cells(row, "share", "gate", "now", "reference", "needed", "tone") == (
        93.71,
        99.0,
        "71.650",
        "76.460",
        "75.695",
        "fail",
    )


def with_runs(*values: float) -> list[CaseResult]:
    run_list = tuple(run(n, throughput=value) for n, value in enumerate(values, start=1))
    return [result(replace(verdicts.DROP, runs=run_list))]


def test_the_spread_of_runs_is_their_standard_deviation() -> None:
    """A value that no run gives is not drawn."""
    case_results = with_runs(99.0, 101.0)
    kept = record()
    (row,) = spread(grouped(case_results), RunFiles(records={case_results[0].test: kept})).rows
    assert cells(row, "now", "detectable", "limit", "now_text") == (1.41, 2.1, 3.0, "1.41 %")
    assert 0 < float(str(row["before"])) < 1
    (of_one_run,) = spread(grouped(with_runs(99.0)), RunFiles()).rows
    assert cells(of_one_run, "now", "before", "now_text") == (None, None, "")
    rows = [strip(grouped(with_runs(value))).rows for value in (99.0, 0.0, -1.0)]
    assert rows == [[{"case": 0, "row": "samples/s", "falls": False}], [], []]


def test_energy_is_that_of_a_token_where_tokens_are_counted() -> None:
    both = run(
        throughput=2.0, tokens_per_second=500.0, samples_per_joule=0.01, tokens_per_joule=2.5
    )
    plain = run(throughput=90.0, samples_per_joule=0.5)
    grouped_cases = cases(on("A", runs=(both,)), on("B", runs=(plain,)), on("C"))

    assert [
        cells(row, "unit", "rate", "joules") for row in energy(grouped_cases, RunFiles()).rows
    ] == [
        ("tokens", 500.0, 0.4),
        ("samples", 90.0, 2.0),
    ]


def test_a_cost_is_that_of_a_million_and_nothing_is_not_drawn() -> None:
    price = GpuPrice(usd_per_gpu_hour=3.29, as_of=dt.date(2026, 11, 1))
    paid = PerDollar(value=4e6, of="tokens", gpus=8, price=price)
    rows = [
        cost(cases(replace(verdicts.OK, cost=replace(paid, value=value)))).rows
        for value in (4e6, 0.0, float("inf"), -3.0)
    ]
    (row,) = rows[0]

    assert rows[1:] == [[], [], []]
    assert cells(row, "usd", "text", "of", "price") == (
        0.25,
        "0.25",
        "tokens",
        "8 GPUs at 3.29 USD an hour, 2026-11-01",
    )


def test_the_time_of_all_processes_of_a_case_is_added() -> None:
    grouped_cases = cases(verdicts.OK)
    test = grouped_cases[0].results[0].test
    seconds_by_part = {"before": 3.0, "measured": 60.0, "accuracy pass": 0.0}
    with_logs = duration_plot(
        grouped_cases, RunFiles(spent={test: [seconds_by_part, seconds_by_part]}, folder=True)
    )
    without = duration_plot(grouped_cases, RunFiles())

    assert [cells(r, "part", "seconds", "text") for r in with_logs.rows] == [
        ("before", 6.0, "6 s"),
        ("measured", 120.0, "2 min"),
    ]
    assert [cells(row, "part", "seconds") for row in without.rows] == [("measured", 120.0)]
    assert "logs are not here" in without.says
    turns = InterleavedRuns(state=Confirmation.PROVEN, pairs=5, runs=10)
    (before_runs, measured, interleaved) = duration_plot(
        cases(replace(verdicts.DROP, interleaved=turns)),
        RunFiles(spent={test: [seconds_by_part, seconds_by_part]}, folder=True),
    ).rows
    assert (before_runs["seconds"], measured["seconds"]) == (6.0, 120.0)
    assert cells(interleaved, "part", "seconds") == ("interleaved", 10 * 63.0)
