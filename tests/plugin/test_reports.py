"""What other tools read: JUnit's file, pytest-benchmark's file."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from statistics import fmean
from typing import Any

import pytest

from tests.plugin.project import RATE, Project, case, last_line, near

RECORD = ("--mlperf-update=missing", "--mlperf-baseline-runs=2")


def junit(project: Project) -> dict[str, dict[str, str]]:
    """Return the properties in junit.xml by test name."""
    tree = ET.parse(project.path / "junit.xml")
    return {
        str(test.get("name")).partition("[")[0]: {
            str(found.get("name")): str(found.get("value")) for found in test.iter("property")
        }
        for test in tree.iter("testcase")
    }


@pytest.mark.parametrize("family", ["xunit1", "xunit2"])
def test_junit_holds_the_verdict_and_the_values_as_properties(
    project: Project, family: str
) -> None:
    project.suite(top1=100.0)
    project.baseline(near(RATE))

    result = project.run(
        "suites", "--junitxml=junit.xml", "-o", f"junit_family={family}", "-W", "error"
    )

    assert last_line(result) == "2 passed"
    found = junit(project)
    throughput = project.verdicts()["performance"].metrics[0]
    assert found["test_accuracy"].items() >= {
        "mlperf.verdict": "ok",
        "mlperf.top1": "100",
        "mlperf.top1.baseline": "100",
    }.items()  # fmt: skip
    assert throughput.change is not None
    assert (
        found["test_performance"].items()
        >= {
            "mlperf.case": case().id,
            "mlperf.verdict": "ok",
            "mlperf.profile": "quick",
            "mlperf.runs": "1",
            "mlperf.throughput": f"{throughput.now:.9g}",
            "mlperf.throughput.change": f"{throughput.change:.6f}",
        }.items()
    )
    baseline = float(found["test_performance"]["mlperf.throughput.baseline"])
    assert baseline == pytest.approx(RATE, rel=1e-4)


def test_junits_failure_message_begins_with_the_verdict(project: Project) -> None:
    project.suite()
    project.breaks()

    project.run("suites", "--junitxml=junit.xml", "-W", "error")

    (failed,) = ET.parse(project.path / "junit.xml").iter("failure")
    assert str(failed.get("message")).startswith("ERROR baseline: ")
    assert str(failed.text).startswith("ERROR baseline:")
    assert junit(project)["test_performance"]["mlperf.verdict"] == "ERROR"


def benchmarks(project: Project) -> list[dict[str, Any]]:
    file = project.path / "benchmark.json"
    if not file.exists() or not file.read_text("utf-8"):
        return []
    found: list[dict[str, Any]] = json.loads(file.read_text("utf-8"))["benchmarks"]
    return found


def test_pytest_benchmark_is_given_each_run_as_a_round_in_seconds_per_sample(
    project: Project,
) -> None:
    project.suite(top1=100.0)

    result = project.run("suites", *RECORD, "--benchmark-json=benchmark.json", "-W", "error")

    assert last_line(result) == "1 passed, 1 recorded"
    (found,) = benchmarks(project)
    runs = project.verdicts()["performance"].runs
    assert found["fullname"].endswith("::test_performance[first-Offline-null-fp32-cpu]")
    assert found["group"] == "first"
    assert found["stats"]["rounds"] == len(runs) == 2
    assert found["stats"]["mean"] == pytest.approx(
        fmean(1 / run.metrics["throughput"] for run in runs), rel=1e-6
    )
    assert found["extra_info"]["mlperf"] == {"case": case().id, "outcome": "recorded"}


def test_a_verdict_that_fails_is_no_benchmark(project: Project) -> None:
    project.suite()
    project.baseline(near(2 * RATE))

    # In this process pytest-benchmark's own warning that it has nothing to save is an error.
    result = project.run_process("suites", "--benchmark-json=benchmark.json")

    assert last_line(result) == "1 failed"
    assert benchmarks(project) == []


def test_without_being_asked_pytest_benchmark_prints_no_table(project: Project) -> None:
    project.suite()
    project.baseline(near(RATE))

    result = project.run("suites")

    assert last_line(result) == "1 passed"
    result.stdout.no_fnmatch_line("*Name (time in*")


def test_under_xdist_pytest_benchmark_switches_itself_off_and_verdicts_stay(
    project: Project,
) -> None:
    project.suite()
    project.baseline(near(RATE))

    result = project.run_process("suites", "-n", "1", "--benchmark-json=benchmark.json")

    assert last_line(result) in {"1 passed", "1 passed, 1 warning"}
    assert benchmarks(project) == []
