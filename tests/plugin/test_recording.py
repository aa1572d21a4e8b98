"""Baselines are recorded on request only, whole, with their reason; else they are only read."""

from __future__ import annotations

import json
import os
import re

import pytest

from pytest_mlperf.core.baseline import Property
from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.hardware import host as cpu
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.stores.results import read_results
from tests.core.made import on_day
from tests.plugin.project import (
    RATE,
    SERVER,
    Project,
    case,
    last_line,
    near,
    section,
    spec_of,
)
from tests.stores.killed import git

RECORD = ("--mlperf-update=missing", "-omlperf_baseline_runs=2")
REASON = "--mlperf-reason=kernels were fused"


def test_an_absent_baseline_is_recorded_once_judged_and_appended_to(project: Project) -> None:
    """An engine of other options is not appended to it."""
    project.suite(top1=100.0)

    first = project.run("suites", *RECORD, "--mlperf-json=1.json")
    record = project.recorded()
    second = project.run("suites", "--mlperf-max-runs=2", "--mlperf-json=2.json")

    assert last_line(first) == "2 recorded"
    assert project.verdicts("1.json")["performance"].headline == (
        "2 runs in baselines/cpu/quick/first/Offline.null.fp32.json"
    )
    folders = project.run_folders()[:2]
    assert {run.session for run in record.runs} == {folder.parent.name for folder in folders}
    assert [spec_of(folder)["folder"] for folder in folders] == [str(f) for f in folders]
    assert len(record.runs) == 2
    assert record.identity == cpu.identity()
    assert (record.target_qps, record.qps_source) == (RATE, "suite")
    assert record.fingerprint["engine.latency_s"] == "0.002"
    assert set(record.minimum_detectable_change) == {"throughput"}
    (entry,) = record.history
    assert (entry.action, entry.reason, entry.runs, entry.old) == (
        "record",
        "first baseline",
        2,
        {},
    )
    assert last_line(second) in {"2 passed", "1 passed, 1 inconclusive", "1 passed, 1 provisional"}
    assert project.verdicts("2.json")["performance"].metrics[0].baseline.runs == 2
    assert project.recorded() == record

    third = project.run("suites", "--mlperf-update=append", REASON)

    appended = project.recorded()
    assert last_line(third) == "2 recorded"
    assert appended.runs[:2] == record.runs
    assert len(appended.runs) == 4
    assert len({run.session for run in appended.runs}) == 2
    assert [(e.action, e.reason, e.runs) for e in appended.history] == [
        ("record", "first baseline", 2),
        ("append", "kernels were fused", 4),
    ]

    project.suite(options="{ latency_s = 0.002, batch_size = 8, threads = 1 }")
    refused = project.run("suites", "--mlperf-update=append", REASON)

    assert last_line(refused) == "1 failed"
    refused.stdout.fnmatch_lines(
        ["ERROR baseline: cannot append to the baseline: engine.batch_size ('16' → '8')*"]
    )
    assert project.recorded() == appended


BESIDE = """
import shutil
from pathlib import Path

from pytest_mlperf.builtin.null import NullEngine

class Beside(NullEngine):
    def __enter__(self):  # another session ends while this one measures
        other = Path("other.json")
        if other.exists():
            shutil.copy(other, "baselines/cpu/quick/first/Offline.Beside.fp32.json")
        return super().__enter__()
"""


def more_sessions(content: bytes, sessions: int) -> bytes:
    """Return a baseline file with runs of this many other sessions, and days, of the same build."""
    file = json.loads(content)
    (record,) = file["records"]
    for number in range(sessions):
        theirs = {"session": f"theirs-{number}", "started": on_day(number)}
        record["runs"] += [{**run, **theirs} for run in record["runs"][:2]]
        record["history"].append({**record["history"][0], "action": "append", "reason": "theirs"})
    return json.dumps(file).encode()


