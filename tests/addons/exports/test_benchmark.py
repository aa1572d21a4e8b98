"""The file of pytest-benchmark: its rounds, its machine and its commit."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.addons.exports.benchmark import commit_info, machine_info, report
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.verdict import Verdict
from pytest_mlperf.reports.for_pytest import ROUNDS, benchmark_rounds
from pytest_mlperf.stores.results import read_results
from tests.cli.lab import CASE, PERFORMANCE, Lab, performance
from tests.cli.text import Say
from tests.reports import verdicts
from tests.reports.verdicts import reported, result, run, session


def benchmarks(say: Say, results: Path) -> list[dict[str, Any]]:
    output = say.ends(0, "report", results, "--format", "pytest-benchmark")
    benchmark_list: list[dict[str, Any]] = json.loads(output)["benchmarks"]
    return benchmark_list


def test_a_case_is_one_benchmark_with_a_round_per_run(lab: Lab, say: Say) -> None:
    """The baseline is stored with the values; a failed test is not a benchmark."""
    (benchmark,) = benchmarks(say, lab.recorded)
    verdict = performance(lab.recorded).verdict
    rates = [one.metrics["throughput"] for one in verdict.runs]
    assert benchmark["fullname"] == PERFORMANCE
    assert benchmark["name"] == f"test_performance[{CASE}]"
    assert (benchmark["group"], benchmark["param"], benchmark["params"]) == (
        "first",
        CASE,
        {"case": CASE},
    )
    assert benchmark["stats"]["data"] == [1 / rate for rate in rates]
    assert benchmark["stats"]["rounds"] == len(rates) >= 5
    about = benchmark["extra_info"]["mlperf"]
    assert about["round"] == "seconds per sample: 1 / throughput of a run"
    assert (about["case"], about["outcome"], about["runs"]) == (CASE, "recorded", len(rates))
    assert about["accuracy"] == {"top1": 100.0}
    assert about["metrics"]["throughput"] == {
        "last": rates[-1],
        "mean": pytest.approx(math.prod(rates) ** (1 / len(rates))),
        "unit": "1/s",
    }
    (benchmark,) = benchmarks(say, lab.unchanged)
    judged = performance(lab.unchanged).verdict.metrics
    assert benchmark["extra_info"]["mlperf"]["baseline"] == {
        one.metric: one.baseline.value for one in judged if one.baseline.value is not None
    }
    assert "throughput" in benchmark["extra_info"]["mlperf"]["baseline"]
    assert performance(lab.upgraded).failed
    assert benchmarks(say, lab.upgraded) == []


def with_runs(scenario: str, *metrics: dict[str, float], **fields: Any) -> Verdict:
    case = replace(verdicts.CASE, scenario=scenario)  # type: ignore[arg-type]
    runs: tuple[Run, ...] = tuple(run(n, case=case, **m) for n, m in enumerate(metrics, start=1))
    return replace(verdicts.OK, case=case, runs=runs, **fields)


def test_a_round_has_its_unit_in_every_scenario() -> None:
    """Without a time in every run there are no benchmarks."""
    rows: list[tuple[str, list[dict[str, float]], str, list[float]]] = [
        ("Offline", [{"throughput": 4.0}, {"throughput": 5.0}], "throughput", [0.25, 0.2]),
        ("Server", [{"latency_p50": 0.02, "ttft_p50": 0.01}], "latency_p50", [0.02]),
        ("Interactive", [{"throughput": 9.0, "ttft_p50": 0.5}], "ttft_p50", [0.5]),
        ("SingleStream", [{"latency_p50": 0.001}], "latency_p50", [0.001]),
        ("MultiStream", [{"latency_p50": 0.008}], "latency_p50", [0.008]),
    ]
    for scenario, metrics, metric, rounds in rows:
        benchmark_entry = benchmark_rounds(with_runs(scenario, *metrics))
        assert benchmark_entry is not None
        about = benchmark_entry[1]["extra_info"]["mlperf"]["round"]
        assert (benchmark_entry[0], about) == (rounds, ROUNDS[metric])
    without_times = [
        *(verdicts.ERROR, verdicts.INVALID, verdicts.UNGATED),
        with_runs("Server", {"throughput": 9.0}),
        with_runs("SingleStream", {"latency_p50": 1.0}, {"latency_p90": 1.0}),
    ]
    assert list(map(benchmark_rounds, without_times)) == [None] * 5


@pytest.mark.process
def test_the_machine_and_the_commit_are_described_as_pytest_benchmark_does(lab: Lab) -> None:
    """Then `--benchmark-compare` finds the same machine, and does not warn."""
    described_machine = machine_info(session(result(verdicts.OK)))
    assert described_machine == {"H200": verdicts.SUBJECT.identity}
    described_machine = machine_info(read_results(lab.recorded))
    assert {"node", "machine", "python_version", "cpu"} <= set(described_machine)
    nothing = json.loads(report(reported(session())))
    assert nothing["benchmarks"] == []
    assert set(nothing) == {"machine_info", "commit_info", "benchmarks", "datetime", "version"}
    for commit, commit_id, dirty in (("9d0e77a+", "9d0e77a", True), ("9d0e77a", "9d0e77a", False)):
        info = commit_info(replace(session(), commit=commit))
        assert (info["id"], info["dirty"]) == (commit_id, dirty)
    assert commit_info(replace(session(), commit=None))["id"] == "unversioned"


def test_pytest_benchmark_compares_two_reports(
    lab: Lab,
    say: Say,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pytest_benchmark.cli import main

    files = {"old.json": lab.recorded, "new.json": lab.unchanged}
    for file, results in files.items():
        say("report", results, "--format", "pytest-benchmark", "-o", tmp_path / file)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["pytest-benchmark", "compare", *files])
    main()  # type: ignore[no-untyped-call]
    output = capsys.readouterr().out
    lines = [line for line in output.splitlines() if line.startswith("test_performance")]
    assert {line.partition(" (")[2][:3] for line in lines} == {"new", "old"}
