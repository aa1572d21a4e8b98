"""A suite with a number of requests under way: one case, judged at every point and in the mean."""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
from pathlib import Path

import pytest

from pytest_mlperf.cli import main
from pytest_mlperf.core.baseline import Record
from pytest_mlperf.core.case import Case, Scenario
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.run.worker.point_window import REQUESTS
from pytest_mlperf.stores import baselines
from pytest_mlperf.stores.results import read_results
from tests.core.made import on_day
from tests.plugin.project import Project, case
from tests.run.other_python import git

CURVE: Case = case(scenario=Scenario.CONCURRENCY)
OPEN: Case = case(scenario=Scenario.OPEN_LOOP)

OPTIONS = "{ latency_s = 0.05, threads = 8, tokens = 4 }"
"""Of an engine that sleeps: as many requests a second as are under way, times twenty."""


@pytest.fixture
def file(project: Project) -> Path:
    """Return a suite of two points; whatever the machine does must not make a run INVALID."""
    path = project.suite(
        options=OPTIONS,
        scenarios='[[scenarios]]\nname = "Concurrency"\npoints = [1, 6]\nmin_duration = "900ms"\n',
        more='[limits]\ntokens_per_second = { max_drop = "40%" }\n'
        '"tokens_per_second@1" = { max_drop = "45%" }\n'
        '"tokens_per_second@6" = { max_drop = "45%" }\n',
    )
    path.write_text(path.read_text("utf-8").replace("[workload]", "[workload]\ntokens = true"))
    return path


