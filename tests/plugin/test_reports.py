"""What other tools read: JUnit's file, pytest-benchmark's file."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Set
from typing import Any

import pytest

from pytest_mlperf.cli import main
from tests.plugin.project import OFFLINE, RATE, Project, case, last_line, near

RECORD = ("--mlperf-update=missing", "-omlperf_baseline_runs=2")


def junit(project: Project) -> dict[str, dict[str, str]]:
    """Return the properties in junit.xml by test name."""
    tree = ET.parse(project.path / "junit.xml")
    return {
        str(test.get("name")).partition("[")[0]: {
            str(found.get("name")): str(found.get("value")) for found in test.iter("property")
        }
        for test in tree.iter("testcase")
    }


def test_junit_holds_the_verdict_and_the_values_as_properties(project: Project) -> None:
    """pytest-benchmark, not asked for, prints no table."""
    project.suite(top1=100.0)
    project.baseline(near(RATE))

    result = project.run(
        *("suites", "--junitxml=junit.xml", "-W", "error", "--mlperf-json=results.json")
    )

    assert last_line(result) == "2 passed"
    result.stdout.no_fnmatch_line("*Name (time in*")
    properties = junit(project)
    verdict = project.verdicts("results.json")["performance"]
    throughput = verdict.metrics[0]
    accuracy = {"verdict": "ok", "top1": "100", "top1.baseline": "100"}
    assert properties["test_accuracy"].items() >= prefixed(accuracy)
    assert throughput.change is not None
    performance = {
        "case": case().id,
        "verdict": "ok",
        "profile": "quick",
        "runs": f"{len(verdict.runs)}",
        "throughput": f"{throughput.now:.9g}",
        "throughput.change": f"{throughput.change:.6f}",
    }
    assert properties["test_performance"].items() >= prefixed(performance)
    baseline = float(properties["test_performance"]["mlperf.throughput.baseline"])
    assert baseline == pytest.approx(RATE, rel=1e-4)


def prefixed(values: dict[str, str]) -> Set[tuple[str, str]]:
    return {f"mlperf.{name}": value for name, value in values.items()}.items()


def test_junits_failure_message_begins_with_the_verdict(project: Project) -> None:
    """In the older one of pytest's families, too."""
    project.suite()
    project.breaks()

    family = ("-o", "junit_family=xunit1")
    project.run("suites", "--junitxml=junit.xml", *family, "-W", "error")

    (failed,) = ET.parse(project.path / "junit.xml").iter("failure")
    assert str(failed.get("message")).startswith("ERROR baseline: ")
    assert str(failed.text).startswith("ERROR baseline:")
    assert junit(project)["test_performance"]["mlperf.verdict"] == "ERROR"


STREAM = """
[[scenarios]]
name = "SingleStream"
target_qps = 400
min_duration = "200ms"
"""

ROUND = {
    "Offline": lambda run: 1 / run.metrics["throughput"],
    "SingleStream": lambda run: run.metrics["latency_p50"],
}
"""What pytest-benchmark is given of a run, in seconds; of other scenarios as of SingleStream."""


def benchmarks(project: Project, file: str = "benchmark.json") -> list[dict[str, Any]]:
    path = project.path / file
    if not path.exists() or not path.read_text("utf-8"):
        return []
    benchmark_list: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["benchmarks"]
    return benchmark_list


def report(project: Project, file: str) -> None:
    """Make a file of pytest-benchmark from the results of the only run so far."""
    (results,) = project.path.glob(".mlperf/runs/*/results.json")
    options = ("--format", "pytest-benchmark", "-o", str(project.path / file))
    assert main(["report", str(results), *options]) == 0


def without_options(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out pytest-benchmark's own settings, which measured nothing."""
    return [{name: one[name] for name in one if name != "options"} for one in entries]


def test_every_case_is_a_benchmark_and_the_report_of_the_session_is_the_same(
    project: Project,
) -> None:
    """A round is a run, in seconds per sample or p50 latency; live and later give equal entries."""
    project.suite(top1=100.0, scenarios=OFFLINE + STREAM)

    live = project.run("suites", *RECORD, "--benchmark-json=live.json", "-W", "error")
    report(project, "later.json")

    assert live.ret == 0
    entries = benchmarks(project, "live.json")
    cases = {r.test: r.verdict for r in project.results().cases if r.verdict.kind == "performance"}
    assert [one["fullname"] for one in entries] == list(cases)
    for entry in entries:
        verdict = cases[entry["fullname"]]
        scenario = verdict.case.scenario
        assert entry["group"] == "first"
        assert entry["stats"]["rounds"] == len(verdict.runs) == 2
        assert entry["stats"]["data"] == [ROUND[scenario](run) for run in verdict.runs]
        about = entry["extra_info"]["mlperf"]
        assert about["case"] == verdict.case.id
        assert (about["outcome"], about["runs"]) == ("recorded", 2)
        assert about["accuracy"] == {"top1": 100.0}
        assert about["metrics"].keys() == verdict.runs[-1].metrics.keys()
        assert entry["params"] == {"case": verdict.case.id}
    assert {verdict.case.scenario for verdict in cases.values()} == set(ROUND)
    assert without_options(benchmarks(project, "later.json")) == without_options(entries)

    # Warnings are errors: the report describes this machine as pytest-benchmark does.
    selected = ("-k", "Offline and performance", "--mlperf-max-runs=2")
    compared = project.run("suites", *selected, "--benchmark-compare=later.json", "-W", "error")
    compared.stdout.fnmatch_lines(["test_performance*Offline*(NOW)*"])
    compared.stdout.fnmatch_lines(["test_performance*Offline*(later)*"])


def test_a_project_that_disables_benchmarks_gets_them_when_it_enables_them(
    project: Project,
) -> None:
    project.suite()
    project.pytester.makeini("[pytest]\naddopts = --benchmark-disable")
    counts = []
    for options in ((), ("--benchmark-enable",)):
        project.run("suites", "--benchmark-json=benchmark.json", *options)
        counts.append(len(benchmarks(project)))

    assert counts == [0, 1]


def test_a_test_that_measures_twice_has_one_benchmark(project: Project) -> None:
    """The `benchmark` fixture can be used once; a second measurement must not break the test."""
    project.pytester.makepyfile(
        test_twice="""
        import pytest

        @pytest.mark.mlperf(workload="first", scenario="Offline")
        def test_twice(mlperf):
            for _ in range(2):
                mlperf.run(
                    engine="pytest_mlperf.builtin.null:NullEngine",
                    options={"latency_s": 0.002, "batch_size": 16, "threads": 1},
                    min_duration="100ms",
                    target_qps=500,
                ).check()
        """
    )

    result = project.run("test_twice.py", "--benchmark-json=benchmark.json", "-W", "error")

    assert result.ret == 0
    (entry,) = benchmarks(project)
    assert (entry["param"], entry["name"]) == ("first-Offline-NullEngine-fp32-cpu", "test_twice")


def test_a_failing_verdict_is_not_exported_as_a_benchmark(project: Project) -> None:
    project.suite()
    project.baseline(near(2 * RATE))

    # In this process pytest-benchmark's own warning that it has nothing to save is an error.
    result = project.run_process("suites", "--benchmark-json=benchmark.json")

    assert last_line(result) == "1 failed"
    assert benchmarks(project) == []
    report(project, "later.json")
    assert benchmarks(project, "later.json") == []
