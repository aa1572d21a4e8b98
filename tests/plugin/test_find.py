"""A suite that searches the rate: real sessions on a server whose capacity is known."""

from __future__ import annotations

import dataclasses
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pytest_mlperf.bench.case import CaseRuns
from pytest_mlperf.bench.policy import Policy
from pytest_mlperf.cli import main
from pytest_mlperf.core.case import Case, Scenario
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.hardware.machine import detect
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.run.child.process import Patience
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.stores import baselines
from pytest_mlperf.suite.plan import plan_suite
from tests.plugin.project import Project, case, near, spec_of

CAPACITY = 1000.0
"""Samples/s of the engine below: one server, 1 ms each."""

SEARCHED: Case = case(scenario=Scenario.SERVER, engine="queue")

FIND = 'maximise = "target_qps", subject_to = "latency_p50 < 10 ms", precision = "5%"'

FOUND = r"[\d.,]+ samples/s at latency_p50 < 10 ms"


def suite(
    project: Project, *, find: str = FIND, service_s: float = 1 / CAPACITY, start: float = 800
) -> Path:
    """Write a suite that searches where the median wait is ten times the service.

    A second at the capacity is 1,000 queries; half of them may be late for any other reason.
    """
    return project.suite(
        engines=(
            '[[engines]]\nuse = "tests.plugin.queue_engine:QueueEngine"\nname = "queue"\n'
            f"options = {{ service_s = {service_s} }}\n"
        ),
        scenarios=(
            '[[scenarios]]\nname = "Server"\nlatency_limit = "20s"\nmin_duration = "1s"\n'
            f"find = {{ {find}, start = {start} }}\n"
        ),
        more='[limits]\nthroughput = { max_drop = "10%" }\n',
    )


REQUESTS: Case = case(scenario=Scenario.CONCURRENCY, engine="queue")


def requests_suite(project: Project) -> Path:
    """Write a suite that searches how many requests in flight have their tokens within 51.5 ms.

    A server that takes one at a time, 5 ms each, begins 10 in 49 ms and 11 in 54 ms.
    """
    path = project.suite(
        engines=(
            '[[engines]]\nuse = "tests.plugin.queue_engine:QueueEngine"\nname = "queue"\n'
            "options = { service_s = 0.005, tokens = 2 }\n"
        ),
        scenarios=(
            '[[scenarios]]\nname = "Concurrency"\nmin_duration = "600ms"\n'
            'find = { maximise = "concurrency", subject_to = "ttft_p50 < 51.5 ms", '
            "bounds = [1, 40] }\n"
        ),
        more='[limits]\ntokens_per_second = { max_drop = "20%" }\n',
    )
    path.write_text(path.read_text("utf-8").replace("[workload]", "[workload]\ntokens = true"))
    return path


def test_each_run_of_a_search_over_concurrency_keeps_one_number_in_flight(
    project: Project,
) -> None:
    """Also if the machine is too busy to judge a run: the worker gets that number alone."""
    project.run(requests_suite(project))

    specs = sorted(project.path.glob(".mlperf/runs/*/*.search-1/*/spec.json"))
    settings = [spec_of(file.parent)["settings"] for file in specs]
    (first, *_), points = settings, [one["points"] for one in settings]
    assert first["points"] == [6], "the geometric mean of the bounds"
    assert all(len(one) == 1 and type(one[0]) is int and 1 <= one[0] <= 40 for one in points)
    assert {one["target_qps"] for one in settings} == {None}


