"""`--mlperf-judge-benchmarks`: tests with pytest-benchmark get a verdict, and need no change."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.stores import baselines
from tests.plugin.project import LIGHT, Project

ROOT = Path(__file__).parents[2]

JUDGE = "--mlperf-judge-benchmarks"

KINDS = """
import time
import pytest

@pytest.fixture(scope="class")
def table():
    with open("set-up.txt", "a") as file:
        file.write("once\\n")
    return [3, 1, 2]

class TestSorting:
    def test_sorts(self, table, benchmark):
        assert benchmark.pedantic(sorted, args=(table,), rounds=40, iterations=10) == [1, 2, 3]

@pytest.mark.parametrize("text", ["a/../b", "$(touch x)", "x" * 300])
def test_ids(benchmark, text):
    benchmark.pedantic(len, args=(text,), rounds=2, iterations=5)

def test_fails(benchmark):
    benchmark.pedantic(lambda: None)
    assert 1 == 2

def test_skips(benchmark):
    pytest.skip("no kernel here")

@pytest.mark.skip(reason="never")
def test_marked(benchmark):
    benchmark(time.sleep, 0)

@pytest.mark.xfail(reason="not yet", strict=True)
def test_expected(benchmark):
    benchmark.pedantic(lambda: 1 / 0)

def test_twice(benchmark):
    benchmark.pedantic(lambda: None)
    benchmark.pedantic(lambda: None)

def test_never(benchmark):
    pass

@pytest.mark.benchmark(group="own")
@pytest.mark.mlperf_benchmark(metric="min", max_rise="30%", precision="fp8")
def test_marker(benchmark):
    benchmark.pedantic(len, args=("",), rounds=2, iterations=5)

def test_plain():
    pass
"""

SLEEP = """
import time

def test_sleep(benchmark):
    benchmark.pedantic(time.sleep, args=(0.02,), rounds=5)
