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


def test_a_suite_is_read_once_and_its_tests_stand_in_the_order_of_the_file(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids name kind, workload, scenario, engine, precision and accelerator; nothing is written."""
    suite = "suites/datacenter/first.mlperf.toml"
    path = project.suite(
        suite, top1=100.0, engines=TWO_ENGINES, scenarios=OFFLINE + STREAM, more=EFFICIENCY
    )
    text, files_at_start = path.read_text("utf-8"), sorted(project.path.rglob("*"))
    parse, parsed = tomllib.loads, []

    def loads(source: str, **options: Any) -> dict[str, Any]:
        parsed.append(source)
        return parse(source, **options)

    monkeypatch.setattr(tomllib, "loads", loads)

    result = project.run("suites", "--collect-only", "-q", "-p", "no:cacheprovider")

    assert ids(result) == [
        f"{suite}::test_{kind}[first-{scenario}-{engine}-cpu]"
        for engine in ("null-fp32", "null-slow-fp8")
        for scenario in ("Offline", "SingleStream")
        for kind in ("accuracy", "performance", "efficiency")
    ]
    assert parsed.count(text) == 1
    assert sorted(p for p in project.path.rglob("*") if p.name != ".benchmarks") == files_at_start


def test_a_suite_is_collected_by_its_path_with_any_names_of_user_tests(
    project: Project, tmp_path: Path
) -> None:
    project.suite()
    outside = tmp_path / "elsewhere"
    outside.mkdir(exist_ok=True)
    project.suite(str(outside / "first.mlperf.toml"))
    own_names = (
        "python_functions = check_*\npython_classes = Check\npython_files = check_*.py\n"
        "collect_imported_tests = false"
    )
    rows = [
        ("", ["suites"]),
        ("", [SUITE]),
        ("", ["."]),
        ("", [str(outside), f"--rootdir={project.path}"]),
        (own_names, ["suites"]),
        ("testpaths = suites", []),
    ]
    for ini, arguments in rows:
        project.pytester.makeini(f"[pytest]\n{ini}\n")

        result = project.run(*arguments, "--collect-only", "-q")

        assert (ini, arguments, len(ids(result)), section(result)) == (ini, arguments, 1, [])


def test_a_suite_outside_of_the_arguments_is_one_line_and_not_read(project: Project) -> None:
    project.suite("suites/one.mlperf.toml").write_text("[[[", "utf-8")

    alone = project.run()
    project.pytester.makepyfile("def test_own(): pass")
    project.suite("suites/edge/two.mlperf.toml")
    two = project.run()

    assert alone.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert last_line(two) == "1 passed"
    assert section(alone) == ["1 suite not collected; run: pytest suites"]
    assert section(two) == ["2 suites not collected; run: pytest suites"]


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


def test_each_broken_suite_is_one_error_with_line_and_key_and_hides_no_other(
    project: Project,
) -> None:
    rows = [
        ("option", "latency_s", "latncy_s", 11, "has no option 'latncy_s'; did you mean 'latenc"),
        ("limit", "max_drop", "max_rise", 20, "limits.throughput: "),
        ("syntax", 'round = "v4.1"', "round = v4.1", 2, "not TOML"),
        ("key", "dataset =", "datset =", 6, "unknown key 'datset'; did you mean 'dataset'?"),
        ("twice", OFFLINE, OFFLINE + OFFLINE, 20, "duplicate case"),
    ]
    for name, right, wrong, _, _ in rows:
        path = project.suite(f"suites/{name}.mlperf.toml", name=name)
        path.write_text(path.read_text("utf-8").replace(right, wrong, 1), "utf-8")
    project.suite("suites/good.mlperf.toml")

    result = project.run("suites", "--tb=long", "--collect-only", "-q")

    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert (
        ids(result)[0] == "suites/good.mlperf.toml::test_performance[first-Offline-null-fp32-cpu]"
    )
    assert result.parseoutcomes()["errors"] == len(rows)
    for name, _, _, line, message in rows:
        path = project.path / f"suites/{name}.mlperf.toml"
        title = next(n for n, x in enumerate(result.outlines) if f"collecting suites/{name}." in x)
        lines = result.outlines[title + 1 :]
        error = lines[: next(n for n, x in enumerate(lines) if x.startswith(("===", "___")))]
        assert error[0].startswith(f"{path}:{line}: ")
        assert message in error[0]
        assert all(text.startswith(f"{path}:") for text in error)


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
        ("--strict-markers", "--strict-config", "-W", "error", "--doctest-modules", "--tb=no"),
        ("--import-mode=importlib", "-p", "no:cacheprovider", "-p", "no:xdist", "-x", "-qq"),
        ("--import-mode=append", "-p", "no:terminal", "-p", "no:benchmark"),
        ("-p", "no:capture", "--setup-show"),
    ],
    ids=" ".join,
)
def test_a_verdict_is_reached_with_any_options_of_pytest(
    project: Project, arguments: tuple[str, ...]
) -> None:
    project.suite()
    project.breaks()

    record = project.pytester.inline_run("suites", *arguments)

    (report,) = (r for r in record.getreports("pytest_runtest_logreport") if r.when == "call")
    assert report.longreprtext.startswith("ERROR baseline:")
    assert project.cases()["performance"].failed
