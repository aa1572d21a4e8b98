"""Without what only Linux has, and without what only measuring needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_mlperf.core.contention import NOT_MEASURED
from pytest_mlperf.core.errors import TO_MEASURE
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.stores.results import read_results
from tests.cli.lab import Lab

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("_processes")]

ROOT = Path(__file__).parents[2]

MACOS = """
    os.sched_getaffinity os.sched_setaffinity os.pidfd_open os.O_TMPFILE
    signal.pidfd_send_signal /proc/ /sys/
"""
"""What macOS has not; it also has other signals, and tells nothing of its cgroups."""

NO_UNIX = f"""
    {MACOS} fcntl resource os.killpg os.setpgid os.getpgrp os.sysconf os.geteuid os.fchmod
    os.O_DIRECTORY os.O_NOFOLLOW os.O_NONBLOCK os.O_CLOEXEC select.poll signal.alarm
"""
"""What a system without Unix's files and processes lacks as well."""

MEASURING = "numpy pynvml mlperf_loadgen"
"""What is imported to measure, and not to judge."""

SUITE = """
schema = 1
round = "v4.1"
[workload]
name = "first"
dataset = { use = "synthetic", samples = 32 }
scorer = { use = "top1" }
reference = { top1 = 100.0 }
[[engines]]
use = "null"
options = { latency_s = 0.002, batch_size = 16, threads = 1 }
[[scenarios]]
name = "Offline"
target_qps = 500
min_duration = "100ms"
[limits]
throughput = { max_drop = "30%" }
"""


def run(lacking: str, *command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder; it and its child Pythons lack the named parts."""
    environment = {
        **os.environ,
        "LACKING": lacking,
        "PYTHONPATH": os.pathsep.join((str(ROOT / "tests" / "elsewhere"), str(ROOT))),
        "PYTEST_MLPERF_LEASES": str(folder / "leases"),
    }
    for name in ("CI", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        environment.pop(name, None)
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def measured(lacking: str, folder: Path, *options: str) -> dict[str, CaseResult]:
    """Return the results of a session of the null engine, by the kind of test."""
    (folder / "baselines").mkdir(exist_ok=True)
    (folder / "first.mlperf.toml").write_text(SUITE, "utf-8")
    results_at_start = set(folder.glob(".mlperf/runs/*/results.json"))
    light = ("-p", "no:cacheprovider", "-p", "no:benchmark", "-p", "no:hypothesispytest")
    done = run(lacking, "-m", "pytest", "first.mlperf.toml", *light, *options, folder=folder)
    new = [*set(folder.glob(".mlperf/runs/*/results.json")) - results_at_start]
    assert new, done.stdout + done.stderr
    return {case.verdict.kind: case for case in read_results(new[0]).cases}


@pytest.fixture
def _processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start interpreters, not forks, so that parts are missing from their start."""
    monkeypatch.undo()


def test_a_session_measures_where_linux_own_calls_and_files_are_lacking(tmp_path: Path) -> None:
    recording = ("--mlperf-update=missing", "-omlperf_baseline_runs=5")
    recorded = measured(MACOS, tmp_path, *recording)
    judged = measured(MACOS, tmp_path)

    assert {case.verdict.outcome for case in recorded.values()} == {Outcome.RECORDED}
    assert judged["accuracy"].verdict.outcome is Outcome.OK
    assert judged["performance"].verdict.outcome in {Outcome.OK, Outcome.PROVISIONAL}
    verdict = judged["performance"].verdict
    assert any(NOT_MEASURED in note for note in map(sentence, verdict.notes)), verdict.notes
    for run_record in verdict.runs:
        seen = run_record.load.contention
        assert seen is not None
        assert (seen.cores, seen.foreign_s, seen.share) == (os.cpu_count(), None, None)
        assert not seen.has_cpu_times
    assert list((tmp_path / "leases").rglob("*.lock"))  # locks are portable


def test_measuring_commands_name_the_extra_that_they_need(tmp_path: Path) -> None:
    doctor = run(MEASURING, "-m", "pytest_mlperf", "doctor", folder=tmp_path)
    case = measured(MEASURING, tmp_path)["performance"]

    assert case.verdict.outcome is Outcome.ERROR
    assert "needs LoadGen, which is not installed; try: " + TO_MEASURE in str(case.verdict)
    assert TO_MEASURE in doctor.stdout
    assert doctor.stderr == ""


KERNEL = """
import importlib, json, pkgutil, pytest_mlperf
names = [m.name for m in pkgutil.walk_packages(pytest_mlperf.__path__, "pytest_mlperf.")]
kernel = [n for n in names if not n.startswith("pytest_mlperf.adapters") and "__main__" not in n]
for name in kernel:
    importlib.import_module(name)
print(len(kernel))
"""


@pytest.mark.parametrize("lacking", [MACOS, NO_UNIX, MEASURING])
def test_every_module_of_the_kernel_can_be_imported(lacking: str, tmp_path: Path) -> None:
    done = run(lacking, "-W", "ignore", "-c", KERNEL, folder=tmp_path)

    assert done.stderr == ""
    assert int(done.stdout) > 200


JUDGE = """
import sys
before = set(sys.modules)
import pytest_mlperf.judge
print(sorted({n.partition(".")[0] for n in set(sys.modules) - before} - sys.stdlib_module_names))
"""


def test_judging_commands_work_without_measuring_libraries_and_without_unix(own_lab: Lab) -> None:
    folder, lacking = own_lab.path, f"{NO_UNIX} {MEASURING}"
    old, new = map(str, (own_lab.unchanged, own_lab.upgraded))

    def say(*command: str) -> tuple[int, str]:
        done = run(lacking, "-W", "ignore", "-m", "pytest_mlperf", *command, folder=folder)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr

    assert run(lacking, "-c", JUDGE, folder=folder).stdout == "['pytest_mlperf']\n"
    assert say("--version")[0] == 0
    assert "1 case in both results: 1 " in say("compare", old, new)[1]
    for form in ("text", "html", "json", "markdown", "csv", "junit"):
        assert say("report", new, "--format", form, "-o", f"out/{form}")[0] == 0
        assert (folder / "out" / form).stat().st_size
    assert json.loads((folder / "out" / "json").read_text("utf-8"))["cases"]
    assert say("merge", old, "-o", "merged.json")[0] == 0
    assert read_results(folder / "merged.json").cases
    assert say("explain", new)[0] == 0