"""


def write(project: Project, text: str, file: str = "tests/test_kernels.py") -> Path:
    path = project.path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, "utf-8")
    return path


@pytest.mark.process
def test_every_kind_of_benchmark_has_its_outcome(project: Project) -> None:
    write(project, KINDS)

    session = project.pytester.runpytest_subprocess(*LIGHT, "-rA", JUDGE, "--benchmark-json=b.json")

    tests = {case.test.rpartition("::")[2]: case for case in project.results().cases}
    verdicts = {name: case.verdict for name, case in tests.items()}
    broken = {n: sentence(v.headline) for n, v in verdicts.items() if v.outcome is Outcome.ERROR}
    assert session.ret == pytest.ExitCode.TESTS_FAILED
    assert set(broken) == {"test_fails", "test_twice", "test_never", "test_expected"}
    assert "the test failed in its call: AssertionError: assert 1 == 2" in broken["test_fails"]
    assert "Fixture can only be used once" in broken["test_twice"]
    assert "without using its benchmark fixture" in broken["test_never"]
    session.stdout.fnmatch_lines(["*SKIPPED*no kernel here*", "*XFAIL*test_expected*"])
    measured = {n for n, v in verdicts.items() if v.outcome is Outcome.NO_BASELINE}
    assert len(measured) == 5
    assert {"test_sorts", "test_marker"} < measured
    # A file and a folder for each, whatever an id holds, and no two share one.
    assert len({v.case.id for v in verdicts.values()}) == len(verdicts)
    assert not (project.path / "x").exists()
    run, marked = verdicts["test_sorts"].runs[0], tests["test_marker"]
    assert (run.queries, run.samples) == (40, 400)
    assert set(run.metrics) == {"time_median", "time_min", "time_mean"}
    assert set(run.within_se) == {"time_median"}
    assert marked.limits == {"time_min": 0.3}
    assert marked.verdict.case.precision == "fp8"
    assert (project.path / "set-up.txt").read_text("utf-8") == "once\n"
    saved = json.loads((project.path / "b.json").read_text("utf-8"))["benchmarks"]
    groups = {one["name"]: one["group"] for one in saved}
    assert (groups["test_sorts"], groups["test_marker"]) == (None, "own")
    assert groups.keys() == measured


@pytest.mark.process
def test_a_benchmark_is_recorded_judged_and_fails_when_slowed(project: Project) -> None:
    """The way of any case: baseline in git, verdict, failure with its command."""
    write(project, SLEEP)
    run = project.pytester.runpytest_subprocess
    file = "baselines/cpu/quick/tests.test_kernels.py/Benchmark.test_sleep.any.json"

    recorded = run(*LIGHT, JUDGE, "--mlperf-update=missing", "-omlperf_baseline_runs=2")
    baseline = baselines.load(project.path / file)
    project.over_days()
    limits = ("-omlperf_benchmark_max_rise=40%", "-omlperf_max_runs=2")
    same = run(*LIGHT, JUDGE, *limits)
    slowed = run(*LIGHT, JUDGE, "--mlperf-handicap=60%", *limits)

    assert (recorded.ret, same.ret, slowed.ret) == (0, 0, 1)
    assert baseline is not None
    assert [len(record.runs) for record in baseline.records] == [2]
    assert baseline.round == "none"
    slowed.stdout.fnmatch_lines(
        [
            "*PERF DROP median time +1*%*",
            'reproduce pytest "tests/test_kernels.py::test_sleep" --mlperf-judge-benchmarks '
            "*--mlperf-handicap=60%*",
        ]
    )


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("--benchmark-disable", "leave it out, or add --benchmark-enable"),
        ("--benchmark-skip", "leave it out"),
    ],
)
def test_benchmarks_that_are_switched_off_are_one_line(
    project: Project, monkeypatch: pytest.MonkeyPatch, option: str, advice: str
) -> None:
    """As projects do in `addopts`; it fails where skips do."""
    monkeypatch.delenv("CI", raising=False)
    write(project, SLEEP + "def test_again(benchmark):\n    benchmark(len, ())\n")
    line = f"2 benchmarks not judged: {option} is set; {advice}"
    rule = " (skips fail in CI; allow them: --mlperf-fail-on=no:skips)"
    for more, code, end in (
        ((), 0, ""),
        (("--mlperf-fail-on=skips",), 1, rule),
        (("--benchmark-enable",), None, None),
        (("-k", "no_such"), 5, None),
    ):
        if code is None and option == "--benchmark-skip":
            continue
        result = project.run(JUDGE, option, "--co" if code is None else "-q", *more)
        assert (code is None) or result.ret == code
        assert (f"{line}{end}" in result.outlines) == (end is not None)
        assert len([text for text in result.outlines if "not judged" in text]) == (end is not None)


def test_without_pytest_benchmark_the_extra_is_named(project: Project) -> None:
    write(project, SLEEP)
    by_option = project.run(JUDGE, "-p", "no:benchmark")
    (project.path / "pytest.ini").write_text("[pytest]\nmlperf_judge_benchmarks = yes\n")
    in_file = project.run("-p", "no:benchmark")

    for result in (by_option, in_file):
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["*try: pip install 'pytest-mlperf[[]benchmark]'"])


def test_a_project_without_benchmarks_has_no_banner_and_no_folder(project: Project) -> None:
    """As it is where the extra is not installed."""
    project.suite()
    project.breaks()
    result = project.run("suites", "-p", "no:benchmark")

    assert "benchmark: " not in result.stdout.str()
    assert not (project.path / ".benchmarks").exists()
    assert "ERROR baseline" in result.stdout.str()


def test_pytest_benchmark_is_an_extra_alone() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert not any(one.startswith("pytest-benchmark") for one in project["dependencies"])
    assert project["optional-dependencies"]["benchmark"] == ["pytest-benchmark>=5"]
    assert "pytest-mlperf[benchmark," in project["optional-dependencies"]["dev"][0]
