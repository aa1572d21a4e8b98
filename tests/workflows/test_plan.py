"""The first job of gpu.yml: a matrix that GitHub can run, and a manifest that holds all of it."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.workflows.github import ROOT, Runner, recorder, words, workflow

GPU = workflow("gpu")
PLAN = GPU.script("plan", "Plan")
REFUSE = GPU.script("plan", "Refuse what does not go together")

LIMIT = 2**20
"""Bytes of a job's outputs on GitHub."""

SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    """Return a job whose workspace has this repository's suites."""
    found = Runner(tmp_path)
    for name in ("suites", "pyproject.toml", "conftest.py"):
        (found.workspace / name).symlink_to(ROOT / name)
    return found


def plan(runner: Runner, suites: str, accelerator: str = "") -> tuple[list[Any], dict[str, Any]]:
    """Run the step; return the jobs of the matrix, and the manifest."""
    done = runner.run(PLAN, SUITES=suites, ACCELERATOR=accelerator, PROFILE="quick")

    assert done.returncode == 0, done.stderr
    matrix = runner.outputs()["matrix"]
    assert len(matrix.encode()) < LIMIT
    manifest = json.loads((runner.workspace / "plan.json").read_text("utf-8"))
    return json.loads(matrix)["include"], manifest


@pytest.mark.parametrize(
    ("suites", "accelerator"), [("suites", ""), ("suites/datacenter suites/edge", "H200")]
)
def test_every_case_is_in_exactly_one_job(runner: Runner, suites: str, accelerator: str) -> None:
    """Jobs are pairs of accelerator and suite, each once, with labels that runners have."""
    jobs, manifest = plan(runner, suites, accelerator)

    pairs = Counter((job["accelerator"], job["suite"]) for job in jobs)
    assert 0 < len(jobs) <= 256
    assert set(pairs.values()) == {1}
    assert set(pairs) == {(case["accelerator"], case["suite"]) for case in manifest["cases"]}
    assert set(Counter(test["test"] for test in manifest["tests"]).values()) == {1}
    assert {test["case"] for test in manifest["tests"]} == {one["id"] for one in manifest["cases"]}
    assert not accelerator or {job["accelerator"] for job in jobs} == {accelerator}
    for job in jobs:
        own = "cpu" if job["accelerator"] == "cpu" else f"gpu-{job['accelerator'].lower()}"
        assert job["runner"] == ["self-hosted", "linux", own]
        assert LABEL.fullmatch(own)
    assert f"{len(manifest['cases'])} cases" in runner.summary()
    assert "accelerator-hours" in runner.summary()


LABEL = re.compile(r"cpu|gpu-([1-9][0-9]*x)?[a-z][a-z0-9]*")
"""What docs/github-actions.md tells a team to give its runners."""


SUITE = """schema = 1
round = "v4.1"

[workload]
name = "{name}"
dataset = {{ use = "synthetic", samples = 32 }}

[[engines]]
use = "null"
accelerators = {accelerators}
options = {{ latency_s = 0.002, batch_size = 16, threads = 1 }}

[[scenarios]]
name = "Offline"
target_qps = 500
"""


@pytest.mark.parametrize(("count", "code"), [(256, 0), (257, 2)])
def test_a_matrix_that_github_would_not_run_is_refused(
    tmp_path: Path, count: int, code: int
) -> None:
    """256 jobs with long names fit GitHub's limit of an output; one more is no matrix."""
    runner = Runner(tmp_path)
    names = [f"{number + 1}xB200" for number in range(count)]
    file = runner.workspace / "suites" / ("long-" * 40) / f"{'name-' * 40}.mlperf.toml"
    file.parent.mkdir(parents=True)
    file.write_text(SUITE.format(name="many", accelerators=json.dumps(names)), "utf-8")

    done = runner.run(PLAN, SUITES="suites", ACCELERATOR="", PROFILE="quick")

    assert done.returncode == code, done.stderr
    if code:
        assert "257 jobs, GitHub makes 256" in done.stderr.replace("\n", " ")
        assert runner.outputs() == {}
    else:
        assert 100_000 < len(runner.outputs()["matrix"].encode()) < LIMIT


HOSTILE = ["$(touch {0})", "`touch {0}`", ";touch${{IFS}}{0};#", "--runs-dir=/tmp", "'\"", "*"]


@pytest.mark.parametrize("text", HOSTILE)
def test_an_input_that_is_a_command_stays_a_word(runner: Runner, text: str) -> None:
    """Words of `suites` are apart by spaces, as a person writes them; they are never options."""
    given = text.format(runner.folder / "pwned")
    record = recorder(runner, "pytest-mlperf")

    done = runner.run(PLAN, SUITES=f"{given} b", ACCELERATOR=given, PROFILE=given)

    assert done.returncode == 0, done.stderr
    options = ["pytest-mlperf", "plan", "--profile", given, f"--accelerator={given}"]
    last = ["--", *given.split(), "b"]
    assert words(record) == [
        [*options, "--format", "json", *last],
        [*options, "--format", "github", *last],
        [*options, *last],
    ]
    assert list(runner.folder.rglob("pwned*")) == []


def test_what_is_no_plan_sets_no_matrix(runner: Runner) -> None:
    done = runner.run(PLAN, SUITES="suites/tiny", ACCELERATOR="H2000", PROFILE="quick")

    assert done.returncode == 2
    assert "no case runs on 'H2000'" in done.stderr
    assert runner.outputs() == {}


@pytest.mark.parametrize(
    ("purpose", "reason", "sha", "pr", "code"),
    [
        ("gate", "", "", "", 0),
        ("baseline", "new driver", "", "", 0),
        ("baseline", "", "", "", 2),
        ("gate", "", SHA, "7", 0),
        ("gate", "", SHA, "", 2),
        ("gate", "", "", "7", 2),
        ("gate", "", SHA[:12], "7", 2),
        ("gate", "", "main", "7", 2),
        ("gate", "", f"{SHA}\nmain", "7", 2),
        ("gate", "", SHA, "7; true", 2),
        ("baseline", "new driver", SHA, "7", 2),
    ],
)
def test_only_whole_commits_are_measured_and_only_branches_make_baselines(
    runner: Runner, purpose: str, reason: str, sha: str, pr: str, code: int
) -> None:
    done = runner.run(REFUSE, PURPOSE=purpose, REASON=reason, SHA=sha, PR=pr)

    assert done.returncode == code
    assert done.stdout.startswith("::error::") is bool(code)


def test_the_commit_of_a_fork_is_planned_and_measured_and_nothing_else() -> None:
    """Both checkouts name it alike; what merges and judges checks out the branch."""
    refs = {
        job: [step["with"].get("ref") for step in content["steps"] if "checkout@" in str(step)]
        for job, content in GPU.jobs.items()
    }
    fork = "${{ inputs.sha || github.sha }}"

    assert refs == {"plan": [fork], "run": [None, fork], "merge": [None]}


def test_jobs_of_one_machine_wait_for_each_other_and_none_is_dropped() -> None:
    """Without a queue GitHub cancels all but the newest that waits."""
    run = GPU.jobs["run"]

    assert run["concurrency"] == {
        "group": "gpu-${{ matrix.accelerator }}",
        "cancel-in-progress": False,
        "queue": "max",
    }
    assert run["strategy"]["fail-fast"] is False
    assert GPU.content["concurrency"]["cancel-in-progress"] is False
    assert GPU.content["concurrency"]["queue"] == "max"
