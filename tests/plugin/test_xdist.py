"""Several processes at once: one case is measured once, one accelerator by one process."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.plugin.xdist import CaseScheduling
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.run import conditions
from pytest_mlperf.stores.results import read_results
from tests.plugin.project import (
    LIGHT,
    OFFLINE,
    RATE,
    SUITE,
    Project,
    case,
    last_line,
    near,
    section,
)
from tests.plugin.test_reports import benchmarks, report

STREAM = '[[scenarios]]\nname = "SingleStream"\ntarget_qps = 400\nmin_duration = "200ms"\n'
EASY = '[limits]\nthroughput = { max_drop = "60%" }\nlatency_p90 = { max_rise = "900%" }\n'


def test_the_tests_of_a_case_are_one_scope_and_every_other_test_its_own() -> None:
    scopes = {
        "a.mlperf.toml::test_accuracy[w-Offline]": "a.mlperf.toml::[w-Offline]",
        "a.mlperf.toml::test_performance[w-Offline]": "a.mlperf.toml::[w-Offline]",
        "a.mlperf.toml::test_performance[w-Server]": "a.mlperf.toml::[w-Server]",
        "b.mlperf.toml::test_performance[w-Offline]": "b.mlperf.toml::[w-Offline]",
        "tests/test_a.py::test_one[w-Offline]": "tests/test_a.py::test_one[w-Offline]",
        "tests/test_a.py::TestA::test_one": "tests/test_a.py::TestA::test_one",
    }
    scheduling = CaseScheduling.__new__(CaseScheduling)

    assert {nodeid: scheduling._split_scope(nodeid) for nodeid in scopes} == scopes


def test_no_case_is_measured_twice_and_the_controller_tells_everything_once(
    project: Project,
) -> None:
    project.suite(top1=100.0, accelerators=["cpu", "H200"], scenarios=OFFLINE + STREAM, more=EASY)
    project.baseline(near(RATE))
    project.baseline(near(0.002), of=case(scenario=Scenario.SINGLE_STREAM), metric="latency_p90")

    reports = ("--mlperf-json=copy.json", "--mlperf-report=json=all.json")
    result = project.run_process(
        "suites", "-n", "2", "-v", *reports, "--benchmark-json=benchmark.json"
    )

    assert last_line(result) == "4 passed"
    result.stdout.fnmatch_lines(["scheduling tests via CaseScheduling"])
    ids = {f"{SUITE}::test_{kind}[first-{scenario}-null-fp32-cpu]"
           for kind in ("accuracy", "performance")
           for scenario in ("Offline", "SingleStream")}  # fmt: skip
    assert {r.test for r in project.results().cases} == ids
    results = project.results()
    for name in ("copy.json", "all.json"):
        assert read_results(project.path / name) == results
    assert result.stdout.str().count("json: all.json") == 1
    # pytest-benchmark switches itself off, and a report takes its place.
    assert benchmarks(project) == []
    report(project, "later.json")
    assert {one["param"]: one["stats"]["rounds"] for one in benchmarks(project, "later.json")} == {
        each.verdict.case.id: len(each.verdict.runs)
        for each in results.cases
        if each.verdict.kind == "performance"
    }
    assert [folder.name for folder in sorted(project.run_folders())] == [
        "first-Offline-null-fp32-cpu.1",
        "first-SingleStream-null-fp32-cpu.1",
    ]
    lines = section(result)
    assert lines[0].startswith("4 tests deselected, accelerator not here: H200 (4); here: cpu (")
    assert len([line for line in lines if line.startswith("  performance ")]) == 2
    assert len([line for line in result.outlines if " mlperf " in line and "===" in line]) == 1


def test_a_distribution_the_user_asks_for_is_respected(project: Project) -> None:
    project.suite(scenarios=OFFLINE + STREAM)
    project.breaks()
    project.breaks(case(scenario=Scenario.SINGLE_STREAM))

    result = project.run_process("suites", "-n", "1", "--dist", "loadfile", "-v")

    result.stdout.fnmatch_lines(["scheduling tests via LoadFileScheduling"])
    assert last_line(result) == "2 failed"


def test_a_project_without_named_suites_keeps_xdists_own_scheduler(project: Project) -> None:
    project.suite()
    project.pytester.makepyfile("def test_own(): pass")

    result = project.run_process("-n", "1", "-v")

    result.stdout.fnmatch_lines(["scheduling tests via LoadScheduling"])
    assert last_line(result) == "1 passed"
    assert section(result) == ["1 suite not collected; run: pytest suites"]


def test_two_pytest_processes_take_turns_on_one_accelerator(project: Project) -> None:
    project.suite()

    def start(name: str) -> subprocess.Popen[str]:
        options = [f"--mlperf-runs-dir={name}", f"--mlperf-baselines={name}/baselines"]
        options += ["--mlperf-update=missing", "-omlperf_baseline_runs=2"]
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", *LIGHT, "-p", "no:cacheprovider", *options, SUITE],
            cwd=project.path,
            stdout=subprocess.PIPE,
            text=True,
        )

    with start("one") as first_process, start("two") as two:
        printed = [first_process.communicate()[0], two.communicate()[0]]
    assert (first_process.returncode, two.returncode) == (0, 0), "\n".join(printed)

    runs = sorted(
        (file.stat().st_mtime_ns, (file.parent / "performance/run.json").stat().st_mtime_ns)
        for file in project.path.glob("*/runs/*/*/spec.json")
    )
    assert len(runs) == 4
    assert all(end < start for (_, end), (start, _) in pairwise(runs))
    first, second = sorted(
        session_times(file) for file in project.path.glob("*/runs/*/results.json")
    )
    assert second[0] < first[1], "the sessions did not meet: nothing was shown"


def session_times(results: Path) -> tuple[dt.datetime, dt.datetime]:
    session_results = read_results(results)
    begun = dt.datetime.fromisoformat(session_results.started)
    return begun, begun + dt.timedelta(seconds=session_results.seconds)


def test_a_lease_that_does_not_come_is_an_error_that_names_its_holder(project: Project) -> None:
    project.suite()

    with conditions.lease_hardware((), 1, alone=True, limit_s=60, waiting=lambda _: None):
        result = project.run("suites", "-omlperf_lease_timeout=0.1")

    assert last_line(result) == "1 failed"
    headline = sentence(project.verdicts()["performance"].headline)
    assert headline.startswith(f"lease: waited 0 s for cpu, held by process {os.getpid()} ")
    assert headline.endswith("; end that process, or raise the ini setting mlperf_lease_timeout")