def test_runs_recorded_by_another_session_in_between_stay(project: Project) -> None:
    """Appended runs are kept below ours; `missing` does not replace runs that it recorded first.

    A baseline that it completed does not grow; one that it made longer does.
    """
    project.pytester.makepyfile(beside=BESIDE)
    entry = '[[engines]]\nuse = "beside:Beside"\nprecision = "fp32"\naccelerators = ["cpu"]\n'
    project.suite(engines=f"{entry}options = {{ latency_s = 0.002 }}\n")
    file = project.path / "baselines/cpu/quick/first/Offline.Beside.fp32.json"
    other = project.path / "other.json"
    project.run("suites", *RECORD)
    alone = file.read_bytes()
    other.write_bytes(more_sessions(alone, 1))

    result = project.run("suites", "--mlperf-update=append", "--mlperf-reason=ours")

    (record,) = json.loads(file.read_text("utf-8"))["records"]
    assert len(record["runs"]) == 6
    assert [entry["reason"] for entry in record["history"]] == ["first baseline", "theirs", "ours"]
    result.stdout.fnmatch_lines(["*6 runs in baselines/*"])

    file.unlink()
    missing = project.run("suites", *RECORD)

    assert file.read_bytes() == other.read_bytes()
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(["ERROR baseline: *another session recorded it while this one*"])

    for sessions in (1, 3):
        file.write_bytes(alone)
        other.write_bytes(more_sessions(alone, sessions))
        theirs = json.loads(other.read_bytes())["records"][0]["runs"]

        result = project.run("suites", "--mlperf-update=missing", "--mlperf-json=last.json")

        complete = sessions == 3
        runs = json.loads(file.read_bytes())["records"][0]["runs"]
        assert runs[: len(theirs)] == theirs
        assert len(runs) == (8 if complete else 6)
        (last,) = read_results(project.path / "last.json").cases
        assert (last.verdict.outcome is Outcome.RECORDED) != complete
        text = " ".join(" ".join(section(result)).split())
        assert ("another session completed or replaced the baseline" in text) == complete


def test_append_without_a_baseline_is_refused_before_anything_is_measured(
    project: Project,
) -> None:
    project.suite()

    result = project.run("suites", "--mlperf-update=append", REASON)

    assert last_line(result) == "1 failed"
    result.stdout.fnmatch_lines(["ERROR baseline: *no baseline to append to*"])
    assert project.run_folders() == []


def test_replace_keeps_the_history_with_its_reason(project: Project) -> None:
    """And accepts another offered rate, but a worse value only where the command says so."""
    project.suite()
    project.baseline(near(RATE * 2))
    record = project.recorded()
    fast = SERVER.replace("target_qps = 20", "target_qps = 2000\nmin_query_count = 662")
    options = "{ latency_s = 0.0001 }"
    project.suite("suites/fast.mlperf.toml", name="fast", scenarios=fast, options=options)
    server = case(workload="fast", scenario=Scenario.SERVER)
    project.baseline(near(0.01), of=server, metric="latency_p50", target_qps=30)

    replace = ("suites", "--mlperf-update=replace", REASON, "-omlperf_baseline_runs=2")
    refused = project.run(*replace)
    assert last_line(refused) == "1 failed, 1 recorded"
    refused.stdout.fnmatch_lines(
        [
            "PERF DROP nothing recorded, worse than the baseline: throughput * -> *",
            "accept    pytest * --mlperf-update=replace --mlperf-accept-regression *",
        ]
    )
    assert project.recorded() == record
    result = project.run(*replace, "--mlperf-accept-regression")

    after = project.recorded()
    assert last_line(result) == "2 recorded"
    result.stdout.fnmatch_lines(["note * replaced: throughput * -> *"])
    assert len(after.runs) == 2
    assert after.history[0] == record.history[0]
    last = after.history[1]
    assert (last.action, last.reason) == ("replace", "kernels were fused")
    assert last.old["throughput"] == pytest.approx(RATE * 2, rel=0.01)
    assert last.new["throughput"] == pytest.approx(RATE, rel=0.4)
    assert project.recorded(server).target_qps == 2000


def test_nothing_is_recorded_when_a_run_fails(project: Project) -> None:
    missing = '[[engines]]\nuse = "mine:Missing"\nname = "null"\n'
    project.suite("suites/missed.mlperf.toml", name="missed", top1=200.0)
    project.suite("suites/broken.mlperf.toml", name="broken", engines=missing)

    result = project.run("suites", *RECORD)

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    outcomes = [(r.verdict.case.workload, r.verdict.outcome) for r in project.results().cases]
    assert outcomes == [
        ("broken", Outcome.ERROR),
        ("missed", Outcome.GATE_FAIL),
        ("missed", Outcome.INVALID),
    ]
    assert not list(project.path.rglob("baselines/**/*.json"))