@pytest.mark.quiet
def test_searches_find_how_many_requests_a_server_answers_in_time(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """All figures are those of 10 requests in flight, half those of a server twice as fast."""
    file = requests_suite(project)
    update = ("--mlperf-update=missing", "-omlperf_baseline_runs=2")
    result = project.run(file, *update, "--mlperf-json=r.json")

    result.assert_outcomes()
    (case_result,) = project.results().cases
    recorded = project.recorded(REQUESTS)
    assert recorded.fingerprint["find"] == "ttft_p50 < 51.5 ms"
    assert "points" not in recorded.fingerprint
    first, second = (run.search for run in case_result.verdict.runs)
    assert first is not None
    assert second is not None
    assert (first.rate, first.low, first.high, first.whole) == (10, 10, 11, True)
    assert first.tried[0].rate == 6, "the geometric mean of the bounds"
    assert second.tried[0].rate == second.rate == 10
    for run in recorded.runs:
        assert run.metrics["concurrency"] == 10
        assert run.metrics["ttft_p50"] == pytest.approx(0.05, rel=0.04)
        assert run.metrics["tokens_per_second"] == pytest.approx(400, rel=0.1)
        assert not [name for name in run.metrics if "@" in name]
    gated = {metric.metric for metric in case_result.verdict.metrics if metric.outcome}
    assert gated == {"tokens_per_second", "concurrency"}
    specs = sorted(project.path.glob(".mlperf/runs/*/*/*/spec.json"))
    points = [spec_of(file.parent)["settings"]["points"] for file in specs]
    assert sorted(points) == sorted([one.rate] for s in (first, second) for one in s.tried)
    condition = "10 requests in flight at ttft_p50 < 51.5 ms"
    result.stdout.re_match_lines([rf"  {condition}: limits met at 10 requests"])
    capsys.readouterr()
    main(["explain", "Concurrency", "--results", "r.json"])
    lines = capsys.readouterr().out.splitlines()
    tries = [line for line in lines if re.search(r"\d+ requests? in flight +ttft_p50 .* ms", line)]
    assert len(tries) == len(first.tried) + len(second.tried)

    searched_baseline(project, "ttft_p50 < 51.5 ms", of=REQUESTS, metric="concurrency", value=20.0)
    result = project.run(file, "--mlperf-json=r.json")

    result.assert_outcomes(failed=1)
    verdict = project.verdicts("r.json")["performance"]
    assert verdict.outcome is Outcome.PERF_DROP
    (drop,) = [metric for metric in verdict.metrics if metric.fails]
    assert drop.metric == "concurrency"
    assert drop.change == pytest.approx(-0.5, rel=0.01)
    assert sentence(verdict.headline).startswith(
        "10 requests in flight at ttft_p50 < 51.5 ms −50.0 %"
    )


def test_a_plan_counts_the_runs_of_a_search_over_concurrency(project: Project) -> None:
    """As many as of a search of a rate, each of one point."""
    result = project.run(requests_suite(project), "--mlperf-plan")

    result.stdout.re_match_lines(
        [r"first-Concurrency-queue-fp32-cpu +10 s +1 min 44 s +performance"]
    )


def searched_baseline(
    project: Project,
    find: str | None = "latency_p50 < 10 ms",
    of: Case = SEARCHED,
    metric: str = "throughput",
    value: float = CAPACITY,
) -> None:
    """Write a baseline of searches of the engine as it should be."""
    path = project.baseline(near(value), of=of, metric=metric)
    loaded = baselines.load(path)
    assert loaded is not None
    (record,) = loaded.records
    fingerprint = {**record.fingerprint, "find": find} if find else record.fingerprint
    rate = None if find else record.target_qps
    source = None if find else record.qps_source
    record = dataclasses.replace(
        record, fingerprint=fingerprint, target_qps=rate, qps_source=source
    )
    baselines.save(path, dataclasses.replace(loaded, records=(record,)))


def test_searches_find_the_capacity_and_become_a_baseline(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """A recorded value is a search; the second starts where the first one ended."""
    file = suite(project)

    update = ("--mlperf-update=missing", "-omlperf_baseline_runs=2")
    result = project.run(file, *update, "--junitxml=j.xml", "--mlperf-json=r.json")

    result.assert_outcomes()
    (case_result,) = project.results().cases
    assert case_result.verdict.outcome is Outcome.RECORDED
    assert (case_result.target_qps, case_result.qps_source) == (None, None)
    first, second = (run.search for run in case_result.verdict.runs)
    assert first is not None
    assert second is not None
    for search in (first, second):
        assert 0.75 * CAPACITY < search.low < search.rate < 1.2 * CAPACITY
        assert search.rate < search.high < 1.3 * CAPACITY
        assert search.at == "latency_p50 < 10 ms"
    assert first.tried[0].rate == 800
    assert second.tried[0].rate == pytest.approx(first.rate)
    recorded = project.recorded(SEARCHED)
    assert recorded.fingerprint["find"] == "latency_p50 < 10 ms"
    assert (recorded.target_qps, recorded.qps_source) == (None, None)
    assert [run.metrics["throughput"] for run in recorded.runs] == [first.rate, second.rate]
    specs = sorted(project.path.glob(".mlperf/runs/*/*/*/spec.json"))
    offered = [spec_of(file.parent)["settings"]["target_qps"] for file in specs]
    assert sorted(offered) == sorted(one.rate for s in (first, second) for one in s.tried)
    assert {Path(run.folder).absolute() for run in case_result.verdict.runs} == {
        f.parents[1] for f in specs
    }
    written = (project.path / "r.json").read_text("utf-8")
    assert str(project.path) not in written, "results are read elsewhere: nothing above the root"
    (kept,) = json.loads(written)["cases"]
    assert [run["search"]["rate"] for run in kept["verdict"]["runs"]] == [first.rate, second.rate]
    for tried in kept["verdict"]["runs"][0]["search"]["tried"]:
        assert set(tried) == {"rate", "metric", "value", "limit", "held", "folder"}
        assert (Path(tried["folder"]) / "mlperf_log_detail.txt").exists()
    xml = ET.parse(project.path / "j.xml").getroot()
    properties = {each.get("name"): each.get("value") for each in xml.iter("property")}
    assert re.match(FOUND, str(properties["mlperf.search"]))
    result.stdout.re_match_lines(
        [rf"  {FOUND}: limits met at [\d.,]+/s, missed at [\d.,]+/s \(.*\); \d runs"]
    )
    capsys.readouterr()
    main(["explain", "Server", "--results", "r.json"])
    lines = capsys.readouterr().out.splitlines()
    tries = len(first.tried) + len(second.tried)
    assert f"1. Measured: 2 searches of {tries} runs, each in a fresh process" in lines
    made = [text for text in lines if re.search(r"/s +latency_p50 .*s +10 ms +(yes|no)$", text)]
    assert len(made) == tries


@pytest.mark.nightly
def test_a_server_that_got_slower_is_a_drop_of_the_rate_found(project: Project) -> None:
    """A quarter more work a sample: a fifth fewer samples, by as many as the headline says."""
    file = suite(project, service_s=1.25 / CAPACITY)
    searched_baseline(project)

    result = project.run(file)

    result.assert_outcomes(failed=1)
    (case_result,) = project.results().cases
    verdict = case_result.verdict
    assert verdict.outcome is Outcome.PERF_DROP
    (metric,) = [m for m in verdict.metrics if m.outcome is not None]
    assert (metric.metric, metric.limit) == ("throughput", 0.1)
    assert metric.change is not None
    assert -0.35 < metric.change < -0.12
    searches = [run.search for run in verdict.runs if run.search]
    assert len(searches) == len(verdict.runs) >= 2
    assert searches[0].tried[0].rate == pytest.approx(CAPACITY, rel=1e-3)
    result.stdout.re_match_lines(
        [
            rf"PERF DROP {FOUND} −\d\d\.\d % \(.*\); limit −10 % (possibly )?exceeded",
            rf"search +{FOUND}: [\d.,]+/s held",
        ]
    )


def test_another_condition_than_the_baselines_is_reported_before_anything_runs(
    project: Project,
) -> None:
    rows = [
        ("latency_p50 < 12 ms", "searched the highest rate with latency_p50 < 12 ms"),
        (None, "was measured at 500/s"),
    ]
    for number, (old_search, theirs) in enumerate(rows):
        searched_baseline(project, old_search)

        result = project.run(suite(project), f"--mlperf-json={number}.json")

        result.assert_outcomes(failed=1)
        verdict = project.verdicts(f"{number}.json")["performance"]
        assert verdict.outcome is Outcome.INVALID
        assert verdict.headline == (
            "condition differs: the suite searches the highest rate with latency_p50 < 10 ms, the "
            f"baseline {theirs}"
        )
    assert project.run_folders() == []


def test_a_baseline_at_a_fixed_rate_gives_a_search_no_rate(project: Project) -> None:
    """Replaced by searches, it must not leave its rate on their record."""
    searched_baseline(project, None)
    conditions = Conditions(
        folder=project.path,
        session="now",
        commit=None,
        handicap=0.0,
        patience=Patience(),
        lease_limit_s=1.0,
        machine=detect(gpus=False),
    )
    policy = Policy(update="replace", accuracy=project.path, root=project.path)
    (planned,) = plan_suite(suite(project))

    case_runs = CaseRuns(planned, conditions, policy, print)

    assert case_runs.record is not None
    assert (case_runs.record.target_qps, case_runs.rate, case_runs.rate_source) == (
        500.0,
        None,
        None,
    )


def test_a_plan_counts_the_runs_of_a_search(project: Project) -> None:
    """Four usually, eight at most: of 1 s and 2 s of set-up each, and five values at most."""
    result = project.run(suite(project), "--mlperf-plan")

    result.stdout.re_match_lines([r"first-Server-queue-fp32-cpu +12 s +2 min +performance"])
    result.stdout.fnmatch_lines(["1 case: usually 24 s; 12 s if one run decides each, *"])
