"""A suite file is a test module: its ids, its places, its errors."""

from __future__ import annotations

import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from tests.plugin.project import OFFLINE, SUITE, Project, case, last_line, section

STREAM = '[[scenarios]]\nname = "SingleStream"\ntarget_qps = 400\nmin_duration = "100ms"\n'
TWO_ENGINES = """
[[engines]]
use = "null"

[[engines]]
use = "null"
name = "null-slow"
precision = "fp8"
options = { latency_s = 0.1 }
"""
EFFICIENCY = '[limits]\nsamples_per_joule = { max_drop = "5%" }\n'


def ids(result: pytest.RunResult) -> list[str]:
    """Return the node ids that --collect-only -q printed."""
    return [line for line in result.outlines if "::" in line]


def test_ids_name_kind_workload_scenario_engine_precision_and_accelerator(
    project: Project,
) -> None:
    project.suite("suites/datacenter/first.mlperf.toml", top1=100.0, more=EFFICIENCY)

    result = project.run("suites", "--collect-only", "-q")

    assert ids(result) == [
        f"suites/datacenter/first.mlperf.toml::test_{kind}[first-Offline-null-fp32-cpu]"
        for kind in ("accuracy", "performance", "efficiency")
    ]


def test_the_tests_of_one_case_stand_together_in_the_order_of_the_file(project: Project) -> None:
    project.suite(top1=100.0, engines=TWO_ENGINES, scenarios=OFFLINE + STREAM)

    result = project.run("suites", "--collect-only", "-q")

    assert ids(result) == [
        f"{SUITE}::test_{kind}[first-{scenario}-{engine}-cpu]"
        for engine in ("null-fp32", "null-slow-fp8")
        for scenario in ("Offline", "SingleStream")
        for kind in ("accuracy", "performance")
    ]


@pytest.mark.parametrize(
    "ini",
    [
        "python_functions = check_*",
        "python_classes = Check",
        "python_files = check_*.py",
        "collect_imported_tests = false",
    ],
)
def test_what_a_user_calls_his_own_tests_does_not_empty_a_suite(project: Project, ini: str) -> None:
    project.suite(top1=100.0)
    project.pytester.makeini(f"[pytest]\n{ini}\n")

    result = project.run("suites", "--collect-only", "-q")

    assert len(ids(result)) == 2


@pytest.mark.parametrize("named", ["suites", SUITE, "."])
def test_a_suite_is_collected_when_a_path_on_the_command_line_names_it(
    project: Project, named: str
) -> None:
    project.suite()

    result = project.run(named, "--collect-only", "-q")

    assert len(ids(result)) == 1
    assert section(result) == []


def test_a_suite_is_collected_when_testpaths_names_it(project: Project) -> None:
    project.suite()
    project.pytester.makeini("[pytest]\ntestpaths = suites\n")

    result = project.run("--collect-only", "-q")

    assert len(ids(result)) == 1
    assert section(result) == []


def test_a_suite_nobody_named_is_one_line_that_says_how_to_collect_it(project: Project) -> None:
    project.suite("suites/one.mlperf.toml")
    project.pytester.makepyfile("def test_own(): pass")

    one = project.run()
    project.suite("suites/edge/two.mlperf.toml")
    two = project.run()

    assert last_line(one) == last_line(two) == "1 passed"
    assert section(one) == ["1 suite not collected (pytest suites)"]
    assert section(two) == ["2 suites not collected (pytest suites)"]


def test_a_suite_that_is_not_collected_is_not_even_read(project: Project) -> None:
    project.suite().write_text("[[[", "utf-8")

    result = project.run()

    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert section(result) == ["1 suite not collected (pytest suites)"]


def test_a_report_is_placed_at_the_suite_file_and_the_line_of_its_engine(project: Project) -> None:
    path = project.suite(engines=TWO_ENGINES)
    project.breaks()
    project.breaks(case(engine="null-slow", precision="fp8"))
    lines = [n for n, line in enumerate(path.read_text().splitlines()) if line == "[[engines]]"]

    record = project.pytester.inline_run(
        "suites", "--junitxml=junit.xml", "-o", "junit_family=xunit1"
    )

    reports = record.getreports("pytest_runtest_logreport")
    calls = [report for report in reports if report.when == "call"]
    assert [report.location for report in calls] == [
        (SUITE, line, f"test_performance[first-Offline-{engine}-cpu]")
        for line, engine in zip(lines, ("null-fp32", "null-slow-fp8"), strict=True)
    ]
    crashes = [report.longrepr.reprcrash for report in calls]  # type: ignore[union-attr]
    assert [(crash.path, crash.lineno) for crash in crashes] == [
        (str(path), line + 1) for line in lines
    ]
    xml = ET.parse(project.path / "junit.xml")
    assert [(c.get("file"), c.get("line")) for c in xml.iter("testcase")] == [
        (SUITE, str(line)) for line in lines
    ]