def changed(project: Project, factors: dict[str, float], case: Case = CURVE) -> None:
    """Make the recorded baseline one of eight runs whose metrics are multiplied."""
    path = project.baseline_file(case)
    loaded = baselines.load(path)
    assert loaded is not None
    (record,) = loaded.records
    other: Record = dataclasses.replace(
        record,
        runs=tuple(
            dataclasses.replace(
                record.runs[number % 2],
                metrics={
                    name: value * factors.get(name, 1.0)
                    for name, value in record.runs[0].metrics.items()
                },
                lengths={
                    point: re.sub(
                        r":4\b", f":{4 * factors.get(f'tokens_per_sample@{point}', 1):g}", text
                    )
                    for point, text in record.runs[0].lengths.items()
                },
                session=f"session {number // 2}",
                started=on_day(number // 2),
            )
            for number in range(8)
        ),
    )
    baselines.save(path, dataclasses.replace(loaded, records=(other,)))


@pytest.mark.quiet
def test_a_curve_is_recorded_and_its_points_are_judged(project: Project, file: Path) -> None:
    """One case, from the first record to a drop at one point with more speed at the other."""
    update = ("--mlperf-update=missing", "-omlperf_baseline_runs=2")
    project.run(file, *update).assert_outcomes()

    recorded = project.recorded(CURVE)
    metrics = recorded.runs[0].metrics
    assert metrics["tokens_per_second@6"] == pytest.approx(480, rel=0.4)
    assert metrics["tokens_per_second@1"] == pytest.approx(80, rel=0.4)
    mean = (metrics["tokens_per_second@1"] * metrics["tokens_per_second@6"]) ** 0.5
    assert metrics["tokens_per_second"] == pytest.approx(mean)
    assert metrics["tokens_per_sample@1"] == 4
    assert {"ttft_p90@6", "tpot_p90@6", "tps_per_user@6", "latency_p50@1"} <= metrics.keys()
    assert recorded.target_qps is None

    changed(project, {"tokens_per_second@1": 0.2, "tokens_per_second@6": 5.0})
    result = project.run(file, "--mlperf-json=r.json")

    result.assert_outcomes(failed=1)
    verdict = project.verdicts("r.json")["performance"]
    outcomes = {m.metric: m.outcome for m in verdict.metrics if m.outcome}
    assert outcomes["tokens_per_second@6"] is Outcome.PERF_DROP
    assert outcomes["tokens_per_second@1"] is Outcome.IMPROVED
    result.stdout.re_match_lines([r"PERF DROP tokens/s at 6 −[78]\d\.\d %"])
    assert any(
        note.startswith("−") and " at 6 cannot be offset by +" in note
        for note in map(sentence, verdict.notes)
    )

    text = file.read_text("utf-8")
    file.write_text(text.replace("[1, 6]", "[1, 5, 6]"))
    project.run(file, "--mlperf-json=r.json")
    verdict = project.verdicts("r.json")["performance"]
    assert verdict.outcome is Outcome.INVALID
    assert verdict.headline == "points of the curve differ: suite 1, 5, 6, baseline 1, 6"
    assert not verdict.runs, "nothing is measured that cannot be compared"
    file.write_text(text)

    changed(project, {"tokens_per_second@1": 5.0, "tokens_per_sample@1": 1.5})
    result = project.run(file, "--mlperf-json=r.json")

    verdict = project.verdicts("r.json")["performance"]
    assert verdict.outcome is Outcome.INVALID
    assert sentence(verdict.headline) == (
        "4 tokens/sample at 1, less than in the baseline (5.88 to 6.12)"
    )


@pytest.mark.quiet
def test_an_open_loop_is_recorded_and_judged_by_its_times(project: Project) -> None:
    path = project.suite(
        options="{ latency_s = 0.02, threads = 8 }",
        scenarios='[[scenarios]]\nname = "OpenLoop"\npoints = [12.5, 50]\nmin_duration = "900ms"\n'
        'arrivals = "gamma"\nburstiness = 2\n',
        more='[limits]\nlatency_p50 = { max_rise = "50%" }\n'
        '"latency_p50@12.5" = { max_rise = "55%" }\n'
        '"latency_p50@50" = { max_rise = "55%" }\n',
    )
    project.run(path, "--mlperf-update=missing", "-omlperf_baseline_runs=2").assert_outcomes()

    recorded = project.recorded(OPEN)
    metrics = recorded.runs[0].metrics
    assert metrics["latency_p50@12.5"] == pytest.approx(0.02, rel=0.5)
    assert metrics["throughput@50"] == pytest.approx(50, rel=0.15)
    assert recorded.fingerprint["points"] == "12.5, 50 requests/s, gamma 2"

    changed(project, {"latency_p50": 0.2, "latency_p50@12.5": 0.2, "latency_p50@50": 0.2}, OPEN)
    assert not list(project.path.rglob(REQUESTS)), "nobody asked for them"
    result = project.run(path, "--mlperf-json=r.json", "--mlperf-requests")

    result.assert_outcomes(failed=1)
    verdict = project.verdicts("r.json")["performance"]
    assert {m.metric for m in verdict.metrics if m.outcome is Outcome.PERF_DROP} == {
        "latency_p50",
        "latency_p50@12.5",
        "latency_p50@50",
    }

    kept = list(project.path.rglob(REQUESTS))
    assert len(kept) == len(verdict.runs)
    with gzip.open(kept[0], "rt") as lines:
        assert {json.loads(line)["point"] for line in lines} == {12.5, 50}

    path.write_text(path.read_text("utf-8").replace("burstiness = 2", "burstiness = 1"))
    project.run(path, "--mlperf-json=r.json")
    verdict = project.verdicts("r.json")["performance"]
    assert verdict.headline == (
        "points of the curve differ: suite 12.5, 50 requests/s, gamma 1, baseline 12.5, 50 "
        "requests/s, gamma 2"
    )


def test_our_own_curve_is_exported_under_our_own_name(
    project: Project, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("yaml")
    project.run(file, "--mlperf-json=r.json")
    about = ["export", "endpoints", "r.json", "--about", "about.toml"]
    assert main([*about, "--skeleton"]) == 0
    text = Path("about.toml").read_text("utf-8").replace('= ""', '= "x"')
    highest = "max_supported_concurrency = "
    Path("about.toml").write_text(text.replace(f"{highest}6", f"{highest}64"), "utf-8")
    assert main([*about, "-o", "bundle"]) == 0

    assert (
        "measured by this package's own client, which cannot be submitted"
        in capsys.readouterr().out
    )
    (run,) = read_results(Path("r.json")).cases[-1].verdict.runs
    content = Path("bundle/results/x/x/r6/result_summary.json").read_text("utf-8")
    summary = json.loads(content)
    rate = summary["output_sequence_lengths"]["total"] / summary["duration_ns"] * 1e9
    assert rate == pytest.approx(run.metrics["tokens_per_second@6"])
    tpot_ns = summary["tpot"]["percentiles"]["90"]
    assert 1e9 / tpot_ns == pytest.approx(run.metrics["tps_per_user@6"])
    assert summary["version"].startswith("pytest-mlperf ")


def test_a_curve_is_judged_against_another_build(project: Project, file: Path) -> None:
    """Every point has its pairs; nothing is stored beforehand."""
    for words in (("init", "-q"), ("add", "suites"), ("commit", "-q", "-m", "one")):
        git(project.path, *words)

    result = project.run(file, "--mlperf-against", "HEAD", "--mlperf-handicap=60%")

    result.assert_outcomes(failed=1)
    (case_result,) = project.results().cases
    verdict = case_result.verdict
    assert verdict.outcome is Outcome.PERF_DROP
    judged = {metric.metric: metric for metric in verdict.metrics if metric.limit}
    assert set(judged) == {"tokens_per_second", "tokens_per_second@1", "tokens_per_second@6"}
    assert any(metric.fails for metric in judged.values())
    assert all(metric.baseline.runs == metric.runs >= 2 for metric in judged.values())
    assert verdict.interleaved is not None
    points = {name for run in verdict.interleaved.other_runs for name in run.metrics}
    assert points >= set(judged)
