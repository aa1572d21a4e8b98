"""A project whose engine has versions, and real sessions of it: recorded, unchanged, upgraded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.stores.results import read_results, write_results
from tests import forked
from tests.sessions import spread

ROOT = Path(__file__).parents[2]

CASE = "first-Offline-Acme-fp32-cpu"
SUITE = "suites/first.mlperf.toml"
BASELINE = "baselines/cpu/quick/first/Offline.Acme.fp32.json"
ACCURACY, PERFORMANCE = (f"{SUITE}::test_{kind}[{CASE}]" for kind in ("accuracy", "performance"))

ENGINE = '''\
"""An engine as a library with releases: acme.txt is what is installed, 2.0 is a sixth as fast."""

from pathlib import Path

from pytest_mlperf.builtin.null import NullEngine


class Acme(NullEngine):
    """Sleeps in batches of 16, so its speed does not depend on the load of the machine."""

    def __init__(self, dataset, model=None, precision="", *, threads=1):
        self.version = Path("acme.txt").read_text().strip()
        slow = 6 if self.version == "2.0" else 1
        super().__init__(dataset, latency_s=0.002 * slow, batch_size=16, threads=threads)

    def describe(self):
        return {"engine": "acme", "acme": self.version}
'''

TEXT = """\
schema = 1
round = "v4.1"

[workload]
name = "first"
dataset = { use = "synthetic", samples = 32 }
scorer = { use = "top1" }
reference = { top1 = 100.0 }

[[engines]]
use = "acme:Acme"
accelerators = ["cpu", "H200"]

[[scenarios]]
name = "Offline"
target_qps = 500
min_duration = "100ms"

[limits]
throughput = { max_drop = "30%" }
"""

LIGHT = ("-p", "no:cacheprovider", "-p", "no:benchmark")


@dataclass(frozen=True)
class Lab:
    """The project, with the results of its sessions by name.

    Attributes:
        path: The root folder; a git repository whose only commit holds the baselines of acme 1.0,
            as if they had been recorded over some days.
        recorded: The session that recorded them: 5 runs, or more if one was an outlier; acme 1.0.
        unchanged: A session of acme 1.0 again.
        upgraded: A session of acme 2.0, a sixth as fast: more than any two sessions differ by.
    """

    path: Path
    recorded: Path
    unchanged: Path
    upgraded: Path

    def copy(self, to: Path) -> Lab:
        """Return a copy of the project that a test may change."""
        shutil.copytree(self.path, to, symlinks=True)
        copies = {
            name: to / getattr(self, name).relative_to(self.path)
            for name in ("recorded", "unchanged", "upgraded")
        }
        return Lab(path=to, **copies)

    def of_one_session(self) -> None:
        """Make its baseline one that a single session recorded, as the first one always is."""
        file = self.path / BASELINE
        content = json.loads(file.read_text("utf-8"))
        (record,) = content["records"]
        del record["session_noise"]
        for run in record["runs"]:
            run["session"] = "the only one"
        file.write_text(json.dumps(content), "utf-8")


def build(path: Path, leases: Path) -> Lab:
    """Make the project and run its sessions."""
    (path / "suites").mkdir()
    (path / "baselines").mkdir()
    (path / SUITE).write_text(TEXT, "utf-8")
    (path / "acme.py").write_text(ENGINE, "utf-8")
    (path / ".gitignore").write_text(".mlperf/\n__pycache__/\n", "utf-8")
    record = ("--mlperf-update=missing", "-omlperf_baseline_runs=5")
    recorded = session(path, leases, "1.0", *record)
    for _ in range(2):  # a neighbour can disturb one of five runs of 0.1 s
        if not (path / BASELINE).exists():
            shutil.rmtree(recorded.parent)
            recorded = session(path, leases, "1.0", *record)
    spread(path / BASELINE)
    git(path, "init", "-q", "-b", "main")
    git(path, "add", ".")
    git(path, "commit", "-q", "-m", "acme 1.0")
    unchanged = session(path, leases, "1.0")
    upgraded = session(path, leases, "2.0")
    return Lab(path=path, recorded=recorded, unchanged=unchanged, upgraded=upgraded)


def session(path: Path, leases: Path, version: str, *options: str) -> Path:
    """Run pytest on the suite with a release of acme; return the results file."""
    (path / "acme.txt").write_text(version, "utf-8")
    runs_at_start = set(path.glob(".mlperf/runs/*"))
    # What else runs on this machine is no concern of these tests.
    plain = ("suites", "-omlperf_control=off")
    command = [sys.executable, "-m", "pytest", *LIGHT, *plain, *options]
    environment = {**os.environ, "PYTEST_MLPERF_LEASES": str(leases), "PYTHONPATH": str(ROOT)}
    environment.pop("CI", None)
    environment.pop("PYTEST_XDIST_WORKER", None)
    with pytest.MonkeyPatch.context() as patch:
        forked.use(patch)
        done = subprocess.run(
            command, cwd=path, env=environment, capture_output=True, text=True, check=False
        )
    (new,) = set(path.glob(".mlperf/runs/*")) - runs_at_start
    assert (new / "results.json").is_file(), done.stdout + done.stderr
    return new / "results.json"


def git(path: Path, *arguments: str) -> str:
    """Run git in a project."""
    named = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    done = subprocess.run(
        ["git", *named, *arguments], cwd=path, capture_output=True, text=True, check=True
    )
    return done.stdout


def performance(results: Path | Results) -> CaseResult:
    """Return the only performance test of a session."""
    session_results = read_results(results) if isinstance(results, Path) else results
    (only,) = [case for case in session_results.cases if case.verdict.kind == "performance"]
    return only


def edit_cases(file: Path, edit: Callable[[CaseResult], CaseResult]) -> Results:
    """Change each test of a results file."""
    session_results = read_results(file)
    changed = replace(session_results, cases=tuple(map(edit, session_results.cases)))
    write_results(file, changed)
    return changed


def with_runs(case: CaseResult, **fields: Any) -> CaseResult:
    """Return a test with changed runs."""
    runs = tuple(replace(run, **fields) for run in case.verdict.runs)
    return replace(case, verdict=replace(case.verdict, runs=runs))
