"""More than 20 gated pairs in one session: two phases, one last word, held reports."""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pytest_mlperf.core.results import CaseResult, Results, Suspect
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.stores.results import read_results
from pytest_mlperf.stores.suspects import load
from tests.plugin.project import (
    LIGHT,
    Project,
    a_day_earlier,
    case,
    last_line,
    near,
    newest_results,
    section,
)

pytestmark = pytest.mark.quiet

FEW_ENGINES = ("fine", "doubt", "clear1", "clear2", "clear3")
SLOW = 125.0
"""Samples per second: a batch sleeps 128 ms, so that a busy machine takes some percent at most."""

OPTIONS = "{ latency_s = 0.008, batch_size = 16, threads = 1 }"
SCENARIO = f"""
[[scenarios]]
name = "Offline"
target_qps = {SLOW}
min_duration = "100ms"
"""

DOUBT = [1.69 * SLOW * math.exp(0.27 * (-1) ** i) for i in range(8)]
"""A drop against such noise has a p of some 0.4 % after five runs: alone it fails, as one of 22 it
does not, and beside three clear drops among 25 it does."""

ALONE = ("-k", "not clear")
LIMIT_S = 60.0


def test_id(engine: str) -> str:
    return f"suites/many.mlperf.toml::test_performance[many-Offline-{engine}-fp32-cpu]"


test_id.__test__ = False  # type: ignore[attr-defined]


@pytest.fixture
def many(project: Project) -> Project:
    """Return a project of 25 pairs, 20 of them without a model here: they cost nothing."""
    project.suite(
        "suites/absent.mlperf.toml",
        name="absent",
        engines="".join(
            f'[[engines]]\nuse = "null"\nname = "absent{n}"\nmodel = "nowhere"\n' for n in range(20)
        ),
    )
    project.suite(
        "suites/many.mlperf.toml",
        name="many",
        engines="".join(
            f'[[engines]]\nuse = "null"\nname = "{name}"\noptions = {OPTIONS}\n'
            for name in FEW_ENGINES
        ),
        scenarios=SCENARIO,
    )
    for name in FEW_ENGINES:
        values = {"fine": near(SLOW), "doubt": DOUBT}.get(name, near(2 * SLOW))
        of = case(workload="many", engine=name)
        project.baseline(values, of=of, target_qps=SLOW)
    return project


def newest(project: Project) -> Results:
    """Return the results of the last session."""
    return read_results(newest_results(project.path))


def open_(file: Path) -> tuple[Suspect, ...]:
    """Return the suspects of a session that are not cleared."""
    return tuple(one for one in load(file).suspects if one.metrics or one.drops)


def words(project: Project) -> dict[str, Outcome]:
    """Return the last session's outcome of each engine."""
    return {r.verdict.case.engine: r.verdict.outcome for r in newest(project).cases}


def of(project: Project, engine: str) -> CaseResult:
    """Return the last session's result of an engine."""
    return next(r for r in newest(project).cases if r.verdict.case.engine == engine)


def junit(project: Project) -> dict[str, tuple[bool, dict[str, str]]]:
    """Return the JUnit result of each engine: whether it failed, and its properties."""
    failures = {}
    for test in ET.parse(project.path / "junit.xml").iter("testcase"):
        values = {p.get("name", ""): p.get("value", "") for p in test.iter("property")}
        if values:
            engine = values["mlperf.case"].split("-")[2]
            failures[engine] = test.find("failure") is not None, values
    return failures


def last_failed(project: Project) -> set[str]:
    """Return what `--lf` would run."""
    path = project.path / ".pytest_cache/v/cache/lastfailed"
    return set(json.loads(path.read_text("utf-8"))) if path.exists() else set()


def order_of_runs(project: Project) -> list[str]:
    """Return "engine.number" of each run of the last session, oldest first."""
    folder = max(project.path.glob(".mlperf/runs/*"))
    ours = [f for f in project.run_folders() if f.parent == folder and "many" in f.name]
    return [f.name.removeprefix("many-Offline-").replace("-fp32-cpu", "") for f in ours]