def test_a_baseline_that_cannot_be_read_is_an_error_before_anything_is_measured(
    project: Project,
) -> None:
    """Whether it is judged by or recorded."""
    baseline = project.baseline(near(RATE))
    text = baseline.read_text("utf-8").replace('"first"', '"other"')
    baseline.unlink()
    rows = {
        "damaged": ("{", "is not JSON: line 1, column 2"),
        "newer": (
            '{"schema": 99}',
            "written by a newer pytest-mlperf (schema 99; this one reads up to 1): upgrade",
        ),
        "foreign": (text, "this is the baseline of other-Offline-null-fp32-cpu, not of"),
        "folder": (None, "cannot be read as a baseline file: it is a folder"),
        "file": (None, "cannot be read: Not a directory"),
    }
    files = {}
    for name, (content, _) in rows.items():
        project.suite(f"suites/{name}.mlperf.toml", name=name)
        path = files[name] = project.baseline_file(case(workload=name))
        path.parent.mkdir(parents=True, exist_ok=True)
        if name == "file":
            path.parent.rmdir()
            path.parent.write_text("")
        elif content is None:
            path.mkdir()
        else:
            path.write_text(content, "utf-8")

    for option in ((), RECORD):
        result = project.run("suites", *option, "--mlperf-json=all.json")

        assert last_line(result) == "5 failed"
        verdicts = {
            each.verdict.case.workload: sentence(each.verdict.headline)
            for each in read_results(project.path / "all.json").cases
        }
        for name, (_, reason) in rows.items():
            baseline_path = files[name].relative_to(project.path)
            assert verdicts[name].startswith(f"baseline: {baseline_path}: ")
            assert reason in verdicts[name]
        assert project.run_folders() == []


def test_a_folder_that_cannot_be_written_is_an_error_before_anything_is_measured(
    project: Project,
) -> None:
    project.suite()
    (project.path / "baselines").chmod(0o555)
    if os.access(project.path / "baselines", os.W_OK):
        pytest.skip("this user may write everywhere")

    result = project.run("suites", *RECORD)

    assert last_line(result) == "1 failed"
    headline = project.verdicts()["performance"].headline
    assert headline == "baseline: baselines is not writable; nothing was measured"
    assert project.run_folders() == []


def test_missing_baselines_are_recorded_and_existing_ones_judged(project: Project) -> None:
    """A record of another machine is kept with the new one.

    A p99 limit that is not applied is reported as such.
    """
    project.suite("suites/old.mlperf.toml")
    project.suite("suites/other.mlperf.toml", name="other")
    fast = SERVER.replace("target_qps = 20", "target_qps = 4000\nmin_query_count = 662")
    options = "{ threads = 1 }"
    project.suite("suites/new.mlperf.toml", name="new", scenarios=fast, options=options)
    content = project.baseline(near(RATE)).read_bytes()
    identity: dict[str, Property] = {"cpu": "Other", "cores": 96, "governor": None}
    path = project.baseline(near(RATE), of=case(workload="other"), identity=identity)

    result = project.run("suites", *RECORD)

    assert last_line(result) == "1 passed, 2 recorded"
    new = project.recorded(case(workload="new", scenario=Scenario.SERVER))
    assert len(new.runs) == 2
    text = " ".join(result.stdout.str().split())
    assert "p99 latency is only reported: a gate needs 1,000 queries a run" in text
    assert set(new.minimum_detectable_change) == {"latency_p50"}
    assert project.baseline_file().read_bytes() == content
    records = json.loads(path.read_text("utf-8"))["records"]
    assert [record["identity"]["cpu"] for record in records] == ["Other", cpu.identity()["cpu"]]


def test_git_sees_the_baseline_and_nothing_of_the_runs(project: Project) -> None:
    """Without a folder of baselines above the suite one is made next to it.

    A record that cannot prove its limit states its detectable change.
    """
    (project.path / "baselines").rmdir()
    project.suite(more='[limits]\nthroughput = { max_drop = "1%" }\n')
    git(project.path, "init", "--quiet")
    git(project.path, "add", ".")
    git(project.path, "commit", "--quiet", "--message", "suite")
    commit = git(project.path, "rev-parse", "--short=12", "HEAD").strip()

    result = project.run("suites", *RECORD, "-p", "no:cacheprovider", "-p", "no:benchmark")

    file = "suites/baselines/cpu/quick/first/Offline.null.fp32.json"
    assert git(project.path, "status", "--porcelain", "--untracked-files=all").split() == [
        "??",
        file,
    ]
    runs = json.loads((project.path / file).read_bytes())["records"][0]["runs"]
    assert {run["commit"] for run in runs} == {commit}
    assert project.results().commit == commit
    text = " ".join(" ".join(section(result)).split())
    assert re.search(
        r"regression is above the limit: .* in samples/s \(limit 1 %\): .*=append", text
    )
