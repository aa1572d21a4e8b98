"""A PROVISIONAL drop warns on the first day, and fails on the second one in a row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.stores.results import read_results
from tests.plugin.project import RATE, Project, a_day_earlier, near, newest_results, section
from tests.plugin.simulated import null_engine, simulate

pytestmark = pytest.mark.process

FORGOTTEN = "each PROVISIONAL drop counts as the first"
DROP_ONLY = ("suites", "-o", "mlperf_control=off", "-o", "mlperf_wait_idle=0")


@pytest.fixture
def dropped(project: Project) -> Project:
    """A project whose engine is at 77 % of a baseline of four days that knows no more of them."""
    # Slow enough that a busy machine makes it little slower.
    options = "{ latency_s = 0.008, batch_size = 16, threads = 1 }"
    project.suite(options=options, more='[limits]\nthroughput = { max_drop = "10%" }')
    project.baseline(near(1.3 * RATE / 4), noise=None)
    return project


@pytest.fixture
def simulated(dropped: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The same project, whose runs have that speed without a process."""
    simulate(monkeypatch, null_engine(*near(RATE / 4)))
    return dropped


def memory(project: Project) -> Path:
    return project.path / ".mlperf" / "suspects.json"


def words(project: Project) -> str:
    (case_result,) = read_results(newest_results(project.path)).cases
    assert case_result.verdict.outcome is Outcome.PROVISIONAL
    return sentence(case_result.verdict.headline)


def test_the_second_day_fails_by_the_memory_of_the_runs_folder_or_of_named_results(
    dropped: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session of the same day warns again; CI that has no memory says so in one line."""
    monkeypatch.setenv("CI", "true")

    first = dropped.run(*DROP_ONLY, "--mlperf-json=last/results.json")

    assert first.ret == pytest.ExitCode.OK, first.stdout.str()
    output = " ".join(section(first))
    assert "warning   first-Offline-null-fp32-cpu: the test fails if the next session, on" in output
    assert (
        f"results of the last session are missing (name them: --mlperf-suspects FILE); {FORGOTTEN}"
        in output
    )
    simulate(monkeypatch, null_engine(*near(RATE / 4)))
    same = dropped.run(*DROP_ONLY)
    assert (same.ret, FORGOTTEN in same.stdout.str()) == (0, False)

    a_day_earlier(memory(dropped))
    second = dropped.run(*DROP_ONLY)

    assert second.ret == pytest.ExitCode.TESTS_FAILED
    assert "; drop for the second day in a row (since " in words(dropped)

    memory(dropped).unlink()
    a_day_earlier(dropped.path / "last" / "results.json")
    monkeypatch.setenv("GITHUB_EVENT_NAME", "pull_request")
    named = dropped.run(*DROP_ONLY, "--mlperf-suspects=last")

    assert named.ret == pytest.ExitCode.TESTS_FAILED
    assert not memory(dropped).exists()  # a pull request leaves nothing


def test_a_drop_fails_at_once_where_that_is_asked_for(simulated: Project) -> None:
    for option_value, code in (("provisional", 1), ("skips", 0)):
        assert simulated.run(*DROP_ONLY, f"--mlperf-fail-on={option_value}").ret == code
        assert "; drop if day-to-day variation < " in words(simulated)


def test_a_memory_that_tells_nothing_of_these_tests_fails_none_and_says_so(
    simulated: Project,
) -> None:
    """Cut off, of another suite, of a day to come, of another baseline."""
    simulated.run(*DROP_ONLY, "--mlperf-json=last/results.json")
    last = simulated.path / "last" / "results.json"
    text = last.read_text("utf-8")
    results = json.loads(text)
    (suspect,) = results["suspects"]
    day = {"drops": {"throughput": "2999-01-01T00:00:00+00:00"}}
    for kept, message in (
        (text[: len(text) // 2], f"results.json: not a results file*; {FORGOTTEN}"),
        (
            text.replace("suites/first", "suites/other"),
            f"last has no results of these tests; {FORGOTTEN}",
        ),
        (json.dumps({**results, "suspects": [{**suspect, **day}]}), "*on 2999-01-01, later than*"),
        (json.dumps({**results, "suspects": [{**suspect, "baseline": "another"}]}), "warning *"),
    ):
        memory(simulated).unlink(missing_ok=True)
        last.write_text(kept, "utf-8")
        result = simulated.run(*DROP_ONLY, "--mlperf-suspects=last", "--color=no")
        assert result.ret == pytest.ExitCode.OK
        result.stdout.fnmatch_lines([f"*{message}*"])
