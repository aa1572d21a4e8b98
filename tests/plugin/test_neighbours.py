"""Other plugins of pytest in a session with suites, each as it is: the table in docs/pytest.md."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from pytest_mlperf.cli import main
from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.stores.results import read_results
from tests import forked
from tests.plugin.project import ACCURACY, OFFLINE, PERFORMANCE, SUITE, Project, case, last_line

INSTALLED = Path(sys.prefix) / "neighbours"
"""Where `make` installs plugins that load themselves."""

STREAM = '[[scenarios]]\nname = "SingleStream"\ntarget_qps = 400\nmin_duration = "200ms"\n'
EASY = '[limits]\nthroughput = { max_drop = "60%" }\nlatency_p90 = { max_rise = "900%" }\n'
SLOW = OFFLINE.replace("100ms", "60s")
STREAMED = PERFORMANCE.replace("Offline", "SingleStream")


@pytest.fixture
def neighbours(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load the other plugins in processes of their own; randomly only where it is asked for."""
    if not INSTALLED.is_dir():
        pytest.skip(f"needs the plugins that `make test` installs into {INSTALLED}")
    monkeypatch.setenv("PYTHONPATH", str(INSTALLED))
    forked.use_no(monkeypatch)  # a fork has the plugins of this process


def judged(project: Project) -> list[str]:
    """Return the tests of all results so far."""
    files = project.path.glob(".mlperf/runs/*/results.json")
    return sorted(one.test for file in files for one in read_results(file).cases)


@pytest.mark.process
@pytest.mark.usefixtures("neighbours")
def test_reruns_leave_one_case_with_its_last_result(project: Project) -> None:
    project.suite(top1=100.0)
    project.breaks()
    reports = ("--junitxml=j.xml", "--mlperf-json=r.json")
    result = project.run_process("suites", "--reruns", "2", "-p", "no:randomly", *reports)

    assert last_line(result) == "2 failed, 4 rerun"
    assert judged(project) == [ACCURACY, PERFORMANCE]
    suite = ET.parse(project.path / "j.xml").getroot()[0]
    assert suite.attrib["tests"] == "2"
    for test in suite.iter("testcase"):
        names = Counter(one.attrib["name"] for one in test.iter("property"))
        assert set(names.values()) == {1}
    assert main(["merge", str(project.path / "r.json"), "-o", str(project.path / "all.json")]) == 1


@pytest.mark.process
@pytest.mark.usefixtures("neighbours")
def test_a_time_out_is_one_error_and_the_results_are_kept(project: Project) -> None:
    project.suite(scenarios=SLOW + STREAM, more=EASY)
    project.breaks(case(scenario=Scenario.SINGLE_STREAM))
    result = project.run_process("suites", "--timeout", "4", "-p", "no:randomly")

    assert last_line(result) == "2 failed"
    stopped, broken = (one.verdict for one in project.results().cases)
    assert (stopped.outcome, broken.outcome) == (Outcome.ERROR, Outcome.ERROR)
    assert "Timeout (>4.0s) from pytest-timeout; give this test more time" in sentence(
        stopped.headline
    )
    result.stdout.fnmatch_lines(["ERROR stopped during the measurement: Timeout*"])
    assert "site-packages/pluggy" not in result.stdout.str()
    project_folder = str(project.path).encode()
    assert [words for words in command_lines() if project_folder in words] == []


def command_lines() -> list[bytes]:
    """Return those of all processes."""
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has just ended
            lines.append(file.read_bytes())
    return lines


@pytest.mark.process
@pytest.mark.usefixtures("neighbours")
def test_a_shuffled_session_measures_each_case_once(project: Project) -> None:
    project.suite(top1=100.0, scenarios=OFFLINE + STREAM, more=EASY)
    result = project.run_process("suites", "--randomly-seed=3", "-v")

    order = re.findall(r"::test_(\w+)\[first-(\w+)-", "\n".join(result.outlines))
    assert order[:4] != sorted(order[:4], key=lambda one: (one[1], one[0]))
    assert len(judged(project)) == 4
    assert sorted(one.name for one in project.run_folders()) == [
        "first-Offline-null-fp32-cpu.1",
        "first-SingleStream-null-fp32-cpu.1",
    ]


@pytest.mark.process
@pytest.mark.usefixtures("neighbours")
def test_the_groups_of_a_split_session_merge(project: Project) -> None:
    project.suite(scenarios=OFFLINE + STREAM, more=EASY)
    project.breaks()
    project.breaks(case(scenario=Scenario.SINGLE_STREAM))
    for group in ("1", "2"):
        part = f"--mlperf-json={group}.json"
        project.run_process("suites", "--splits", "2", "--group", group, "-p", "no:randomly", part)
    parts = [str(project.path / name) for name in ("1.json", "2.json", "all.json")]

    assert main(["merge", *parts[:2], "-o", parts[2]]) == 1
    assert [len(read_results(Path(file)).cases) for file in parts] == [1, 1, 2]