def test_a_suspect_passes_then_comes_first_in_the_next_session_and_falls_among_others(
    many: Project,
) -> None:
    """Exit code, JUnit, `--lf`, terminal and results file say the last word in both sessions."""
    result = many.run_process("suites", *ALONE, "-v", "--junitxml=junit.xml")

    assert result.ret == pytest.ExitCode.OK
    assert words(many) == {"fine": Outcome.OK, "doubt": Outcome.SUSPECT}
    assert last_line(result) == "1 passed, 20 skipped, 3 deselected, 1 suspect"
    assert order_of_runs(many) == ["fine.1", "doubt.1", "doubt.2", "doubt.3", "doubt.4", "doubt.5"]
    assert (
        sentence(of(many, "doubt").verdict.headline)
        .split("; ", 1)[1]
        .startswith("a drop if judged alone, but not among 22 pairs judged together, p=0.00")
    )
    suspect = "22 pairs judged together: 1 SUSPECT (to be run first next time, and judged alone)"
    assert suspect in " ".join(section(result))
    assert junit(many)["doubt"][0] is False
    assert junit(many)["doubt"][1]["mlperf.verdict"] == "SUSPECT"
    assert last_failed(many) == set()
    suspects = many.path / ".mlperf/suspects.json"
    assert [one.test for one in open_(suspects)] == [test_id("doubt")]
    assert [one.test for one in newest(many).suspects] == [test_id("doubt")]

    result = many.run_process("suites", "--junitxml=junit.xml")

    clear = dict.fromkeys(("clear1", "clear2", "clear3"), Outcome.PERF_DROP)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert words(many) == {"fine": Outcome.OK, "doubt": Outcome.PROVISIONAL, **clear}
    assert last_line(result) == "3 failed, 1 passed, 20 skipped, 1 provisional"
    once = order_of_runs(many)[:5]
    assert once == ["doubt.1", "fine.1", "clear1.1", "clear2.1", "clear3.1"]
    assert re.search(
        r"; SUSPECT since \d{4}-\d\d-\d\d$", sentence(of(many, "doubt").verdict.headline)
    )
    assert (
        sentence(of(many, "clear1").verdict.headline)
        .split("; ", 1)[1]
        .startswith("a drop, whatever the verdicts on the other 24 pairs, p=")
    )
    lines = section(result)
    assert "25 pairs judged together: 3 PERF DROP, 1 PROVISIONAL drop" in lines
    common = " ".join(str(result.stdout).split())
    cause = "the data differ from the baseline's: dataset absent → "
    assert f"3 of 5 tests regressed; likely: {cause}" in common
    assert "; micro-benchmark of the machine: not run. Cases: " in common
    assert "2 similar messages left out below; -v prints all" in common
    failed = {"clear1", "clear2", "clear3"}
    assert {engine for engine, (fell, _) in junit(many).items() if fell} == failed
    assert last_failed(many) == {test_id(engine) for engine in failed}
    assert open_(suspects) == newest(many).suspects != ()  # a provisional drop decides nothing
    rule = r"rule +2 runs now, 8 in the baseline of 4 days, final until \d{4}-\d\d-\d\d .*"
    result.stdout.re_match_lines([rule, r".*; at most 5 % of the drops that fail are expected .*"])


def test_the_second_time_a_suspect_is_a_drop_also_where_only_results_remain_of_the_first(
    many: Project,
) -> None:
    """A fresh checkout knows no more than the results file that CI kept. On another day it fails,
    also where workers of xdist measure it.
    """
    only = ("suites", "-k", "doubt or absent")
    many.run_process(*only, "--mlperf-json=last/results.json")
    assert words(many) == {"doubt": Outcome.SUSPECT}
    shutil.rmtree(many.path / ".mlperf")

    many.run_process(*only, "--mlperf-handicap=10%", "--mlperf-suspects=last")
    assert words(many)["doubt"] in {Outcome.SUSPECT, Outcome.PROVISIONAL}  # a demonstration
    assert [one.test for one in load(many.path / ".mlperf/suspects.json").suspects] == [
        test_id("doubt")
    ]
    shutil.rmtree(many.path / ".mlperf")

    result = many.run_process(*only, "--mlperf-suspects=last")

    assert result.ret == pytest.ExitCode.OK
    assert words(many) == {"doubt": Outcome.PROVISIONAL}
    assert re.search(
        r"; SUSPECT since \d{4}-\d\d-\d\d$", sentence(of(many, "doubt").verdict.headline)
    )
    a_day_earlier(many.path / ".mlperf/suspects.json")

    result = many.run_process(*only, "-n", "1")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "; drop for the second day in a row (since " in sentence(
        of(many, "doubt").verdict.headline
    )
    assert last_failed(many) == {test_id("doubt")}