def test_a_suite_is_parsed_once_however_many_tests_it_has(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = project.suite(
        top1=100.0, engines=TWO_ENGINES, scenarios=OFFLINE + STREAM, more=EFFICIENCY
    ).read_text("utf-8")
    parse, parsed = tomllib.loads, []

    def loads(source: str, **options: Any) -> dict[str, Any]:
        parsed.append(source)
        return parse(source, **options)

    monkeypatch.setattr(tomllib, "loads", loads)

    result = project.run("suites", "--collect-only", "-q")

    assert len(ids(result)) == 12
    assert parsed.count(text) == 1


@pytest.mark.parametrize(
    ("right", "wrong", "line", "message"),
    [
        ("latency_s", "latncy_s", 11, "*has no option 'latncy_s'; did you mean 'latency_s'?*"),
        ("max_drop", "max_rise", 20, "*limits.throughput: *max_drop*"),
        ('round = "v4.1"', "round = v4.1", 2, "*not TOML*"),
        ("dataset =", "datset =", 6, "*unknown key 'datset'; did you mean 'dataset'?*"),
        (OFFLINE, OFFLINE + OFFLINE, 20, "*duplicate case*Offline*"),
    ],
    ids=["option", "limit", "syntax", "key", "duplicate"],
)
def test_a_broken_suite_is_one_collection_error_with_line_and_key(
    project: Project, right: str, wrong: str, line: int, message: str
) -> None:
    path = project.suite()
    path.write_text(path.read_text("utf-8").replace(right, wrong, 1), "utf-8")

    result = project.run("suites", "--tb=long")

    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert last_line(result) == "1 error"
    errors = result.outlines[
        result.outlines.index(next(x for x in result.outlines if " ERROR collecting " in x)) + 1 :
    ]
    shown = errors[: next(n for n, x in enumerate(errors) if x.startswith("==="))]
    assert shown[0].startswith(f"{path}:{line}: ")
    assert all(text.startswith(f"{path}:") for text in shown)
    result.stdout.fnmatch_lines([message])


def test_a_broken_suite_does_not_hide_the_others(project: Project) -> None:
    project.suite("suites/bad.mlperf.toml").write_text("schema = 1\n", "utf-8")
    project.suite("suites/good.mlperf.toml")

    result = project.run("suites", "--collect-only", "-q")

    assert ids(result) == ["suites/good.mlperf.toml::test_performance[first-Offline-null-fp32-cpu]"]
    assert result.parseoutcomes()["errors"] == 1


def test_two_suites_at_once_keep_their_cases_apart(project: Project) -> None:
    project.suite("suites/one.mlperf.toml", name="one")
    project.suite("suites/two.mlperf.toml", name="two", top1=100.0)

    result = project.run("suites/one.mlperf.toml", "suites/two.mlperf.toml", "--co", "-q")

    assert ids(result) == [
        "suites/one.mlperf.toml::test_performance[one-Offline-null-fp32-cpu]",
        "suites/two.mlperf.toml::test_accuracy[two-Offline-null-fp32-cpu]",
        "suites/two.mlperf.toml::test_performance[two-Offline-null-fp32-cpu]",
    ]


def test_the_conftest_of_a_suites_folder_holds_for_the_suite(project: Project) -> None:
    project.suite()
    project.breaks()
    (project.path / "suites/conftest.py").write_text(
        "import pytest\n\n"
        "@pytest.fixture(autouse=True)\n"
        "def cool_down(request):\n"
        "    print('cooled down before', request.node.name)\n",
        "utf-8",
    )

    result = project.run("suites", "-s")

    result.stdout.fnmatch_lines(
        ["*cooled down before test_performance[[]first-Offline-null-fp32-cpu[]]*"]
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("--strict-markers",),
        ("--strict-config",),
        ("-W", "error"),
        ("--import-mode=importlib",),
        ("--import-mode=append",),
        ("-p", "no:cacheprovider"),
        ("-p", "no:terminal"),
        ("-p", "no:benchmark"),
        ("-p", "no:xdist"),
        ("-p", "no:capture"),
        ("--doctest-modules",),
        ("--tb=no",),
        ("-qq",),
        ("-x", "--setup-show"),
    ],
    ids=" ".join,
)
def test_a_verdict_is_reached_whatever_else_pytest_is_told(
    project: Project, arguments: tuple[str, ...]
) -> None:
    project.suite()
    project.breaks()

    record = project.pytester.inline_run("suites", *arguments)

    (report,) = (r for r in record.getreports("pytest_runtest_logreport") if r.when == "call")
    assert report.longreprtext.startswith("ERROR baseline:")
    assert project.cases()["performance"].failed


def test_collecting_measures_and_writes_nothing(project: Project) -> None:
    project.suite(top1=100.0)
    before = sorted(project.path.rglob("*"))

    project.run("suites", "--collect-only", "-p", "no:cacheprovider")

    assert sorted(p for p in project.path.rglob("*") if p.name not in {".benchmarks"}) == before


def test_a_suite_may_lie_outside_the_root_folder(project: Project, tmp_path: Path) -> None:
    project.pytester.makeini("[pytest]\n")
    outside = tmp_path / "elsewhere"
    outside.mkdir(exist_ok=True)
    project.suite(str(outside / "first.mlperf.toml"))

    result = project.run(outside, "--rootdir", project.path, "--collect-only", "-q")

    assert len(ids(result)) == 1
