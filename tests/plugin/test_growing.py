"""`--mlperf-update=missing` adds sessions of the same build until the baseline has four days."""

from __future__ import annotations

import datetime as dt
import json
import re

import pytest

from pytest_mlperf.core.recording import APPEND_RUNS
from pytest_mlperf.core.verdict import Outcome
from tests.plugin.project import OPTIONS, RATE, Project, last_line, near, section
from tests.plugin.simulated import null_engine, simulate
from tests.plugin.test_recording import RECORD
from tests.sessions import a_day_earlier
from tests.stores.killed import git

GROW = ("--mlperf-update=missing", "-omlperf_control=off")
FIRST = (*RECORD, "-omlperf_control=off")


def output_of(result: pytest.RunResult) -> str:
    """Return the summary in one line."""
    return " ".join(" ".join(section(result)).split())


def test_a_baseline_grows_by_two_runs_a_session_until_it_has_four_days(project: Project) -> None:
    """A drop that sessions cannot explain keeps its verdict, and is not added.

    A second session of a day is added, with a note that it adds no day. A run that disagrees with
    the other is replaced, so that a busy machine adds up to four.
    """
    project.suite()
    project.run("suites", *FIRST)
    file = project.baseline_file()
    recorded = file.read_bytes()
    content = json.loads(recorded)
    for run in content["records"][0]["runs"]:
        run["metrics"]["throughput"] *= 50
    content["records"][0]["runs"] *= 4  # of enough runs to gate
    file.write_text(json.dumps(content), "utf-8")
    file_content = file.read_bytes()

    dropped = project.run("suites", *GROW)

    assert file.read_bytes() == file_content
    dropped.stdout.fnmatch_lines(["PERF DROP samples/s ?9*"])
    text = " ".join(dropped.stdout.str().split())
    assert "which has 1 of 4 days: its verdict is PERF DROP with the baseline's build" in text
    file.write_bytes(recorded)
    size = len(project.recorded().runs)

    for day in range(4):
        if day:
            a_day_earlier(file)
        result = project.run("suites", *GROW, "--mlperf-json=grown.json")
        assert last_line(result) == "1 recorded"
        record = project.recorded()
        added = len(record.runs) - size
        size = len(record.runs)
        assert record.days == day + 1
        assert APPEND_RUNS <= added <= 2 * APPEND_RUNS
        grew = f"baseline grew to {record.days} of 4 days ({size} runs)"
        assert f"{grew} in baselines/cpu/quick/first/Offline.null.fp32.json" in output_of(result)
        judged = rf"judged (with [1-{added - 1}] of these {added} runs )?before this session was"
        assert re.search(judged, output_of(result))
        assert ("not counted as a new day" in output_of(result)) is (day == 0)
    full = project.baseline_file().read_bytes()
    last = project.run("suites", *GROW)

    assert [entry.action for entry in record.history] == ["record", *["append"] * 4]
    assert {entry.reason for entry in record.history[1:]} == {"one more session of the same build"}
    assert record.session_noise["throughput"].df >= 3
    verdict = project.verdicts("grown.json")["performance"]
    assert (verdict.outcome, verdict.headline) == (
        Outcome.RECORDED,
        f"baseline grew to 4 of 4 days ({size} runs)",
    )
    assert verdict.metrics[0].change is not None
    assert project.baseline_file().read_bytes() == full
    assert not re.search("baseline (not )?gr[eo]w", output_of(last))
    assert "recorded" not in last_line(last)


def test_only_the_same_code_and_build_is_added_and_a_committed_baseline_changes_none(
    project: Project,
) -> None:
    project.suite()
    tracked = project.path / "service.py"
    tracked.write_text("first")
    git(project.path, "init", "--quiet")
    git(project.path, "add", "suites", "service.py")
    git(project.path, "commit", "--quiet", "--message=suite")
    project.run("suites", *FIRST)
    git(project.path, "add", "baselines")
    git(project.path, "commit", "--quiet", "--message=baseline")

    a_day_earlier(project.baseline_file())
    git(project.path, "commit", "--quiet", "--all", "--message=earlier")
    project.run("suites", *GROW)
    grown = project.recorded()
    tracked.write_text("second")
    dirty = project.run("suites", *GROW)
    git(project.path, "commit", "--quiet", "--all", "--message=code")
    changed = project.run("suites", *GROW)
    project.suite(options=OPTIONS.replace("batch_size = 16", "batch_size = 8"))
    other = project.run("suites", *GROW)

    assert len(grown.sessions) == 2
    assert len({run.commit for run in grown.runs}) == 2
    assert re.search(r"2 of 4 days: \w{12} was measured with uncommitted", output_of(dirty))
    commits = r"which has 2 of 4 days: commit \w{12} → \w{12}: only a"
    assert re.search(commits, output_of(changed))
    not_grown = "no session added to the baseline, which has 2 of 4 days: engine.batch_size 16 → "
    assert not_grown in output_of(other)
    assert "only a session of the same build can be added" in output_of(other)
    assert project.recorded() == grown


def test_a_session_whose_clock_was_set_back_adds_no_day(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(monkeypatch, null_engine(*near(RATE)))
    project.suite()
    project.run("suites", *FIRST)
    file, today = project.baseline_file(), dt.datetime.now(dt.UTC).date()
    text = file.read_text("utf-8")
    for day in (today, today - dt.timedelta(days=1)):
        text = text.replace(f"{day}T", f"{today + dt.timedelta(days=2)}T")
    file.write_text(text, "utf-8")

    result = project.run("suites", *GROW)

    message = f"the baseline has a session of {today + dt.timedelta(days=2)}, later than this one"
    assert message in output_of(result)
    assert len(project.recorded().sessions) == 1