def test_workers_of_xdist_measure_and_the_controller_judges_them_together(many: Project) -> None:
    """Each worker judges its own p values; exit code, JUnit and `--lf` are the controller's."""
    result = many.run_process("suites", "-n", "2", "--junitxml=junit.xml")

    failed = {"clear1", "clear2", "clear3"}
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert words(many)["doubt"] is Outcome.PROVISIONAL  # a drop, if sessions differ no more
    assert {e for e, word in words(many).items() if word is Outcome.PERF_DROP} == failed
    note = "; drop if judged with all other pairs, "
    assert note in sentence(of(many, "doubt").verdict.headline)
    assert last_line(result) == "3 failed, 1 passed, 20 skipped, 1 provisional"
    assert "25 pairs judged together: 3 PERF DROP, 1 PROVISIONAL drop" in section(result)
    assert {engine for engine, (fell, _) in junit(many).items() if fell} == failed
    assert last_failed(many) == {test_id(engine) for engine in failed}
    assert not list(many.path.glob(".mlperf/runs/*/held"))


def test_x_stops_at_final_failures_and_the_others_say_that_they_were_not_decided(
    many: Project,
) -> None:
    """An undecided test stops nothing; the first clear drop ends the second phase."""
    result = many.run_process("suites", "-x", "--deselect", test_id("fine"))

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert words(many)["clear1"] is Outcome.PERF_DROP
    assert words(many)["clear2"] is words(many)["clear3"] is Outcome.INCONCLUSIVE
    assert sentence(of(many, "clear2").verdict.headline).endswith(
        "; the session ended before it was decided"
    )
    assert order_of_runs(many)[-1] == "clear1.2"
    fell = {engine for engine, word in words(many).items() if word is Outcome.PERF_DROP}
    assert last_failed(many) == {test_id(engine) for engine in fell}
    result.stdout.fnmatch_lines(["*stopping after 1 failures*"])


@contextlib.contextmanager
def in_second_phase(project: Project, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run pytest in a process of its own until an undecided case runs again."""
    command = [sys.executable, "-m", "pytest", *LIGHT, "-p", "no:benchmark", "suites", *arguments]
    with (project.path / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            command, cwd=project.path, stdout=output, stderr=subprocess.STDOUT
        )
    everyone = [psutil.Process(process.pid)]
    try:
        deadline = time.monotonic() + LIMIT_S
        while not list(project.path.glob(".mlperf/runs/*/many-*.2/performance")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        everyone += everyone[0].children(recursive=True)
        yield process
    finally:
        for process_to_kill in everyone:
            with contextlib.suppress(psutil.NoSuchProcess):
                process_to_kill.kill()
        process.wait()


@pytest.mark.parametrize("distribution", [[], ["-n", "1"]], ids=["alone", "xdist"])
def test_ctrl_c_reports_waiting_cases_as_inconclusive(
    many: Project, distribution: list[str]
) -> None:
    arguments = (*ALONE, "--junitxml=junit.xml", *distribution)
    with in_second_phase(many, *arguments) as process:
        process.send_signal(signal.SIGINT)
        code = process.wait(LIMIT_S)

    assert code == pytest.ExitCode.INTERRUPTED
    assert words(many) == {"fine": Outcome.OK, "doubt": Outcome.INCONCLUSIVE}
    assert sentence(of(many, "doubt").verdict.headline).endswith(
        "; the session ended before it was decided"
    )
    assert junit(many)["doubt"][1]["mlperf.verdict"] == "INCONCLUSIVE"


def test_cases_of_a_crashed_worker_are_an_error(many: Project) -> None:
    with in_second_phase(many, *ALONE, "-n", "1", "--max-worker-restart=0") as process:
        (worker,) = psutil.Process(process.pid).children()
        worker.kill()
        code = process.wait(LIMIT_S)

    assert code == pytest.ExitCode.TESTS_FAILED
    assert words(many) == {"fine": Outcome.OK, "doubt": Outcome.ERROR}
    assert sentence(of(many, "doubt").verdict.headline).startswith(
        "worker: the pytest-xdist worker crashed"
    )


def test_up_to_20_pairs_nothing_waits(many: Project) -> None:
    """The same cases alone: each is reported as soon as it is decided, by rule R alone."""
    result = many.run_process("suites/many.mlperf.toml", "-k", "doubt", "-v")

    assert words(many) == {"doubt": Outcome.PROVISIONAL}
    assert newest(many).pairs == 0
    assert not [line for line in result.outlines if "judged together" in line]