@pytest.mark.process
@pytest.mark.usefixtures("neighbours")
def test_html_and_junit_show_verdicts_with_xdist(project: Project) -> None:
    project.suite(top1=100.0)
    project.breaks()
    pages = ("--html=page.html", "--self-contained-html", "--junitxml=j.xml")
    result = project.run_process("suites", "-n", "2", "-p", "no:randomly", *pages)

    assert last_line(result) == "2 failed"
    page = (project.path / "page.html").read_text("utf-8")
    assert page.count("&#34;result&#34;: &#34;Failed&#34;") == 2
    assert page.count("ERROR baseline: ") == 2
    suite = ET.parse(project.path / "j.xml").getroot()
    verdicts = [p.attrib["value"] for p in suite.iter("property") if "verdict" in p.attrib["name"]]
    assert verdicts == ["ERROR", "ERROR"]


def two_cases(project: Project) -> None:
    """Write two cases that cost no measurement."""
    project.suite(scenarios=OFFLINE + STREAM, more=EASY)
    project.breaks()
    project.breaks(case(scenario=Scenario.SINGLE_STREAM))


def test_stops_after_failures_keep_the_results_so_far(project: Project) -> None:
    two_cases(project)
    for option in ("-x", "--maxfail=1"):
        result = project.run("suites", option, "--mlperf-json=r.json")
        assert last_line(result).startswith("1 failed")
        assert [one.test for one in read_results(project.path / "r.json").cases] == [PERFORMANCE]


def test_last_failures_are_selected_and_come_first(project: Project) -> None:
    two_cases(project)
    (project.path / "test_own.py").write_text("def test_own(): pass\n")
    project.run(STREAMED)
    project.run("test_own.py")
    first = project.run("suites", "test_own.py", "--ff", "--co", "-q")
    last = project.run("suites", "test_own.py", "--lf", "--co", "-q")

    selected = [line for line in last.outlines if "::" in line]
    assert selected == [STREAMED]
    assert next(line for line in first.outlines if "::" in line) == STREAMED
    assert len(judged(project)) == 1  # nothing is measured by --co


def test_pytests_cache_is_not_needed(project: Project) -> None:
    two_cases(project)
    result = project.run("suites", "-p", "no:cacheprovider")

    assert last_line(result) == "2 failed"
    assert not (project.path / ".pytest_cache").exists()
    assert judged(project) == [PERFORMANCE, STREAMED]


TOKENS = 12
"""More than requests before a run ask for."""

SUITE_OF_SERVER = """
schema = 1
round = "v6.0"

[workload]
name = "served"
tokens = true
dataset = {{ use = "prompts", samples = 64, input_tokens = {{ fixed = 12 }} }}

[[engines]]
use = "openai"
accelerators = ["cpu"]
options = {{ url = "{url}", max_new_tokens = {tokens} }}

[[engines]]
use = "openai"
name = "greedy"
accelerators = ["cpu"]
options = {{ url = "{url}", max_new_tokens = {tokens}, extra = {{ top_k = 1 }} }}

[[scenarios]]
name = "Concurrency"
points = [2]
min_duration = "600ms"
"""


@pytest.mark.process
def test_workers_of_xdist_take_turns_at_one_server(project: Project) -> None:
    pytest.importorskip("httptools")
    from tests.adapters.engines.openai.scripted import Manner, Reply, Request, Scripted

    def answer(request: Request) -> Reply:
        timed = request.body.get("max_tokens") == TOKENS
        return replace(Manner()(request), delay_s=0.03 * timed)

    with Scripted(answer) as server:
        suite = project.path / SUITE
        suite.parent.mkdir(exist_ok=True)
        suite.write_text(SUITE_OF_SERVER.format(url=server.url, tokens=TOKENS), "utf-8")
        project.run_process("suites", "-n", "2", "-omlperf_warmup=never")
    assert len(project.results().cases) == 2
    timed = [one.body for one in server.streams if one.body["max_tokens"] == TOKENS]
    engines = [engine for engine, _ in itertools.groupby("top_k" in body for body in timed)]
    runs = sum(
        len(one.verdict.runs) + len(one.verdict.invalid_runs) for one in project.results().cases
    )
    assert 2 <= len(engines) <= max(2, runs)  # an INVALID run is repeated, perhaps after the other
